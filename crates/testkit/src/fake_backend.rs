//! A backend over a simulated kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backend::{
    Backend, CommitError, Drift, DriftDetection, Effect, FrontendContext, Leftover, ObserveError,
    Receipt, Recovery, Rendered, UnsupportedField,
};
use dataplane::{Affinity, Config, Dataplane, Family, PartSize, ServiceKey};

use crate::fake_rules::{FakeChange, FakeOperation, FakeRules};

/// A simulated kernel that outlives the backends that program it, as the real one does. A test can
/// start another backend on it, change it as another program would, and count writes. Clones are
/// the same kernel.
#[derive(Debug, Clone, Default)]
pub struct FakeKernel(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    families: BTreeMap<Family, FakeRules>,
    /// Incremented by every write of any program.
    generation: u64,
    commits: usize,
    operations: usize,
    observations: usize,
    /// Whether it announces no change.
    is_silent: bool,
    cut_after: Option<usize>,
    refused: Option<fn(&FakeOperation) -> bool>,
    /// How many withdrawals connections outlive.
    outlived: usize,
    withdrawals: usize,
    without_room: Vec<UnsupportedField>,
}

/// Programs one family of a [`FakeKernel`]. Supports everything except session affinity: frontends
/// with affinity are served without it.
#[derive(Debug)]
pub struct FakeBackend {
    family: Family,
    kernel: FakeKernel,
    part_size: PartSize,
    rebuild_size: Option<PartSize>,
    longest_part: Duration,
    /// The kernel's generation at the last write or read.
    seen: Option<u64>,
}

/// The error of a commit that was cut short.
#[derive(Debug, thiserror::Error)]
#[error("the fake kernel stopped after {carried_out} of {asked} operations")]
struct Cut {
    carried_out: usize,
    asked: usize,
}

/// Where the kernel stopped.
#[derive(Debug)]
enum Stop {
    /// It was to, after this many operations.
    Cut(usize),
    /// It refuses the next one after this many.
    Refused(usize),
}

// === impl FakeKernel ===

impl FakeKernel {
    /// Creates an empty kernel.
    pub fn new() -> FakeKernel {
        FakeKernel::default()
    }

    /// Creates a backend for one family, as in a process that has just started.
    pub fn backend(&self, family: Family) -> FakeBackend {
        FakeBackend {
            family,
            kernel: self.clone(),
            part_size: PartSize::UNLIMITED,
            rebuild_size: None,
            longest_part: Duration::MAX,
            seen: None,
        }
    }

    /// The rules of `family` in the kernel.
    pub fn rules(&self, family: Family) -> FakeRules {
        self.state()
            .families
            .get(&family)
            .cloned()
            .unwrap_or_default()
    }

    /// Changes the rules as another program would.
    pub fn tamper(&self, family: Family, change: impl FnOnce(&mut FakeRules)) {
        let mut state = self.state();
        change(state.families.entry(family).or_default());
        state.generation += 1;
    }

    /// The number of commits, including those that failed halfway.
    pub fn commits(&self) -> usize {
        self.state().commits
    }

    /// The number of operations applied.
    pub fn operations(&self) -> usize {
        self.state().operations
    }

    /// The number of reads.
    pub fn observations(&self) -> usize {
        self.state().observations
    }

    /// Makes a commit fail after this many operations, counted over all commits from now on. The
    /// error does not reveal how many were applied.
    pub fn cut_after(&self, operations: usize) {
        self.state().cut_after = Some(operations);
    }

    /// Makes the kernel refuse such operations. It carries out those before, as one that has no
    /// transactions.
    pub fn refuse(&self, refused: fn(&FakeOperation) -> bool) {
        self.state().refused = Some(refused);
    }

    /// Sets what the backends have no room for.
    pub fn leave_no_room(&self, without_room: Vec<UnsupportedField>) {
        self.state().without_room = without_room;
    }

    /// Makes backends notice changes by checks alone.
    pub fn announce_nothing(&self) {
        self.state().is_silent = true;
    }

    /// Makes connections outlive this many withdrawals.
    pub fn outlive(&self, withdrawals: usize) {
        self.state().outlived = withdrawals;
    }

    /// The number of withdrawals.
    pub fn withdrawals(&self) -> usize {
        self.state().withdrawals
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Applies the steps, until one fails.
    fn carry_out(&mut self, family: Family, steps: &[FakeOperation]) -> Result<(), Stop> {
        self.commits += 1;
        self.generation += 1;
        let rules = self.families.entry(family).or_default();
        for (done, step) in steps.iter().enumerate() {
            match &mut self.cut_after {
                Some(0) => {
                    self.cut_after = None;
                    return Err(Stop::Cut(done));
                }
                Some(left) => *left -= 1,
                None => {}
            }
            if self.refused.is_some_and(|refused| refused(step)) {
                return Err(Stop::Refused(done));
            }
            rules.carry_out(step);
            self.operations += 1;
        }
        Ok(())
    }
}

// === impl FakeBackend ===

impl FakeBackend {
    /// Sets how much of a change one sync programs.
    pub fn with_part_size(self, part_size: PartSize) -> FakeBackend {
        FakeBackend { part_size, ..self }
    }

