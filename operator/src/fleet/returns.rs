//! The nodes that a rollback has changed back. They are judged as those of the rollout were: the
//! configuration that they return to may have stopped working, too.

use crds::{effective::hash::ConfigHash, profile::rollout::Rollout};
use jiff::Timestamp;

use crate::fleet::{
    budget::is_changing,
    member::Member,
    node_progress::{FailureStart, NodeProgress},
    observations::Observations,
    rollout_progress::Phase,
};

/// The progress of a rollback.
#[derive(Clone, Debug, Default)]
pub(crate) struct Returns {
    /// How many more healthy nodes may be changed back now.
    pub(crate) room: usize,
    /// The nodes that failed after they were changed back, each with the reason, if they are as
    /// many as stop a rollout. No healthy node follows them.
    pub(crate) failed: Vec<String>,
    /// When to evaluate again even if no event arrives.
    pub(crate) wake: Option<Timestamp>,
}

// === impl Returns ===

impl Returns {
    /// Evaluates the nodes that were changed back from the configuration of hash `from`.
    pub(crate) fn of(
        from: &ConfigHash,
        rollout: &Rollout,
        members: &[Member<'_>],
        observations: &mut Observations,
        now: Timestamp,
    ) -> Self {
        let (mut returned, mut changing) = (0, 0);
        let mut failed = Vec::new();
        let mut wake = None;
        for member in members {
            let Some(progress) = member.progress_back(from, rollout, observations, now) else {
                continue;
            };
            returned += 1;
            wake = [wake, progress.ends()].into_iter().flatten().min();
            changing += usize::from(is_changing(&Phase::Rolling, &progress));
            // It may have failed before this operator started.
            if let NodeProgress::Failing(failure) = progress
                && failure.onset != FailureStart::Afterwards
            {
                failed.push(format!("{} ({})", member.name(), failure.reason));
            }
        }
        let most = rollout.max_unavailable.of(members.len());
        let tolerated = rollout.max_failures.of(returned).min(most);
        if failed.len() >= tolerated {
            return Self {
                room: 0,
                failed,
                wake,
            };
        }
        Self {
            room: most.saturating_sub(changing),
            failed: Vec::new(),
            wake,
        }
    }
}
