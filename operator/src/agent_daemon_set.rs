//! The DaemonSets whose Pods are agents, and the nodes that they select.

use crds::placement;
use kube::core::DynamicObject;
use serde_json::Value;

pub(crate) use crds::placement::Pods;

use crate::records::{NodeRecord, ObjectVersion, Record};

/// One DaemonSet of agents.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AgentDaemonSet {
    placement: placement::Placement,
    version: ObjectVersion,
}

/// The label selector of the DaemonSets whose Pods are agents.
pub(crate) const AGENTS: &str = "app.kubernetes.io/name=signpost,app.kubernetes.io/component=agent";

// === impl Placement ===

impl AgentDaemonSet {
    /// Parses `daemon_set`. One that cannot be read selects all nodes.
    pub(crate) fn parse(daemon_set: DynamicObject) -> Self {
        let DynamicObject { metadata, data, .. } = daemon_set;
        let version = ObjectVersion::of(&metadata);
        let name = metadata.name.unwrap_or_default();
        let spec = data.get("spec").unwrap_or(&Value::Null);
        Self {
            placement: placement::Placement::parse(name, spec),
            version,
        }
    }

    /// Returns why `node` has none of these `pods` of the DaemonSet; `None` if it may have one.
    pub(crate) fn exclusion(&self, node: &NodeRecord, pods: Pods) -> Option<String> {
        let candidate = placement::Candidate {
            name: &node.name,
            labels: &node.labels,
            taints: &node.taints,
        };
        self.placement.exclusion(candidate, pods)
    }
}

impl Record for AgentDaemonSet {
    fn name(&self) -> &str {
        self.placement.name()
    }

    fn version(&self) -> &ObjectVersion {
        &self.version
    }

    /// The controller writes the status of a DaemonSet with each Pod that starts.
    fn is_equivalent_to(&self, other: &Self) -> bool {
        self.placement == other.placement
    }
}
