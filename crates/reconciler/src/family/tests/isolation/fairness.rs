//! Who waits for the search, and what the status says meanwhile.

use super::search::{numbered, slow, tenant_and_others};
use super::*;

const NEVER: CallOutcome = CallOutcome::Refuse(Recovery::Isolate);

/// The port at which a frontend of `kernel` has its only endpoint.
fn served_at<B: Backend>(family: &FamilyReconciler<B>, name: &str) -> Option<u16> {
    let observed = family.observed()?;
    let services = observed.dataplane.services();
    let (_, rules) = services
        .sorted()
        .into_iter()
        .find(|(service, _)| service.to_string() == name)?;
    let mut targets = rules.frontends.iter().flat_map(|(_, f)| f.cluster.iter());
    targets.next().map(|target| target.port.get())
}

/// T383: a tenant's queue of suspects was tried first. A change of another namespace that was refused
/// together with one more Service of the tenant's, or a Service that was repaired, waited for all of it.
#[test]
fn t383_services_of_other_namespaces_do_not_wait_for_a_search_that_goes_on() {
    for was_refused in [false, true] {
        let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
        let mut family = FamilyReconciler::new(slow(kernel.backend(IPV4), &clock, NEVER));
        family.sync(&tenant_and_others(0, 0, 8080), Reason::Startup, &clock);
        if was_refused {
            let mut desired = tenant_and_others(0, 0, 8080);
            desired.set(numbered("aaa/web", 5000, UNPROGRAMMABLE));
            family.sync(&desired, Reason::Changed, &clock);
            finish(&mut family, &desired, &clock);
        }
        let mut desired = tenant_and_others(300, UNPROGRAMMABLE, 8080);
        if was_refused {
            desired.set(numbered("aaa/web", 5000, UNPROGRAMMABLE));
        }
        family.sync(&desired, Reason::Changed, &clock);
        for _ in 0..40 {
            family.sync(&desired, Reason::Continued, &clock);
        }
        assert!(family.is_unfinished());

        desired.set(numbered("aaa/web", 5000, 9090));
        desired.set(numbered("mmm/one-more", 5002, UNPROGRAMMABLE));
        let mut syncs = 0;
        let mut reason = Reason::Changed;
        while served_at(&family, "aaa/web") != Some(9090) {
            family.sync(&desired, reason, &clock);
            (reason, syncs) = (Reason::Continued, syncs + 1);
            assert!(syncs <= 3, "it waits for those of mmm");
        }
        assert!(family.is_unfinished());
        finish(&mut family, &desired, &clock);
        assert_eq!(quarantined(&family).len(), 301);
    }
}

/// T383: four namespaces used up all attempts until the next periodic check. Those of all others were held
/// back until then, and named as refused.
#[test]
fn t383_namespaces_that_use_up_their_attempts_leave_those_of_others() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(refusing(&kernel));
    let of_tenant = |n: u16| format!("m{}/web-{n}", n / 700);
    let tenants = (0..2800).map(|n| numbered(&of_tenant(n), n, UNPROGRAMMABLE));
    let mut desired = dataplane(&tenants.collect::<Vec<_>>());
    family.sync(&desired, Reason::Startup, &clock);
    finish(&mut family, &desired, &clock);
    assert!(kernel.rules(IPV4).frontends.is_empty());

    // In one step with one more of a tenant's.
    desired.set(numbered("m0/one-more", 2800, UNPROGRAMMABLE));
    for number in 3000..3020 {
        let port = if number == 3007 { UNPROGRAMMABLE } else { 8080 };
        desired.set(numbered(&format!("bbb/web-{number}"), number, port));
        desired.set(numbered(&format!("zzz/web-{number}"), number + 100, 8080));
    }
    family.sync(&desired, Reason::Changed, &clock);
    finish(&mut family, &desired, &clock);

    assert_eq!(kernel.rules(IPV4).frontends.len(), 39);
    let held = quarantined(&family);
    let held: Vec<_> = held.iter().filter(|name| !name.starts_with('m')).collect();
    assert_eq!(held, ["bbb/web-3007"]);
}

/// T383: a Service that was deleted in the same step in which another one was refused kept its address
/// until its turn, although that may be another Service's by then.
#[test]
fn t383_what_is_deleted_together_with_a_refusal_is_gone_at_once() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(slow(kernel.backend(IPV4), &clock, NEVER));
    let mut before = tenant_and_others(0, 0, 8080);
    before.set(numbered("mmm/old", 6000, 8080));
    before.set(numbered("mmm/recreated", 6001, 8080));
    family.sync(&before, Reason::Startup, &clock);

    // Another Service gets the address of the deleted one, and a third that of the one that is another
    // by the same name.
    let mut desired = tenant_and_others(200, UNPROGRAMMABLE, 8080);
    desired.set(numbered("mmm/recreated", 6002, UNPROGRAMMABLE));
    family.sync(&desired, Reason::Changed, &clock);
    assert!(family.is_unfinished());
    assert_held(&kernel, &tenant_and_others(0, 0, 8080));

    desired.set(numbered("zzz/new", 6000, 9090));
    desired.set(numbered("zzz/newer", 6001, 9090));
    family.sync(&desired, Reason::Changed, &clock);
    let mut served = tenant_and_others(0, 0, 8080);
    served.set(numbered("zzz/new", 6000, 9090));
    served.set(numbered("zzz/newer", 6001, 9090));
    assert_held(&kernel, &served);
}

