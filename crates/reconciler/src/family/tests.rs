use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use backend::{Backend, ExternalChange, Leftover, Recovery, UnsupportedField};
use dataplane::{Dataplane, Family, ServiceKey, ServiceRules, compile};
use proptest::prelude::*;
use testkit::{
    Call, CallOutcome, FakeBackend, FakeChange, FakeKernel, FakeOperation, FakeRules, Faulty,
    Seeded, cases, histories, mk_config, mk_endpoints, mk_node, mk_service,
};

use crate::fake_clock::FakeClock;
use crate::{
    Clock, FamilyCondition, FamilyReconciler, FollowUp, Outcome, Pace, Reason, Reconciler,
};

mod checks;
mod isolation;
mod parts;
mod repaired_drift;
mod switch;
mod unsupported_fields;

const IPV4: Family = Family::Ipv4;

/// A dual-stack Service on one port with these endpoint ports, which stand for its versions.
fn service(name: &str, number: u8, ports: &[u16]) -> Arc<ServiceRules> {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let service = mk_service(name)
        .cluster_ip(&format!("10.96.0.{number}"))
        .cluster_ip(&format!("fd00:10:96::{number}"))
        .port("", 80);
    let mut endpoints = mk_endpoints().tcp("");
    for port in ports {
        endpoints = endpoints
            .ready(&format!("10.0.1.5:{port}"), "node-1")
            .ready(&format!("[fd00:10:0:1::5]:{port}"), "node-1");
    }
    Arc::new(compile(
        &service.build(),
        &endpoints.build(),
        &node,
        &config,
    ))
}

fn dataplane(services: &[Arc<ServiceRules>]) -> Dataplane {
    let mut dataplane = Dataplane::new(mk_node(1).build(), mk_config().build());
    for rules in services {
        dataplane.set(Arc::clone(rules));
    }
    dataplane
}

fn web_and_cart() -> Dataplane {
    dataplane(&[
        service("shop/web", 10, &[8080, 8081]),
        service("shop/cart", 11, &[8080]),
    ])
}

/// Asserts that the kernel holds what `desired` says, and nothing else.
#[track_caller]
fn assert_held(kernel: &FakeKernel, desired: &Dataplane) {
    assert_eq!(kernel.rules(IPV4), FakeRules::render(desired, IPV4));
}

/// Programs the rest. Returns in how many syncs.
#[track_caller]
fn finish<B: Backend>(
    family: &mut FamilyReconciler<B>,
    desired: &Dataplane,
    clock: &FakeClock,
) -> usize {
    let mut syncs = 0;
    while family.is_unfinished() {
        family.sync(desired, Reason::Continued, clock);
        syncs += 1;
        assert!(syncs < 10_000, "it comes to no end");
    }
    syncs
}

/// A backend that fails the commits with these numbers, counted from 0, in this way.
fn failing(
    kernel: &FakeKernel,
    fate: CallOutcome,
    commits: &'static [usize],
) -> Faulty<FakeBackend> {
    let mut number = 0;
    Faulty::new(kernel.backend(IPV4), move |call| match call {
        Call::Commit { .. } => {
            number += 1;
            if commits.contains(&(number - 1)) {
                fate
            } else {
                CallOutcome::Pass
            }
        }
        Call::Observe | Call::Removal => CallOutcome::Pass,
    })
}

/// T42 (k/k#122740), T72 (k/k#130119): a restart with nothing changed writes nothing.
#[test]
fn t42_a_restart_with_nothing_changed_writes_nothing() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let desired = web_and_cart();
    let mut before = FamilyReconciler::new(kernel.backend(IPV4));
    before.sync(&desired, Reason::Startup, &clock);
    let operations = kernel.operations();
    assert!(operations > 0);

    let mut after = FamilyReconciler::new(kernel.backend(IPV4));
    let sync = after.sync(&desired, Reason::Startup, &clock);

    assert_eq!(sync.outcome, Outcome::Unchanged);
    assert_eq!((kernel.commits(), kernel.operations()), (1, operations));
    assert_eq!(after.status().condition(), FamilyCondition::Programmed);
}

