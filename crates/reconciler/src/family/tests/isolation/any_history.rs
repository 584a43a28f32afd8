//! What holds whatever the kernel refuses, and whenever Services change.

use dataplane::PartSize;

use super::search::{numbered, slow_in_turn};
use super::*;

const SERVICES: u16 = 24;

/// What changes before a sync.
#[derive(Debug, Clone)]
struct Round {
    /// Services with their new endpoint port, or none if they go.
    changes: Vec<(u16, Option<u16>)>,
    reason: Reason,
    /// Whether another program empties the kernel.
    empties: bool,
    /// Whether nothing changes before the search has ended.
    waits: bool,
}

impl Round {
    fn begin(&self, desired: &mut Dataplane, kernel: &FakeKernel) {
        for (number, port) in &self.changes {
            match port {
                Some(port) => desired.set(numbered(&name(*number), *number, *port)),
                None => desired.remove(&numbered(&name(*number), *number, 80).service),
            };
        }
        if self.empties {
            kernel.tamper(IPV4, |rules| *rules = FakeRules::default());
        }
    }
}

fn rounds() -> impl Strategy<Value = Vec<Round>> {
    let port = prop_oneof![
        Just(None),
        Just(Some(UNPROGRAMMABLE)),
        (8080u16..8083).prop_map(Some)
    ];
    let changes = prop::collection::vec((0..SERVICES, port), 0..12);
    let reason = prop_oneof![Just(Reason::Changed), Just(Reason::Timer)];
    let round = (changes, reason, prop::bool::weighted(0.1), any::<bool>());
    let round = round.prop_map(|(changes, reason, empties, waits)| Round {
        changes,
        // Nothing else notices it.
        reason: if empties { Reason::Timer } else { reason },
        empties,
        waits,
    });
    prop::collection::vec(round, 1..12)
}

/// How the commits that contain a refused Service end, in turn.
fn fates() -> impl Strategy<Value = Vec<CallOutcome>> {
    let never = CallOutcome::Refuse(Recovery::Isolate);
    prop_oneof![
        Just(vec![never]),
        // The kernel itself refuses it, when it has carried out a part.
        Just(vec![CallOutcome::Pass]),
        // As where a table is gone, or a step of several was carried out.
        Just(vec![CallOutcome::Refuse(Recovery::Observe), never]),
    ]
}

/// Whether the kernel carries out a part of what it refuses.
fn carries_out_a_part(fate: &[CallOutcome]) -> bool {
    fate.contains(&CallOutcome::Pass)
}

