//! What becomes of an agent's report when the next agent starts.

use super::*;

/// Every restart said Ready=False for a second, and so did 5,000 nodes in an upgrade of agents.
#[tokio::test(start_paused = true)]
async fn a_restart_on_a_ready_node_is_no_event_and_keeps_the_time_of_transition() {
    let writes = write_after(
        ready_before(Duration::from_secs(9)),
        vec![
            (1, ready("False", "Starting", 5000)),
            (5, ready("True", "Programmed", 5005)),
            (20, ready("False", "CommitFailed", 5020)),
            (40, ready("True", "Programmed", 5040)),
        ],
    )
    .await;
    let expected = [(5, "True", 1000), (20, "False", 5020), (40, "True", 5040)];
    let expected = expected.map(|(at, status, since)| (at, status.to_owned(), since));
    assert_eq!(writes, expected);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_does_not_get_ready_says_so_after_half_a_minute_and_a_failure_at_once() {
    let starting = || vec![(1, ready("False", "Starting", 5000))];
    let stuck = write_after(ready_before(Duration::from_secs(9)), starting());
    assert_eq!(stuck.await, [(30, "False".to_owned(), 5000)]);
    // Agents that end again and again before they write.
    let crashing = write_after(ready_before(Duration::from_secs(600)), starting());
    assert_eq!(crashing.await, [(1, "False".to_owned(), 5000)]);
    let failing = write_after(
        ready_before(Duration::from_secs(9)),
        vec![(2, ready("False", "CommitFailed", 5000))],
    );
    assert_eq!(failing.await, [(2, "False".to_owned(), 5000)]);
}

/// After an upgrade is taken back, the newer agent's report has values that this one does not know.
#[tokio::test(start_paused = true)]
async fn a_report_that_cannot_be_read_is_replaced() {
    let writes = write_after(
        json!({"mode": "teleport"}),
        vec![(1, ready("False", "Starting", 5000))],
    );
    assert_eq!(writes.await, [(1, "False".to_owned(), 5000)]);
}

/// Failure story T264. The times of its conditions were lost with it.
#[tokio::test(start_paused = true)]
async fn t264_a_report_with_an_unknown_value_is_carried_on_otherwise() {
    let mut earlier = json!(ready_before(Duration::from_secs(9)));
    earlier["mode"] = json!("teleport");
    let writes = write_after(earlier, vec![(1, ready("True", "Programmed", 5000))]);
    assert_eq!(writes.await, [(1, "True".to_owned(), 1000)]);
}

/// An idle node's last report may be days old when its agent is restarted.
#[tokio::test(start_paused = true)]
async fn t263_a_report_stands_in_for_a_new_agent_however_long_nothing_has_changed() {
    let (now, starting) = (Timestamp::now(), ready("False", "Starting", 5000));
    let boot = now - Duration::from_secs(1_000_000);
    let mut days_old = ready_before(Duration::from_secs(500_000));
    let without_lease = Earlier::of(days_old.clone(), Some(boot), now);
    assert_eq!(without_lease.stands_until(&starting), None);
    days_old.heartbeat = Some(Heartbeat::Lease);
    let with_lease = Earlier::of(days_old, Some(boot), now);
    assert!(with_lease.stands_until(&starting).is_some());
}

/// Failure story T275. An agent that never got beyond its start, and had no report to stand in, promised no
/// Lease and had no time of a sync: the operator could not see that it had ended.
#[tokio::test(start_paused = true)]
async fn t275_an_agent_that_starts_promises_its_lease() {
    let (posts, mut writes) = start_recorded(&NodeProxyStatus::default());
    posts.status(ready("False", "Starting", 5000));
    let first = writes.recv().await.expect("it is written");
    assert_eq!(first.heartbeat, Some(Heartbeat::Lease));
    // No renewal has succeeded.
    posts.status(ready("True", "Programmed", 5001));
    let second = writes.recv().await.expect("it is written");
    assert_eq!(second.heartbeat, None);
}

/// The kernel of a node that was rebooted has no rules.
#[tokio::test(start_paused = true)]
async fn a_report_from_before_a_reboot_does_not_stand_in() {
    let (now, starting) = (Timestamp::now(), ready("False", "Starting", 5000));
    let earlier = || ready_before(Duration::from_secs(60));
    let boot = now - Duration::from_secs(3600);
    let before = Earlier::of(earlier(), Some(boot), now);
    assert!(before.stands_until(&starting).is_some());
    let rebooted = Earlier::of(earlier(), Some(now), now);
    assert_eq!(rebooted.stands_until(&starting), None);
    let unknown = Earlier::of(earlier(), None, now);
    assert_eq!(unknown.stands_until(&starting), None);
}

/// What an agent cannot know at once keeps its last value for a while, and its time when it is known.
#[tokio::test(start_paused = true)]
async fn what_an_agent_does_not_know_yet_is_as_before() {
    let kind = condition::API_SERVICE_REACHABLE;
    let with = |status: NodeProxyStatus, of_kind: Status, second| {
        let mut status = status;
        let finding =
            condition::Finding::new(kind, of_kind, condition::reason::CONNECTED, String::new());
        let at = Timestamp::from_second(second).expect("a time of this century");
        condition::set_condition(&mut status.conditions, finding, at);
        status
    };
    let before = with(ready_before(Duration::from_secs(9)), Status::True, 1001);
    let mut earlier = Earlier::of(before, Some(Timestamp::UNIX_EPOCH), Timestamp::now());
    let said = |status: &NodeProxyStatus| {
        let mut conditions = status.conditions.iter();
        let condition = conditions.find(|c| c.type_ == kind).cloned();
        condition.map(|c| (c.status, c.last_transition_time.0.as_second()))
    };
    let ready = || ready("True", "Programmed", 5000);
    let unchecked = with(ready(), Status::Unknown, 5000);
    let as_before = Some(("True".to_owned(), 1001));
    assert_eq!(said(&earlier.carry_on(&unchecked)), as_before);
    assert_eq!(said(&earlier.carry_on(&ready())), as_before);
    let checked = with(ready(), Status::True, 5001);
    assert_eq!(said(&earlier.carry_on(&checked)), as_before);
    tokio::time::sleep(Duration::from_secs(31)).await;
    let expected = Some(("Unknown".to_owned(), 5000));
    assert_eq!(said(&earlier.carry_on(&unchecked)), expected);
    let expected = Some(("True".to_owned(), 5001));
    assert_eq!(said(&earlier.carry_on(&checked)), expected);
}
