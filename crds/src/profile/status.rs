//! What the operator says about a profile; nobody else writes it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{condition, node_proxy::latency::Microseconds};

/// How far the nodes a profile decides for have come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyProfileStatus {
    /// The generation of the profile this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Nodes this profile selects and decides for.
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

    /// The hash of the configuration this profile asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub target_hash: Option<String>,

    /// How long the matched nodes take from reading a change to the kernel's acknowledgement; absent before any reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_latency: Option<FleetLatency>,

    /// The nodes to look at first, worst first, at most 10.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub worst_nodes: Vec<WorstNode>,

    /// Accepted, Progressing, Degraded, Ready and Conflict.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
}

/// The sync latency of the matched nodes taken together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FleetLatency {
    /// The middle one of the nodes' medians, in microseconds.
    pub p50_microseconds: Microseconds,

    /// The greatest of the nodes' 99th percentiles, in microseconds.
    pub p99_microseconds: Microseconds,

    /// p99Microseconds for people, such as 48ms.
    #[schemars(length(max = 32))]
    pub p99: String,
}

/// A node that needs a look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorstNode {
    /// The node.
    #[schemars(length(max = 253))]
    pub name: String,

    /// The reason of the condition that makes it one of the worst, or Slow when only its latency does.
    #[schemars(length(max = 128))]
    pub reason: String,

    /// The node's own 99th percentile, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_microseconds: Option<Microseconds>,
}

/// The [`WorstNode::reason`] of a node that is ready and slower than the others.
pub const SLOW: &str = "Slow";

/// [`ProxyProfileStatus::worst_nodes`] holds no more than this.
pub const MOST_WORST_NODES: usize = 10;

// === impl FleetLatency ===

impl FleetLatency {
    /// Both figures, with the text for people made from the second.
    #[must_use]
    pub fn new(p50: Microseconds, p99: Microseconds) -> Self {
        Self {
            p50_microseconds: p50,
            p99_microseconds: p99,
            p99: p99.to_string(),
        }
    }
}