#[test]
fn a_restart_removes_what_ended_meanwhile_and_nothing_else() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    FamilyReconciler::new(kernel.backend(IPV4)).sync(&web_and_cart(), Reason::Startup, &clock);
    let desired = dataplane(&[service("shop/web", 10, &[8080, 8081])]);

    let mut after = FamilyReconciler::new(kernel.backend(IPV4));
    let sync = after.sync(&desired, Reason::Startup, &clock);

    assert_eq!(sync.size.elements, 2, "the frontend and its cluster IP");
    assert_held(&kernel, &desired);
}

/// T19 (k/k#112604): a commit that fails once for a temporary cause is retried in full within 50
/// milliseconds, and the pending cleanup is not lost.
#[test]
fn t19_a_commit_that_fails_once_is_retried_in_full() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let backend = failing(&kernel, CallOutcome::Refuse(Recovery::Retry), &[1]);
    let mut families = Reconciler::new(vec![backend]);
    let (before, after) = (
        web_and_cart(),
        dataplane(&[service("shop/web", 10, &[8081])]),
    );
    families.sync(&before, Reason::Startup, &clock);

    let failed = families.sync(&after, Reason::Changed, &clock);

    let text = failed[0].to_string();
    assert!(
        text.contains("failed to commit IPv4 rules: a fault was injected"),
        "{text}"
    );
    assert_eq!(families.follow_up(), FollowUp::Retry { retries: 0 });
    assert_held(&kernel, &before);
    let status = &families.status()[0];
    assert_eq!(status.condition(), FamilyCondition::Failing);
    assert_eq!(
        status.programmed.as_ref().map(Dataplane::to_string),
        Some(before.to_string()),
        "what went away is found by comparing with what is still programmed"
    );

    let retried = families.sync(&after, Reason::Retry, &clock);

    assert_eq!(retried[0].outcome, Outcome::Committed);
    assert_eq!(families.follow_up(), FollowUp::Settled);
    assert_held(&kernel, &after);
    assert_eq!(kernel.observations(), 1, "nothing was in doubt");
}

#[test]
fn a_lost_answer_is_followed_by_a_look_and_another_try_in_the_same_sync() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(failing(&kernel, CallOutcome::LoseAnswer, &[0]));

    let sync = family.sync(&web_and_cart(), Reason::Startup, &clock);

    assert_eq!(sync.outcome, Outcome::Unchanged, "it had arrived all along");
    assert_eq!(kernel.observations(), 2);
    assert_held(&kernel, &web_and_cart());
}

#[test]
fn a_commit_cut_short_is_completed_in_the_same_sync() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(kernel.backend(IPV4));
    kernel.cut_after(3);

    let sync = family.sync(&web_and_cart(), Reason::Startup, &clock);

    assert_eq!(sync.outcome, Outcome::Committed);
    assert_held(&kernel, &web_and_cart());
}

#[test]
fn an_answer_lost_twice_ends_the_sync_and_the_next_one_looks_first() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let refused = CallOutcome::Refuse(Recovery::Observe);
    let mut family = FamilyReconciler::new(failing(&kernel, refused, &[0, 1]));

    let sync = family.sync(&web_and_cart(), Reason::Startup, &clock);
    assert!(!sync.succeeded());
    assert!(family.observed().is_none());

    let sync = family.sync(&web_and_cart(), Reason::Retry, &clock);
    assert_eq!(sync.outcome, Outcome::Committed);
    assert_eq!(kernel.observations(), 3);
}

#[test]
fn a_kernel_that_takes_nothing_is_asked_again_only_by_the_timer() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let backend = failing(&kernel, CallOutcome::Refuse(Recovery::Halt), &[0]);
    let mut families = Reconciler::new(vec![backend]);
    families.sync(&web_and_cart(), Reason::Startup, &clock);

    assert_eq!(families.follow_up(), FollowUp::Settled);
    for reason in [Reason::Changed, Reason::Retry, Reason::Drift] {
        let syncs = families.sync(&web_and_cart(), reason, &clock);
        assert!(syncs.is_empty(), "{reason}");
    }
    let syncs = families.sync(&web_and_cart(), Reason::Timer, &clock);
    assert_eq!(syncs[0].outcome, Outcome::Committed);
}

