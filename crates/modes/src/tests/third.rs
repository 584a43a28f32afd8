//! Three modes, each in a separate fake kernel: what holds for two holds for any number.

use super::*;

/// In the order of the list. Each has its own kernel, which shows which rules are where.
const ALL: [Mode; 3] = [Mode::Nftables, Mode::Iptables, Mode::Ipvs];

struct World {
    kernels: [FakeKernel; 3],
    family: FamilyReconciler<AnyBackend>,
}

impl World {
    fn new() -> World {
        let kernels = ALL.map(|_| FakeKernel::new());
        World {
            family: start(&kernels),
            kernels,
        }
    }

    /// Syncs until nothing follows.
    fn sync(&mut self, mode: Mode) -> Outcome {
        let desired = dataplane(mode, 1..4);
        let mut sync = self.family.sync(&desired, Reason::Changed, &SystemClock);
        while self.family.is_unfinished() {
            sync = self.family.sync(&desired, Reason::Continued, &SystemClock);
        }
        sync.outcome.clone()
    }

    /// The modes whose kernel holds any rules.
    fn holding(&self) -> Vec<Mode> {
        let kernels = ALL.into_iter().zip(&self.kernels);
        let holding = kernels.filter(|(_, kernel)| kernel.rules(Family::Ipv4).base.is_some());
        holding.map(|(mode, _)| mode).collect()
    }
}

/// Starts an agent on these kernels.
fn start(kernels: &[FakeKernel; 3]) -> FamilyReconciler<AnyBackend> {
    let mut modes = ALL
        .into_iter()
        .zip(kernels)
        .map(|(mode, kernel)| (mode, erase(kernel.backend(Family::Ipv4))));
    let first = modes.next().expect("there are three");
    FamilyReconciler::with_modes(first, modes.collect())
}

#[test]
fn a_third_mode_is_switched_to_and_from() {
    let mut world = World::new();
    for (mode, next) in [(0, 2), (2, 1), (1, 2), (2, 0)].map(|(a, b)| (ALL[a], ALL[b])) {
        assert!(!matches!(world.sync(mode), Outcome::Failed(_)));
        assert_eq!(world.holding(), [mode]);
        assert!(!matches!(world.sync(next), Outcome::Failed(_)));
        assert_eq!(world.holding(), [next], "from {mode}");
        assert_eq!(world.family.active_mode(), Some(next));
        let observed = RulesByMode::observed(&world.family);
        assert_eq!(observed.and_then(|held| held.active_mode()), Some(next));
    }
}

/// Wherever a switch is interrupted, some kernel serves at every moment, and the next process
/// completes the switch.
#[test]
fn a_switch_to_a_third_mode_that_was_cut_short_is_completed() {
    for cut in 0..6 {
        let mut world = World::new();
        assert_eq!(world.sync(Mode::Nftables), Outcome::Committed);
        let whole = world.kernels[0].rules(Family::Ipv4);
        world.kernels[2].cut_after(cut);
        let desired = dataplane(Mode::Ipvs, 1..4);
        let mut backend = world.kernels[2].backend(Family::Ipv4);
        let desired_rules = backend.render(&desired, &Rendered::default());
        let change = backend.diff(&Default::default(), &desired_rules);
        let _cut = backend.commit(change);
        assert_eq!(world.kernels[0].rules(Family::Ipv4), whole);
        world.family = start(&world.kernels);
        assert_eq!(
            world.sync(Mode::Ipvs),
            Outcome::Committed,
            "cut after {cut}"
        );
        assert_eq!(world.holding(), [Mode::Ipvs]);
        assert_eq!(world.kernels[2].rules(Family::Ipv4), desired_rules);
    }
}

#[test]
fn a_third_mode_is_cleaned_up() {
    let mut world = World::new();
    assert_eq!(world.sync(Mode::Ipvs), Outcome::Committed);
    world.family = start(&world.kernels);
    let removed = world.family.commit_removal(&SystemClock);
    let _ = removed.expect("it goes");
    assert_eq!(world.holding(), []);
}
