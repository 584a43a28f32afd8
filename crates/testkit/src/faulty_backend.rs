//! Injects faults into any backend.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use backend::{
    Backend, Change, CommitError, Drift, Effect, FrontendContext, Leftover, ObserveError, Receipt,
    Recovery, Rendered, Size, UnsupportedField,
};
use dataplane::{Config, Dataplane, Family, PartSize, ServiceKey, ServiceRules};

use crate::seeded::Seeded;

/// A backend whose calls to the kernel fail as a script decides.
pub struct Faulty<B: Backend> {
    inner: B,
    /// Divides a change into steps, which are committed in order.
    steps: fn(B::Change) -> Vec<B::Change>,
    script: Box<dyn FnMut(&Call<'_>) -> CallOutcome + Send>,
    /// How much of a change one sync programs, if not what `inner` says.
    part_size: Option<PartSize>,
    /// The dataplane that was rendered last, which determines the Services that a change affects.
    desired: Mutex<Dataplane>,
}

/// A call that is about to reach the kernel.
#[derive(Debug)]
pub enum Call<'a> {
    /// A read of the rules, or a check for drift.
    Observe,
    /// A write.
    Commit {
        /// The Services that the change, or this step of it, affects, with their rules.
        suspects: &'a [&'a ServiceRules],
        /// The size of the change.
        size: Size,
    },
    /// A removal of all rules.
    Removal,
}

/// The outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOutcome {
    /// It succeeds.
    Pass,
    /// It does not reach the kernel. The recovery of an observation is either to halt or to observe
    /// again.
    Refuse(Recovery),
    /// It takes effect, but reports failure.
    LoseAnswer,
    /// It does not reach the kernel, and reports that it never will take effect as a whole, but may have
    /// in part: as where a kernel carries out one operation after another. Only for commits.
    RefusePart,
}

/// The error of a call that was made to fail.
#[derive(Debug, thiserror::Error)]
#[error("a fault was injected: {fate:?}")]
struct Injected {
    fate: CallOutcome,
}

/// Converts the error of a step to one of a change whose earlier steps have taken effect.
fn after_others(error: CommitError) -> CommitError {
    CommitError {
        recovery: match error.recovery {
            Recovery::Retry | Recovery::Isolate => Recovery::Observe,
            recovery => recovery,
        },
        effect: Effect::Possible,
        ..error
    }
}

// === impl Faulty ===

