//! The rollout of one profile over its nodes: wave by wave, canaries first, and a rollback when a
//! wave fails.
//!
//! Which nodes have a change, since when, and what they had before is read from their objects each
//! time. The profile's status stores only what those objects cannot show: that a rollout ended,
//! successfully or not. An operator that starts in the middle of a rollout therefore continues
//! where the last one stopped.
//!
//! Nodes also join a profile whose rollout has ended. A node that is new in the cluster is assigned
//! the configuration at once, whatever the result of earlier nodes: it has no other configuration,
//! so waiting would not protect anything. A handover that no rollout has proven is the exception,
//! because kube-proxy may serve the node. Its result is counted with the others. Nodes that move
//! from another configuration (their labels, the selector or the profiles changed) can lose service:
//! they change in waves of their own ([`MovingNodes`]), and when too many of those fail, the next ones keep
//! their configuration. Their failures roll no other node back: the profile is known to work where
//! it was.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crds::{
    condition::{
        PROGRESSING,
        reason::{DEADLINE_EXCEEDED, HALTED, HELD_BACK, ROLLED_BACK, SETTLED},
    },
    effective::hash::ConfigHash,
    node_proxy::NodeProxySpec,
    profile::{
        ProxyProfileSpec,
        progress::{RolloutPhase, RolloutVerdict},
        rollout::{OnFailure, Rollout},
        status::ProxyProfileStatus,
        undo::Undo,
    },
};
use jiff::Timestamp;

use crate::fleet::{
    budget,
    member::{DesiredNodeProxy, Judgement, Member},
    moving_nodes::{self, MovingNodes},
    node_progress::NodeProgress,
    observations::Observations,
    outage::LostNodes,
    rollback::FailedRollout,
    rollback_budget::RollbackBudget,
    rollback_progress::RollbackProgress,
    verdict::{aborted, failed_nodes, verdict},
    waves::{WaveProgress, Waves},
};

/// The configuration that a profile requests for its nodes.
#[derive(Clone, Debug)]
pub(crate) struct RolloutTarget {
    /// The name of the profile.
    pub(crate) profile: String,
    /// The hash of its configuration.
    pub(crate) hash: ConfigHash,
    /// The generation of the profile.
    pub(crate) generation: i64,
    /// The generation of the profile that last requested another configuration; 0 if none did.
    pub(crate) previous_generation: i64,
    /// The proven configuration of the profile, which may be the requested one.
    pub(crate) proven: Option<Arc<NodeProxySpec>>,
    /// How to roll out a change.
    pub(crate) rollout: Rollout,
    /// Whether changes reach nodes at all.
    pub(crate) pause: PauseState,
    /// The spec that is requested. What only holds changes back or undoes them is left out: to change that
    /// is no other attempt.
    pub(crate) requested: ProxyProfileSpec,
    /// The hash of `requested`.
    pub(crate) request_hash: ConfigHash,
    /// What `rollout.undo` does.
    pub(crate) undo: Undo,
}

/// Whether a profile's changes reach its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PauseState {
    /// Nodes receive changes.
    Active,
    /// `spec.paused`: nodes keep their configuration.
    Paused,
}

/// The progress of one configuration of a profile.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RolloutProgress {
    /// The hash of the configuration.
    hash: ConfigHash,
    /// The generation of the profile at the last evaluation. After a failure, a later generation
    /// starts another attempt.
    generation: i64,
    /// The generation at which the rollout began.
    start_generation: i64,
    /// The hash of the profile's request at that generation; absent if another operator evaluated it
    /// and did not write it.
    pub(super) request_hash: Option<String>,
    /// The phase of the rollout.
    pub(crate) phase: Phase,
    /// The losses of nodes at the last evaluation, if they were an outage.
    pub(super) outage: Option<LostNodes>,
    /// The nodes that move to the profile since the rollout has ended.
    pub(super) moving_nodes: MovingNodes,
}

/// The phase of a rollout.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Phase {
    /// The nodes are being changed.
    RollingOut,
    /// Every node that was able to applied the configuration. Later failures do not count against
    /// the rollout.
    Settled,
    /// Every node has the configuration, but some did not report success in time, fewer than would
    /// have failed the rollout.
    DeadlineExceeded,
    /// The rollout has ended, but too many of the nodes that joined since then fail, and others
    /// wait.
    HeldBack {
        /// Which nodes failed, and why.
        verdict: RolloutVerdict,
    },
    /// Too many nodes failed.
    Failed {
        /// What the profile's `onFailure` does.
        on_failure: OnFailure,
        /// Which nodes failed, and why.
        verdict: RolloutVerdict,
    },
}

