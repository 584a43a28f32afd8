use std::collections::BTreeSet;

use backend::{Culprit, Disturbance};

use super::*;
use crate::{Contest, Rounds};

fn nft() -> Culprit {
    Culprit {
        program: "nft".to_owned(),
        process: 4711,
    }
}

fn by_nft(families: impl Into<BTreeSet<Family>>) -> Disturbance {
    Disturbance {
        families: families.into(),
        culprit: Some(nft()),
    }
}

fn programmed(kernel: &FakeKernel, clock: &FakeClock) -> Reconciler<FakeBackend> {
    let mut families = Reconciler::new(Vec::from(Family::ALL.map(|family| kernel.backend(family))));
    families.round(&web_and_cart(), Reason::Startup, clock);
    families
}

fn flush(kernel: &FakeKernel, family: Family) {
    kernel.tamper(family, |rules| *rules = FakeRules::default());
}

#[test]
fn damage_is_told_with_its_culprit_and_its_size() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut families = programmed(&kernel, &clock);
    flush(&kernel, IPV4);
    families.disturb(&by_nft([IPV4]), clock.now());
    clock.advance(Duration::from_millis(7));

    let rounds = families.round(&web_and_cart(), Reason::Drift, &clock);

    assert_eq!(rounds.len(), 1, "nobody touched IPv6");
    let damage = rounds[0].damage.as_ref().expect("there was damage");
    assert_eq!(damage.culprit, Some(nft()));
    assert_eq!((damage.size.elements, damage.size.objects), (6, 1));
    assert_eq!(damage.repaired_after, Duration::from_millis(7));
    let line = rounds[0].to_string();
    assert!(
        line.contains("nft (process 4711) had changed 6 elements and 1 objects"),
        "{line}"
    );
    let status = &families.status()[0];
    assert_eq!(status.drifts, 1);
    assert_eq!(status.last_damage.as_ref(), Some(damage));
    assert_held(&kernel, &web_and_cart());
}

#[test]
fn a_disturbance_without_a_difference_is_no_damage() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut families = programmed(&kernel, &clock);
    kernel.tamper(IPV4, |_| ());
    families.disturb(&by_nft(Family::ALL), clock.now());

    let rounds = families.round(&web_and_cart(), Reason::Drift, &clock);

    assert_eq!(rounds.len(), 2);
    assert!(rounds.iter().all(|round| round.damage.is_none()));
    assert_eq!(families.status()[0].drifts, 0);
}

/// Damage counts once it is repaired, with the time of all attempts.
#[test]
fn damage_that_takes_two_attempts_counts_once() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let backend = failing(&kernel, Fate::Refuse(Recovery::Retry), &[1]);
    let mut families = Reconciler::new(vec![backend]);
    families.round(&web_and_cart(), Reason::Startup, &clock);
    flush(&kernel, IPV4);
    families.disturb(&by_nft([IPV4]), clock.now());

    let failed = families.round(&web_and_cart(), Reason::Drift, &clock);
    assert_eq!(
        (families.status()[0].drifts, failed[0].succeeded()),
        (0, false)
    );
    clock.advance(Duration::from_millis(50));
    let retried = families.round(&web_and_cart(), Reason::Retry, &clock);

    let damage = retried[0].damage.as_ref().expect("it is repaired");
    assert_eq!(damage.repaired_after, Duration::from_millis(50));
    assert_eq!(families.status()[0].drifts, 1);
}

/// T20 (k/k#121362): a change that fails because another program deleted rules repairs them in the
/// same round, and is attributed to that program once it is known.
#[test]
fn t20_a_change_that_stumbles_over_damage_repairs_it_in_the_same_round() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let backend = failing(&kernel, Fate::Refuse(Recovery::Observe), &[1]);
    let mut families = Reconciler::new(vec![backend]);
    families.round(&web_and_cart(), Reason::Startup, &clock);
    flush(&kernel, IPV4);
    let desired = dataplane(&[service("shop/web", 10, &[8081])]);

    let rounds = families.round(&desired, Reason::Changed, &clock);
    assert_eq!(rounds[0].outcome, Outcome::Committed);
    assert_held(&kernel, &desired);

    families.disturb(&by_nft([IPV4]), clock.now());
    let rounds = families.round(&desired, Reason::Drift, &clock);
    let damage = rounds[0].damage.as_ref().expect("there was damage");
    assert_eq!(
        (damage.size.elements, damage.culprit.clone()),
        (6, Some(nft()))
    );
}

