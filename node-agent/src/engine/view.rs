//! What the engine shows of itself.

use std::sync::Arc;

use catalog::NodeStanding;
use crds::{ConfigHash, EffectiveConfig};
use dataplane::{Dataplane, Rejection};

use super::{Configuration, SourceHealth};

/// The state of the engine, for status, probes and queries.
#[derive(Debug, Clone)]
pub(crate) struct View {
    /// What has not been listed yet, in words; empty once everything has.
    pub(crate) missing: Vec<String>,
    /// Who says what this node does.
    pub(crate) configuration: Configuration,
    /// What it does.
    pub(crate) effective: Arc<EffectiveConfig>,
    /// Its hash, as the operator wrote it: an agent of another version could complete and
    /// hash the same configuration differently.
    pub(crate) hash: ConfigHash,
    /// How the source stands.
    pub(crate) source: SourceHealth,
    /// Whether the node stays in the cluster. Without a Node object it does, where no API server deletes nodes.
    pub(crate) standing: NodeStanding,
    /// The desired state of the kernel; `None` before the first.
    pub(crate) desired: Option<Dataplane>,
    /// How many distinct endpoints the desired Services have, summed over Services.
    pub(crate) endpoints: usize,
    /// What could not be honoured, sorted; the same list as before where that has not changed. Empty
    /// before everything has been listed.
    pub(crate) rejections: Arc<[Rejection]>,
}

/// What this node does, and who says so: of a [`View`], what does not change with Services.
#[derive(Debug, Clone)]
pub(crate) struct InForce {
    /// The current or last assignment, or that there never was one.
    pub(crate) configuration: Configuration,
    /// What it comes to.
    pub(crate) effective: Arc<EffectiveConfig>,
}

// === impl View ===

impl View {
    /// What this node does; `None` while it is not known who decides.
    pub(crate) fn in_force(&self) -> Option<InForce> {
        match self.configuration {
            Configuration::Awaited { .. } => None,
            _ => Some(InForce {
                configuration: self.configuration.clone(),
                effective: Arc::clone(&self.effective),
            }),
        }
    }
}

// === impl InForce ===

impl InForce {
    /// Whether it is the same configuration, from the same assignment.
    pub(crate) fn is(&self, other: &InForce) -> bool {
        let ours = self.configuration.assignment().map(std::ptr::from_ref);
        let theirs = other.configuration.assignment().map(std::ptr::from_ref);
        Arc::ptr_eq(&self.effective, &other.effective) && ours == theirs
    }
}
