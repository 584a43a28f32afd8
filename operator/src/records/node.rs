//! Nodes of the cluster, and the few fields of them that the operator reads.

use std::{collections::BTreeMap, sync::Arc};

use crds::{placement, starter::NodeMarks};
use k8s_openapi::{
    api::core::v1::{Node, Taint},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::Resource;
use serde::Deserialize;

use super::{ObjectVersion, Record};
use crate::{
    baseline::Reachability,
    clock_offset::{ClockOffset, ServerTime},
};

/// One node of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeRecord {
    /// Its name.
    pub(crate) name: String,
    /// Its UID: a new node may have the name of a former one.
    pub(crate) uid: String,
    /// Its labels.
    pub(crate) labels: Arc<BTreeMap<String, String>>,
    /// Its taints.
    pub(crate) taints: Vec<Taint>,
    /// Whether its kubelet reports.
    pub(crate) reach: Reachability,
    /// Whether the node controller still gets heartbeats of its kubelet.
    pub(crate) kubelet_heartbeat: KubeletHeartbeat,
    /// Since when it has not, if the controller has the clock of the API server, beside which it runs.
    pub(crate) lost_at: Option<ServerTime>,
    /// What it says about how kube-proxy is started on it.
    pub(crate) marks: NodeMarks,
    version: ObjectVersion,
}

/// Whether the node controller still gets heartbeats of a node's kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KubeletHeartbeat {
    /// The kubelet reports, if only that it is not ready, or no status exists yet.
    Received,
    /// The kubelet has stopped reporting.
    Lost,
}

/// The role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// Runs Pods.
    Worker,
    /// Runs the control plane, and perhaps Pods.
    ControlPlane,
}

/// The few fields of a Node that the operator uses. A whole Node lists every image on its disk.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = Node)]
pub(crate) struct SlimNode {
    /// The name, the UID, the labels and the annotations.
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    /// The taints.
    #[serde(default)]
    pub(crate) spec: SlimNodeSpec,
    /// The status written by the node controller.
    #[serde(default)]
    pub(crate) status: SlimNodeStatus,
}

/// The spec of a node.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct SlimNodeSpec {
    /// Its taints.
    #[serde(default)]
    pub(crate) taints: Vec<Taint>,
}

/// The status of a node.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct SlimNodeStatus {
    /// Its conditions.
    #[serde(default)]
    pub(crate) conditions: Vec<SlimCondition>,
    /// The versions that its kubelet reports.
    #[serde(default, rename = "nodeInfo")]
    pub(crate) node_info: SlimNodeInfo,
}

/// The versions that a kubelet reports.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct SlimNodeInfo {
    /// Its own.
    #[serde(default, rename = "kubeletVersion")]
    pub(crate) kubelet_version: String,
}

/// The parts of a condition that the operator reads.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct SlimCondition {
    /// The type of the condition.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// True, False or Unknown.
    pub(crate) status: String,
    /// When that last changed.
    #[serde(default, rename = "lastTransitionTime")]
    pub(crate) changed_at: Option<Time>,
}

/// The label that names the zone of a node.
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
/// The labels of control-plane nodes: the present one, and the one of clusters before 1.24.
const CONTROL_PLANE_LABELS: [&str; 2] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
];

// === impl NodeRecord ===

impl NodeRecord {
    /// Parses `node`.
    pub(crate) fn parse(node: SlimNode) -> Self {
        let version = ObjectVersion::of(&node.metadata);
        let ready = node
            .status
            .conditions
            .iter()
            .find(|condition| condition.kind == "Ready");
        let lost = ready.filter(|ready| ready.status == "Unknown");
        let labels = node.metadata.labels.unwrap_or_default();
        let annotations = node.metadata.annotations.unwrap_or_default();
        let kubelet_version = &node.status.node_info.kubelet_version;
        let marks = NodeMarks::of(&labels, &annotations, kubelet_version);
        Self {
            name: node.metadata.name.unwrap_or_default(),
            uid: node.metadata.uid.unwrap_or_default(),
            labels: labels.into(),
            taints: node.spec.taints,
            reach: match ready {
                Some(ready) if ready.status != "True" => Reachability::Unreachable,
                _ => Reachability::Reachable,
            },
            kubelet_heartbeat: match lost {
                Some(_) => KubeletHeartbeat::Lost,
                None => KubeletHeartbeat::Received,
            },
            lost_at: lost.and_then(|lost| Some(ServerTime::new(lost.changed_at.as_ref()?.0))),
            marks,
            version,
        }
    }

    /// Reads the time of the node controller's clock by that of the operator's; that of `known`, this
    /// object as it was read before, remains.
    pub(crate) fn correct_times(&mut self, offset: ClockOffset, known: Option<&Self>) {
        let known = known.and_then(|known| known.lost_at);
        self.lost_at = self.lost_at.map(|time| time.correct(offset, known));
    }

    /// Returns the zone of the node; empty if it has no zone label.
    pub(crate) fn zone(&self) -> &str {
        self.labels.get(ZONE_LABEL).map_or("", String::as_str)
    }

    /// Returns the role of the node.
    pub(crate) fn role(&self) -> Role {
        let runs_it = CONTROL_PLANE_LABELS
            .iter()
            .any(|label| self.labels.contains_key(*label));
        if runs_it {
            Role::ControlPlane
        } else {
            Role::Worker
        }
    }

    /// Returns the label of a node on which no agent can run, whatever a DaemonSet says; absent if
    /// an agent can run.
    pub(crate) fn without_agent(&self) -> Option<String> {
        placement::without_agent(&self.labels)
    }
}

impl Record for NodeRecord {
    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> &ObjectVersion {
        &self.version
    }

    /// A kubelet writes the status of its Node every five minutes, usually without changes.
    fn is_equivalent_to(&self, other: &Self) -> bool {
        let version = other.version.clone();
        *other
            == Self {
                version,
                ..self.clone()
            }
    }
}