/// If a check fails, the next one, at the start of a retry, finds the damage.
#[test]
fn damage_that_could_not_be_read_at_first_is_told_once_it_is_repaired() {
    for next in [Reason::Retry, Reason::Changed, Reason::Drift] {
        let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
        let unreadable = Arc::new(AtomicBool::new(false));
        let fails = Arc::clone(&unreadable);
        let backend = Faulty::new(kernel.backend(IPV4), move |call| match call {
            Call::Observe if fails.load(Ordering::Relaxed) => Fate::Refuse(Recovery::Observe),
            _ => Fate::Pass,
        });
        let mut families = Reconciler::new(vec![backend]);
        families.round(&web_and_cart(), Reason::Startup, &clock);
        flush(&kernel, IPV4);
        families.disturb(&by_nft([IPV4]), clock.now());
        unreadable.store(true, Ordering::Relaxed);
        let failed = families.round(&web_and_cart(), Reason::Drift, &clock);
        assert!(!failed[0].succeeded());
        unreadable.store(false, Ordering::Relaxed);
        clock.advance(Duration::from_millis(50));

        let rounds = families.round(&web_and_cart(), next, &clock);

        let damage = rounds[0].damage.as_ref().expect("there was damage");
        assert_eq!((damage.size.elements, &damage.culprit), (6, &Some(nft())));
        assert_eq!(damage.repaired_after, Duration::from_millis(50), "{next}");
        assert_eq!(families.status()[0].drifts, 1);
        assert_held(&kernel, &web_and_cart());
        let rounds = families.round(&web_and_cart(), Reason::Drift, &clock);
        assert!(rounds.is_empty(), "it has been looked for");
    }
}

/// The read after a commit that failed can fail, too.
#[test]
fn damage_that_was_stumbled_over_and_not_read_is_told_once_it_is_known_whose_it_is() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut calls = Vec::new();
    let backend = Faulty::new(kernel.backend(IPV4), move |call| {
        calls.push(matches!(call, Call::Observe));
        match calls[..] {
            // A read and a commit at the start; then the commit that fails, and the read after it.
            [_, _, false] | [_, _, _, true] => Fate::Refuse(Recovery::Observe),
            _ => Fate::Pass,
        }
    });
    let mut families = Reconciler::new(vec![backend]);
    families.round(&web_and_cart(), Reason::Startup, &clock);
    flush(&kernel, IPV4);
    let desired = dataplane(&[service("shop/web", 10, &[8081])]);
    let failed = families.round(&desired, Reason::Changed, &clock);
    assert!(!failed[0].succeeded());
    let retried = families.round(&desired, Reason::Retry, &clock);
    assert_eq!(retried[0].outcome, Outcome::Committed);

    families.disturb(&by_nft([IPV4]), clock.now());
    let rounds = families.round(&desired, Reason::Drift, &clock);
    let damage = rounds[0].damage.as_ref().expect("there was damage");
    assert_eq!((damage.size.elements, &damage.culprit), (6, &Some(nft())));
}

/// A program that touches Signpost's table after a partial commit of Signpost did not cause what
/// that commit left.
#[test]
fn what_our_own_commit_left_is_nobody_elses_damage() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let backend = failing(&kernel, Fate::LoseAnswer, &[1]);
    let mut families = Reconciler::new(vec![backend]);
    families.round(&web_and_cart(), Reason::Startup, &clock);
    let desired = dataplane(&[service("shop/web", 10, &[8081])]);
    families.round(&desired, Reason::Changed, &clock);
    assert_held(&kernel, &desired);

    kernel.tamper(IPV4, |_| ());
    families.disturb(&by_nft([IPV4]), clock.now());
    let rounds = families.round(&desired, Reason::Drift, &clock);
    assert_eq!(rounds[0].damage, None);
    assert_eq!(families.status()[0].drifts, 0);
}

/// Lost notifications are no evidence against any program.
#[test]
fn what_was_stumbled_over_is_not_told_before_it_is_known_who_was_there() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let backend = failing(&kernel, Fate::Refuse(Recovery::Observe), &[1]);
    let mut families = Reconciler::new(vec![backend]);
    families.round(&web_and_cart(), Reason::Startup, &clock);
    flush(&kernel, IPV4);
    let desired = dataplane(&[service("shop/web", 10, &[8081])]);
    families.round(&desired, Reason::Changed, &clock);

    families.disturb(&Disturbance::possible(), clock.now());
    let rounds = families.round(&desired, Reason::Drift, &clock);
    assert_eq!(rounds[0].damage, None);
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
                0 => Fate::Refuse(Recovery::Retry),
                _ => Fate::Pass,
            }
        }
        Call::Observe | Call::Removal => Fate::Pass,
    });
    let mut families = Reconciler::new(vec![busy]);
    let desired = [8080, 8081].map(|port| dataplane(&[service("shop/web", 10, &[port])]));
    families.round(&desired[1], Reason::Startup, &clock);
    for cycle in 0..10_000 {
        let desired = &desired[cycle % 2];
        let refused = families.round(desired, Reason::Changed, &clock);
        assert!(!refused[0].succeeded(), "cycle {cycle}");
        assert_eq!(families.sequel(), Sequel::Retry { retries: 0 });
        let retried = families.round(desired, Reason::Retry, &clock);
        assert!(retried[0].succeeded(), "cycle {cycle}");
    }
    let status = &families.status()[0];
    assert_eq!(status.rounds.iter().count(), Rounds::KEPT);
    assert_eq!(
        (status.failing.as_ref(), status.quarantined.len()),
        (None, 0)
    );
    assert_eq!(kernel.observations(), 1, "busy is no reason to look");
    assert_held(&kernel, &desired[1]);
}

#[test]
fn a_contest_says_who_and_how_often() {
    let contest = Contest {
        since: FakeClock::new().wall_time(),
        repairs: 6,
        within: Duration::from_millis(1300),
        culprit: Some(nft()),
    };
    assert_eq!(
        contest.to_string(),
        "nft (process 4711) keeps changing the rules: repaired 6 times within 1.3 s"
    );
}
