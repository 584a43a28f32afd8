//! What a scrape reads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use agent_metrics::Snapshot;
use crds::{ConfigHash, NodeProxyStatus};
use dataplane::{Dataplane, Family, FrontendKey};
use handover::ServingState;
use modes::{ModeState, RulesByMode};
use reconciler::Report;
use tokio::sync::watch;

use crate::affinity::exhausted;
use crate::engine::View;
use crate::programmed::Programmed;

/// The running agent, as a scrape sees it.
#[derive(Debug)]
pub(crate) struct ScrapedAgent {
    pub(crate) view: watch::Receiver<Option<Arc<View>>>,
    pub(crate) programmed: Arc<Programmed>,
    pub(crate) status: watch::Receiver<Arc<NodeProxyStatus>>,
    pub(crate) serving_state: watch::Receiver<ServingState>,
    pub(crate) full_affinity_maps: watch::Receiver<BTreeSet<FrontendKey>>,
}

// === impl ScrapedAgent ===

impl Snapshot for ScrapedAgent {
    fn status(&self) -> Arc<NodeProxyStatus> {
        Arc::clone(&self.status.borrow())
    }

    fn desired_hash(&self) -> Option<ConfigHash> {
        let view = self.view.borrow();
        view.as_ref().map(|view| view.hash.clone())
    }

    fn desired(&self) -> Option<Dataplane> {
        self.view.borrow().as_ref()?.desired.clone()
    }

    fn stale_since(&self) -> Option<SystemTime> {
        let view = self.view.borrow();
        let (since, _) = view.as_ref()?.source.stale.as_ref()?;
        Some(*since)
    }

    fn serves(&self) -> bool {
        match *self.serving_state.borrow() {
            ServingState::Serving | ServingState::ReleasingPorts => true,
            ServingState::HandedBack => false,
        }
    }

    fn exhausted_services(&self) -> usize {
        let desired = self.desired();
        exhausted(&self.full_affinity_maps.borrow(), desired.as_ref()).len()
    }

    fn report(&self) -> Option<Arc<Report>> {
        self.programmed.last_report()
    }

    fn modes(&self) -> BTreeMap<Family, ModeState> {
        self.programmed.modes()
    }

    fn held(&self, family: Family) -> Option<RulesByMode> {
        self.programmed.held(family)
    }

    fn elements(&self) -> usize {
        self.programmed.elements()
    }
}
