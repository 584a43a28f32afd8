//! The configuration for nodes that have none yet.

use std::sync::Arc;

use crds::{node_proxy::NodeProxySpec, profile::handover::Handover};

use crate::fleet::{
    member::Member,
    node_progress::NodeProgress,
    preflight,
    rollout_progress::{RolloutProgress, RolloutTarget},
};

// === impl RolloutProgress ===

impl RolloutProgress {
    /// Returns the configuration for nodes that have none, unless it is the requested one.
    pub(super) fn new_node_spec(
        &self,
        target: &RolloutTarget,
        members: &[Member<'_>],
        node_progress: &[NodeProgress],
    ) -> Option<Arc<NodeProxySpec>> {
        let earlier = self.earlier_spec(target, members, node_progress).cloned();
        earlier.or_else(|| without_handover(target, members))
    }
}

/// Returns the requested configuration without its handover, while that is not proven: kube-proxy
/// may serve nodes that are new to Signpost, and to take Services over from it is a change like any
/// other. It follows in waves, and nodes that fail return to this.
pub(super) fn without_handover(
    target: &RolloutTarget,
    members: &[Member<'_>],
) -> Option<Arc<NodeProxySpec>> {
    if target.requested.handover != Handover::Takeover || target.proven.is_some() {
        return None;
    }
    let without = members.iter().find(|member| member.current().is_none())?;
    Some(Arc::new(preflight::without_handover(&without.effective)))
}
