//! Which service proxy a profile requests for its nodes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which service proxy serves a node, where kube-proxy has rules on it, too.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
pub enum Handover {
    /// A command on the node decides: the profile neither takes Services over nor hands them back.
    #[default]
    Manual,
    /// Signpost alone: the agent removes kube-proxy's rules once its own are programmed.
    Takeover,
    /// kube-proxy alone: the agent removes its own rules once kube-proxy's are complete and kube-proxy answers.
    Handback,
}

// === impl Handover ===

impl Handover {
    /// Whether the profile leaves the decision to commands.
    #[must_use]
    pub fn is_manual(&self) -> bool {
        *self == Self::Manual
    }
}