fn name(number: u16) -> String {
    format!("team-{}/web-{number}", number % 6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(96)))]

    /// T384: a search ends. Then all Services have what is desired but those that the kernel refuses,
    /// which have something that they had before, and are named.
    #[test]
    fn t384_of_any_history_only_what_is_refused_is_held_back(
        rounds in rounds(),
        fate in fates(),
        size in 2usize..20,
    ) {
        let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
        if carries_out_a_part(&fate) {
            kernel.refuse(is_refused);
        }
        let backend = kernel.backend(IPV4).with_part_size(PartSize::new(size));
        let mut family = FamilyReconciler::new(slow_in_turn(backend, &clock, fate));
        let mut desired = dataplane(&[]);
        family.sync(&desired, Reason::Startup, &clock);
        for round in &rounds {
            round.begin(&mut desired, &kernel);
            family.sync(&desired, round.reason, &clock);
            if let Some(observed) = family.observed() {
                prop_assert_eq!(&observed.rules, &kernel.rules(IPV4));
            }
            if round.waits {
                finish(&mut family, &desired, &clock);
            }
        }
        family.sync(&desired, Reason::Timer, &clock);
        finish(&mut family, &desired, &clock);

        let mut expected = desired.clone();
        let mut refused = Vec::new();
        let programmed = family.status().programmed.expect("a sync has succeeded");
        for (service, rules) in desired.services().sorted() {
            if is_unprogrammable(rules) {
                refused.push(service.to_string());
                match programmed.services().get(service) {
                    Some(kept) => {
                        prop_assert!(!is_unprogrammable(kept));
                        expected.set(Arc::clone(kept));
                    }
                    None => drop(expected.remove(service)),
                }
            }
        }
        prop_assert_eq!(quarantined(&family), refused);
        prop_assert_eq!(programmed.to_string(), expected.to_string());
        prop_assert_eq!(kernel.rules(IPV4), FakeRules::render(&expected, IPV4));
        let sync = family.sync(&desired, Reason::Changed, &clock);
        prop_assert_eq!(&sync.outcome, &Outcome::Unchanged);
    }

    /// T384: whatever else fails meanwhile, a sync that succeeds leaves no Service out that the kernel does
    /// not refuse, and publishes what the kernel has.
    #[test]
    fn t384_of_any_history_with_other_failures_a_success_leaves_nobody_out(
        rounds in rounds(),
        fate in fates(),
        size in 2usize..20,
        seed: u64,
    ) {
        let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
        if carries_out_a_part(&fate) {
            kernel.refuse(is_refused);
        }
        let others = [
            CallOutcome::Refuse(Recovery::Observe),
            CallOutcome::Refuse(Recovery::Retry),
            CallOutcome::Refuse(Recovery::Halt),
            CallOutcome::LoseAnswer,
        ];
        let (mut fates, mut seeded) = (fate.into_iter().cycle(), Seeded::new(seed));
        let (script_clock, script_kernel) = (clock.clone(), kernel.clone());
        let backend = kernel.backend(IPV4).with_part_size(PartSize::new(size));
        let backend = backend.with_longest_part(Duration::from_millis(30));
        let backend = Faulty::new(backend, move |call| {
            let Call::Commit { suspects, .. } = call else {
                return CallOutcome::Pass;
            };
            script_clock.advance(Duration::from_millis(10));
            let other = (seeded.below(6) == 0).then(|| others[seeded.below(others.len())]);
            match suspects.iter().any(|rules| is_unprogrammable(rules)) {
                true if other != Some(CallOutcome::LoseAnswer) => {
                    other.or_else(|| fates.next()).unwrap_or(CallOutcome::Pass)
                }
                true => fates.next().unwrap_or(CallOutcome::Pass),
                false => {
                    if other == Some(others[0]) && seeded.below(4) == 0 {
                        script_kernel.tamper(IPV4, |rules| *rules = FakeRules::default());
                    }
                    other.unwrap_or(CallOutcome::Pass)
                }
            }
        });
        let mut family = FamilyReconciler::new(backend);
        let mut desired = dataplane(&[]);
        family.sync(&desired, Reason::Startup, &clock);
        for round in &rounds {
            round.begin(&mut desired, &kernel);
            let (mut reason, mut has_ended) = (round.reason, false);
            for _ in 0..if round.waits { 200 } else { 1 } {
                let sync = family.sync(&desired, reason, &clock);
                if let Some(observed) = family.observed() {
                    prop_assert_eq!(&observed.rules, &kernel.rules(IPV4));
                }
                if sync.succeeded() {
                    let programmed = family.status().programmed.expect("a sync has succeeded");
                    prop_assert_eq!(kernel.rules(IPV4), FakeRules::render(&programmed, IPV4));
                    let held = quarantined(&family);
                    for (service, rules) in desired.services().sorted() {
                        // What has changed since it was refused may have to wait for the next sync.
                        let waits = family.is_unfinished() && held.contains(&service.to_string());
                        if !is_unprogrammable(rules) && !waits {
                            prop_assert_eq!(programmed.services().get(service), Some(rules));
                        }
                    }
                }
                has_ended = sync.succeeded() && !family.is_unfinished();
                if has_ended {
                    break;
                }
                reason = Reason::Retry;
            }
            prop_assert!(has_ended || !round.waits, "it does not end");
        }
    }
}
