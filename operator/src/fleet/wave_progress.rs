//! How far the waves of a rollout have come.

use crds::{effective::hash::ConfigHash, profile::progress::WaveStatus};

use crate::fleet::{
    node_progress::NodeProgress, preflight, profile_node::ProfileNode, waves::Waves,
};

/// The progress of the waves.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaveProgress {
    pub(super) waves: Vec<WaveStatus>,
    /// The wave in progress, counted from 1.
    pub(super) current: u32,
    /// After a failure, the number of nodes that are still to be rolled back.
    pub(crate) to_roll_back: usize,
    /// After a failure, the changed nodes for which no configuration to roll back to is known.
    pub(crate) without_rollback: Vec<String>,
    /// The nodes of the wave in progress that it waits for.
    pub(super) waiting_for: Vec<String>,
    /// What the nodes wait for that must not change yet, once the wave in progress has one of them.
    pub(super) takeover_blocks: Option<String>,
    /// The nodes that failed after they were rolled back, each with the reason, if they stop the
    /// rollback.
    pub(crate) failed_rollbacks: Vec<String>,
    /// The nodes that have failed with the configuration, each with the reason.
    pub(crate) failed: Vec<String>,
    /// What suspends the rollout, if an outage or a failing watch does.
    pub(crate) suspended: Option<String>,
    /// Whether agents report what they could not while a watch failed, and no time counts.
    pub(crate) is_catching_up: bool,
}

// === impl Waves ===

impl Waves {
    /// Returns the progress with the configuration of this hash.
    pub(crate) fn progress(
        &self,
        hash: &ConfigHash,
        members: &[ProfileNode<'_>],
        node_progress: &[NodeProgress],
    ) -> WaveProgress {
        let count = |nodes: &[usize], is: &dyn Fn(usize) -> bool| {
            let count = nodes.iter().filter(|&&index| is(index)).count();
            u32::try_from(count).unwrap_or(u32::MAX)
        };
        let has = |index: usize| {
            members[index]
                .current()
                .is_some_and(|spec| spec.config_hash == *hash)
        };
        let nodes = |wave: usize| {
            let start = wave.checked_sub(1).map_or(0, |before| self.ends[before]);
            &self.order[start..self.ends[wave]]
        };
        let describe = |wave: usize| {
            let nodes = nodes(wave);
            WaveStatus {
                nodes: count(nodes, &|_| true),
                updated: count(nodes, &|index| {
                    has(index) && members[index].has_applied(hash)
                }),
                available: count(nodes, &|index| node_progress[index].is_ready()),
                failed: count(nodes, &|index| {
                    matches!(node_progress[index], NodeProgress::Failed(_))
                }),
                waiting: count(nodes, &|index| {
                    matches!(
                        node_progress[index],
                        NodeProgress::Unassigned
                            | NodeProgress::AwaitingFirstReport(_)
                            | NodeProgress::Outdated(_)
                    )
                }),
            }
        };
        let waits = |&&index: &&usize| has(index) && !node_progress[index].is_finished();
        let in_progress = if self.ends.is_empty() {
            &[]
        } else {
            nodes(self.current)
        };
        let is_takeover_blocked =
            |&index: &usize| members[index].is_takeover_blocked(&node_progress[index]);
        let is_blocked = in_progress.iter().any(is_takeover_blocked);
        WaveProgress {
            takeover_blocks: is_blocked
                .then(|| preflight::describe_takeover_blocks(members, node_progress))
                .flatten(),
            waves: (0..self.ends.len()).map(describe).collect(),
            current: u32::try_from(self.current + 1).unwrap_or(u32::MAX),
            to_roll_back: 0,
            without_rollback: Vec::new(),
            waiting_for: in_progress
                .iter()
                .filter(waits)
                .map(|&index| members[index].name().to_owned())
                .collect(),
            failed_rollbacks: Vec::new(),
            failed: Vec::new(),
            suspended: None,
            is_catching_up: false,
        }
    }
}