/// When nodes are evaluated, and what is known then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EvaluationContext {
    /// The time.
    pub(crate) now: Timestamp,
    /// Until when at least no time counts against a node, because reports may be missing.
    pub(crate) suspended_until: Option<Timestamp>,
    /// Whether the cache of Nodes and NodeProxies is up to date.
    pub(crate) cache: CacheState,
}

/// Whether the cache of Nodes and NodeProxies is up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheState {
    /// It is.
    Synced,
    /// Their watches fail, so that no node is judged or changed by what is in it. Nodes without a
    /// configuration get one.
    Stale,
}

/// What a rollout waits for while nodes cannot be watched.
const STALE_CACHE: &str =
    "Nodes and NodeProxies to be listed and watched again; no node changes or fails meanwhile";

/// The result of one evaluation of the nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct RolloutDecision {
    /// The progress of the waves.
    pub(crate) progress: WaveProgress,
    /// The desired configuration of each node.
    pub(crate) desired: BTreeMap<String, DesiredNodeProxy>,
    /// When to evaluate again even if no event arrives.
    pub(crate) requeue_at: Option<Timestamp>,
}

// === impl RolloutProgress ===

impl RolloutProgress {
    /// Restores a rollout from the profile's last written status.
    pub(crate) fn resume(target: &RolloutTarget, status: &ProxyProfileStatus) -> Self {
        let said = status
            .conditions
            .iter()
            .find(|condition| condition.type_ == PROGRESSING);
        let same_target = status.target_hash.as_deref() == Some(target.hash.as_str());
        let verdict = |message: &str| {
            let written = status
                .rollout
                .as_ref()
                .and_then(|rollout| rollout.verdict.clone());
            written.unwrap_or_else(|| RolloutVerdict {
                message: message.to_owned(),
                ..RolloutVerdict::default()
            })
        };
        let failed = |on_failure, message: &str| Phase::Failed {
            on_failure,
            verdict: verdict(message),
        };
        // The profile was invalid meanwhile, or an older operator could not read it.
        let kept = status.rollout.as_ref().filter(|rollout| {
            status.target_hash.is_none() && rollout.config_hash == target.hash.as_str()
        });
        let kept = kept.and_then(|rollout| match rollout.phase {
            RolloutPhase::Halted => Some(failed(OnFailure::Halt, "")),
            RolloutPhase::RollingBack | RolloutPhase::RolledBack => {
                Some(failed(OnFailure::Rollback, ""))
            }
            _ => None,
        });
        let same_target = same_target || kept.is_some();
        let mut generation = target.generation;
        let phase = match (kept, said) {
            (Some(phase), said) => {
                let seen = said.and_then(|said| said.observed_generation);
                generation = seen.unwrap_or(generation);
                phase
            }
            (None, Some(said)) if same_target => {
                generation = said.observed_generation.unwrap_or(generation);
                match said.reason.as_str() {
                    reason if reason == SETTLED.name => Phase::Settled,
                    reason if reason == DEADLINE_EXCEEDED.name => Phase::DeadlineExceeded,
                    reason if reason == HELD_BACK.name => Phase::HeldBack {
                        verdict: verdict(&said.message),
                    },
                    reason if reason == HALTED.name => failed(OnFailure::Halt, &said.message),
                    reason if reason == ROLLED_BACK.name => {
                        failed(OnFailure::Rollback, &said.message)
                    }
                    _ => Phase::RollingOut,
                }
            }
            _ => Phase::RollingOut,
        };
        let written = status.rollout.as_ref().filter(|_| same_target);
        Self {
            hash: target.hash.clone(),
            generation,
            start_generation: written.map_or(target.generation, |rollout| rollout.generation),
            // A hash by another version of the operator may differ for the same fields. Only while paused
            // is it needed, for an edit of which this one has not heard.
            request_hash: match (generation == target.generation, target.pause) {
                (true, PauseState::Active) => Some(target.request_hash.to_string()),
                (is_same, _) => written
                    .and_then(|rollout| rollout.request_hash.clone())
                    .or_else(|| is_same.then(|| target.request_hash.to_string())),
            },
            phase,
            outage: None,
            moving_nodes: MovingNodes::default(),
        }
    }

    /// The hash of the configuration.
    pub(crate) const fn hash(&self) -> &ConfigHash {
        &self.hash
    }

    /// Whether too many nodes failed with the configuration.
    pub(crate) const fn has_failed(&self) -> bool {
        matches!(self.phase, Phase::Failed { .. })
    }

    /// Whether it failed and its nodes are rolled back.
    const fn is_rolling_back(&self) -> bool {
        matches!(
            self.phase,
            Phase::Failed {
                on_failure: OnFailure::Rollback,
                ..
            }
        )
    }

