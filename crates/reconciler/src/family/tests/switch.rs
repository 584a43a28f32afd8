//! Switches from one mode to another. Each mode has a kernel of its own, which shows which rules are
//! where.

use std::collections::BTreeSet;

use dataplane::{Config, FrontendKey, Mode, PartSize};

use super::*;
use crate::FamilySync;

mod given_up;
mod replacement_that_fails;

/// Two frontends with their endpoints.
const SIZE: PartSize = PartSize::new(4);
const MODES: [Mode; 3] = [NFTABLES, IPTABLES, IPVS];
const NFTABLES: Mode = Mode::Nftables;
const IPTABLES: Mode = Mode::Iptables;
const IPVS: Mode = Mode::Ipvs;

type AnyFaulty = Faulty<FakeBackend>;

/// An agent, and the kernels of its modes.
struct World {
    kernels: [FakeKernel; 3],
    family: FamilyReconciler<AnyFaulty>,
    clock: FakeClock,
}

impl World {
    /// Kernels without rules, whose calls end as `script` says.
    fn new(script: fn(Mode, &Call<'_>) -> CallOutcome) -> World {
        let kernels = MODES.map(|_| FakeKernel::new());
        World {
            family: start(&kernels, script),
            kernels,
            clock: FakeClock::new(),
        }
    }

    /// Kernels on which every call succeeds.
    fn without_faults() -> World {
        World::new(|_, _| CallOutcome::Pass)
    }

    fn sync(&mut self, desired: &Dataplane, reason: Reason) -> Arc<FamilySync> {
        self.family.sync(desired, reason, &self.clock)
    }

    /// Syncs until nothing follows. Returns the last sync.
    #[track_caller]
    fn finish(&mut self, desired: &Dataplane) -> Arc<FamilySync> {
        let mut sync = self.sync(desired, Reason::Changed);
        for _ in 0..100 {
            match self.family.is_unfinished() {
                true => sync = self.sync(desired, Reason::Continued),
                false => return sync,
            }
        }
        panic!("it never ends: {sync}");
    }

    fn kernel(&self, mode: Mode) -> &FakeKernel {
        let position = MODES.iter().position(|other| *other == mode);
        &self.kernels[position.expect("all modes have a kernel")]
    }

    /// The modes whose kernel holds any rules.
    fn holding(&self) -> Vec<Mode> {
        let is_held = |mode: &Mode| self.kernel(*mode).rules(IPV4) != FakeRules::default();
        MODES.into_iter().filter(is_held).collect()
    }

    /// Asserts that the kernel of `mode` holds what `desired` says.
    #[track_caller]
    fn assert_serves(&self, mode: Mode, desired: &Dataplane) {
        assert_eq!(
            self.kernel(mode).rules(IPV4),
            FakeRules::render(desired, IPV4)
        );
    }
}

fn start(
    kernels: &[FakeKernel; 3],
    script: fn(Mode, &Call<'_>) -> CallOutcome,
) -> FamilyReconciler<AnyFaulty> {
    let mut modes = MODES.into_iter().zip(kernels).map(|(mode, kernel)| {
        let backend = kernel.backend(IPV4).with_part_size(SIZE);
        (mode, Faulty::new(backend, move |call| script(mode, call)))
    });
    let first = modes.next().expect("there are three");
    FamilyReconciler::with_modes(first, modes.collect())
}

/// The desired state in `mode`, with one endpoint port for each Service.
fn in_mode(mode: Mode, ports: &[u16]) -> Dataplane {
    let services = (1..)
        .zip(ports)
        .map(|(number, port)| service(&format!("shop/web-{number}"), number, &[*port]));
    let services: Vec<_> = services.collect();
    with_mode(&dataplane(&services), mode)
}

fn with_mode(dataplane: &Dataplane, mode: Mode) -> Dataplane {
    let mut dataplane = dataplane.clone();
    let config = Config {
        mode,
        ..Config::clone(dataplane.config())
    };
    let node = Arc::clone(dataplane.node());
    dataplane.set_node(node, config.into());
    dataplane
}

/// T175: a switch was one sync, so an endpoint that ended meanwhile got packets until all Services
/// were written in the new mode.
#[test]
fn t175_a_switch_goes_in_parts_and_a_change_meanwhile_reaches_the_mode_that_serves() {
    let mut world = World::without_faults();
    let before = in_mode(NFTABLES, &[8080; 20]);
    assert_eq!(world.finish(&before).outcome, Outcome::Committed);

    let sync = world.sync(&in_mode(IPTABLES, &[8080; 20]), Reason::Changed);
    assert_eq!(sync.outcome, Outcome::Partial);
    assert_eq!(world.family.active_mode(), Some(NFTABLES));
    let filled = world.kernel(IPTABLES).rules(IPV4).frontends.len();
    assert!((1..20).contains(&filled), "{filled}");

    let mut ports = [8080; 20];
    (ports[0], ports[19]) = (8081, 8081);
    let after = in_mode(IPTABLES, &ports);
    let sync = world.sync(&after, Reason::Changed);
    assert_eq!(sync.outcome, Outcome::Partial);
    world.assert_serves(NFTABLES, &after);

    let mut parts = 0;
    while world.family.is_unfinished() {
        world.assert_serves(NFTABLES, &after);
        world.sync(&after, Reason::Continued);
        parts += 1;
    }
    assert!(parts > 5, "{parts}");
    world.assert_serves(IPTABLES, &after);
    assert_eq!(world.holding(), [IPTABLES]);
    assert_eq!(world.family.active_mode(), Some(IPTABLES));
}

/// Connections to Services that the new mode does not hold yet must not count as stale, and a
/// takeover must not remove another proxy's rules.
#[test]
fn what_counts_as_programmed_stays_until_the_switch_is_over() {
    let mut world = World::without_faults();
    let before = in_mode(NFTABLES, &[8080; 9]);
    world.finish(&before);
    let after = in_mode(IPVS, &[8081; 9]);
    let config = |world: &World| {
        let programmed = world.family.status().programmed.expect("it is known");
        (programmed.services().len(), programmed.config().mode)
    };
    world.sync(&after, Reason::Changed);
    while world.family.is_unfinished() {
        assert_eq!(config(&world), (9, NFTABLES));
        world.sync(&after, Reason::Continued);
    }
    assert_eq!(config(&world), (9, IPVS));
}

#[test]
fn a_switch_that_is_taken_back_midway_writes_nothing_in_the_mode_that_serves() {
    let mut world = World::without_faults();
    let before = in_mode(NFTABLES, &[8080; 9]);
    world.finish(&before);
    world.sync(&in_mode(IPTABLES, &[8080; 9]), Reason::Changed);
    assert_eq!(world.holding(), [NFTABLES, IPTABLES]);
    world.finish(&before);
    assert_eq!(world.holding(), [NFTABLES]);
    world.assert_serves(NFTABLES, &before);
    assert_eq!(world.family.active_mode(), Some(NFTABLES));
}

/// While a switch is under way, the profile selects a third mode.
#[test]
fn a_switch_that_is_diverted_midway_leaves_only_the_last_mode() {
    let mut world = World::without_faults();
    world.finish(&in_mode(NFTABLES, &[8080; 9]));
    world.sync(&in_mode(IPTABLES, &[8080; 9]), Reason::Changed);
    let last = in_mode(IPVS, &[8080; 9]);
    world.finish(&last);
    assert_eq!(world.holding(), [IPVS]);
    world.assert_serves(IPVS, &last);
}

/// An agent that starts during a switch does not know which of the two modes is complete: it
/// removes neither before the new one is.
#[test]
fn after_a_restart_midway_the_complete_mode_stays_until_the_new_one_is_complete() {
    let mut world = World::without_faults();
    world.finish(&in_mode(IPTABLES, &[8080; 9]));
    world.sync(&in_mode(NFTABLES, &[8080; 9]), Reason::Changed);
    assert_eq!(world.holding(), [NFTABLES, IPTABLES]);
    world.family = start(&world.kernels, |_, _| CallOutcome::Pass);
    let desired = in_mode(IPVS, &[8080; 9]);
    let mut sync = world.sync(&desired, Reason::Startup);
    while sync.outcome == Outcome::Partial {
        world.assert_serves(IPTABLES, &desired);
        sync = world.sync(&desired, Reason::Continued);
    }
    assert_eq!(world.holding(), [IPVS]);
    world.assert_serves(IPVS, &desired);
}

/// The xtables lock can be held for as long as an agent waits for it.
#[test]
fn rules_that_cannot_follow_do_not_delay_the_mode_that_replaces_them() {
    static TRIES: AtomicUsize = AtomicUsize::new(0);
    static BUSY: AtomicBool = AtomicBool::new(false);
    let mut world = World::new(|mode, call| match call {
        Call::Commit { .. } if mode == IPTABLES && BUSY.load(Ordering::Relaxed) => {
            TRIES.fetch_add(1, Ordering::Relaxed);
            CallOutcome::Refuse(Recovery::Retry)
        }
        _ => CallOutcome::Pass,
    });
    world.finish(&in_mode(IPTABLES, &[8080; 20]));
    BUSY.store(true, Ordering::Relaxed);
    let after = in_mode(NFTABLES, &[8081; 20]);
    let first = world.sync(&after, Reason::Changed);
    assert_eq!(first.outcome, Outcome::Partial);
    let stalled = world.family.stalled_modes();
    let (mode, error) = stalled.first_key_value().expect("it cannot follow");
    assert_eq!((stalled.len(), *mode), (1, IPTABLES));
    assert!(error.contains("a fault was injected"), "{error}");
    let mut sync = first;
    while world.family.is_unfinished() {
        sync = world.sync(&after, Reason::Continued);
    }
    // What is left of it is a failure of the sync.
    assert!(world.family.stalled_modes().is_empty());
    assert!(matches!(sync.outcome, Outcome::Failed(_)), "{sync}");
    world.assert_serves(NFTABLES, &after);
    assert_eq!(world.family.active_mode(), Some(NFTABLES));
    assert_eq!(TRIES.load(Ordering::Relaxed), 2, "to follow, and to go");
    let failing = world.family.failing().expect("old rules are left");
    assert_eq!(failing.recovery, Recovery::Retry);
    BUSY.store(false, Ordering::Relaxed);
    assert_eq!(
        world.sync(&after, Reason::Retry).outcome,
        Outcome::Committed
    );
    assert_eq!(world.holding(), [NFTABLES]);
    assert!(world.family.failing().is_none());
}

/// A module can be lost in the middle of a switch, and so can a permission.
#[test]
fn a_mode_that_fails_for_good_midway_goes_and_the_one_that_serves_stays() {
    static FAILS: AtomicBool = AtomicBool::new(false);
    let mut world = World::new(|mode, call| match call {
        Call::Commit { .. } if mode == IPVS && FAILS.load(Ordering::Relaxed) => {
            CallOutcome::Refuse(Recovery::Halt)
        }
        _ => CallOutcome::Pass,
    });
    let before = in_mode(IPTABLES, &[8080; 9]);
    world.finish(&before);
    let desired = in_mode(IPVS, &[8081; 9]);
    world.sync(&desired, Reason::Changed);
    assert_eq!(world.holding(), [IPTABLES, IPVS]);
    FAILS.store(true, Ordering::Relaxed);
    world.finish(&desired);
    // The first mode replaces it.
    assert_eq!(world.holding(), [NFTABLES]);
    world.assert_serves(NFTABLES, &desired);
    let unusable: Vec<Mode> = world.family.unusable_modes().into_keys().collect();
    assert_eq!(unusable, [IPVS]);
    FAILS.store(false, Ordering::Relaxed);
    world.clock.advance(Duration::from_secs(60));
    world.sync(&desired, Reason::Timer);
    world.finish(&desired);
    assert_eq!(world.holding(), [IPVS]);
    world.assert_serves(IPVS, &desired);
}

/// Two modes one after the other lose what they need to remove their rules. Each is reported, and
/// neither is tried again before its rules are removed.
#[test]
fn rules_of_several_modes_that_cannot_be_removed_are_all_reported() {
    static FAILS: AtomicBool = AtomicBool::new(false);
    let mut world = World::new(|mode, call| match call {
        Call::Commit { .. } | Call::Removal
            if mode != NFTABLES && FAILS.load(Ordering::Relaxed) =>
        {
            CallOutcome::Refuse(Recovery::Halt)
        }
        _ => CallOutcome::Pass,
    });
    let iptables = in_mode(IPTABLES, &[8080; 9]);
    world.finish(&iptables);
    world.sync(&in_mode(IPVS, &[8081; 9]), Reason::Changed);
    assert_eq!(world.holding(), [IPTABLES, IPVS]);
    FAILS.store(true, Ordering::Relaxed);
    let after = in_mode(NFTABLES, &[8082; 9]);
    world.finish(&after);
    world.finish(&after);
    assert_eq!(world.holding(), MODES);
    let outgoing = world.family.outgoing_modes().iter().copied();
    assert_eq!(outgoing.collect::<Vec<_>>(), [IPTABLES, IPVS]);
    FAILS.store(false, Ordering::Relaxed);
    world.clock.advance(Duration::from_secs(60));
    world.sync(&after, Reason::Timer);
    assert_eq!(world.holding(), [NFTABLES]);
    assert!(world.family.outgoing_modes().is_empty());
}

/// A node is handed back in the middle of a switch, after the mode that serves could not follow.
#[test]
fn a_removal_reaches_rules_that_were_given_up_while_they_served() {
    static FAILS: AtomicBool = AtomicBool::new(false);
    let mut world = World::new(|mode, call| match call {
        Call::Commit { .. } if mode == IPTABLES && FAILS.load(Ordering::Relaxed) => {
            CallOutcome::Refuse(Recovery::Halt)
        }
        _ => CallOutcome::Pass,
    });
    world.finish(&in_mode(IPTABLES, &[8080; 9]));
    FAILS.store(true, Ordering::Relaxed);
    world.sync(&in_mode(NFTABLES, &[8081; 9]), Reason::Changed);
    assert_eq!(world.holding(), [NFTABLES, IPTABLES]);
    // It serves, and changes do not reach it any more.
    let stalled: Vec<Mode> = world.family.stalled_modes().into_keys().collect();
    assert_eq!(stalled, [IPTABLES]);
    let removed = world.family.commit_removal(&world.clock);
    let _ = removed.expect("every mode can be emptied");
    assert_eq!(world.holding(), []);
}

/// Failure story T273. The removal of such a mode failed once, and no later one tried it again: its rules led
/// to endpoints of the past for as long as the agent ran, beside the proxy that the node was handed back to.
#[test]
fn t273_a_withdrawal_that_failed_in_a_mode_that_was_given_up_is_repeated_there() {
    static FAILS: AtomicBool = AtomicBool::new(false);
    let mut world = World::new(|mode, call| match call {
        Call::Commit { .. } | Call::Removal
            if mode == IPTABLES && FAILS.load(Ordering::Relaxed) =>
        {
            CallOutcome::Refuse(Recovery::Halt)
        }
        _ => CallOutcome::Pass,
    });
    world.finish(&in_mode(IPTABLES, &[8080; 9]));
    FAILS.store(true, Ordering::Relaxed);
    world.sync(&in_mode(NFTABLES, &[8081; 9]), Reason::Changed);
    for _ in 0..2 {
        let withdrawn = world.family.commit_withdrawal(&world.clock);
        let _ = withdrawn.expect_err("rules are left");
        assert_eq!(world.holding(), [IPTABLES]);
    }
    FAILS.store(false, Ordering::Relaxed);
    let withdrawn = world.family.commit_withdrawal(&world.clock);
    assert_eq!(withdrawn.expect("it works now"), Leftover::Nothing);
    assert_eq!(world.holding(), []);
}

/// Rules of a mode that is not in use, written by another program or left by an earlier agent, are
/// drift, and go.
#[test]
fn rules_that_appear_in_another_mode_are_removed_and_counted() {
    let mut world = World::without_faults();
    let desired = in_mode(NFTABLES, &[8080; 3]);
    world.finish(&desired);
    let stray = FakeRules::render(&desired, IPV4);
    world.kernel(IPTABLES).tamper(IPV4, |rules| *rules = stray);
    let sync = world.sync(&desired, Reason::Timer);
    assert_eq!(sync.outcome, Outcome::Committed);
    assert_eq!(world.holding(), [NFTABLES]);
    assert_eq!(world.family.status().drifts, 1);
}

/// The frontends that every state since `first` has in the same form, with their endpoints.
fn stable(
    first: &Dataplane,
    since: &[Dataplane],
) -> Vec<(FrontendKey, BTreeSet<dataplane::Target>)> {
    let rules = FakeRules::render(first, IPV4);
    let others: Vec<FakeRules> = since.iter().map(|at| FakeRules::render(at, IPV4)).collect();
    let is_stable = |key: &FrontendKey| {
        let frontend = rules.frontends.get(key);
        others
            .iter()
            .all(|other| other.frontends.get(key) == frontend)
    };
    let keys = rules.frontends.keys().filter(|key| is_stable(key));
    keys.map(|key| (*key, rules.targets(key))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(96)))]

