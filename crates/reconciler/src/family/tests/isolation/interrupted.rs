//! A search that is interrupted: by an answer that leaves it open what the kernel holds, by a check, or
//! by a change.

use dataplane::PartSize;

use super::search::{numbered, slow, tenant_and_others};
use super::*;

/// What happens before the next commits that contain a refused Service.
#[derive(Debug, Clone, Default)]
struct Interruption {
    /// How many of them end with an unknown effect, as where a table that they are for is gone.
    unknown: Arc<AtomicUsize>,
    /// Whether another program empties the kernel as well.
    empties: Arc<AtomicBool>,
    /// A Service that is no longer refused.
    accepted: Arc<AtomicUsize>,
}

// === impl Interruption ===

impl Interruption {
    fn backend(&self, backend: FakeBackend) -> Faulty<FakeBackend> {
        let (script, script_kernel) = (self.clone(), backend.kernel().clone());
        Faulty::new(backend, move |call| match call {
            Call::Commit { suspects, .. } if suspects.iter().any(|s| script.is_refused(s)) => {
                let left = script.unknown.load(Ordering::Relaxed);
                if left == 0 {
                    return CallOutcome::Refuse(Recovery::Isolate);
                }
                script.unknown.store(left - 1, Ordering::Relaxed);
                if script.empties.load(Ordering::Relaxed) {
                    script_kernel.tamper(IPV4, |rules| *rules = FakeRules::default());
                }
                CallOutcome::Refuse(Recovery::Observe)
            }
            _ => CallOutcome::Pass,
        })
    }

    fn is_refused(&self, rules: &ServiceRules) -> bool {
        let accepted = format!("service-{}", self.accepted.load(Ordering::Relaxed));
        is_unprogrammable(rules) && *rules.service.name != *accepted
    }
}

/// Asserts that these are held back, and that the kernel and the status have `desired`.
#[track_caller]
fn assert_served(
    family: &FamilyReconciler<Faulty<FakeBackend>>,
    kernel: &FakeKernel,
    desired: &Dataplane,
    held: &[&str],
) {
    assert_held(kernel, desired);
    let programmed = family.status().programmed.map(|it| it.to_string());
    assert_eq!(programmed, Some(desired.to_string()));
    assert_eq!(quarantined(family), held);
}

/// T384: the rules that were read back in mid-search stood for a node without Services: nothing
/// counted as programmed, or all other Services were removed with the next group.
#[test]
fn t384_rules_read_back_in_mid_search_take_nothing_from_others() {
    for held in [&[3][..], &[3, 12]] {
        let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
        let interruption = Interruption::default();
        let backend = interruption.backend(kernel.backend(IPV4));
        let mut family = FamilyReconciler::new(backend);
        family.sync(&many(20, &[]), Reason::Startup, &clock);
        let desired = many(20, held);
        family.sync(&desired, Reason::Changed, &clock);
        assert_eq!(quarantined(&family).len(), held.len());

        // Only the group of two is refused, and the second of them is accepted.
        interruption.unknown.store(1, Ordering::Relaxed);
        interruption.accepted.store(12, Ordering::Relaxed);
        let sync = family.sync(&desired, Reason::Timer, &clock);

        assert!(sync.succeeded(), "{sync}");
        let mut served = many(20, held);
        served.set(service("shop/service-3", 3, &[8080]));
        assert_served(&family, &kernel, &served, &["shop/service-3"]);
    }
}

/// T384: another program emptied the kernel when a part of a group was about to be added. The part that
/// filled the kernel again did not contain the Service, which lost its old rules with that.
#[test]
fn t384_a_kernel_that_is_emptied_in_mid_search_costs_nobody_its_old_rules() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let interruption = Interruption::default();
    let backend = interruption.backend(kernel.backend(IPV4).with_part_size(PartSize::new(8)));
    let mut family = FamilyReconciler::new(backend);
    family.sync(&many(30, &[]), Reason::Startup, &clock);
    finish(&mut family, &many(30, &[]), &clock);
    let desired = many(30, &[29]);
    family.sync(&desired, Reason::Changed, &clock);
    finish(&mut family, &desired, &clock);
    assert_served(&family, &kernel, &many(30, &[]), &["shop/service-29"]);

    interruption.unknown.store(1, Ordering::Relaxed);
    interruption.empties.store(true, Ordering::Relaxed);
    family.sync(&desired, Reason::Timer, &clock);
    finish(&mut family, &desired, &clock);

    // In the next sync, too.
    for _ in 0..2 {
        assert_served(&family, &kernel, &many(30, &[]), &["shop/service-29"]);
        family.sync(&desired, Reason::Changed, &clock);
    }
}