    /// The generation of the profile at which the rollout began.
    pub(crate) const fn start_generation(&self) -> i64 {
        self.start_generation
    }

    /// Evaluates the nodes, advances the rollout and returns the desired configuration of each
    /// node.
    pub(crate) fn advance(
        &mut self,
        target: &RolloutTarget,
        members: &[Member<'_>],
        observations: &mut Observations,
        EvaluationContext { now, cache, .. }: EvaluationContext,
    ) -> RolloutDecision {
        // Pausing or resuming a failed rollout is not a new attempt: the rollback continues and the
        // failure stands.
        let edited_after_failure = matches!(self.phase, Phase::Failed { .. })
            && self.generation != target.generation
            && self.request_hash.as_deref() != Some(target.request_hash.as_str())
            && target.pause == PauseState::Active;
        if self.hash != target.hash || edited_after_failure {
            *self = Self {
                hash: target.hash.clone(),
                generation: target.generation,
                start_generation: target.generation,
                request_hash: Some(target.request_hash.to_string()),
                phase: Phase::RollingOut,
                outage: None,
                moving_nodes: MovingNodes::default(),
            };
        }
        if !matches!(self.phase, Phase::Failed { .. }) {
            self.generation = target.generation;
            self.request_hash = Some(target.request_hash.to_string());
        }
        self.detect_outage(target, members, observations, now);
        let start_generation = self.start_generation;
        let progress_of = |member: &Member<'_>| {
            let progress = member.progress(&self.hash, &target.rollout, observations, now);
            match progress {
                NodeProgress::Failed(_) if member.was_assigned_before(start_generation) => {
                    NodeProgress::Excused
                }
                progress => progress,
            }
        };
        let node_progress: Vec<NodeProgress> = members.iter().map(progress_of).collect();
        let waves = Waves::of(&target.rollout, members, &node_progress);
        if self.phase == Phase::RollingOut && target.rollout.abort == self.hash.as_str() {
            self.phase = Phase::Failed {
                on_failure: OnFailure::Rollback,
                verdict: aborted(failed_nodes(members, &node_progress).count()),
            };
        }
        self.moving_nodes
            .update(&self.phase, members, &node_progress);
        if target.pause == PauseState::Active && cache == CacheState::Synced {
            self.judge(target, members, &node_progress, &waves);
        }
        let take = |member: &Member<'_>, progress: &NodeProgress| {
            let judgement = self.judgement(member, progress);
            member.assign(&member.effective, judgement, &target.rollout, now)
        };
        let rollback = match &self.phase {
            Phase::Failed { .. } => {
                RollbackProgress::of(&self.hash, &target.rollout, members, observations, now)
            }
            _ => RollbackProgress::default(),
        };
        let kept = match (&self.phase, target.pause) {
            (Phase::Failed { on_failure, .. }, _) => {
                let failed = FailedRollout {
                    on_failure: *on_failure,
                    target,
                    // As on the way there, lost nodes would carry out together what they were given.
                    budget: match (self.outage, cache) {
                        (None, CacheState::Synced) => rollback.budget,
                        _ => RollbackBudget::default(),
                    },
                };
                self.after_failure(failed, members, &node_progress, now)
            }
            (_, PauseState::Paused) => {
                let first = self.new_node_spec(target, members, &node_progress);
                let first = || first.as_ref().map(DesiredNodeProxy::first);
                let kept =
                    |member: &Member<'_>| member.keep_current(&target.rollout, now).or_else(first);
                members.iter().map(kept).collect()
            }
            (_, PauseState::Active) => {
                let next = self.next_nodes(target, members, &node_progress, &waves, cache);
                self.kept_configurations(target, members, &node_progress, &next, cache, now)
            }
        };
        let both = members.iter().zip(&node_progress);
        let desired = both.zip(kept).map(|((member, progress), kept)| {
            let desired = kept.unwrap_or_else(|| take(member, progress));
            let desired = member.without_early_takeover(desired);
            (member.name().to_owned(), desired)
        });
        let mut progress = waves.progress(&self.hash, members, &node_progress);
        if self.is_rolling_back() {
            self.count_rollbacks(target, members, now, &mut progress);
        }
        progress.failed_rollbacks = rollback.failed;
        progress.failed = failed_nodes(members, &node_progress)
            .map(|(node, failure)| format!("{node} ({})", failure.reason))
            .collect();
        progress.suspended = match cache {
            CacheState::Stale => Some(STALE_CACHE.to_owned()),
            CacheState::Synced => self.outage.map(LostNodes::describe),
        };
        RolloutDecision {
            progress,
            desired: desired.collect(),
            requeue_at: node_progress
                .iter()
                .filter_map(NodeProgress::ends)
                .chain(rollback.requeue_at)
                .min(),
        }
    }

    fn judge(
        &mut self,
        target: &RolloutTarget,
        members: &[Member<'_>],
        node_progress: &[NodeProgress],
        waves: &Waves,
    ) {
        match self.phase {
            Phase::RollingOut => {
                // Once as many nodes have failed as may be unavailable, no other can change.
                let most = target.rollout.max_unavailable.of(members.len());
                let tolerated = waves.tolerated(&target.rollout).min(most);
                self.judge_rollout(target, members, node_progress, tolerated);
            }
            Phase::Settled | Phase::DeadlineExceeded | Phase::HeldBack { .. } => {
                self.judge_moving_nodes(&target.rollout, members, node_progress);
            }
            Phase::Failed { .. } => {}
        }
    }

    fn judge_rollout(
        &mut self,
        target: &RolloutTarget,
        members: &[Member<'_>],
        node_progress: &[NodeProgress],
        tolerated: usize,
    ) {
        let open = |progress: &NodeProgress| {
            !matches!(
                progress,
                NodeProgress::Available
                    | NodeProgress::ReadyUnproven
                    | NodeProgress::Excused
                    | NodeProgress::Failed(_)
            )
        };
        let failed_nodes: Vec<_> = failed_nodes(members, node_progress).collect();
        if failed_nodes.len() >= tolerated {
            self.phase = Phase::Failed {
                on_failure: target.rollout.on_failure,
                verdict: verdict(&failed_nodes, members.len()),
            };
        } else if !members.is_empty() && !node_progress.iter().any(open) {
            self.phase = if node_progress.iter().all(is_ready) {
                Phase::Settled
            } else {
                Phase::DeadlineExceeded
            };
        }
    }

    /// Whether the rollout, or a move of nodes, judges the node.
    fn judgement(&self, member: &Member<'_>, progress: &NodeProgress) -> Judgement {
        let is_failed = matches!(progress, NodeProgress::Excused | NodeProgress::Failed(_));
        let is_judged = if moving_nodes::has_ended(&self.phase) {
            self.moving_nodes.contains(member.name())
        } else {
            !member.was_assigned_before(self.start_generation)
        };
        if is_failed && !is_judged {
            Judgement::Over
        } else {
            Judgement::UnderWay
        }
    }

    /// Returns the nodes that receive the configuration next.
    fn next_nodes<'a>(
        &self,
        target: &RolloutTarget,
        members: &'a [Member<'_>],
        node_progress: &[NodeProgress],
        waves: &Waves,
        cache: CacheState,
    ) -> BTreeSet<&'a str> {
        if self.outage.is_some() || cache == CacheState::Stale {
            return BTreeSet::new();
        }
        let rollout = &target.rollout;
        let moving = moving_nodes::has_ended(&self.phase).then(|| {
            self.moving_nodes
                .waves(&self.phase, rollout, members, node_progress)
        });
        let begun = moving.as_ref().unwrap_or(waves).begun();
        let order = waves.all();
        budget::next_nodes(&self.phase, rollout, members, node_progress, begun, order)
    }

    /// Returns the desired configuration of each node that must not change yet; `None` for a node
    /// that receives the configuration now, as those that are `next` do.
    fn kept_configurations(
        &self,
        target: &RolloutTarget,
        members: &[Member<'_>],
        node_progress: &[NodeProgress],
        next: &BTreeSet<&str>,
        cache: CacheState,
        now: Timestamp,
    ) -> Vec<Option<DesiredNodeProxy>> {
        let rollout = &target.rollout;
        let first = self.new_node_spec(target, members, node_progress);
        let kept = |(member, progress): (&Member<'_>, &NodeProgress)| match progress {
            NodeProgress::Unassigned | NodeProgress::AwaitingFirstReport(_) => member
                .keep_current(rollout, now)
                .or_else(|| first.as_ref().map(DesiredNodeProxy::first)),
            NodeProgress::Outdated(_) if !next.contains(member.name()) => {
                member.keep_current(rollout, now)
            }
            // What would be written is based on what may be old.
            _ if cache == CacheState::Stale => member.keep_current(rollout, now),
            _ if member.has_other_written_fields() && !next.contains(member.name()) => {
                member.keep_current(rollout, now)
            }
            _ => None,
        };
        members.iter().zip(node_progress).map(kept).collect()
    }
}

/// Whether the node is ready with the configuration and has been for long enough.
pub(crate) const fn is_ready(progress: &NodeProgress) -> bool {
    matches!(
        progress,
        NodeProgress::Available | NodeProgress::ReadyUnproven
    )
}
