//! Checks of the kernel: what makes the reconciler read everything.

use super::*;

#[test]
fn drift_is_found_by_the_timer_and_repaired() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(kernel.backend(IPV4));
    family.sync(&web_and_cart(), Reason::Startup, &clock);
    let looks = kernel.observations();

    let quiet = family.sync(&web_and_cart(), Reason::Timer, &clock);
    assert_eq!(
        (quiet.reason, &quiet.outcome),
        (Reason::Timer, &Outcome::Unchanged)
    );
    assert_eq!(kernel.observations(), looks, "nothing had happened");

    kernel.tamper(IPV4, |rules| *rules = FakeRules::default());
    let repair = family.sync(&web_and_cart(), Reason::Timer, &clock);

    assert_eq!(
        (repair.reason, &repair.outcome),
        (Reason::Drift, &Outcome::Committed)
    );
    assert_held(&kernel, &web_and_cart());
    assert_eq!(family.status().drifts, 1);
}

#[test]
fn a_change_by_another_program_to_its_own_rules_is_no_drift() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(kernel.backend(IPV4));
    family.sync(&web_and_cart(), Reason::Startup, &clock);

    kernel.tamper(Family::Ipv6, |rules| *rules = FakeRules::default());
    let sync = family.sync(&web_and_cart(), Reason::Drift, &clock);

    assert_eq!(sync.outcome, Outcome::Unchanged);
    assert_eq!(family.status().drifts, 0);
    assert_eq!(kernel.commits(), 1);
}

#[test]
fn a_request_looks_whatever_the_kernel_says_about_drift() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(kernel.backend(IPV4));
    family.sync(&web_and_cart(), Reason::Startup, &clock);
    let looks = kernel.observations();
    let sync = family.sync(&web_and_cart(), Reason::Requested, &clock);
    assert_eq!(sync.outcome, Outcome::Unchanged);
    assert_eq!(kernel.observations(), looks + 1);
}

/// A check may compare less than everything: the backend says when the rest is due (T462), since
/// changes wait while everything is read.
#[test]
fn t301_where_nothing_is_announced_checks_trust_the_backend() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    kernel.announce_nothing();
    let desired = web_and_cart();
    let mut family = FamilyReconciler::new(kernel.backend(IPV4));
    family.sync(&desired, Reason::Startup, &clock);
    let looks = kernel.observations();

    family.sync(&desired, Reason::Drift, &clock);
    assert_eq!(kernel.observations(), looks, "there is no drift");
    family.sync(&desired, Reason::Timer, &clock);
    assert_eq!(kernel.observations(), looks, "neither at a periodic check");

    // What is announced after all is read.
    let external_change = ExternalChange {
        families: [IPV4].into(),
        actor: None,
    };
    family.disturb(&external_change, clock.now());
    family.sync(&desired, Reason::Drift, &clock);
    assert_eq!(kernel.observations(), looks + 1);
}
