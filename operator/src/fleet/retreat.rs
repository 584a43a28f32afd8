//! What nodes get after a rollout has failed: those that it changed return to what they had, or stay,
//! and the others keep their configuration.

use std::{collections::BTreeMap, sync::Arc};

use crds::{effective::hash::ConfigHash, node_proxy::NodeProxySpec, profile::rollout::OnFailure};
use jiff::Timestamp;

use crate::fleet::{
    first_configuration::without_handover,
    member::{DesiredNodeProxy, Member},
    node_progress::NodeProgress,
    returns::Room,
    rollout_progress::{RolloutProgress, Target},
    waves::Progress,
};

/// What happens after a failure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retreat<'a> {
    /// Whether nodes return.
    pub(super) outcome: OnFailure,
    /// What failed.
    pub(super) target: &'a Target,
    /// How many nodes may be changed back now.
    pub(super) room: Room,
}

/// What nodes can return to that do not say it themselves.
#[derive(Debug)]
struct KnownSpecs<'a> {
    /// For every node of the profile; absent if none is known.
    fallback: Option<Arc<NodeProxySpec>>,
    /// What other nodes have or can return to, by hash.
    others: BTreeMap<&'a ConfigHash, &'a Arc<NodeProxySpec>>,
}

// === impl RolloutProgress ===

impl RolloutProgress {
    /// Returns the desired configurations after a failure: changed nodes are rolled back or stay,
    /// and the others keep their configuration. Nodes that no longer serve are rolled back at once;
    /// of the others only as many as there is room for.
    pub(super) fn retreat(
        &self,
        Retreat {
            outcome,
            target,
            mut room,
        }: Retreat<'_>,
        members: &[Member<'_>],
        node_progress: &[NodeProgress],
        now: Timestamp,
    ) -> Vec<Option<DesiredNodeProxy>> {
        let known = self.known_specs(target, members);
        let give = |(member, progress): (&Member<'_>, &NodeProgress)| {
            let back = match outcome {
                OnFailure::Rollback => self
                    .way_back(target, member, &known, now)
                    .filter(|_| room.take(member, progress, now)),
                OnFailure::Halt => None,
            };
            back.or_else(|| member.keep(&target.rollout, now))
                .or_else(|| {
                    let fallback = known.fallback.as_ref();
                    fallback.map(|spec| member.fall_back(spec, now))
                })
        };
        members.iter().zip(node_progress).map(give).collect()
    }

    /// Returns the configurations after a failure for nodes that have none, or none to return to.
    fn known_specs<'a>(&self, target: &Target, members: &'a [Member<'_>]) -> KnownSpecs<'a> {
        let trusted = self.trusted(target, members).cloned();
        let others = self.other_specs(members);
        KnownSpecs {
            fallback: trusted.or_else(|| without_handover(target, members)),
            others: others.map(|spec| (&spec.config_hash, spec)).collect(),
        }
    }

    /// Whether the rollout gave the node the configuration. After a return to an earlier
    /// configuration, most nodes may have had it all along.
    fn has_changed(&self, target: &Target, member: &Member<'_>) -> bool {
        member
            .current()
            .is_some_and(|current| current.config_hash == *self.hash())
            && !member.was_assigned_before(target.before + 1)
    }

    /// Returns what takes the node back, if the rollout changed it and something is known that it can
    /// return to: a node that was not ready with its former configuration does not say it, but others that
    /// had the same may.
    fn way_back(
        &self,
        target: &Target,
        member: &Member<'_>,
        known: &KnownSpecs<'_>,
        now: Timestamp,
    ) -> Option<DesiredNodeProxy> {
        let former = || {
            known
                .others
                .get(&member.proxy?.baseline.as_ref()?.config_hash)
        };
        let other = || {
            let fallback = known.fallback.as_ref();
            let fallback = fallback.filter(|spec| member.may_return_to(spec));
            fallback.or_else(|| former().copied())
        };
        member
            .go_back(now)
            .or_else(|| other().map(|spec| member.fall_back(spec, now)))
            .filter(|_| self.has_changed(target, member))
    }

    /// Counts the nodes that are still to return, and names those that cannot.
    pub(super) fn note_returns(
        &self,
        target: &Target,
        members: &[Member<'_>],
        now: Timestamp,
        progress: &mut Progress,
    ) {
        let known = self.known_specs(target, members);
        let changed = members
            .iter()
            .filter(|member| self.has_changed(target, member));
        let (returning, stuck): (Vec<_>, Vec<_>) =
            changed.partition(|member| self.way_back(target, member, &known, now).is_some());
        progress.returning = returning.len();
        progress.without_return = stuck.iter().map(|it| it.name().to_owned()).collect();
    }
}