    /// Sets how much one sync programs while it fills an empty kernel.
    pub fn with_rebuild_size(self, rebuild_size: PartSize) -> FakeBackend {
        FakeBackend {
            rebuild_size: Some(rebuild_size),
            ..self
        }
    }

    /// Sets how long a part may take.
    pub fn with_longest_part(self, longest_part: Duration) -> FakeBackend {
        FakeBackend {
            longest_part,
            ..self
        }
    }

    /// Its kernel.
    pub fn kernel(&self) -> &FakeKernel {
        &self.kernel
    }
}

impl Backend for FakeBackend {
    type Rules = FakeRules;
    type Change = FakeChange;

    fn family(&self) -> Family {
        self.family
    }

    fn part_size(&self, _config: &Config) -> PartSize {
        self.part_size
    }

    fn rebuild_size(&self, _config: &Config) -> PartSize {
        self.rebuild_size.unwrap_or(self.part_size)
    }

    fn longest_part(&self, _config: &Config) -> Duration {
        self.longest_part
    }

    fn render(&self, desired: &Dataplane, _from: &Rendered<FakeRules>) -> FakeRules {
        FakeRules::render(desired, self.family)
    }

    fn diff(&self, observed: &FakeRules, desired: &FakeRules) -> FakeChange {
        observed.diff(desired)
    }

    fn observe(&mut self) -> Result<FakeRules, ObserveError> {
        let mut state = self.kernel.state();
        state.observations += 1;
        self.seen = Some(state.generation);
        Ok(state
            .families
            .get(&self.family)
            .cloned()
            .unwrap_or_default())
    }

    fn observe_drift(&mut self) -> Result<Drift, ObserveError> {
        let state = self.kernel.state();
        Ok(
            match (self.seen == Some(state.generation), state.is_silent) {
                (false, _) => Drift::Possible,
                (true, false) => Drift::None,
                (true, true) => Drift::NoneInPart,
            },
        )
    }

    fn drift_detection(&self) -> DriftDetection {
        match self.kernel.state().is_silent {
            true => DriftDetection::ByCheck,
            false => DriftDetection::ByNotification,
        }
    }

    fn commit(&mut self, change: FakeChange) -> Result<Receipt, CommitError> {
        let mut state = self.kernel.state();
        let is_own = self.seen == Some(state.generation);
        let FakeChange(steps) = change;
        let result = state.carry_out(self.family, &steps);
        if is_own {
            self.seen = Some(state.generation);
        }
        let (recovery, carried_out) = match result {
            Ok(()) => return Ok(Receipt { transactions: 1 }),
            Err(Stop::Cut(carried_out)) => (Recovery::Observe, carried_out),
            Err(Stop::Refused(carried_out)) => (Recovery::Isolate, carried_out),
        };
        Err(CommitError {
            family: self.family,
            recovery,
            effect: Effect::Possible,
            source: Box::new(Cut {
                carried_out,
                asked: steps.len(),
            }),
        })
    }

    fn commit_removal(&mut self) -> Result<Receipt, CommitError> {
        let rules = self.kernel.rules(self.family);
        self.commit(rules.diff(&FakeRules::default()))
    }

    fn commit_withdrawal(&mut self) -> Result<Leftover, CommitError> {
        let _receipt = self.commit_removal()?;
        let mut state = self.kernel.state();
        state.withdrawals += 1;
        Ok(match state.withdrawals <= state.outlived {
            true => Leftover::Connections(NonZeroU64::MIN),
            false => Leftover::Nothing,
        })
    }

    fn suspects(&self, change: &FakeChange, desired: &Dataplane) -> BTreeSet<ServiceKey> {
        change.suspects(desired)
    }

    fn unsupported_fields(&self, asked: FrontendContext<'_>) -> Vec<UnsupportedField> {
        let is_sticky = asked.frontend.affinity != Affinity::None;
        let is_short = is_sticky && asked.key.family() == self.family;
        let unsupported_field = is_short.then(|| {
            asked.unsupported_field("spec.sessionAffinity", "every connection is placed anew")
        });
        unsupported_field.into_iter().collect()
    }

    /// Rendered rules always have a base.
    fn without_room(&self, rules: &FakeRules) -> Vec<UnsupportedField> {
        match rules.base {
            Some(_) => self.kernel.state().without_room.clone(),
            None => Vec::new(),
        }
    }
}
