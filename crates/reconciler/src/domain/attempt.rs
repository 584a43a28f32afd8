//! One attempt to program the desired state, or a part of it.

use backend::{Backend, Change, Effect, Recovery, Rendered};
use dataplane::{Dataplane, NextPart, PartContents};

use super::Domain;
use super::completeness::Completeness;
use super::unverified_rules::{Cause, UnverifiedRules};
use crate::Failure;
use crate::progress::{Phase, Progress};

/// How much of the desired state one attempt programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AttemptScope {
    /// At most one part.
    Part,
    /// All of it, which leads to this completeness.
    Whole(Completeness),
    /// Nothing at all: no rules, not even those of an empty dataplane.
    Nothing,
}

/// What is left to program once an attempt has succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    Nothing,
    /// Another part. This attempt programmed a part of this kind.
    Another(PartContents),
    /// Only Services that the search has yet to try: of a change that was refused.
    Suspects,
    /// Only Services that were refused before, which the next sync tries again.
    Retries,
}

/// How an attempt ended that did not fail for a cause outside the change.
#[derive(Debug)]
pub(super) enum Attempt {
    Programmed(Rest),
    Refused(Box<Refusal>),
}

/// A step that the kernel will never accept.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) failure: Failure,
    /// What the kernel held. Without Services if the rules were read back.
    pub(super) before: Dataplane,
    /// What it was to hold.
    pub(super) next: Dataplane,
    /// What would be left.
    pub(super) rest: Rest,
    /// The completeness to which the step would have led.
    pub(super) completeness: Completeness,
}

// === impl Domain ===

impl<B: Backend> Domain<B> {
    /// Programs `admitted`, or a part of it, starting from the last known state. Reads the rules back
    /// first if that state is not known.
    pub(super) fn attempt(
        &mut self,
        admitted: &Dataplane,
        scope: AttemptScope,
        progress: &mut Progress<'_>,
    ) -> Result<Attempt, Failure> {
        let mut uncertain: Option<Refusal> = None;
        loop {
            let observed = match self.observed.take() {
                Some(observed) => observed,
                None => {
                    let rules = self.observe(progress)?;
                    self.resolve_doubt(&rules, progress);
                    as_observed(rules)
                }
            };
            let (backend, part_size) = (&mut self.backend, &self.part_size);
            let transition = Transition::between(&observed, admitted, self.completeness);
            let part = progress.measure(Phase::Render, || match (scope, transition) {
                (AttemptScope::Part, Transition::Services | Transition::Rebuilding) => {
                    let rebuilds = transition == Transition::Rebuilding
                        || self.completeness == Completeness::Rebuilding;
                    // A start begins with a small part: it contains the API server and DNS.
                    let is_start = observed.dataplane.services().is_empty();
                    let size = match rebuilds && !is_start {
                        true => backend.rebuild_size(admitted.config()),
                        false => backend.part_size(admitted.config()),
                    };
                    let (family, size) = (backend.family(), part_size.size(size));
                    NextPart::next(
                        family,
                        &observed.dataplane,
                        admitted,
                        size,
                        part_size.contents(),
                    )
                }
                (AttemptScope::Whole(_) | AttemptScope::Nothing, _) | (_, Transition::AtOnce) => {
                    NextPart::Last
                }
            });
            let (next, rest) = match &part {
                NextPart::Last => (admitted, Rest::Nothing),
                NextPart::Small(next) => (next, Rest::Another(PartContents::Small)),
                NextPart::Part(next) => (next, Rest::Another(PartContents::Large)),
            };
            let completeness = match (scope, rest, transition) {
                (AttemptScope::Whole(completeness), ..) => completeness,
                (_, Rest::Another(_), Transition::Rebuilding) => Completeness::Rebuilding,
                _ => self.completeness,
            };
            let rules = progress.measure(Phase::Render, || match scope {
                AttemptScope::Part | AttemptScope::Whole(_) => backend.render(next, &observed),
                AttemptScope::Nothing => B::Rules::default(),
            });
            let change = progress.measure(Phase::Diff, || backend.diff(&observed.rules, &rules));
            let size = change.size();
            if size.is_empty() {
                self.advance(next, rules, completeness);
                return Ok(Attempt::Programmed(rest));
            }
            match progress.measure(Phase::Commit, || backend.commit(change)) {
                Ok(receipt) => {
                    progress.count(size, receipt);
                    self.advance(next, rules, completeness);
                    return Ok(Attempt::Programmed(rest));
                }
                Err(error) => {
                    let failure = Failure::from(&error);
                    let refusal = Refusal {
                        failure: failure.clone(),
                        before: observed.dataplane.clone(),
                        next: next.clone(),
                        rest,
                        completeness,
                    };
                    match error.recovery {
                        // A part of it is in the kernel: the next attempt reads which.
                        Recovery::Isolate if error.effect == Effect::Possible => {}
                        // Both promise that nothing was changed.
                        Recovery::Retry | Recovery::Isolate => self.observed = Some(observed),
                        // The process may have lost its privileges halfway.
                        Recovery::Observe | Recovery::Halt => {
                            // After a partial commit, differences come from that commit, not from
                            // another program.
                            self.unverified_rules =
                                (error.effect == Effect::None).then_some(UnverifiedRules {
                                    rules: observed.rules,
                                    cause: Cause::Refused,
                                });
                        }
                    }
                    if error.recovery == Recovery::Observe && progress.take_reread() {
                        uncertain = Some(refusal);
                        continue;
                    }
                    if error.recovery != Recovery::Isolate {
                        return Err(failure);
                    }
                    // Rules that were read back are replaced at once, which involves more than the step.
                    let refusal = match (uncertain, transition) {
                        (Some(step), Transition::AtOnce) => Refusal { failure, ..step },
                        _ => refusal,
                    };
                    return Ok(Attempt::Refused(Box::new(refusal)));
                }
            }
        }
    }

