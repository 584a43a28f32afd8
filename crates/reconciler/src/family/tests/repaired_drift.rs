use std::collections::BTreeSet;

use backend::{Actor, ExternalChange};

use super::*;
use crate::{RecentSyncs, RepairBackoff};

fn nft() -> Actor {
    Actor {
        program: "nft".to_owned(),
        process: 4711,
    }
}

fn by_nft(families: impl Into<BTreeSet<Family>>) -> ExternalChange {
    ExternalChange {
        families: families.into(),
        actor: Some(nft()),
    }
}

fn programmed(kernel: &FakeKernel, clock: &FakeClock) -> Reconciler<FakeBackend> {
    let mut families = Reconciler::new(Vec::from(Family::ALL.map(|family| kernel.backend(family))));
    families.sync(&web_and_cart(), Reason::Startup, clock);
    families
}

fn flush(kernel: &FakeKernel, family: Family) {
    kernel.tamper(family, |rules| *rules = FakeRules::default());
}

#[test]
fn repaired_drift_is_reported_with_its_actor_and_its_size() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut families = programmed(&kernel, &clock);
    flush(&kernel, IPV4);
    families.disturb(&by_nft([IPV4]), clock.now());
    clock.advance(Duration::from_millis(7));

    let syncs = families.sync(&web_and_cart(), Reason::Drift, &clock);

    assert_eq!(syncs.len(), 1, "no program touched IPv6");
    let repaired_drift = syncs[0].repaired_drift.as_ref().expect("there was damage");
    assert_eq!(repaired_drift.actor, Some(nft()));
    assert_eq!(
        (repaired_drift.size.elements, repaired_drift.size.objects),
        (6, 1)
    );
    assert_eq!(repaired_drift.repaired_after, Duration::from_millis(7));
    let line = syncs[0].to_string();
    assert!(
        line.contains("nft (process 4711) had changed 6 elements and 1 objects"),
        "{line}"
    );
    let status = &families.status()[0];
    assert_eq!(status.drifts, 1);
    assert_eq!(status.last_repaired_drift.as_ref(), Some(repaired_drift));
    let [entry] = &*status.drift_by_program else {
        panic!("{:?}", status.drift_by_program)
    };
    assert_eq!(entry.program.as_deref(), Some("nft"));
    assert_eq!((entry.repairs, entry.size), (1, repaired_drift.size));
    assert_held(&kernel, &web_and_cart());
}

#[test]
fn a_disturbance_without_a_difference_is_no_repaired_drift() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut families = programmed(&kernel, &clock);
    kernel.tamper(IPV4, |_| ());
    families.disturb(&by_nft(Family::ALL), clock.now());

    let syncs = families.sync(&web_and_cart(), Reason::Drift, &clock);

    assert_eq!(syncs.len(), 2);
    assert!(syncs.iter().all(|sync| sync.repaired_drift.is_none()));
    assert_eq!(families.status()[0].drifts, 0);
}

/// Damage counts once it is repaired, with the time of all attempts.
#[test]
fn repaired_drift_that_takes_two_attempts_counts_once() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let backend = failing(&kernel, CallOutcome::Refuse(Recovery::Retry), &[1]);
    let mut families = Reconciler::new(vec![backend]);
    families.sync(&web_and_cart(), Reason::Startup, &clock);
    flush(&kernel, IPV4);
    families.disturb(&by_nft([IPV4]), clock.now());

    let failed = families.sync(&web_and_cart(), Reason::Drift, &clock);
    assert_eq!(
        (families.status()[0].drifts, failed[0].succeeded()),
        (0, false)
    );
    clock.advance(Duration::from_millis(50));
    let retried = families.sync(&web_and_cart(), Reason::Retry, &clock);

    let repaired_drift = retried[0].repaired_drift.as_ref().expect("it is repaired");
    assert_eq!(repaired_drift.repaired_after, Duration::from_millis(50));
    assert_eq!(families.status()[0].drifts, 1);
}

