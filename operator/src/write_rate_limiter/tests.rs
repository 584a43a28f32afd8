use jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::{
    fleet::{Event, Fleet, ObjectChange},
    kube_proxy_daemon_set::KubeProxyDaemonSetState,
    records::ProfileRecord,
};

/// The fraction with which pauses are the longest.
const LONGEST: f64 = 1.0;

fn removal(node: &str) -> Action {
    Action::Delete {
        node: node.into(),
        uid: "1".into(),
        version: None,
    }
}

fn report() -> Action {
    Action::UpdateStatus {
        profile: "default".into(),
        before: None,
        status: Box::default(),
        version: None,
    }
}

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

#[test]
fn a_write_that_keeps_failing_is_tried_less_and_less_often_and_holds_up_no_other() {
    let (mut rate_limiter, mut now) = (WriteRateLimiter::default(), Instant::now());
    let mut pauses = Vec::new();
    for _ in 0..9 {
        let (due, _) = rate_limiter.take_due(vec![removal("n1"), removal("n2")], now);
        assert_eq!(due, [removal("n1"), removal("n2")]);
        rate_limiter.failed(&removal("n1"), "refused", now, LONGEST);
        let (due, next) = rate_limiter.take_due(vec![removal("n1"), removal("n2")], now);
        assert_eq!(due, [removal("n2")]);
        let next = next.expect("it is tried again");
        pauses.push(next.duration_since(now).as_secs());
        now = next;
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    rate_limiter.succeeded(&removal("n1"), now);
    assert_eq!(
        rate_limiter.take_due(vec![removal("n1")], now).0,
        [removal("n1")]
    );
}

/// Failure story T322.
#[test]
fn t322_writes_that_are_refused_together_do_not_return_together() {
    let (mut rate_limiter, now) = (WriteRateLimiter::default(), Instant::now());
    let refused = [("n1", 0.0), ("n2", 0.5), ("n3", LONGEST)];
    let mut pauses = || {
        refused.map(|(node, fraction)| {
            rate_limiter.failed(&removal(node), "refused", now, fraction);
            let (_, next) = rate_limiter.take_due(vec![removal(node)], now);
            next.map(|next| next.duration_since(now).as_millis())
        })
    };
    assert_eq!(pauses(), [500, 750, 1000].map(Some));
    assert_eq!(pauses(), [1000, 1500, 2000].map(Some));
}

#[test]
fn what_is_not_to_be_written_any_more_is_not_waited_for_and_then_forgotten() {
    let (mut rate_limiter, now) = (WriteRateLimiter::default(), Instant::now());
    rate_limiter.failed(&removal("n1"), "refused", now, LONGEST);
    assert_eq!(rate_limiter.take_due(vec![removal("n2")], now).1, None);
    rate_limiter.take_due(Vec::new(), now + seconds(1));
    rate_limiter.failed(&removal("n1"), "refused", now + seconds(2), LONGEST);
    let (_, next) = rate_limiter.take_due(vec![removal("n1")], now + seconds(2));
    assert_eq!(next, Some(now + seconds(3)), "as after a first failure");
}

#[test]
fn the_same_failure_is_reported_once_and_another_one_again() {
    let (mut rate_limiter, now) = (WriteRateLimiter::default(), Instant::now());
    let mut fail = |error: &str| rate_limiter.failed(&report(), error, now, LONGEST);
    let received = ["forbidden", "forbidden", "not valid", "forbidden"].map(&mut fail);
    use FailureRepetition::{New, Repeated};
    assert_eq!(received, [New, Repeated, New, New]);
    assert_eq!(rate_limiter.succeeded(&report(), now), 4);
    assert_eq!(
        rate_limiter.failed(&report(), "forbidden", now, LONGEST),
        New,
        "it had been mended"
    );
}

#[test]
fn a_status_is_written_at_most_once_a_second_and_the_last_word_is_written() {
    let (mut rate_limiter, now) = (WriteRateLimiter::default(), Instant::now());
    assert_eq!(rate_limiter.take_due(vec![report()], now).0.len(), 1);
    rate_limiter.succeeded(&report(), now);
    // No report is pending for a moment.
    assert_eq!(rate_limiter.take_due(Vec::new(), now), (Vec::new(), None));
    let (due, next) = rate_limiter.take_due(vec![report()], now);
    assert_eq!((due, next), (Vec::new(), Some(now + seconds(1))));
    let (due, _) = rate_limiter.take_due(vec![report()], now + seconds(1));
    assert_eq!(due, [report()]);
}

/// The write was retried every second forever: in the second after a try the plan left the status
/// out, so it seemed to be written, and the number of failures was forgotten.
#[test]
fn a_status_the_api_server_refuses_is_tried_less_and_less_often() {
    let profile = json!({"metadata": {"name": "default", "uid": "1", "resourceVersion": "1"}});
    let profile = serde_json::from_value(profile).expect("a profile");
    let mut fleet = Fleet::default();
    fleet.apply(Event::Profile(ObjectChange::Listed(vec![
        ProfileRecord::parse(profile),
    ])));
    fleet.apply(Event::Node(ObjectChange::Listed(Vec::new())));
    fleet.apply(Event::Proxy(ObjectChange::Listed(Vec::new())));
    fleet.apply(Event::AgentDaemonSet(ObjectChange::Listed(Vec::new())));
    fleet.apply(Event::KubeProxyDaemonSet(KubeProxyDaemonSetState::Absent));
    let (mut rate_limiter, start) = (WriteRateLimiter::default(), Instant::now());
    let mut tries = Vec::new();
    for half_second in 0..400 {
        let passed = Duration::from_millis(500 * half_second);
        let now = Timestamp::UNIX_EPOCH + passed;
        for action in rate_limiter
            .take_due(fleet.plan(now, start + passed).actions, start + passed)
            .0
        {
            tries.push(passed.as_secs());
            rate_limiter.failed(&action, "forbidden", start + passed, LONGEST);
        }
    }
    assert_eq!(tries, [0, 1, 3, 7, 15, 31, 63, 123, 183]);
}

/// Failure story T188. The same plan was made again at once, as long as the watch lagged.
#[test]
fn t188_a_write_that_comes_too_late_waits_for_the_watch() {
    let (mut rate_limiter, now) = (WriteRateLimiter::default(), Instant::now());
    rate_limiter.conflicted(&removal("n1"), now);
    let (due, next) = rate_limiter.take_due(vec![removal("n1")], now);
    assert_eq!((due, next), (Vec::new(), Some(now + seconds(1))));
}

/// Failure story T408. A watch that fails reports the change no sooner.
#[test]
fn t408_writes_that_come_too_late_again_and_again_wait_longer() {
    let (mut rate_limiter, start) = (WriteRateLimiter::default(), Instant::now());
    let mut tries = Vec::new();
    for second in 0..200 {
        let now = start + seconds(second);
        for action in rate_limiter.take_due(vec![removal("n1")], now).0 {
            tries.push(second);
            rate_limiter.conflicted(&action, now);
        }
    }
    assert_eq!(tries, [0, 1, 3, 7, 15, 31, 63, 123, 183]);
}
