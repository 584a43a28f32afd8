//! The waves of a rollout: which nodes belong to which wave, and how far they have come.
//!
//! The waves are not stored. The nodes are sorted, those that already have the configuration first
//! in the order of their assignment, and the order is cut where a wave ends. An operator that
//! starts computes the same waves.

use std::collections::BTreeMap;

use crds::{
    effective::hash::ConfigHash,
    profile::{
        progress::{RolloutPhase, RolloutStatus, WaveStatus},
        rollout::{OnFailure, Rollout},
        status::ProxyProfileStatus,
    },
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::{
    fleet::{
        member::Member,
        node_progress::{Health, NodeProgress},
        preflight,
        profile_status::first_names,
        rollout_progress::{PauseState, Phase, RolloutProgress, RolloutTarget, is_ready},
    },
    records::Role,
};

/// The nodes of a profile in the order in which they receive its configuration.
#[derive(Clone, Debug)]
pub(crate) struct Waves {
    /// The indexes of the members in that order.
    order: Vec<usize>,
    /// The cumulative number of nodes at the end of each wave.
    ends: Vec<usize>,
    /// The index of the wave in progress.
    current: usize,
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

/// The progress of the waves.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaveProgress {
    waves: Vec<WaveStatus>,
    /// The wave in progress, counted from 1.
    current: u32,
    /// After a failure, the number of nodes that are still to be rolled back.
    pub(crate) to_roll_back: usize,
    /// After a failure, the changed nodes for which no configuration to roll back to is known.
    pub(crate) without_rollback: Vec<String>,
    /// The nodes of the wave in progress that it waits for.
    waiting_for: Vec<String>,
    /// What the nodes wait for that must not change yet, once the wave in progress has one of them.
    takeover_blocks: Option<String>,
    /// The nodes that failed after they were rolled back, each with the reason, if they stop the
    /// rollback.
    pub(crate) failed_rollbacks: Vec<String>,
    /// The nodes that have failed with the configuration, each with the reason.
    pub(crate) failed: Vec<String>,
    /// What suspends the rollout, if an outage or a failing watch does.
    pub(crate) suspended: Option<String>,
}

// === impl Waves ===

impl Waves {
    /// Computes the waves of `members`, which are sorted by name, from their `node_progress`.
    pub(crate) fn of(
        rollout: &Rollout,
        members: &[Member<'_>],
        node_progress: &[NodeProgress],
    ) -> Self {
        Self::of_subset(rollout, members, node_progress, |_| true)
    }

    /// Computes the waves of the members whose index is in the `subset`.
    pub(crate) fn of_subset(
        rollout: &Rollout,
        members: &[Member<'_>],
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
            !is_finished(progress)
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
    pub(crate) fn tolerated(&self, rollout: &Rollout) -> usize {
        let reached = self.ends.iter().position(|end| self.assigned <= *end);
        match reached {
            Some(0) | None if self.canary > 0 => 1,
            _ => {
                let nodes = reached.map_or(self.order.len(), |wave| self.ends[wave]);
                rollout.max_failures.of(nodes)
            }
        }
    }

    /// Returns the progress with the configuration of this hash.
    pub(crate) fn progress(
        &self,
        hash: &ConfigHash,
        members: &[Member<'_>],
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
                available: count(nodes, &|index| is_ready(&node_progress[index])),
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
        let waits = |&&index: &&usize| has(index) && !is_finished(&node_progress[index]);
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
    fn of(member: &Member<'_>, progress: &NodeProgress, index_in_zone: usize) -> Self {
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

/// Whether the rollout no longer waits for the node.
pub(super) const fn is_finished(progress: &NodeProgress) -> bool {
    matches!(
        progress,
        NodeProgress::Available
            | NodeProgress::ReadyUnproven
            | NodeProgress::Excused
            | NodeProgress::Failed(_)
    )
}

// === impl RolloutProgress ===

impl RolloutProgress {
    /// Returns the rollout status. Its start time is that in `before` while the phase and the wave
    /// are the same.
    pub(super) fn report(
        &self,
        target: &RolloutTarget,
        progress: &WaveProgress,
        before: &ProxyProfileStatus,
        now: Timestamp,
    ) -> RolloutStatus {
        let (phase, verdict) = match &self.phase {
            Phase::RollingOut if target.pause == PauseState::Paused => (RolloutPhase::Paused, None),
            Phase::RollingOut if progress.waves.is_empty() => (RolloutPhase::Settled, None),
            Phase::RollingOut => (RolloutPhase::RollingOut, None),
            Phase::Settled => (RolloutPhase::Settled, None),
            Phase::DeadlineExceeded => (RolloutPhase::DeadlineExceeded, None),
            Phase::HeldBack { verdict } => (RolloutPhase::HeldBack, Some(verdict.clone())),
            Phase::Failed {
                on_failure,
                verdict,
            } => {
                let phase = match on_failure {
                    OnFailure::Halt => RolloutPhase::Halted,
                    OnFailure::Rollback if progress.to_roll_back > 0 => RolloutPhase::RollingBack,
                    OnFailure::Rollback => RolloutPhase::RolledBack,
                };
                (phase, Some(verdict.clone()))
            }
        };
        let waiting_for = match phase {
            RolloutPhase::RollingOut | RolloutPhase::RollingBack
                if let Some(suspended) = &progress.suspended =>
            {
                suspended.clone()
            }
            RolloutPhase::RollingOut if !progress.waiting_for.is_empty() => {
                let available = format!(
                    "{} of wave {} to be available: {}",
                    nodes(progress.waiting_for.len()),
                    progress.current,
                    first_names(&progress.waiting_for)
                );
                let all: Vec<&str> = [
                    Some(available.as_str()),
                    progress.takeover_blocks.as_deref(),
                ]
                .into_iter()
                .flatten()
                .collect();
                all.join("; and for ")
            }
            // Nodes that move to the profile wait as those of a rollout do.
            RolloutPhase::RollingOut
            | RolloutPhase::Settled
            | RolloutPhase::DeadlineExceeded
            | RolloutPhase::HeldBack => progress.takeover_blocks.clone().unwrap_or_default(),
            RolloutPhase::Paused if !progress.failed.is_empty() => format!(
                "spec.paused to become false; {} failed meanwhile, and will count then: {}",
                nodes(progress.failed.len()),
                first_names(&progress.failed)
            ),
            RolloutPhase::RollingBack if !progress.failed_rollbacks.is_empty() => format!(
                "{} to roll back, which waits for nodes that failed after going back: {}",
                nodes(progress.to_roll_back),
                first_names(&progress.failed_rollbacks)
            ),
            RolloutPhase::RollingBack => format!("{} to roll back", nodes(progress.to_roll_back)),
            _ => String::new(),
        };
        let mut report = RolloutStatus {
            config_hash: self.hash().to_string(),
            generation: self.start_generation(),
            request_hash: self.request_hash.clone(),
            phase,
            since: Time(now),
            wave: progress.current,
            waves: progress.waves.clone(),
            waiting_for,
            verdict,
        };
        let is_same = |before: &&RolloutStatus| {
            before.config_hash == report.config_hash && before.generation == report.generation
        };
        if let Some(before) = before.rollout.as_ref().filter(is_same) {
            // Failures of nodes after the end do not count against the rollout.
            let has_ended = !matches!(phase, RolloutPhase::RollingOut | RolloutPhase::Paused);
            let failed = before.verdict.is_some() && report.verdict.is_some();
            if has_ended && (before.phase == phase || failed) {
                report.wave = before.wave;
                report.waves.clone_from(&before.waves);
            }
            if before.phase == phase && before.wave == report.wave {
                report.since = before.since.clone();
            }
        }
        report
    }
}

/// Writes how many nodes.
pub(super) fn nodes(count: usize) -> String {
    if count == 1 {
        "1 node".to_owned()
    } else {
        format!("{count} nodes")
    }
}
