//! All address families of a node.

use std::sync::Arc;
use std::time::Instant;

use backend::{Backend, CommitError, ExternalChange, Recovery};
use dataplane::{Dataplane, Family};

use crate::{Clock, Domain, FamilyStatus, FamilySync, FollowUp, Reason};

/// All families of a node. Each is a separate failure domain.
#[derive(Debug)]
pub struct Reconciler<B: Backend> {
    domains: Vec<Domain<B>>,
}

// === impl Reconciler ===

impl<B: Backend> Reconciler<B> {
    /// One domain for each backend, in the order in which they are programmed.
    pub fn new(backends: Vec<B>) -> Reconciler<B> {
        Reconciler {
            domains: backends.into_iter().map(Domain::new).collect(),
        }
    }

    /// The domain of each family.
    pub fn domains(&self) -> &[Domain<B>] {
        &self.domains
    }

    /// The families, in the order in which they are programmed.
    pub fn families(&self) -> impl Iterator<Item = Family> + '_ {
        self.domains.iter().map(Domain::family)
    }

    /// Records that another program has changed, or may have changed, Signpost's rules.
    pub fn disturb(&mut self, external_change: &ExternalChange, now: Instant) {
        for domain in &mut self.domains {
            domain.disturb(external_change, now);
        }
    }

    /// Programs `desired`: one sync in each family that has work for `reason`.
    pub fn sync(
        &mut self,
        desired: &Dataplane,
        reason: Reason,
        clock: &dyn Clock,
    ) -> Vec<Arc<FamilySync>> {
        self.domains
            .iter_mut()
            .filter(|domain| domain.answers(reason))
            .map(|domain| domain.sync(desired, reason, clock))
            .collect()
    }

    /// What follows this sync: the earliest retry that any family needs, so that a family with
    /// many failures does not delay another one.
    pub fn follow_up(&self) -> FollowUp {
        if self.domains.iter().any(Domain::is_unfinished) {
            return FollowUp::Unfinished;
        }
        self.domains
            .iter()
            .filter_map(Domain::failing)
            .filter(|failing| failing.recovery != Recovery::Halt)
            .map(|failing| failing.retries)
            .min()
            .map_or(FollowUp::Settled, |retries| FollowUp::Retry { retries })
    }

    /// The status of each family.
    pub fn status(&self) -> Vec<FamilyStatus> {
        self.domains.iter().map(Domain::status).collect()
    }

    /// Removes all of Signpost's rules from the kernel. A failure in one family does not stop the
    /// others. Returns all errors.
    pub fn commit_removal(&mut self, clock: &dyn Clock) -> Result<(), Vec<CommitError>> {
        let failures: Vec<CommitError> = self
            .domains
            .iter_mut()
            .filter_map(|domain| domain.commit_removal(clock).err())
            .collect();
        if failures.is_empty() {
            Ok(())
        } else {
            Err(failures)
        }
    }
}