/// A kernel without nf_tables answers the first read with an error that no retry fixes.
#[test]
fn a_kernel_that_cannot_be_read_is_asked_again_only_by_the_timer() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let unreadable = Faulty::new(kernel.backend(IPV4), |_| {
        CallOutcome::Refuse(Recovery::Halt)
    });
    let mut families = Reconciler::new(vec![unreadable]);
    let syncs = families.sync(&web_and_cart(), Reason::Startup, &clock);
    let failed = syncs[0].to_string();
    assert!(
        failed.contains("failed to read the IPv4 rules back from the kernel")
            && failed.contains("retrying only at the periodic check"),
        "{failed}"
    );
    assert_eq!(families.follow_up(), FollowUp::Settled);
}

/// T58 (k/k#133694): a broken family leaves the other fully served.
#[test]
fn t58_a_broken_family_leaves_the_other_served() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let backends = Family::ALL.map(|family| {
        Faulty::new(kernel.backend(family), move |_| match family {
            Family::Ipv4 => CallOutcome::Refuse(Recovery::Retry),
            Family::Ipv6 => CallOutcome::Pass,
        })
    });
    let mut families = Reconciler::new(Vec::from(backends));
    let desired = web_and_cart();
    families.sync(&desired, Reason::Startup, &clock);

    let conditions: Vec<FamilyCondition> =
        families.status().iter().map(|s| s.condition()).collect();
    assert_eq!(
        conditions,
        [
            FamilyCondition::NeverProgrammed,
            FamilyCondition::Programmed
        ]
    );
    assert_eq!(
        kernel.rules(Family::Ipv6),
        FakeRules::render(&desired, Family::Ipv6)
    );
    let retried = families.sync(&desired, Reason::Retry, &clock);
    let retried: Vec<Family> = retried.iter().map(|sync| sync.family).collect();
    assert_eq!(retried, [IPV4], "only what failed is tried again");
}

#[test]
fn a_family_that_has_failed_for_long_does_not_slow_down_another() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let ipv6_busy = Arc::new(AtomicBool::new(false));
    let backends = Family::ALL.map(|family| {
        let busy = Arc::clone(&ipv6_busy);
        Faulty::new(kernel.backend(family), move |_| {
            if family == IPV4 || busy.load(Ordering::Relaxed) {
                CallOutcome::Refuse(Recovery::Retry)
            } else {
                CallOutcome::Pass
            }
        })
    });
    let mut families = Reconciler::new(Vec::from(backends));
    families.sync(&Dataplane::default(), Reason::Startup, &clock);
    for _ in 0..8 {
        families.sync(&Dataplane::default(), Reason::Retry, &clock);
    }
    assert_eq!(families.follow_up(), FollowUp::Retry { retries: 8 });

    ipv6_busy.store(true, Ordering::Relaxed);
    families.sync(&web_and_cart(), Reason::Changed, &clock);

    assert_eq!(families.follow_up(), FollowUp::Retry { retries: 0 });
}

/// T56 (k/k#83263): a proxy that has never synced since it started is not ready.
#[test]
fn t56_never_synced_since_start_is_not_ready() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(failing(
        &kernel,
        CallOutcome::Refuse(Recovery::Retry),
        &[0, 1],
    ));
    assert_eq!(
        family.status().condition(),
        FamilyCondition::NeverProgrammed
    );
    let began = clock.wall_time();
    for reason in [Reason::Startup, Reason::Retry] {
        family.sync(&web_and_cart(), reason, &clock);
        clock.advance(Duration::from_millis(50));
    }
    let status = family.status();
    assert_eq!(status.condition(), FamilyCondition::NeverProgrammed);
    let failing = status.failing.expect("two syncs have failed");
    assert_eq!((failing.since, failing.syncs), (began, 2));

    family.sync(&web_and_cart(), Reason::Retry, &clock);

    let status = family.status();
    assert_eq!(status.condition(), FamilyCondition::Programmed);
    assert_eq!(status.programmed_since, Some(clock.wall_time()));
    assert_eq!(status.last_receipt, Some(clock.wall_time()));
}