/// T383: while a search went on, all counted as programmed; one failure of another kind in its course let
/// the node count as failing until its end.
#[test]
fn t383_the_status_tells_of_a_search_and_of_no_failure_that_is_over() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let (mut number, script_clock) = (0, clock.clone());
    let backend = kernel.backend(IPV4).with_longest_part(Duration::ZERO);
    let backend = Faulty::new(backend, move |call| match call {
        Call::Commit { suspects, .. } => {
            script_clock.advance(Duration::from_millis(10));
            number += 1;
            match suspects.iter().any(|rules| is_unprogrammable(rules)) {
                _ if number == 6 => CallOutcome::Refuse(Recovery::Retry),
                true => NEVER,
                false => CallOutcome::Pass,
            }
        }
        Call::Observe | Call::Removal => CallOutcome::Pass,
    });
    let mut family = FamilyReconciler::new(backend);
    family.sync(&tenant_and_others(0, 0, 8080), Reason::Startup, &clock);
    assert_eq!(family.status().condition(), FamilyCondition::Programmed);

    let desired = tenant_and_others(100, UNPROGRAMMABLE, 8080);
    let (mut reason, mut failures) = (Reason::Changed, 0);
    loop {
        let sync = family.sync(&desired, reason, &clock);
        reason = Reason::Retry;
        let status = family.status();
        if let Outcome::Failed(_) = sync.outcome {
            assert_eq!(status.condition(), FamilyCondition::Failing);
            failures += 1;
            continue;
        }
        assert_eq!(status.condition(), FamilyCondition::PartlyProgrammed);
        assert_eq!(status.quarantined.len() + status.searched, 100);
        if sync.succeeded() {
            break;
        }
    }
    assert_eq!(failures, 1);
}

/// T383: Services that wait for the next periodic check came and went in the status with each search.
#[test]
fn t383_who_waits_for_the_next_check_stays_in_the_status() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(slow(kernel.backend(IPV4), &clock, NEVER));
    let mut desired = tenant_and_others(1200, UNPROGRAMMABLE, 8080);
    family.sync(&desired, Reason::Startup, &clock);
    finish(&mut family, &desired, &clock);
    assert_eq!(family.status().quarantined.len(), 1200);

    desired.set(numbered("bbb/web", 7000, UNPROGRAMMABLE));
    desired.set(numbered("ccc/web", 7001, UNPROGRAMMABLE));
    family.sync(&desired, Reason::Changed, &clock);
    assert!(family.status().quarantined.len() >= 1200);
    finish(&mut family, &desired, &clock);
    family.sync(&desired, Reason::Timer, &clock);
    assert!(family.is_unfinished(), "those that waited have their turn");
    assert_eq!(family.status().quarantined.len(), 1202);
}

/// Whether it takes away the frontend of the Service with number 6001.
fn is_stuck_removal(operation: &FakeOperation) -> bool {
    matches!(operation, FakeOperation::RemoveFrontend(FrontendKey::Address { address, .. })
        if address.to_string() == "10.97.23.113")
}

/// T383: the kernel also refuses to take away the former address of a Service that was created again, in
/// the step or while it is held back. No other Service waits for that.
#[test]
fn t383_a_former_address_that_cannot_be_taken_away_holds_back_no_other() {
    for was_held in [false, true] {
        let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
        kernel.refuse(|operation| is_stuck_removal(operation) || is_refused(operation));
        let mut family = FamilyReconciler::new(kernel.backend(IPV4));
        let mut desired = tenant_and_others(0, 0, 8080);
        desired.set(numbered("mmm/recreated", 6001, 8080));
        family.sync(&desired, Reason::Startup, &clock);
        if was_held {
            desired.set(numbered("mmm/recreated", 6001, UNPROGRAMMABLE));
            family.sync(&desired, Reason::Changed, &clock);
            assert_eq!(quarantined(&family), ["mmm/recreated"]);
        }

        let reasons = [Reason::Changed, Reason::Changed, Reason::Timer];
        for (others, reason) in (9090..).zip(reasons) {
            desired = tenant_and_others(3, UNPROGRAMMABLE, others);
            desired.set(numbered("mmm/recreated", 6002, 8080));
            let sync = family.sync(&desired, reason, &clock);
            assert!(!matches!(sync.outcome, Outcome::Failed(_)), "{sync}");
            finish(&mut family, &desired, &clock);
            for name in ["aaa/web", "zzz/web"] {
                assert_eq!(served_at(&family, name), Some(others), "{name}");
            }
            assert_eq!(quarantined(&family).len(), 4);
        }
    }
}

