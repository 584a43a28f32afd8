//! The waves of a rollout: which nodes belong to which wave.
//!
//! The waves are not stored. The nodes are sorted, those that already have the configuration first
//! in the order of their assignment, and the order is cut where a wave ends. An operator that
//! starts computes the same waves.

use std::collections::BTreeMap;

use crds::profile::rollout::Rollout;
use jiff::Timestamp;

use crate::{
    fleet::{
        node_progress::{Health, NodeProgress},
        profile_node::ProfileNode,
    },
    records::Role,
};

/// The nodes of a profile in the order in which they receive its configuration.
#[derive(Clone, Debug)]
pub(crate) struct Waves {
    /// The indexes of the members in that order.
    pub(super) order: Vec<usize>,
    /// The cumulative number of nodes at the end of each wave.
    pub(super) ends: Vec<usize>,
    /// The index of the wave in progress.
    pub(super) current: usize,
    /// The number of nodes that have the configuration and can show whether it works.
    assigned: usize,
    /// The configured number of canaries.
    canary: u32,
}

/// What nodes are sorted by into waves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct WaveSortKey {
    rank: WaveRank,
    /// When its spec was assigned; ignored for a node that is yet to change.
    assigned: Option<Timestamp>,
    role: Role,
    /// Its index among the nodes of its zone: the first nodes of all zones come before the second ones.
    index_in_zone: usize,
}

/// What a node can show, in the order in which nodes change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WaveRank {
    /// It has shown that the configuration works.
    Available,
    /// It has the configuration and will show whether it works.
    Assigned,
    /// It has shown that the configuration does not work.
    Failed,
    /// It will receive the configuration and show whether it works.
    Next,
    /// It has the configuration but was not ready before: it may show that the configuration works,
    /// but not that it fails.
    AssignedUnready,
    /// It will receive the configuration but is not ready.
    Unready,
    /// It will receive the configuration once nothing starts kube-proxy on it any more.
    TakeoverBlocked,
    /// It had no configuration before, or has shown nothing.
    Other,
}

// === impl Waves ===

impl Waves {
    /// Computes the waves of `members`, which are sorted by name, from their `node_progress`.
    pub(crate) fn of(
        rollout: &Rollout,
        members: &[ProfileNode<'_>],
        node_progress: &[NodeProgress],
    ) -> Self {
        Self::of_subset(rollout, members, node_progress, |_| true)
    }

    /// Computes the waves of the members whose index is in the `subset`.
    pub(crate) fn of_subset(
        rollout: &Rollout,
        members: &[ProfileNode<'_>],
        node_progress: &[NodeProgress],
        subset: impl Fn(usize) -> bool,
    ) -> Self {
        let mut zone_sizes: BTreeMap<(Role, &str), usize> = BTreeMap::new();
        let mut keys: Vec<(WaveSortKey, usize)> = Vec::with_capacity(members.len());
        let nodes = members.iter().zip(node_progress).enumerate();
        for (index, (member, progress)) in nodes.filter(|(index, _)| subset(*index)) {
            let zone = (member.node.role(), member.node.zone());
            let index_in_zone = zone_sizes.entry(zone).or_default();
            keys.push((WaveSortKey::of(member, progress, *index_in_zone), index));
            *index_in_zone += 1;
        }
        keys.sort_unstable();
        let up_to = |rank| keys.partition_point(|(key, _)| key.rank <= rank);
        let conclusive = [WaveRank::Next, WaveRank::Unready, WaveRank::TakeoverBlocked].map(up_to);
        let conclusive = conclusive
            .into_iter()
            .find(|conclusive| *conclusive > 0)
            .unwrap_or(0);
        let order: Vec<usize> = keys.iter().map(|(_, index)| *index).collect();
        let ends = wave_ends(rollout, conclusive, order.len());
        let canaries = ends
            .first()
            .map_or(0, |end| (*end).min(count(rollout.canary)));
        let is_in_progress = |(position, &index): (usize, &usize)| {
            let progress = &node_progress[index];
            !progress.is_finished()
                || (position < canaries && matches!(progress, NodeProgress::Failed(_)))
        };
        let in_progress = order
            .iter()
            .enumerate()
            .position(is_in_progress)
            .and_then(|first| ends.iter().position(|end| first < *end));
        Self {
            current: in_progress.unwrap_or_else(|| ends.len().saturating_sub(1)),
            assigned: up_to(WaveRank::Failed),
            order,
            ends,
            canary: rollout.canary,
        }
    }

    /// Returns the nodes of the waves that have begun, in order, as indexes of members.
    pub(crate) fn begun(&self) -> &[usize] {
        let end = self.ends.get(self.current).copied().unwrap_or_default();
        &self.order[..end]
    }

    /// Returns all nodes in order, as indexes of members.
    pub(crate) fn all(&self) -> &[usize] {
        &self.order
    }

    /// Returns the number of failed nodes that stops the rollout. It is based on the size of the
    /// waves that have reached nodes, because the next wave may begin only after this decision.
    pub(crate) fn failure_limit(&self, rollout: &Rollout) -> usize {
        let reached = self.ends.iter().position(|end| self.assigned <= *end);
        match reached {
            Some(0) | None if self.canary > 0 => 1,
            _ => {
                let nodes = reached.map_or(self.order.len(), |wave| self.ends[wave]);
                rollout.max_failures.of(nodes)
            }
        }
    }
}

/// Returns the cumulative number of nodes at the end of each wave. The last wave includes the nodes
/// that cannot show whether the configuration works; `conclusive` is the number of the others.
fn wave_ends(rollout: &Rollout, conclusive: usize, total: usize) -> Vec<usize> {
    let mut ends: Vec<usize> = rollout
        .waves
        .iter()
        .map(|percent| total.saturating_mul(count(*percent)).div_ceil(100))
        .chain([count(rollout.canary)])
        .map(|end| end.max(count(rollout.canary)).min(conclusive))
        .filter(|end| *end > 0)
        .chain((total > 0).then_some(total))
        .collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}

fn count(nodes: u32) -> usize {
    usize::try_from(nodes).unwrap_or(usize::MAX)
}

// === impl WaveSortKey ===

impl WaveSortKey {
    /// The key of a node that has this index among the nodes of its zone by name.
    fn of(member: &ProfileNode<'_>, progress: &NodeProgress, index_in_zone: usize) -> Self {
        let rank = match progress {
            NodeProgress::Available => WaveRank::Available,
            NodeProgress::AwaitingMinReady(_) => WaveRank::Assigned,
            NodeProgress::Failed(_) => WaveRank::Failed,
            NodeProgress::Pending(_) | NodeProgress::Worse(_) | NodeProgress::ApiServerLost => {
                if member.was_healthy_before() {
                    WaveRank::Assigned
                } else {
                    WaveRank::AssignedUnready
                }
            }
            NodeProgress::Outdated(_) if member.takeover_block.is_some() => {
                WaveRank::TakeoverBlocked
            }
            NodeProgress::Outdated(Health::Ready) => WaveRank::Next,
            NodeProgress::Outdated(_) => WaveRank::Unready,
            NodeProgress::Unassigned
            | NodeProgress::AwaitingFirstReport(_)
            | NodeProgress::ReadyUnproven
            | NodeProgress::Excused => WaveRank::Other,
        };
        Self {
            rank,
            assigned: member
                .proxy
                .filter(|_| {
                    !matches!(
                        rank,
                        WaveRank::Next | WaveRank::TakeoverBlocked | WaveRank::Unready
                    )
                })
                .and_then(|proxy| Some(proxy.assigned_at?.own())),
            role: member.node.role(),
            index_in_zone,
        }
    }
}