impl<B: Backend> Faulty<B> {
    /// Wraps `inner`. `script` decides about every call.
    pub fn new(
        inner: B,
        script: impl FnMut(&Call<'_>) -> CallOutcome + Send + 'static,
    ) -> Faulty<B> {
        Faulty::in_steps(inner, |change| vec![change], script)
    }

    /// Wraps `inner`. `script` also decides about every step of a change: after the first step that
    /// fails, no other is committed. Each decision sees the kernel after the previous steps.
    pub fn in_steps(
        inner: B,
        steps: fn(B::Change) -> Vec<B::Change>,
        script: impl FnMut(&Call<'_>) -> CallOutcome + Send + 'static,
    ) -> Faulty<B> {
        Faulty {
            inner,
            steps,
            script: Box::new(script),
            part_size: None,
            desired: Mutex::default(),
        }
    }

    /// Sets how much of a change one sync programs, however long that takes.
    pub fn with_part_size(self, part_size: PartSize) -> Faulty<B> {
        Faulty {
            part_size: Some(part_size),
            ..self
        }
    }

    /// Wraps `inner` so that one call in ten fails in one of these ways; the seed determines which
    /// and how.
    ///
    /// # Panics
    ///
    /// If `fates` is empty.
    pub fn seeded(inner: B, seed: u64, fates: &[CallOutcome]) -> Faulty<B> {
        assert!(!fates.is_empty(), "a faulty backend needs faults");
        let fates = fates.to_vec();
        let mut seeded = Seeded::new(seed);
        Faulty::new(inner, move |_| match seeded.below(10) {
            0 => fates[seeded.below(fates.len())],
            _ => CallOutcome::Pass,
        })
    }

    /// Wraps `inner` so that it permanently refuses changes which affect a Service with such rules.
    pub fn refusing(
        inner: B,
        refused: impl Fn(&ServiceRules) -> bool + Send + 'static,
    ) -> Faulty<B> {
        Faulty::new(inner, move |call| match call {
            Call::Commit { suspects, .. } if suspects.iter().any(|rules| refused(rules)) => {
                CallOutcome::Refuse(Recovery::Isolate)
            }
            _ => CallOutcome::Pass,
        })
    }

    /// The backend without faults.
    pub fn inner(&mut self) -> &mut B {
        &mut self.inner
    }

    fn desired(&self) -> Dataplane {
        let desired = self.desired.lock();
        desired.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn commit_step(&mut self, step: B::Change) -> Result<Receipt, CommitError> {
        let desired = self.desired();
        let suspects = self.inner.suspects(&step, &desired);
        let suspects: Vec<&ServiceRules> = suspects
            .iter()
            .filter_map(|service| desired.services().get(service))
            .map(|rules| &**rules)
            .collect();
        let fate = (self.script)(&Call::Commit {
            suspects: &suspects,
            size: step.size(),
        });
        match fate {
            CallOutcome::Pass => self.inner.commit(step),
            CallOutcome::Refuse(_) | CallOutcome::RefusePart => Err(self.commit_error(fate)),
            CallOutcome::LoseAnswer => {
                let _lost = self.inner.commit(step)?;
                Err(self.commit_error(fate))
            }
        }
    }

    fn observe_error(&self, fate: CallOutcome) -> ObserveError {
        ObserveError {
            family: self.inner.family(),
            recovery: match fate {
                CallOutcome::Refuse(Recovery::Halt) => Recovery::Halt,
                CallOutcome::Refuse(_)
                | CallOutcome::Pass
                | CallOutcome::LoseAnswer
                | CallOutcome::RefusePart => Recovery::Observe,
            },
            source: Box::new(Injected { fate }),
        }
    }

    fn commit_error(&self, fate: CallOutcome) -> CommitError {
        CommitError {
            family: self.inner.family(),
            recovery: match fate {
                CallOutcome::Refuse(recovery) => recovery,
                CallOutcome::Pass | CallOutcome::LoseAnswer => Recovery::Observe,
                CallOutcome::RefusePart => Recovery::Isolate,
            },
            effect: match fate {
                CallOutcome::Refuse(_) => Effect::None,
                CallOutcome::Pass | CallOutcome::LoseAnswer | CallOutcome::RefusePart => {
                    Effect::Possible
                }
            },
            source: Box::new(Injected { fate }),
        }
    }
}

impl<B: Backend> Backend for Faulty<B> {
    type Rules = B::Rules;
    type Change = B::Change;

    fn family(&self) -> Family {
        self.inner.family()
    }

    fn part_size(&self, config: &Config) -> PartSize {
        self.part_size
            .unwrap_or_else(|| self.inner.part_size(config))
    }

    fn longest_part(&self, config: &Config) -> Duration {
        match self.part_size {
            Some(_) => Duration::MAX,
            None => self.inner.longest_part(config),
        }
    }

    fn render(&self, desired: &Dataplane, from: &Rendered<B::Rules>) -> B::Rules {
        let mut last = self.desired.lock().unwrap_or_else(PoisonError::into_inner);
        *last = desired.clone();
        self.inner.render(desired, from)
    }

    fn diff(&self, observed: &B::Rules, desired: &B::Rules) -> B::Change {
        self.inner.diff(observed, desired)
    }

    fn observe(&mut self) -> Result<B::Rules, ObserveError> {
        match (self.script)(&Call::Observe) {
            CallOutcome::Pass => self.inner.observe(),
            fate => Err(self.observe_error(fate)),
        }
    }

    fn observe_drift(&mut self) -> Result<Drift, ObserveError> {
        match (self.script)(&Call::Observe) {
            CallOutcome::Pass => self.inner.observe_drift(),
            fate => Err(self.observe_error(fate)),
        }
    }

    fn commit(&mut self, change: B::Change) -> Result<Receipt, CommitError> {
        let mut transactions = 0;
        for (done, step) in (self.steps)(change).into_iter().enumerate() {
            match self.commit_step(step) {
                Ok(receipt) => transactions += receipt.transactions,
                Err(error) if done == 0 => return Err(error),
                Err(error) => return Err(after_others(error)),
            }
        }
        Ok(Receipt { transactions })
    }

    fn commit_removal(&mut self) -> Result<Receipt, CommitError> {
        match (self.script)(&Call::Removal) {
            CallOutcome::Pass => self.inner.commit_removal(),
            fate @ (CallOutcome::Refuse(_) | CallOutcome::RefusePart) => {
                Err(self.commit_error(fate))
            }
            fate @ CallOutcome::LoseAnswer => {
                let _lost = self.inner.commit_removal()?;
                Err(self.commit_error(fate))
            }
        }
    }

    fn commit_withdrawal(&mut self) -> Result<Leftover, CommitError> {
        match (self.script)(&Call::Removal) {
            CallOutcome::Pass => self.inner.commit_withdrawal(),
            fate @ (CallOutcome::Refuse(_) | CallOutcome::RefusePart) => {
                Err(self.commit_error(fate))
            }
            fate @ CallOutcome::LoseAnswer => {
                let _lost = self.inner.commit_withdrawal()?;
                Err(self.commit_error(fate))
            }
        }
    }

    fn suspects(&self, change: &B::Change, desired: &Dataplane) -> BTreeSet<ServiceKey> {
        self.inner.suspects(change, desired)
    }

    fn unsupported_fields(&self, asked: FrontendContext<'_>) -> Vec<UnsupportedField> {
        self.inner.unsupported_fields(asked)
    }

    fn without_room(&self, rules: &B::Rules) -> Vec<UnsupportedField> {
        self.inner.without_room(rules)
    }
}

impl<B: Backend + fmt::Debug> fmt::Debug for Faulty<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}
