//! The configuration for nodes that must not have the one of a rollout yet.

use std::{collections::BTreeMap, sync::Arc};

use crds::{effective::hash::ConfigHash, node_proxy::NodeProxySpec};

use crate::{
    fleet::{
        member::Member,
        node_progress::NodeProgress,
        rollout_progress::{Phase, RolloutProgress, Target},
    },
    records::NodeProxyRecord,
};

// === impl RolloutProgress ===

impl RolloutProgress {
    /// Returns the configuration for a node that joins before the change is proven: the one before
    /// it. `None` if the node receives the requested one.
    pub(super) fn proven<'a>(
        &self,
        target: &'a Target,
        members: &'a [Member<'_>],
        node_progress: &[NodeProgress],
    ) -> Option<&'a Arc<NodeProxySpec>> {
        let profile = &members.first()?.effective.profile_name;
        let is_requested = |proven: &Arc<NodeProxySpec>| proven.config_hash == *self.hash();
        if target.proven.as_ref().is_some_and(is_requested) {
            return None;
        }
        let is_behind = |progress: &NodeProgress| {
            matches!(progress, NodeProgress::Unheard(_) | NodeProgress::Behind(_))
        };
        let is_proven =
            !node_progress.iter().any(is_behind) && node_progress.contains(&NodeProgress::Done);
        self.trusted(target, members)
            .filter(|_| self.phase == Phase::Rolling && !is_proven)
            .filter(|spec| spec.profile_name == *profile)
    }

    /// Returns the configuration for nodes that join meanwhile and for those that have none to
    /// return to: the proven one. An older operator may not have recorded it; then the one that
    /// most nodes have or can return to. Never the one of this rollout.
    pub(super) fn trusted<'a>(
        &self,
        target: &'a Target,
        members: &'a [Member<'_>],
    ) -> Option<&'a Arc<NodeProxySpec>> {
        let proven = target.proven.as_ref();
        if let Some(proven) = proven.filter(|proven| proven.config_hash != *self.hash()) {
            return Some(proven);
        }
        let mut votes: BTreeMap<&ConfigHash, (usize, &Arc<NodeProxySpec>)> = BTreeMap::new();
        for member in members {
            let current = member.proxy.and_then(NodeProxyRecord::whole_spec);
            let previous = member.proxy.and_then(|proxy| proxy.previous.as_ref());
            for spec in current
                .into_iter()
                .chain(previous)
                .filter(|spec| spec.config_hash != *self.hash())
            {
                votes.entry(&spec.config_hash).or_insert((0, spec)).0 += 1;
            }
        }
        votes
            .into_values()
            .max_by_key(|(count, _)| *count)
            .map(|(_, spec)| spec)
    }
}
