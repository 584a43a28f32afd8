//! The status of a profile. Only the operator writes it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    condition,
    node_proxy::latency::Microseconds,
    profile::{
        history::Revision,
        node_findings::{AgentVersion, NodeFinding},
        progress::RolloutStatus,
    },
};

/// How far the nodes that a profile applies to have come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyProfileStatus {
    /// The generation of the profile that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Nodes that this profile selects and applies to.
    pub matched_nodes: u32,

    /// Of these, nodes that have applied targetHash.
    pub updated_nodes: u32,

    /// Of these, nodes whose own condition Ready is True.
    pub ready_nodes: u32,

    /// Of these, nodes whose own condition Degraded is True.
    pub degraded_nodes: u32,

    /// The hash of the configuration most matched nodes have applied; absent before any has.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub current_hash: Option<String>,

    /// The hash of the configuration that this profile requests: that of its own fields, or an earlier one while rollout.undo
    /// names them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub target_hash: Option<String>,

    /// How far the rollout of targetHash has come; while the profile is not valid, how the last one ended if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,

    /// The configurations that this profile has requested, the current one first, at most 6.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 6))]
    pub history: Vec<Revision>,

    /// How long the matched nodes take from reading a change to the kernel's acknowledgement; absent before any reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_latency: Option<FleetLatency>,

    /// The nodes to look at first, worst first, at most 10.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub worst_nodes: Vec<WorstNode>,

    /// What matched nodes report besides being ready or degraded: one entry for each type that some node reports. Nodes whose
    /// agents are silent are left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub node_findings: Vec<NodeFinding>,

    /// The versions of the matched nodes' agents, the most frequent first, at most 5.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub agent_versions: Vec<AgentVersion>,

    /// Accepted, Progressing, Degraded, Ready, Available, Conflict and FeaturesHonoured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
}

/// The sync latency of all matched nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FleetLatency {
    /// The middle one of the nodes' medians, in microseconds, rounded up to 1, 2 or 5 times a power of ten.
    pub p50_microseconds: Microseconds,

    /// The greatest of the nodes' 99th percentiles, in microseconds, rounded up likewise.
    pub p99_microseconds: Microseconds,

    /// p99Microseconds as text, such as 48ms.
    #[schemars(length(max = 32))]
    pub p99: String,
}

/// A node to look at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorstNode {
    /// The node.
    #[schemars(length(max = 253))]
    pub name: String,

    /// The reason of the condition that makes it one of the worst, or Slow when only its latency does.
    #[schemars(length(max = 128))]
    pub reason: String,

    /// The node's own 99th percentile, in microseconds, rounded up to 1, 2 or 5 times a power of ten.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_microseconds: Option<Microseconds>,
}

/// The [`WorstNode::reason`] of a node that is ready and slower than the others.
pub const SLOW: &str = "Slow";

/// The maximum length of [`ProxyProfileStatus::worst_nodes`].
pub const MOST_WORST_NODES: usize = 10;

// === impl FleetLatency ===

impl FleetLatency {
    /// Creates the latency; the text comes from `p99`.
    #[must_use]
    pub fn new(p50: Microseconds, p99: Microseconds) -> Self {
        Self {
            p50_microseconds: p50,
            p99_microseconds: p99,
            p99: p99.to_string(),
        }
    }
}