/// T57 (k/k#83263): a sync that takes five minutes and succeeds is slow, not broken.
#[test]
fn t57_a_sync_that_takes_five_minutes_is_slow_and_succeeds() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let minutes = Arc::new(AtomicUsize::new(5));
    let (script_clock, script_minutes) = (clock.clone(), Arc::clone(&minutes));
    let backend = Faulty::new(kernel.backend(IPV4), move |call| {
        if let Call::Commit { .. } = call {
            let minutes = script_minutes.load(Ordering::Relaxed);
            for _ in 0..minutes {
                script_clock.advance(Duration::from_secs(60));
            }
        }
        CallOutcome::Pass
    });
    let mut family = FamilyReconciler::new(backend);
    let sync = family.sync(&web_and_cart(), Reason::Startup, &clock);

    let took = Duration::from_secs(300);
    assert_eq!((sync.took, sync.phases.commit), (took, took));
    assert_eq!(sync.outcome, Outcome::Committed);
    assert_eq!(family.status().condition(), FamilyCondition::Programmed);
    assert_eq!(family.status().pace, Pace::Slow { took });

    minutes.store(0, Ordering::Relaxed);
    family.sync(&dataplane(&[]), Reason::Changed, &clock);
    assert_eq!(family.status().pace, Pace::Ordinary);
}

#[test]
fn removal_leaves_nothing_and_the_next_sync_programs_everything_again() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let backends = Family::ALL.map(|family| kernel.backend(family));
    let mut families = Reconciler::new(Vec::from(backends));
    families.sync(&web_and_cart(), Reason::Startup, &clock);

    families
        .commit_withdrawal(&clock)
        .expect("this kernel has no faults");

    for family in Family::ALL {
        assert_eq!(kernel.rules(family), FakeRules::default());
    }
    assert_eq!(
        families.status()[0].condition(),
        FamilyCondition::NeverProgrammed
    );
    families.sync(&web_and_cart(), Reason::Requested, &clock);
    assert_held(&kernel, &web_and_cart());
}

#[test]
fn the_last_ten_syncs_are_kept_and_print_in_a_line_each() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(kernel.backend(IPV4));
    family.sync(&web_and_cart(), Reason::Startup, &clock);
    let first = family.status().syncs.to_string();
    assert_eq!(
        first,
        "IPv4 sync 1 at 2023-11-14T22:13:20.000Z (Startup): committed, \
         wrote 6 elements and 1 objects in 1 transaction, \
         took 0ns (observe 0ns, render 0ns, diff 0ns, commit 0ns)\n"
    );
    for _ in 0..12 {
        family.sync(&web_and_cart(), Reason::Timer, &clock);
    }
    let syncs = family.status().syncs;
    let numbers: Vec<u64> = syncs.iter().map(|sync| sync.number).collect();
    assert_eq!(numbers, (4..=13).collect::<Vec<u64>>());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(96)))]

    /// Whatever fails and whenever the process restarts, the last known state is what the kernel
    /// holds; and once nothing fails any more, the kernel holds the desired state.
    #[test]
    fn belief_is_never_ahead_of_the_kernel(history in histories(8), seed: u64) {
        let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
        let mut seeded = Seeded::new(seed);
        let faults = [
            CallOutcome::Refuse(Recovery::Retry),
            CallOutcome::Refuse(Recovery::Observe),
            CallOutcome::Refuse(Recovery::Isolate),
            CallOutcome::Refuse(Recovery::Halt),
            CallOutcome::LoseAnswer,
        ];
        let start = |seed| FamilyReconciler::new(Faulty::seeded(kernel.backend(IPV4), seed, &faults));
        let mut family = start(seed);
        let reasons = [Reason::Changed, Reason::Retry, Reason::Timer, Reason::Drift];
        for desired in &history {
            if seeded.below(4) == 0 {
                family = start(seed.wrapping_add(1));
            }
            for _ in 0..=seeded.below(3) {
                if seeded.below(3) == 0 {
                    kernel.cut_after(seeded.below(20));
                }
                family.sync(desired, reasons[seeded.below(reasons.len())], &clock);
                if let Some(observed) = family.observed() {
                    prop_assert_eq!(&observed.rules, &kernel.rules(IPV4));
                }
            }
        }
        let last = history.last().expect("a history has states");
        let arrived = (0..50).any(|_| {
            let sync = family.sync(last, Reason::Timer, &clock);
            sync.succeeded() && sync.quarantined.is_empty()
        });
        prop_assert!(arrived);
        prop_assert_eq!(kernel.rules(IPV4), FakeRules::render(last, IPV4));
    }
}
