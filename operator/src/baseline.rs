//! The state of a node at the time it was assigned its configuration. A change is judged only by
//! what became worse since.

use crds::{condition::reason::CONNECTION_FAILED, effective::hash::ConfigHash};
use serde::{Deserialize, Serialize};

/// The state of a node with its previous configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Baseline {
    /// The hash of that configuration.
    pub(crate) config_hash: ConfigHash,
    /// Whether the node was reachable according to its Node object.
    pub(crate) node: Reachability,
    /// Whether its agent was ready.
    pub(crate) agent: Readiness,
    /// The reason of the agent's condition Degraded. Absent if the agent was not degraded, or only
    /// because it could not reach the API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) degraded: Option<String>,
    /// Whether new connections to the API server's Service failed. Operators that did not store it
    /// knew only the reason of Degraded.
    #[serde(default, skip_serializing_if = "Connections::are_not_failing")]
    pub(crate) connections: Connections,
}

/// Whether a node's kubelet reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reachability {
    /// The kubelet reports, or no status exists yet.
    Reachable,
    /// The node controller reports the kubelet as lost: the last report of the agent may be out of
    /// date.
    Unreachable,
}

/// Whether a node's agent reports that its new connections fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Connections {
    /// It reports no failure, and may not have checked.
    #[default]
    NotFailing,
    /// They fail.
    Failing,
}

/// Whether a node's agent was ready with a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Readiness {
    /// The agent had applied it and was ready.
    Ready,
    /// The agent had not applied it, was not ready, or had not reported.
    NotReady,
}

// === impl Baseline ===

impl Baseline {
    /// Whether the node was reachable and ready. Only such a node can show whether a change works.
    pub(crate) fn is_healthy(&self) -> bool {
        self.node == Reachability::Reachable && self.agent == Readiness::Ready
    }

    /// Whether new connections failed.
    pub(crate) fn had_failing_connections(&self) -> bool {
        self.connections == Connections::Failing
            || self.degraded.as_deref() == Some(CONNECTION_FAILED.name)
    }
}

// === impl Connections ===

impl Connections {
    const fn are_not_failing(&self) -> bool {
        matches!(self, Self::NotFailing)
    }
}