    /// Compares the rules just read with what the kernel was left with, if a doubt is recorded.
    fn resolve_doubt(&mut self, rules: &B::Rules, progress: &Progress<'_>) {
        let Some(unverified_rules) = self.unverified_rules.take() else {
            return;
        };
        let notification = self.pending_drift.take_notification();
        let size = self.backend.diff(rules, &unverified_rules.rules).size();
        match unverified_rules.cause {
            Cause::Unread if !size.is_empty() => {
                self.pending_drift.find(size, notification, progress)
            }
            Cause::Refused if !size.is_empty() => {
                self.pending_drift
                    .commit_failed(size, notification, progress)
            }
            Cause::Unread | Cause::Refused => self.pending_drift.attribute(notification, progress),
        }
    }
}

// === impl Attempt ===

impl Attempt {
    /// What is left; an error if the kernel refused the step.
    pub(super) fn programmed(self) -> Result<Rest, Failure> {
        match self {
            Attempt::Programmed(rest) => Ok(rest),
            Attempt::Refused(refusal) => Err(refusal.failure),
        }
    }
}

/// How to get from the last known state to the desired state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transition {
    /// In parts: only Services differ.
    Services,
    /// In parts: the kernel holds no rules, or rules of another configuration.
    Rebuilding,
    /// In one sync.
    AtOnce,
}

// === impl Transition ===

impl Transition {
    /// Rules that were read back are replaced at once, because they do not show which dataplane
    /// they implement. A kernel that is emptied while it is being filled is filled at once; in parts,
    /// a program that keeps emptying it would never be recognised as doing so.
    fn between<R: Default + PartialEq>(
        observed: &Rendered<R>,
        admitted: &Dataplane,
        completeness: Completeness,
    ) -> Transition {
        let programmed = &observed.dataplane;
        if is_read(programmed) {
            let holds_nothing = observed.rules == R::default();
            return match completeness {
                Completeness::Complete if holds_nothing => Transition::Rebuilding,
                Completeness::Complete | Completeness::Rebuilding => Transition::AtOnce,
            };
        }
        match programmed.config().equals_in_any_mode(admitted.config()) {
            true => Transition::Services,
            false => Transition::Rebuilding,
        }
    }
}

/// Wraps rules that were read from the kernel. The dataplane that they implement is not known.
pub(super) fn as_observed<R>(rules: R) -> Rendered<R> {
    Rendered {
        dataplane: Dataplane::default(),
        rules,
    }
}

/// Whether this stands for rules that were read from the kernel. What was rendered is for a node, and
/// every node has a name.
pub(super) fn is_read(dataplane: &Dataplane) -> bool {
    dataplane.node().name.is_empty()
}
