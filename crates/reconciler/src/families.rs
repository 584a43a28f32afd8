//! All families of a node together.

use std::sync::Arc;
use std::time::Instant;

use backend::{Backend, CommitError, Disturbance, Recovery};
use dataplane::{Dataplane, Family};

use crate::{Clock, Domain, FamilyStatus, Reason, Round, Sequel};

/// Both families of a node, each its own failure domain.
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

    /// The families.
    pub fn domains(&self) -> &[Domain<B>] {
        &self.domains
    }

    /// Their names, in the order in which they are programmed.
    pub fn families(&self) -> impl Iterator<Item = Family> + '_ {
        self.domains.iter().map(Domain::family)
    }

    /// Notes that somebody has changed, or may have changed, what is ours.
    pub fn disturb(&mut self, disturbance: &Disturbance, now: Instant) {
        for domain in &mut self.domains {
            domain.disturb(disturbance, now);
        }
    }

    /// Makes the kernel hold `desired`: one round in each family that has anything to do for
    /// `reason`.
    pub fn round(
        &mut self,
        desired: &Dataplane,
        reason: Reason,
        clock: &dyn Clock,
    ) -> Vec<Arc<Round>> {
        self.domains
            .iter_mut()
            .filter(|domain| domain.answers(reason))
            .map(|domain| domain.round(desired, reason, clock))
            .collect()
    }

    /// What is to follow, for the family that needs it soonest: one that has failed for long must
    /// not make another wait as long.
    pub fn sequel(&self) -> Sequel {
        if self.domains.iter().any(Domain::is_unfinished) {
            return Sequel::Unfinished;
        }
        self.domains
            .iter()
            .filter_map(Domain::failing)
            .filter(|failing| failing.recovery != Recovery::Halt)
            .map(|failing| failing.retries)
            .min()
            .map_or(Sequel::Settled, |retries| Sequel::Retry { retries })
    }

    /// How each family stands.
    pub fn status(&self) -> Vec<FamilyStatus> {
        self.domains.iter().map(Domain::status).collect()
    }

    /// Removes everything that is ours from the kernel, in every family, whatever happens in the
    /// others; returns what went wrong.
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