/// T20 (k/k#121362): a change that fails because another program deleted rules repairs them in the
/// same sync, and is attributed to that program once it is known.
#[test]
fn t20_a_change_that_stumbles_over_repaired_drift_repairs_it_in_the_same_sync() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let backend = failing(&kernel, CallOutcome::Refuse(Recovery::Observe), &[1]);
    let mut families = Reconciler::new(vec![backend]);
    families.sync(&web_and_cart(), Reason::Startup, &clock);
    flush(&kernel, IPV4);
    let desired = dataplane(&[service("shop/web", 10, &[8081])]);

    let syncs = families.sync(&desired, Reason::Changed, &clock);
    assert_eq!(syncs[0].outcome, Outcome::Committed);
    assert_held(&kernel, &desired);

    families.disturb(&by_nft([IPV4]), clock.now());
    let syncs = families.sync(&desired, Reason::Drift, &clock);
    let repaired_drift = syncs[0].repaired_drift.as_ref().expect("there was damage");
    assert_eq!(
        (repaired_drift.size.elements, repaired_drift.actor.clone()),
        (6, Some(nft()))
    );
}

/// If a check fails, the next one, at the start of a retry, finds the damage.
#[test]
fn repaired_drift_that_could_not_be_read_at_first_is_reported_once_it_is_repaired() {
    for next in [Reason::Retry, Reason::Changed, Reason::Drift] {
        let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
        let unreadable = Arc::new(AtomicBool::new(false));
        let fails = Arc::clone(&unreadable);
        let backend = Faulty::new(kernel.backend(IPV4), move |call| match call {
            Call::Observe if fails.load(Ordering::Relaxed) => {
                CallOutcome::Refuse(Recovery::Observe)
            }
            _ => CallOutcome::Pass,
        });
        let mut families = Reconciler::new(vec![backend]);
        families.sync(&web_and_cart(), Reason::Startup, &clock);
        flush(&kernel, IPV4);
        families.disturb(&by_nft([IPV4]), clock.now());
        unreadable.store(true, Ordering::Relaxed);
        let failed = families.sync(&web_and_cart(), Reason::Drift, &clock);
        assert!(!failed[0].succeeded());
        unreadable.store(false, Ordering::Relaxed);
        clock.advance(Duration::from_millis(50));

        let syncs = families.sync(&web_and_cart(), next, &clock);

        let repaired_drift = syncs[0].repaired_drift.as_ref().expect("there was damage");
        assert_eq!(
            (repaired_drift.size.elements, &repaired_drift.actor),
            (6, &Some(nft()))
        );
        assert_eq!(
            repaired_drift.repaired_after,
            Duration::from_millis(50),
            "{next}"
        );
        assert_eq!(families.status()[0].drifts, 1);
        assert_held(&kernel, &web_and_cart());
        let syncs = families.sync(&web_and_cart(), Reason::Drift, &clock);
        assert!(syncs.is_empty(), "it has been looked for");
    }
}

/// The read after a commit that failed can fail, too.
#[test]
fn repaired_drift_that_was_stumbled_over_and_not_read_is_reported_once_it_is_known_whose_it_is() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut calls = Vec::new();
    let backend = Faulty::new(kernel.backend(IPV4), move |call| {
        calls.push(matches!(call, Call::Observe));
        match calls[..] {
            // A read and a commit at the start; then the commit that fails, and the read after it.
            [_, _, false] | [_, _, _, true] => CallOutcome::Refuse(Recovery::Observe),
            _ => CallOutcome::Pass,
        }
    });
    let mut families = Reconciler::new(vec![backend]);
    families.sync(&web_and_cart(), Reason::Startup, &clock);
    flush(&kernel, IPV4);
    let desired = dataplane(&[service("shop/web", 10, &[8081])]);
    let failed = families.sync(&desired, Reason::Changed, &clock);
    assert!(!failed[0].succeeded());
    let retried = families.sync(&desired, Reason::Retry, &clock);
    assert_eq!(retried[0].outcome, Outcome::Committed);

    families.disturb(&by_nft([IPV4]), clock.now());
    let syncs = families.sync(&desired, Reason::Drift, &clock);
    let repaired_drift = syncs[0].repaired_drift.as_ref().expect("there was damage");
    assert_eq!(
        (repaired_drift.size.elements, &repaired_drift.actor),
        (6, &Some(nft()))
    );
}

