//! What a handover reads and posts.

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::NodeProxyStatus;
use crds::profile::handover::Handover;
use dataplane::Family;
use foreign_proxy::{ForeignProxyScan, RulesWriter};
use handover::{Agent, NodeView, ServingState};
use modes::{ModeState, VariantScan};
use reconciler::Report;
use tokio::sync::watch;

use crate::engine::{AppliedConfig, View};
use crate::foreign_proxies::ForeignProxies;
use crate::latest::post;
use crate::programmed::Programmed;

/// The running agent, as a handover sees it.
#[derive(Debug)]
pub(crate) struct HandoverAgent {
    pub(crate) view: watch::Receiver<Option<Arc<View>>>,
    pub(crate) applied_config: watch::Receiver<Option<AppliedConfig>>,
    pub(crate) programmed: Arc<Programmed>,
    pub(crate) variants: watch::Receiver<VariantScan>,
    pub(crate) status: watch::Receiver<Arc<NodeProxyStatus>>,
    pub(crate) foreign_proxies: Arc<ForeignProxies>,
    /// Posted by handovers alone.
    pub(crate) serving_state: watch::Sender<ServingState>,
    /// Posted by handovers alone.
    pub(crate) refusal: watch::Sender<Option<String>>,
}

// === impl HandoverAgent ===

impl Agent for HandoverAgent {
    fn view(&self) -> Option<NodeView> {
        let view = self.view.borrow();
        view.as_ref().map(|view| NodeView {
            effective: Arc::clone(&view.effective),
            desired: view.desired.clone(),
        })
    }

    fn desired_handover(&self) -> Handover {
        let applied_config = self.applied_config.borrow();
        applied_config
            .as_ref()
            .map_or(Handover::Manual, |applied| applied.effective.handover)
    }

    fn profile_name(&self) -> Option<String> {
        let applied_config = self.applied_config.borrow();
        let assignment = applied_config.as_ref()?.configuration.assignment()?;
        Some(assignment.spec.profile_name.clone())
    }

    fn modes(&self) -> BTreeMap<Family, ModeState> {
        self.programmed.modes()
    }

    fn variants(&self) -> VariantScan {
        self.variants.borrow().clone()
    }

    fn report(&self) -> watch::Receiver<Option<Arc<Report>>> {
        self.programmed.report()
    }

    fn status(&self) -> watch::Receiver<Arc<NodeProxyStatus>> {
        let mut status = self.status.clone();
        // A handover waits for the next one.
        status.mark_unchanged();
        status
    }

    fn scan(&self) -> watch::Receiver<ForeignProxyScan> {
        self.foreign_proxies.scan()
    }

    fn post_scan(&self, scan: ForeignProxyScan) {
        self.foreign_proxies.post_scan(scan);
    }

    fn rules_writer(&self) -> RulesWriter {
        self.foreign_proxies.rules_writer()
    }

    fn serving_state(&self) -> ServingState {
        *self.serving_state.borrow()
    }

    fn post_serving_state(&self, serving_state: ServingState) {
        self.serving_state.send_replace(serving_state);
    }

    fn post_refusal(&self, refusal: Option<String>) {
        post(&self.refusal, refusal);
    }
}
