//! Nodes that move to a profile whose rollout has ended, because their labels, a selector or the
//! profiles changed.
//!
//! They change like the nodes of a rollout of their own: canaries first, then in waves, and as few
//! may fail. The profile is known to work where it was, not where they are.

use std::collections::BTreeSet;

use crds::profile::rollout::Rollout;

use crate::fleet::{
    budget::is_about_the_change,
    node_progress::NodeProgress,
    profile_node::ProfileNode,
    rollout_phase::Phase,
    rollout_progress::RolloutProgress,
    verdict::{failed_nodes, verdict},
    waves::Waves,
};

/// The nodes that move, from the first that waits until none waits or changes.
///
/// Kept in memory only: a node that is done does not show when it moved. After an operator has
/// started, the nodes that still wait therefore begin with a canary again. `None` before the first
/// evaluation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct MovingNodes(Option<BTreeSet<String>>);

// === impl MovingNodes ===

impl MovingNodes {
    /// Adds the nodes that wait; forgets all once none waits or changes, and during a rollout.
    pub(super) fn update(
        &mut self,
        phase: &Phase,
        members: &[ProfileNode<'_>],
        node_progress: &[NodeProgress],
    ) {
        let mut moving = self.0.take().unwrap_or_else(|| {
            let found = members.iter().zip(node_progress);
            let found = found.filter(|(member, progress)| is_found_moving(phase, member, progress));
            found.map(|(member, _)| member.name().to_owned()).collect()
        });
        let is_open = |(member, progress): (&ProfileNode<'_>, &NodeProgress)| {
            is_waiting(progress) || (moving.contains(member.name()) && !progress.is_finished())
        };
        if phase.has_ended() && members.iter().zip(node_progress).any(is_open) {
            let waiting = members.iter().zip(node_progress);
            let waiting = waiting.filter(|(_, progress)| is_waiting(progress));
            moving.extend(waiting.map(|(member, _)| member.name().to_owned()));
        } else {
            moving.clear();
        }
        self.0 = Some(moving);
    }

    /// Returns the waves of the nodes that move.
    pub(super) fn waves(
        &self,
        phase: &Phase,
        rollout: &Rollout,
        members: &[ProfileNode<'_>],
        node_progress: &[NodeProgress],
    ) -> Waves {
        Waves::of_subset(rollout, members, node_progress, |index| {
            self.is_in_waves(phase, &members[index], &node_progress[index])
        })
    }

    /// Whether no node moves.
    pub(super) fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(BTreeSet::is_empty)
    }

    /// Whether the node of this name moves.
    pub(super) fn contains(&self, node: &str) -> bool {
        self.0.as_ref().is_some_and(|moving| moving.contains(node))
    }

    fn is_in_waves(
        &self,
        phase: &Phase,
        member: &ProfileNode<'_>,
        progress: &NodeProgress,
    ) -> bool {
        let is_moving = || self.contains(member.name());
        match progress {
            NodeProgress::Outdated(_) => true,
            NodeProgress::Failed(failure) => is_about_the_change(phase, failure) && is_moving(),
            NodeProgress::Unassigned | NodeProgress::AwaitingFirstReport(_) => false,
            _ => is_moving(),
        }
    }
}

/// Whether an operator that has just started finds a node between its move and the verdict on it:
/// the spec that it had before shows that it moved, but not when.
fn is_found_moving(phase: &Phase, member: &ProfileNode<'_>, progress: &NodeProgress) -> bool {
    let is_undecided = match progress {
        NodeProgress::Failed(failure) => is_about_the_change(phase, failure),
        NodeProgress::Pending(_)
        | NodeProgress::AwaitingMinReady(_)
        | NodeProgress::Worse(_)
        | NodeProgress::ApiServerLost => true,
        _ => false,
    };
    is_undecided && member.came_from_another_profile()
}

const fn is_waiting(progress: &NodeProgress) -> bool {
    matches!(progress, NodeProgress::Outdated(_))
}

// === impl RolloutProgress ===

impl RolloutProgress {
    /// Decides whether nodes that move from another configuration may receive this one.
    pub(super) fn judge_moving_nodes(
        &mut self,
        rollout: &Rollout,
        members: &[ProfileNode<'_>],
        node_progress: &[NodeProgress],
    ) {
        let waves = self
            .moving_nodes
            .waves(&self.phase, rollout, members, node_progress);
        // Once as many nodes have failed as may be unavailable, no other can change.
        let most = rollout.max_unavailable.of(members.len());
        let failure_limit = waves.failure_limit(rollout).min(most);
        let moving = waves.all();
        let count = |is: fn(&NodeProgress) -> bool| {
            let progress = moving.iter().map(|&index| &node_progress[index]);
            progress.filter(|progress| is(progress)).count()
        };
        let waiting = count(is_waiting);
        let names: BTreeSet<&str> = moving.iter().map(|&index| members[index].name()).collect();
        let failed_nodes: Vec<_> = failed_nodes(members, node_progress)
            .filter(|(name, _)| names.contains(name))
            .collect();
        if waiting > 0 && failed_nodes.len() >= failure_limit {
            let mut verdict = verdict(&failed_nodes, members.len());
            verdict.message = format!("{waiting} keep their configuration: {}", verdict.message);
            self.phase = Phase::HeldBack { verdict };
            return;
        }
        // An operator that has just started counts no failures until the grace period is over.
        let worse = count(|progress| matches!(progress, NodeProgress::Worse(_)));
        let is_held = matches!(self.phase, Phase::HeldBack { .. });
        if is_held && waiting > 0 && failed_nodes.len() + worse >= failure_limit {
            return;
        }
        if self.phase != Phase::DeadlineExceeded || node_progress.iter().all(NodeProgress::is_ready)
        {
            self.phase = Phase::Settled;
        }
    }
}
