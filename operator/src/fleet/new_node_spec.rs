//! The spec for nodes that have none yet, and must not have the one of a rollout yet either.

use std::{collections::BTreeMap, sync::Arc};

use crds::{effective::hash::ConfigHash, node_proxy::NodeProxySpec, profile::handover::Handover};

use crate::fleet::{
    node_progress::NodeProgress, preflight, profile_node::ProfileNode, rollout_phase::Phase,
    rollout_progress::RolloutProgress, rollout_target::RolloutTarget,
};

// === impl RolloutProgress ===

impl RolloutProgress {
    /// Returns the configuration for nodes that have none, unless it is the requested one.
    pub(super) fn new_node_spec(
        &self,
        target: &RolloutTarget,
        members: &[ProfileNode<'_>],
        node_progress: &[NodeProgress],
    ) -> Option<Arc<NodeProxySpec>> {
        let earlier = self.earlier_spec(target, members, node_progress).cloned();
        earlier.or_else(|| without_handover(target, members))
    }

    /// Returns the configuration for a node that joins before the change is proven: the one before
    /// it. `None` if the node receives the requested one.
    pub(super) fn earlier_spec<'a>(
        &self,
        target: &'a RolloutTarget,
        members: &'a [ProfileNode<'_>],
        node_progress: &[NodeProgress],
    ) -> Option<&'a Arc<NodeProxySpec>> {
        let count =
            |is: fn(&NodeProgress) -> bool| node_progress.iter().filter(|it| is(it)).count();
        // What starts kube-proxy on a node is no reason to doubt the configuration.
        let is_outdated = |(member, progress): (&ProfileNode<'_>, &NodeProgress)| {
            matches!(progress, NodeProgress::Outdated(_)) && !member.is_takeover_blocked(progress)
        };
        let both = members.iter().zip(node_progress);
        let outdated = both.filter(|both| is_outdated(*both)).count();
        // Nodes that join prove nothing yet; where they are few, they are not a reason to doubt.
        let awaited = count(|it| matches!(it, NodeProgress::AwaitingFirstReport(_)));
        let available = count(|it| *it == NodeProgress::Available);
        // In the last wave most nodes may have the change without having shown that it works.
        let is_proven = outdated == 0 && available > awaited && available * 2 >= members.len();
        self.fallback_spec(target, members)
            .filter(|_| self.phase == Phase::RollingOut && !is_proven)
            .filter(|spec| spec.profile_name == target.profile)
    }

    /// Returns the configuration for nodes that join meanwhile and for those that have none to
    /// return to: the proven one. An older operator may not have recorded it; then the one that
    /// most nodes have or can return to. `None` if the proven one is that of this rollout.
    pub(super) fn fallback_spec<'a>(
        &self,
        target: &'a RolloutTarget,
        members: &'a [ProfileNode<'_>],
    ) -> Option<&'a Arc<NodeProxySpec>> {
        if let Some(proven) = &target.proven {
            return (proven.config_hash != *self.hash()).then_some(proven);
        }
        let mut counts: BTreeMap<&ConfigHash, (usize, &Arc<NodeProxySpec>)> = BTreeMap::new();
        for spec in self.other_specs(members) {
            counts.entry(&spec.config_hash).or_insert((0, spec)).0 += 1;
        }
        counts
            .into_values()
            .max_by_key(|(count, _)| *count)
            .map(|(_, spec)| spec)
    }

    /// Returns the specs that nodes have or can return to, less those of this rollout.
    pub(super) fn other_specs<'a>(
        &self,
        members: &'a [ProfileNode<'_>],
    ) -> impl Iterator<Item = &'a Arc<NodeProxySpec>> {
        let proxies = members.iter().filter_map(|member| member.proxy);
        let specs = proxies.flat_map(|proxy| proxy.whole_spec().into_iter().chain(&proxy.previous));
        specs.filter(|spec| spec.config_hash != *self.hash())
    }
}

/// Returns the requested configuration without its handover, while that is not proven: kube-proxy
/// may serve nodes that are new to Signpost, and to take Services over from it is a change like any
/// other. It follows in waves, and nodes that fail return to this.
pub(super) fn without_handover(
    target: &RolloutTarget,
    members: &[ProfileNode<'_>],
) -> Option<Arc<NodeProxySpec>> {
    if target.requested.handover != Handover::Takeover || target.proven.is_some() {
        return None;
    }
    let without = members.iter().find(|member| member.current().is_none())?;
    Some(Arc::new(preflight::without_handover(&without.effective)))
}
