//! One profile in a plan.

use std::collections::BTreeMap;

use crate::{
    fleet::{
        desired_node_proxy::DesiredNodeProxy, evaluation_context::EvaluationContext,
        observations::Observations, plan::Plan, profile_node::ProfileNode,
        rollout_progress::RolloutProgress, rollout_target::RolloutTarget,
        wave_progress::WaveProgress, written_status,
    },
    records::ProfileRecord,
};

/// A profile with the nodes that it decides for.
pub(super) struct PlannedProfile<'a> {
    pub(super) record: &'a ProfileRecord,
    pub(super) target: RolloutTarget,
    pub(super) members: Vec<ProfileNode<'a>>,
}

// === impl PlannedProfile ===

impl PlannedProfile<'_> {
    /// Advances the profile's rollout and collects the desired configuration of its nodes. An
    /// invalid profile has no rollout: its nodes keep their configuration.
    pub(super) fn advance(
        &self,
        rollout_progress: Option<RolloutProgress>,
        context: EvaluationContext,
        observations: &mut Observations,
        desired: &mut BTreeMap<String, DesiredNodeProxy>,
        plan: &mut Plan,
    ) -> (Option<RolloutProgress>, WaveProgress) {
        if !self.record.errors().is_empty() {
            let kept = self.members.iter();
            let rollout = &self.target.rollout;
            desired.extend(kept.filter_map(|member| {
                Some((
                    member.name().to_owned(),
                    member.keep_current(rollout, context.now)?,
                ))
            }));
            return (rollout_progress, WaveProgress::default());
        }
        let mut rollout_progress = rollout_progress
            .unwrap_or_else(|| RolloutProgress::resume(&self.target, &self.record.status()));
        let decision = rollout_progress.advance(&self.target, &self.members, observations, context);
        desired.extend(decision.desired);
        // Deadlines move on until then.
        let requeue_at = decision.requeue_at;
        plan.requeue_by(requeue_at.map(|requeue_at| {
            context
                .suspended_until
                .map_or(requeue_at, |until| requeue_at.max(until))
        }));
        (Some(rollout_progress), decision.progress)
    }

    /// Returns the nodes that change to the profile's configuration.
    pub(super) fn changes(
        &self,
        desired: &BTreeMap<String, DesiredNodeProxy>,
    ) -> impl Iterator<Item = String> {
        let changes = self.members.iter().filter(|member| {
            let desired = desired.get(member.name());
            desired.is_some_and(|it| written_status::assigns_target(member, it, &self.target.hash))
        });
        changes.map(|member| member.name().to_owned())
    }
}