/// A program that touches Signpost's table after a partial commit of Signpost did not cause what
/// that commit left.
#[test]
fn what_signposts_own_commit_left_is_no_repaired_drift() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let backend = failing(&kernel, CallOutcome::LoseAnswer, &[1]);
    let mut families = Reconciler::new(vec![backend]);
    families.sync(&web_and_cart(), Reason::Startup, &clock);
    let desired = dataplane(&[service("shop/web", 10, &[8081])]);
    families.sync(&desired, Reason::Changed, &clock);
    assert_held(&kernel, &desired);

    kernel.tamper(IPV4, |_| ());
    families.disturb(&by_nft([IPV4]), clock.now());
    let syncs = families.sync(&desired, Reason::Drift, &clock);
    assert_eq!(syncs[0].repaired_drift, None);
    assert_eq!(families.status()[0].drifts, 0);
}

/// Lost notifications are no evidence against any program.
#[test]
fn what_was_stumbled_over_is_not_reported_before_it_is_known_who_was_there() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let backend = failing(&kernel, CallOutcome::Refuse(Recovery::Observe), &[1]);
    let mut families = Reconciler::new(vec![backend]);
    families.sync(&web_and_cart(), Reason::Startup, &clock);
    flush(&kernel, IPV4);
    let desired = dataplane(&[service("shop/web", 10, &[8081])]);
    families.sync(&desired, Reason::Changed, &clock);

    families.disturb(&ExternalChange::possible(), clock.now());
    let syncs = families.sync(&desired, Reason::Drift, &clock);
    assert_eq!(syncs[0].repaired_drift, None);
    assert_held(&kernel, &desired);
}

/// T29 (k/k#122604, k/k#128829): a kernel that answers "busy" every other time, ten thousand times.
/// One retry follows each, and nothing grows with their number.
#[test]
fn t29_busy_is_retried_ten_thousand_times_and_leaves_nothing_behind() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut commits = 0;
    let busy = Faulty::new(kernel.backend(IPV4), move |call| match call {
        Call::Commit { .. } => {
            commits += 1;
            match commits % 2 {
                0 => CallOutcome::Refuse(Recovery::Retry),
                _ => CallOutcome::Pass,
            }
        }
        Call::Observe | Call::Removal => CallOutcome::Pass,
    });
    let mut families = Reconciler::new(vec![busy]);
    let desired = [8080, 8081].map(|port| dataplane(&[service("shop/web", 10, &[port])]));
    families.sync(&desired[1], Reason::Startup, &clock);
    for cycle in 0..10_000 {
        let desired = &desired[cycle % 2];
        let refused = families.sync(desired, Reason::Changed, &clock);
        assert!(!refused[0].succeeded(), "cycle {cycle}");
        assert_eq!(families.follow_up(), FollowUp::Retry { retries: 0 });
        let retried = families.sync(desired, Reason::Retry, &clock);
        assert!(retried[0].succeeded(), "cycle {cycle}");
    }
    let status = &families.status()[0];
    assert_eq!(status.syncs.iter().count(), RecentSyncs::KEPT);
    assert_eq!(
        (status.failing.as_ref(), status.quarantined.len()),
        (None, 0)
    );
    assert_eq!(kernel.observations(), 1, "busy is no reason to look");
    assert_held(&kernel, &desired[1]);
}

#[test]
fn a_contest_says_who_and_how_often() {
    let repair_backoff = RepairBackoff {
        since: FakeClock::new().wall_time(),
        repairs: 6,
        within: Duration::from_millis(1300),
        actor: Some(nft()),
    };
    assert_eq!(
        repair_backoff.to_string(),
        "nft (process 4711) keeps changing the rules: repaired 6 times within 1.3 s"
    );
}
