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
//! they change in waves of their own ([`MovingNodes`]), and when too many of those fail, the next
//! ones keep their configuration. Their failures roll no other node back: the profile is known to
//! work where it was.

use std::collections::{BTreeMap, BTreeSet};

use crds::{effective::hash::ConfigHash, profile::rollout::OnFailure};
use jiff::Timestamp;

use crate::fleet::{
    budget,
    desired_node_proxy::{ChangeEvaluation, DesiredNodeProxy},
    evaluation_context::{CacheState, EvaluationContext},
    moving_nodes::MovingNodes,
    node_progress::NodeProgress,
    observations::Observations,
    outage::LostNodes,
    profile_node::ProfileNode,
    rollback::FailedRollout,
    rollback_budget::RollbackBudget,
    rollback_progress::RollbackProgress,
    rollout_phase::Phase,
    rollout_target::{PauseState, RolloutTarget},
    verdict::{aborted, failed_nodes, verdict},
    wave_progress::WaveProgress,
    waves::Waves,
};

/// The progress of one configuration of a profile.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RolloutProgress {
    /// The hash of the configuration.
    pub(super) hash: ConfigHash,
    /// The generation of the profile at the last evaluation. After a failure, a later generation
    /// starts another attempt.
    pub(super) generation: i64,
    /// The generation at which the rollout began.
    pub(super) start_generation: i64,
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
        members: &[ProfileNode<'_>],
        observations: &mut Observations,
        EvaluationContext {
            now,
            suspended_until,
            cache,
        }: EvaluationContext,
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
        let progress_of = |member: &ProfileNode<'_>| {
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
        let take = |member: &ProfileNode<'_>, progress: &NodeProgress| {
            let evaluation = self.evaluation(member, progress);
            member.assign(&member.effective, evaluation, &target.rollout, now)
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
                let kept = |member: &ProfileNode<'_>| {
                    member.keep_current(&target.rollout, now).or_else(first)
                };
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
        progress.is_catching_up = cache == CacheState::Synced && suspended_until.is_some();
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
        members: &[ProfileNode<'_>],
        node_progress: &[NodeProgress],
        waves: &Waves,
    ) {
        match self.phase {
            Phase::RollingOut => {
                // Once as many nodes have failed as may be unavailable, no other can change.
                let most = target.rollout.max_unavailable.of(members.len());
                let failure_limit = waves.failure_limit(&target.rollout).min(most);
                self.judge_rollout(target, members, node_progress, failure_limit);
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
        members: &[ProfileNode<'_>],
        node_progress: &[NodeProgress],
        failure_limit: usize,
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
        if failed_nodes.len() >= failure_limit {
            self.phase = Phase::Failed {
                on_failure: target.rollout.on_failure,
                verdict: verdict(&failed_nodes, members.len()),
            };
        } else if !members.is_empty() && !node_progress.iter().any(open) {
            self.phase = if node_progress.iter().all(NodeProgress::is_ready) {
                Phase::Settled
            } else {
                Phase::DeadlineExceeded
            };
        }
    }

    /// Whether the rollout, or a move of nodes, evaluates the node.
    fn evaluation(&self, member: &ProfileNode<'_>, progress: &NodeProgress) -> ChangeEvaluation {
        let is_failed = matches!(progress, NodeProgress::Excused | NodeProgress::Failed(_));
        let is_evaluated = if self.phase.has_ended() {
            self.moving_nodes.contains(member.name())
        } else {
            !member.was_assigned_before(self.start_generation)
        };
        if is_failed && !is_evaluated {
            ChangeEvaluation::Over
        } else {
            ChangeEvaluation::UnderWay
        }
    }

    /// Returns the nodes that receive the configuration next.
    fn next_nodes<'a>(
        &self,
        target: &RolloutTarget,
        members: &'a [ProfileNode<'_>],
        node_progress: &[NodeProgress],
        waves: &Waves,
        cache: CacheState,
    ) -> BTreeSet<&'a str> {
        if self.outage.is_some() || cache == CacheState::Stale {
            return BTreeSet::new();
        }
        let rollout = &target.rollout;
        let moving = self.phase.has_ended().then(|| {
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
        members: &[ProfileNode<'_>],
        node_progress: &[NodeProgress],
        next: &BTreeSet<&str>,
        cache: CacheState,
        now: Timestamp,
    ) -> Vec<Option<DesiredNodeProxy>> {
        let rollout = &target.rollout;
        let first = self.new_node_spec(target, members, node_progress);
        let kept = |(member, progress): (&ProfileNode<'_>, &NodeProgress)| match progress {
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
