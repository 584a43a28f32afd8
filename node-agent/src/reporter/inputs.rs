//! What the status comes from, and what its writes depend on: the latest of each.

use std::collections::BTreeSet;
use std::sync::Arc;

use conntrack::ConntrackState;
use crds::NodeProxyStatus;
use crds::node_proxy::rejections::Rejection;
use dataplane::FrontendKey;
use foreign_proxy::ForeignProxyScan;
use handover::ServingState;
use modes::VariantScan;
use reconciler::Report;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant as Deadline;

use crate::api_service::ApiServiceState;
use crate::engine::{AppliedConfig, View};
use crate::latest::changed;
use crate::programmed::Programmed;

/// What a status is composed of.
#[derive(Debug)]
pub(crate) struct ComposeInputs {
    pub(crate) view: watch::Receiver<Option<Arc<View>>>,
    pub(crate) programmed: Arc<Programmed>,
    pub(crate) report: watch::Receiver<Option<Arc<Report>>>,
    pub(crate) not_relayed: watch::Receiver<Vec<Rejection>>,
    pub(crate) full_affinity_maps: watch::Receiver<BTreeSet<FrontendKey>>,
    pub(crate) conntrack: watch::Receiver<ConntrackState>,
    pub(crate) serving_state: watch::Receiver<ServingState>,
    pub(crate) scan: watch::Receiver<ForeignProxyScan>,
    pub(crate) variants: watch::Receiver<VariantScan>,
    pub(crate) handover_refusal: watch::Receiver<Option<String>>,
    pub(crate) api_service: watch::Receiver<ApiServiceState>,
    /// The kernel's release.
    pub(crate) kernel: String,
}

/// What a write of the status depends on.
#[derive(Debug, Clone)]
pub(crate) struct ReportInputs {
    pub(crate) status: watch::Receiver<Arc<NodeProxyStatus>>,
    pub(crate) applied_config: watch::Receiver<Option<AppliedConfig>>,
    /// Since when the node's Lease has been renewed without interruption; `None` while it cannot be
    /// renewed at all.
    pub(crate) renewed_since: watch::Receiver<Option<Deadline>>,
    /// The status that is in the API, whichever client wrote it.
    pub(crate) in_api: watch::Receiver<Value>,
}

// === impl ComposeInputs ===

impl ComposeInputs {
    /// Waits until any of them changes. Cancel safe.
    pub(super) async fn changed(&mut self) {
        tokio::select! {
            () = changed(&mut self.view) => {}
            () = changed(&mut self.report) => {}
            () = changed(&mut self.not_relayed) => {}
            () = changed(&mut self.full_affinity_maps) => {}
            () = changed(&mut self.conntrack) => {}
            () = changed(&mut self.serving_state) => {}
            () = changed(&mut self.scan) => {}
            () = changed(&mut self.variants) => {}
            () = changed(&mut self.handover_refusal) => {}
            () = changed(&mut self.api_service) => {}
        }
    }
}
