//! What the nodes of a profile report, summed up by kind.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Nodes that report the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeFinding {
    /// What they report.
    #[serde(rename = "type")]
    pub kind: NodeFindingKind,

    /// The number of these nodes.
    pub nodes: u32,

    /// Their names, the first 5 in alphabetical order.
    #[schemars(length(max = 5), inner(length(max = 253)))]
    pub first_nodes: Vec<String>,
}

/// What a node reports besides being ready or degraded.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum NodeFindingKind {
    /// Another service proxy, or what one has left, is on the node: condition ForeignProxyDetected is True.
    ForeignProxyDetected,
    /// Another program does not stop changing Signpost's rules: condition RulesContested is True.
    RulesContested,
    /// Other programs have changed Signpost's rules since the agent started, and the agent repaired them: status.drift is not
    /// empty.
    RulesDrifted,
    /// The connection tracking table is filling up: condition ConntrackPressure is True.
    ConntrackPressure,
    /// The node's Services were handed back to another service proxy: the reason of condition Ready is HandedBack.
    HandedBack,
}

/// Nodes whose agents have the same version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentVersion {
    /// The version.
    #[schemars(length(max = 64))]
    pub version: String,

    /// The number of these nodes.
    pub nodes: u32,
}

/// The maximum length of [`NodeFinding::first_nodes`].
pub const MOST_FIRST_NODES: usize = 5;

/// The maximum length of the list of versions. More than two are rare: an upgrade has two.
pub const MOST_AGENT_VERSIONS: usize = 5;

// === impl NodeFindingKind ===

impl fmt::Display for NodeFindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