    /// Whatever the modes, whatever fails, and whenever the process is killed and starts again:
    /// some mode serves each frontend that does not change, something counts as programmed, the
    /// last known state is what the kernels hold, and once nothing fails any more, only the desired
    /// mode has rules.
    #[test]
    fn no_switch_leaves_a_frontend_without_a_mode(history in histories(8), seed: u64) {
        let (kernels, clock) = (MODES.map(|_| FakeKernel::new()), FakeClock::new());
        let mut seeded = Seeded::new(seed);
        let faults = [
            CallOutcome::Refuse(Recovery::Retry),
            CallOutcome::Refuse(Recovery::Observe),
            CallOutcome::Refuse(Recovery::Halt),
            CallOutcome::LoseAnswer,
        ];
        let start = |seed: u64| {
            let mut modes = (0..).zip(MODES).zip(&kernels).map(|((number, mode), kernel)| {
                let backend = kernel.backend(IPV4).with_part_size(SIZE);
                (mode, Faulty::seeded(backend, seed.wrapping_add(number), &faults))
            });
            let first = modes.next().expect("there are three");
            FamilyReconciler::with_modes(first, modes.collect())
        };
        let mut family = start(seed);
        let reasons = [Reason::Changed, Reason::Retry, Reason::Continued, Reason::Timer, Reason::Drift];
        // The last state that was complete, and all states since.
        let mut since: Option<(Dataplane, Vec<Dataplane>)> = None;
        // Whether the agent that runs now has completed any.
        let mut is_known = false;
        for at in &history {
            let desired = with_mode(at, MODES[seeded.below(3)]);
            if let Some((_, states)) = &mut since {
                states.push(desired.clone());
            }
            for _ in 0..=seeded.below(6) {
                if seeded.below(6) == 0 {
                    (family, is_known) = (start(seed.wrapping_add(7)), false);
                }
                if seeded.below(3) == 0 {
                    kernels[seeded.below(3)].cut_after(seeded.below(20));
                }
                clock.advance(Duration::from_secs(4));
                let sync = family.sync(&desired, reasons[seeded.below(reasons.len())], &clock);
                for (mode, rules) in family.rules_by_mode().into_iter().flatten() {
                    let position = MODES.iter().position(|other| *other == mode);
                    let kernel = &kernels[position.expect("it is one of them")];
                    prop_assert_eq!(rules, &kernel.rules(IPV4));
                }
                if let Some((first, states)) = &since {
                    let held = kernels.each_ref().map(|kernel| kernel.rules(IPV4));
                    for (key, targets) in stable(first, states) {
                        let serves = held.iter().any(|rules| rules.targets(&key) == targets
                            && rules.frontends.contains_key(&key));
                        prop_assert!(serves, "{} after {}", key, sync);
                    }
                }
                if sync.succeeded() {
                    (since, is_known) = (Some((desired.clone(), Vec::new())), true);
                }
                let programmed = family.status().programmed;
                prop_assert!(programmed.is_some() || !is_known, "nothing programmed after {}", sync);
            }
        }
        let last = with_mode(history.last().expect("a history has states"), IPTABLES);
        let arrived = (0..200).any(|_| {
            clock.advance(Duration::from_secs(11));
            let sync = family.sync(&last, Reason::Timer, &clock);
            sync.succeeded() && sync.quarantined.is_empty() && family.unusable_modes().is_empty()
        });
        prop_assert!(arrived, "{:?}", family.status());
        prop_assert_eq!(kernels[1].rules(IPV4), FakeRules::render(&last, IPV4));
        for other in [0, 2] {
            prop_assert_eq!(kernels[other].rules(IPV4), FakeRules::default());
        }
    }
}

