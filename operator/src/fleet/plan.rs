//! The writes to make.

use std::{collections::BTreeMap, sync::Arc};

use crds::{node_proxy::NodeProxySpec, profile::status::ProxyProfileStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::{baseline::Baseline, fleet::report_summary::NodeCounts};

/// The writes to make now.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// The writes in order: the reports come first, before the writes that follow from them.
    pub(crate) actions: Vec<Action>,
    /// When to plan again even if no event arrives.
    pub(crate) requeue_at: Option<Timestamp>,
    /// The node counts of each profile.
    pub(crate) counts: BTreeMap<String, NodeCounts>,
}

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Write the status of a profile.
    UpdateStatus {
        /// The profile's name.
        profile: String,
        /// The status to replace.
        before: Option<Box<ProxyProfileStatus>>,
        /// The new status.
        status: Box<ProxyProfileStatus>,
        /// The resource version that the status describes, so that the verdict of a later operator
        /// is not overwritten.
        version: Option<String>,
    },
    /// Assign a configuration to a node.
    Assign {
        /// The node.
        node: String,
        /// The UID of the Node object, which becomes the owner of the `NodeProxy`.
        owner: String,
        /// The spec to assign.
        spec: Arc<NodeProxySpec>,
        /// The spec to return to if the change fails.
        previous: Option<Arc<NodeProxySpec>>,
        /// The state of the node before the change.
        baseline: Option<Baseline>,
        /// The resource version that this decision is based on, so that a later write is not
        /// overwritten; absent if there was no object: one that was created since is not
        /// overwritten either.
        version: Option<String>,
    },
    /// Set the condition Ready of a node whose agent is silent to Unknown.
    MarkUnknown {
        /// The node.
        node: String,
        /// The condition Ready to write.
        ready: Box<Condition>,
        /// The resource version that this decision is based on, so that the report of an agent that
        /// has returned is not overwritten.
        version: Option<String>,
    },
    /// Delete a `NodeProxy` that no profile selects, or whose node is gone or runs no agent.
    Delete {
        /// Its name.
        node: String,
        /// Its UID, so that an object created since with the same name is not deleted.
        uid: String,
        /// The resource version that this decision is based on, so that the report of an agent that
        /// has returned is not deleted.
        version: Option<String>,
    },
}

// === impl Plan ===

impl Plan {
    /// Has the next plan made at `time` at the latest.
    pub(super) fn requeue_by(&mut self, time: Option<Timestamp>) {
        self.requeue_at = [self.requeue_at, time].into_iter().flatten().min();
    }
}

// === impl Action ===

impl Action {
    /// Returns the kind and name of the object to write.
    pub(crate) fn object(&self) -> (&'static str, &str) {
        match self {
            Self::UpdateStatus { profile, .. } => ("ProxyProfile", profile),
            Self::Assign { node, .. }
            | Self::MarkUnknown { node, .. }
            | Self::Delete { node, .. } => ("NodeProxy", node),
        }
    }

    /// Returns the resource version that the write is based on; `None` if it creates the object.
    pub(crate) fn version(&self) -> Option<&str> {
        match self {
            Self::UpdateStatus { version, .. }
            | Self::Assign { version, .. }
            | Self::MarkUnknown { version, .. }
            | Self::Delete { version, .. } => version.as_deref(),
        }
    }
}