/// T384: where every refusal begins with an unknown effect, the second one in a sync was a failure, after
/// which the search waited longer and longer.
#[test]
fn t384_refusals_that_begin_with_an_unknown_effect_end_no_search() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let is_second = AtomicBool::new(false);
    let backend = Faulty::new(kernel.backend(IPV4), move |call| match call {
        Call::Commit { suspects, .. } if suspects.iter().any(|s| is_unprogrammable(s)) => {
            CallOutcome::Refuse(match is_second.fetch_not(Ordering::Relaxed) {
                true => Recovery::Isolate,
                false => Recovery::Observe,
            })
        }
        _ => CallOutcome::Pass,
    });
    let mut family = FamilyReconciler::new(backend);
    family.sync(&many(20, &[]), Reason::Startup, &clock);
    for reason in [Reason::Changed, Reason::Timer] {
        let sync = family.sync(&many(20, &[3, 12]), reason, &clock);
        assert!(sync.succeeded(), "{sync}");
        let refused = ["shop/service-12", "shop/service-3"];
        assert_served(&family, &kernel, &many(20, &[]), &refused);
    }
}

/// T384: each periodic check gave the search that went on as much room as at its beginning.
#[test]
fn t384_checks_in_mid_search_do_not_postpone_its_end() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let tries = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tries);
    let script_clock = clock.clone();
    let backend = kernel.backend(IPV4);
    let backend = backend.with_longest_part(Duration::from_millis(30));
    let backend = Faulty::new(backend, move |call| match call {
        Call::Commit { suspects, .. } if suspects.iter().any(|s| is_unprogrammable(s)) => {
            script_clock.advance(Duration::from_millis(10));
            count.fetch_add(1, Ordering::Relaxed);
            CallOutcome::Refuse(Recovery::Isolate)
        }
        _ => CallOutcome::Pass,
    });
    let mut family = FamilyReconciler::new(backend);
    let desired = tenant_and_others(700, UNPROGRAMMABLE, 8080);
    family.sync(&desired, Reason::Startup, &clock);
    while family.is_unfinished() {
        family.sync(&desired, Reason::Timer, &clock);
    }
    assert_eq!(quarantined(&family).len(), 700);
    let tries = tries.load(Ordering::Relaxed);
    assert!(tries <= 512 + 32 + 2, "{tries}");
}

/// T384: a Service that was deleted in mid-search kept its rules, and its address, until its turn.
#[test]
fn t384_what_is_deleted_in_mid_search_goes_with_the_next_change() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let never = CallOutcome::Refuse(Recovery::Isolate);
    let mut family = FamilyReconciler::new(slow(kernel.backend(IPV4), &clock, never));
    let mut before = tenant_and_others(0, 0, 8080);
    before.set(numbered("mmm/service-0007", 7, 8080));
    family.sync(&before, Reason::Startup, &clock);
    let mut desired = tenant_and_others(100, UNPROGRAMMABLE, 8080);
    family.sync(&desired, Reason::Changed, &clock);
    assert!(family.is_unfinished());
    assert_held(&kernel, &before);

    desired.remove(&ServiceKey::new("mmm", "service-0007"));
    family.sync(&desired, Reason::Changed, &clock);
    assert_held(&kernel, &tenant_and_others(0, 0, 8080));
}

/// T386: after an unknown effect, what was read back is replaced at once, and all that waited became
/// suspect with that.
#[test]
fn t386_a_refusal_after_an_unknown_effect_makes_only_its_part_suspect() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let interruption = Interruption::default();
    let backend = kernel.backend(IPV4).with_part_size(PartSize::new(8));
    // One group of the search is tried in each sync.
    let backend = interruption.backend(backend.with_longest_part(Duration::ZERO));
    let mut family = FamilyReconciler::new(backend);
    family.sync(&many(10, &[]), Reason::Startup, &clock);
    finish(&mut family, &many(10, &[]), &clock);

    // The first part has the four that are changed and come first by name.
    interruption.unknown.store(1, Ordering::Relaxed);
    let desired = many(100, &[11]);
    family.sync(&desired, Reason::Changed, &clock);
    let held = family.mode_domains[0].domain.held_back();
    assert!(held <= 4, "{held} of 90");

    finish(&mut family, &desired, &clock);
    let mut served = many(100, &[]);
    served.remove(&ServiceKey::new("shop", "service-11"));
    assert_served(&family, &kernel, &served, &["shop/service-11"]);
}
