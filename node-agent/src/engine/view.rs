//! What the engine exposes of its state.

use std::sync::Arc;

use catalog::NodeLifecycle;
use crds::{ConfigHash, EffectiveConfig};
use dataplane::{Dataplane, Rejection};

use super::{Configuration, SourceHealth};

/// The state of the engine, for status, probes and queries.
#[derive(Debug, Clone)]
pub(crate) struct View {
    /// What has not been listed yet, in words; empty once everything has.
    pub(crate) missing: Vec<String>,
    /// The configuration, and where it comes from.
    pub(crate) configuration: Configuration,
    /// The settings in force.
    pub(crate) effective: Arc<EffectiveConfig>,
    /// The hash of the settings, as the operator wrote it: an agent of another version could
    /// complete and hash the same configuration differently.
    pub(crate) hash: ConfigHash,
    /// The state of the source.
    pub(crate) source: SourceHealth,
    /// Whether the node stays in the cluster. Without a Node object it does if there is no API
    /// server to delete nodes.
    pub(crate) lifecycle: NodeLifecycle,
    /// The desired state of the kernel; `None` before the first compilation.
    pub(crate) desired: Option<Dataplane>,
    /// The number of distinct endpoints of each desired Service, summed over Services.
    pub(crate) endpoints: usize,
    /// What is not supported or not valid, sorted. The same list as before if it has not changed.
    /// Empty until everything has been listed.
    pub(crate) rejections: Arc<[Rejection]>,
}

/// The configuration in force: the part of a [`View`] that does not change with Services.
#[derive(Debug, Clone)]
pub(crate) struct AppliedConfig {
    /// The current or last assignment, or that there never was one.
    pub(crate) configuration: Configuration,
    /// The settings of that assignment, or the defaults.
    pub(crate) effective: Arc<EffectiveConfig>,
}

// === impl View ===

impl View {
    /// Returns the configuration in force; `None` while an assignment is still awaited.
    pub(crate) fn applied_config(&self) -> Option<AppliedConfig> {
        match self.configuration {
            Configuration::Awaited { .. } => None,
            _ => Some(AppliedConfig {
                configuration: self.configuration.clone(),
                effective: Arc::clone(&self.effective),
            }),
        }
    }
}

// === impl AppliedConfig ===

impl AppliedConfig {
    /// Returns whether it is the same configuration, from the same assignment.
    pub(crate) fn is(&self, other: &AppliedConfig) -> bool {
        let own = self.configuration.assignment().map(std::ptr::from_ref);
        let theirs = other.configuration.assignment().map(std::ptr::from_ref);
        Arc::ptr_eq(&self.effective, &other.effective) && own == theirs
    }
}
