//! All address families of a node.

use std::sync::Arc;
use std::time::Instant;

use backend::{Backend, CommitError, ExternalChange, Leftover};
use dataplane::Dataplane;

use crate::{Clock, FamilyReconciler, FamilyStatus, FamilySync, FollowUp, Reason};

/// All families of a node. Each is a separate failure domain.
#[derive(Debug)]
pub struct Reconciler<B: Backend> {
    families: Vec<FamilyReconciler<B>>,
}

// === impl Reconciler ===

impl<B: Backend> Reconciler<B> {
    /// Families with one mode each, in the order in which they are programmed.
    pub fn new(backends: Vec<B>) -> Reconciler<B> {
        let families = backends.into_iter().map(FamilyReconciler::new);
        Reconciler::of(families.collect())
    }

    /// These families, in the order in which they are programmed.
    pub fn of(families: Vec<FamilyReconciler<B>>) -> Reconciler<B> {
        Reconciler { families }
    }

    /// The families, in the order in which they are programmed.
    pub fn families(&self) -> &[FamilyReconciler<B>] {
        &self.families
    }

    /// Records that another program has changed, or may have changed, Signpost's rules.
    pub fn disturb(&mut self, external_change: &ExternalChange, now: Instant) {
        for family in &mut self.families {
            family.disturb(external_change, now);
        }
    }

    /// Programs `desired`: one sync in each family that has work for `reason`.
    pub fn sync(
        &mut self,
        desired: &Dataplane,
        reason: Reason,
        clock: &dyn Clock,
    ) -> Vec<Arc<FamilySync>> {
        self.families
            .iter_mut()
            .filter(|family| family.answers(reason))
            .map(|family| family.sync(desired, reason, clock))
            .collect()
    }

    /// What follows this sync: the rest of a large change in any family, and the earliest retry that
    /// another one, or another mode of the same one, needs, so that a family with many failures does not
    /// delay another one.
    pub fn follow_up(&self) -> FollowUp {
        let is_unfinished = self.families.iter().any(FamilyReconciler::is_unfinished);
        let failing = self.families.iter();
        let failing = failing.filter_map(FamilyReconciler::awaits_retry);
        let retries = failing.map(|failing| failing.retries).min();
        match (is_unfinished, retries) {
            (false, None) => FollowUp::Settled,
            (false, Some(retries)) => FollowUp::Retry { retries },
            (true, None) => FollowUp::Unfinished,
            (true, Some(retries)) => FollowUp::UnfinishedAndRetry { retries },
        }
    }

    /// The status of each family.
    pub fn status(&self) -> Vec<FamilyStatus> {
        self.families.iter().map(FamilyReconciler::status).collect()
    }

    /// Removes all of Signpost's rules from the kernel, but for what established connections need. A
    /// failure in one family does not stop the others. Returns all errors.
    pub fn commit_withdrawal(&mut self, clock: &dyn Clock) -> Result<Leftover, Vec<CommitError>> {
        let (mut leftover, mut failures) = (Leftover::Nothing, Vec::new());
        for family in &mut self.families {
            match family.commit_withdrawal(clock) {
                Ok(left) => leftover = leftover.max(left),
                Err(error) => failures.push(error),
            }
        }
        match failures.is_empty() {
            true => Ok(leftover),
            false => Err(failures),
        }
    }
}
