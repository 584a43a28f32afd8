//! What nodes get after a rollout has failed: those that it changed are rolled back, or stay, and the
//! others keep their configuration.

use std::{collections::BTreeMap, sync::Arc};

use crds::{effective::hash::ConfigHash, node_proxy::NodeProxySpec, profile::rollout::OnFailure};
use jiff::Timestamp;

use crate::fleet::{
    desired_node_proxy::DesiredNodeProxy, new_node_spec::without_handover,
    node_progress::NodeProgress, profile_node::ProfileNode, rollback_budget::RollbackBudget,
    rollout_progress::RolloutProgress, rollout_target::RolloutTarget, wave_progress::WaveProgress,
};

/// A rollout that has failed.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailedRollout<'a> {
    /// Whether nodes are rolled back.
    pub(super) on_failure: OnFailure,
    /// The configuration that failed.
    pub(super) target: &'a RolloutTarget,
    /// How many more nodes may be rolled back now.
    pub(super) budget: RollbackBudget,
}

/// The specs for nodes whose own objects name none to roll back to.
#[derive(Debug)]
struct RollbackSpecs<'a> {
    /// For every node of the profile; absent if none is known.
    fallback: Option<Arc<NodeProxySpec>>,
    /// Those that other nodes have or can be rolled back to, by hash.
    others: BTreeMap<&'a ConfigHash, &'a Arc<NodeProxySpec>>,
}

// === impl RolloutProgress ===

impl RolloutProgress {
    /// Returns the desired configurations after a failure: changed nodes are rolled back or stay,
    /// and the others keep their configuration. Nodes that no longer serve are rolled back at once;
    /// of the others only as many as the budget allows.
    pub(super) fn after_failure(
        &self,
        FailedRollout {
            on_failure,
            target,
            mut budget,
        }: FailedRollout<'_>,
        members: &[ProfileNode<'_>],
        node_progress: &[NodeProgress],
        now: Timestamp,
    ) -> Vec<Option<DesiredNodeProxy>> {
        let specs = self.rollback_specs(target, members);
        let configuration = |(member, progress): (&ProfileNode<'_>, &NodeProgress)| {
            let rollback = match on_failure {
                OnFailure::Rollback => self
                    .rollback_of(target, member, &specs, now)
                    .filter(|_| budget.claim(member, progress, now)),
                OnFailure::Halt => None,
            };
            rollback
                .or_else(|| member.keep_current(&target.rollout, now))
                .or_else(|| {
                    let fallback = specs.fallback.as_ref();
                    fallback.map(|spec| member.assign_fallback(spec, now))
                })
        };
        members
            .iter()
            .zip(node_progress)
            .map(configuration)
            .collect()
    }

    /// Returns the configurations after a failure for nodes that have none, or none to return to.
    fn rollback_specs<'a>(
        &self,
        target: &RolloutTarget,
        members: &'a [ProfileNode<'_>],
    ) -> RollbackSpecs<'a> {
        let fallback = self.fallback_spec(target, members).cloned();
        let others = self.other_specs(members);
        RollbackSpecs {
            fallback: fallback.or_else(|| without_handover(target, members)),
            others: others.map(|spec| (&spec.config_hash, spec)).collect(),
        }
    }

    /// Whether the rollout gave the node the configuration. After a return to an earlier
    /// configuration, most nodes may have had it all along.
    fn was_changed(&self, target: &RolloutTarget, member: &ProfileNode<'_>) -> bool {
        member
            .current()
            .is_some_and(|current| current.config_hash == *self.hash())
            && !member.was_assigned_before(target.previous_generation + 1)
    }

    /// Returns the rollback of the node, if the rollout changed it and something is known that it can
    /// return to: a node that was not ready with its former configuration does not say it, but others that
    /// had the same may.
    fn rollback_of(
        &self,
        target: &RolloutTarget,
        member: &ProfileNode<'_>,
        specs: &RollbackSpecs<'_>,
        now: Timestamp,
    ) -> Option<DesiredNodeProxy> {
        let former = || {
            specs
                .others
                .get(&member.proxy?.baseline.as_ref()?.config_hash)
        };
        let other = || {
            let fallback = specs.fallback.as_ref();
            let fallback = fallback.filter(|spec| member.may_roll_back_to(spec));
            fallback.or_else(|| former().copied())
        };
        member
            .roll_back(now)
            .or_else(|| other().map(|spec| member.assign_fallback(spec, now)))
            .filter(|_| self.was_changed(target, member))
    }

    /// Counts the nodes that are still to be rolled back, and names those that cannot be.
    pub(super) fn count_rollbacks(
        &self,
        target: &RolloutTarget,
        members: &[ProfileNode<'_>],
        now: Timestamp,
        progress: &mut WaveProgress,
    ) {
        let specs = self.rollback_specs(target, members);
        let changed = members
            .iter()
            .filter(|member| self.was_changed(target, member));
        let (to_roll_back, stuck): (Vec<_>, Vec<_>) =
            changed.partition(|member| self.rollback_of(target, member, &specs, now).is_some());
        progress.to_roll_back = to_roll_back.len();
        progress.without_rollback = stuck.iter().map(|it| it.name().to_owned()).collect();
    }
}