/// T394: while a mode is replaced, the one that serves got no change at all any more once the kernel
/// refused one Service in it.
#[test]
fn t394_a_refused_service_stops_no_other_in_a_mode_that_is_replaced() {
    // The new mode does not get ready, and the one that serves takes nothing from port 666.
    let mut world = World::new(|mode, call| match (mode, call) {
        (IPTABLES, Call::Commit { .. }) => CallOutcome::Refuse(Recovery::Retry),
        (NFTABLES, Call::Commit { suspects, .. }) => {
            let targets = suspects.iter().flat_map(|rules| &rules.frontends);
            let mut targets = targets.flat_map(|(_, frontend)| frontend.cluster.iter());
            match targets.any(|target| target.port.get() == 666) {
                true => CallOutcome::Refuse(Recovery::Isolate),
                false => CallOutcome::Pass,
            }
        }
        _ => CallOutcome::Pass,
    });
    world.finish(&in_mode(NFTABLES, &[8080; 5]));

    world.sync(
        &in_mode(IPTABLES, &[8081, 666, 8082, 8080, 8080]),
        Reason::Changed,
    );
    for _ in 0..3 {
        world.sync(
            &in_mode(IPTABLES, &[8081, 666, 8082, 8080, 8080]),
            Reason::Retry,
        );
    }
    world.assert_serves(
        NFTABLES,
        &in_mode(IPTABLES, &[8081, 8080, 8082, 8080, 8080]),
    );
    assert!(world.family.stalled_modes().is_empty());
}