/// T383: the kernel carries out the steps before the removal that it refuses, so that each attempt begins
/// with an answer that leaves it open what it holds.
#[test]
fn t383_a_removal_that_is_refused_after_other_steps_holds_back_no_other() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    kernel.refuse(is_stuck_removal);
    let one_by_one = |change: FakeChange| {
        let operations = change.0.into_iter();
        operations.map(|one| FakeChange(vec![one])).collect()
    };
    let backend = Faulty::in_steps(kernel.backend(IPV4), one_by_one, |_| CallOutcome::Pass);
    let mut family = FamilyReconciler::new(backend);
    let mut desired = tenant_and_others(4, 8080, 8080);
    desired.set(numbered("mmm/old", 6001, 8080));
    family.sync(&desired, Reason::Startup, &clock);

    for others in [9090, 9091] {
        let desired = tenant_and_others(4, others, others);
        let sync = family.sync(&desired, Reason::Changed, &clock);
        assert!(!matches!(sync.outcome, Outcome::Failed(_)), "{sync}");
        finish(&mut family, &desired, &clock);
        for name in ["aaa/web", "mmm/service-0002", "zzz/web"] {
            assert_eq!(served_at(&family, name), Some(others), "{name}");
        }
        assert_eq!(quarantined(&family), ["mmm/old"]);
    }
}

/// T383: one removal that the kernel refuses gave a third Service's address back to the one that had it
/// before it was created again.
#[test]
fn t383_a_removal_that_is_refused_gives_no_other_its_former_address_back() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    kernel.refuse(|operation| is_stuck_removal(operation) || is_refused(operation));
    let mut family = FamilyReconciler::new(kernel.backend(IPV4));
    let mut before = tenant_and_others(0, 0, 8080);
    before.set(numbered("aaa/recreated", 6003, 8080));
    before.set(numbered("mmm/deleted", 6001, 8080));
    family.sync(&before, Reason::Startup, &clock);

    let mut desired = tenant_and_others(0, 0, 8080);
    desired.set(numbered("aaa/recreated", 6002, UNPROGRAMMABLE));
    desired.set(numbered("zzz/third", 6003, 9090));
    family.sync(&desired, Reason::Changed, &clock);
    finish(&mut family, &desired, &clock);

    assert_eq!(quarantined(&family), ["aaa/recreated", "mmm/deleted"]);
    let mut served = tenant_and_others(0, 0, 8080);
    served.set(numbered("mmm/deleted", 6001, 8080));
    served.set(numbered("zzz/third", 6003, 9090));
    assert_held(&kernel, &served);
}

/// T383: a group at which each attempt failed for another cause was tried first each time.
#[test]
fn t383_a_group_that_fails_for_another_cause_lets_others_be_found() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let backend = Faulty::new(kernel.backend(IPV4), |call| match call {
        Call::Commit { suspects, .. } if suspects.iter().any(|s| is_unprogrammable(s)) => NEVER,
        Call::Commit { suspects, .. } if suspects.iter().any(|s| &*s.service.name == "stuck") => {
            CallOutcome::Refuse(Recovery::Retry)
        }
        _ => CallOutcome::Pass,
    });
    let mut family = FamilyReconciler::new(backend);
    family.sync(&tenant_and_others(0, 0, 8080), Reason::Startup, &clock);
    let mut desired = tenant_and_others(20, 8080, 9090);
    desired.set(numbered("aaa/stuck", 6000, 8080));
    desired.set(numbered("mmm/service-0007", 7, UNPROGRAMMABLE));

    let mut reason = Reason::Changed;
    for _ in 0..40 {
        let sync = family.sync(&desired, reason, &clock);
        assert!(!sync.succeeded(), "one is not programmed: {sync}");
        reason = Reason::Retry;
    }
    // All but the refused one and the one that fails.
    assert_eq!(kernel.rules(IPV4).frontends.len(), 2 + 19);
}

/// T383: the kernel refuses a Service only together with the removal of another one, whose place it takes.
#[test]
fn t383_who_is_refused_only_before_a_removal_is_tried_after_it() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let script_kernel = kernel.clone();
    let old = FakeRules::render(&dataplane(&[numbered("mmm/old", 6000, 8080)]), IPV4);
    let backend = Faulty::new(kernel.backend(IPV4), move |call| match call {
        Call::Commit { suspects, .. } if suspects.iter().any(|s| &*s.service.name == "new") => {
            let rules = script_kernel.rules(IPV4);
            match old
                .frontends
                .keys()
                .any(|key| rules.frontends.contains_key(key))
            {
                true => NEVER,
                false => CallOutcome::Pass,
            }
        }
        _ => CallOutcome::Pass,
    });
    let mut family = FamilyReconciler::new(backend);
    let mut before = tenant_and_others(0, 0, 8080);
    before.set(numbered("mmm/old", 6000, 8080));
    family.sync(&before, Reason::Startup, &clock);
    let mut desired = tenant_and_others(0, 0, 8080);
    desired.set(numbered("mmm/new", 6001, 8080));

    let sync = family.sync(&desired, Reason::Changed, &clock);
    assert!(sync.succeeded() && sync.quarantined.is_empty(), "{sync}");
    assert_held(&kernel, &desired);
}
