//! What a node was like when it was given what it has. A change is judged by what became worse, and by nothing else.

use crds::effective::hash::ConfigHash;
use serde::{Deserialize, Serialize};

use crate::records::Reach;

/// What a node was like with the configuration it had before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Baseline {
    /// The configuration it had.
    pub(crate) config_hash: ConfigHash,
    /// What its Node said.
    pub(crate) node: Reach,
    /// What its agent said.
    pub(crate) agent: Readiness,
    /// Why its agent said that it was degraded; absent when it did not, or only because of the way to the API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) degraded: Option<String>,
}

/// Whether a node was ready with the configuration it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Readiness {
    /// Its agent had applied it and was ready.
    Ready,
    /// Its agent had not, or had said nothing.
    NotReady,
}

// === impl Baseline ===

impl Baseline {
    /// Whether the node was well enough for its loss to be noticed: one that was not ready cannot show that a change
    /// works, nor that it does not.
    pub(crate) fn is_well(&self) -> bool {
        self.node == Reach::Reachable && self.agent == Readiness::Ready
    }
}
