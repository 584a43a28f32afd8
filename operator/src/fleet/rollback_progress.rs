//! The nodes that were rolled back. They are judged as those of the rollout were: the
//! configuration that they return to may have stopped working, too.

use crds::{effective::hash::ConfigHash, profile::rollout::Rollout};
use jiff::Timestamp;

use crate::{
    baseline::{Baseline, Readiness},
    fleet::{
        budget::is_changing, node_failure::FailureStart, node_progress::NodeProgress,
        observations::Observations, profile_node::ProfileNode, rollback_budget::RollbackBudget,
        rollout_phase::Phase,
    },
};

/// The progress of a rollback.
#[derive(Clone, Debug, Default)]
pub(crate) struct RollbackProgress {
    /// How many more nodes may be rolled back now.
    pub(crate) budget: RollbackBudget,
    /// The nodes that failed after they were rolled back, each with the reason, if they are as
    /// many as stop a rollout. No node that serves follows them.
    pub(crate) failed: Vec<String>,
    /// When to evaluate again even if no event arrives.
    pub(crate) requeue_at: Option<Timestamp>,
}

// === impl RollbackProgress ===

impl RollbackProgress {
    /// Evaluates the nodes that were rolled back from the configuration of hash `from`.
    pub(crate) fn of(
        from: &ConfigHash,
        rollout: &Rollout,
        members: &[ProfileNode<'_>],
        observations: &mut Observations,
        now: Timestamp,
    ) -> Self {
        let (mut rolled_back, mut changing, mut silent) = (0, 0, 0);
        let mut failed = Vec::new();
        let mut requeue_at = None;
        for member in members {
            let rollback = member.rollback_progress(from, rollout, observations, now);
            let Some((progress, baseline)) = rollback else {
                continue;
            };
            requeue_at = [requeue_at, progress.ends()].into_iter().flatten().min();
            if baseline.agent == Readiness::NotReady {
                // Nodes that failed with the change went back at once, and use no budget.
                let is_pending = matches!(progress, NodeProgress::Pending(_));
                silent += usize::from(is_pending && member.is_silent(now));
                continue;
            }
            rolled_back += usize::from(baseline.is_healthy());
            match progress {
                // Its failure is no part of the rollback, which would wait for it without a word.
                NodeProgress::Failed(failure) if failure.start == FailureStart::Afterwards => {}
                // It may have failed before this operator started.
                NodeProgress::Failed(failure) => {
                    changing += 1;
                    failed.push(format!("{} ({})", member.name(), failure.reason));
                }
                _ => changing += usize::from(is_changing(&Phase::RollingOut, &progress)),
            }
        }
        let most = rollout.max_unavailable.of(members.len());
        let failure_limit = rollout.max_failures.of(rolled_back).min(most);
        let is_stopped = failed.len() >= failure_limit;
        if !is_stopped {
            failed.clear();
        }
        Self {
            budget: RollbackBudget {
                serving: if is_stopped {
                    0
                } else {
                    most.saturating_sub(changing)
                },
                silent: most.saturating_sub(silent),
            },
            failed,
            requeue_at,
        }
    }
}

// === impl ProfileNode ===

impl ProfileNode<'_> {
    /// Returns the state of a node that was rolled back from the configuration of hash `from`, and
    /// its state before; `None` for other nodes. Going back is a change like any other.
    pub(crate) fn rollback_progress(
        &self,
        from: &ConfigHash,
        rollout: &Rollout,
        observations: &mut Observations,
        now: Timestamp,
    ) -> Option<(NodeProgress, &Baseline)> {
        let current = &self.current()?.config_hash;
        let baseline = self.proxy?.baseline.as_ref()?;
        self.was_rolled_back_from(from)
            .then(|| (self.progress(current, rollout, observations, now), baseline))
    }

    /// Whether the node was rolled back from the configuration of hash `from`.
    pub(crate) fn was_rolled_back_from(&self, from: &ConfigHash) -> bool {
        let Some((proxy, current)) = self.proxy.zip(self.current()) else {
            return false;
        };
        let baseline = proxy.baseline.as_ref();
        // A node that an earlier rollout changed from it could be rolled back to it.
        let previous = proxy.previous.as_ref();
        let came_forward = previous.is_some_and(|previous| previous.config_hash == *from);
        current.config_hash != *from
            && baseline.is_some_and(|baseline| baseline.config_hash == *from)
            && !came_forward
    }
}
