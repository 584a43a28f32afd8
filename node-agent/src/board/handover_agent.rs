//! What a handover reads and posts.

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::NodeProxyStatus;
use crds::profile::handover::Handover;
use dataplane::Family;
use foreign_proxy::{ForeignProxyScan, RulesWriter};
use handover::{Agent, NodeView, ServingState};
use modes::{MechanismState, VariantScan};
use reconciler::Report;
use tokio::sync::watch;

use super::Board;

impl Agent for Board {
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

    fn modes(&self) -> BTreeMap<Family, MechanismState> {
        self.modes()
    }

    fn variants(&self) -> VariantScan {
        self.variants.borrow().clone()
    }

    fn report(&self) -> watch::Receiver<Option<Arc<Report>>> {
        self.report()
    }

    fn status(&self) -> watch::Receiver<Arc<NodeProxyStatus>> {
        self.status()
    }

    fn scan(&self) -> watch::Receiver<ForeignProxyScan> {
        self.scan()
    }

    fn post_scan(&self, scan: ForeignProxyScan) {
        self.post_scan(scan);
    }

    fn rules_writer(&self) -> RulesWriter {
        self.rules_writer()
    }

    fn serving_state(&self) -> ServingState {
        *self.serving_state.borrow()
    }

    fn post_serving_state(&self, serving_state: ServingState) {
        self.post_serving_state(serving_state);
    }

    fn post_refusal(&self, refusal: Option<String>) {
        self.post_handover_refusal(refusal);
    }
}
