//! What a scrape reads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use agent_metrics::Snapshot;
use crds::{ConfigHash, NodeProxyStatus};
use dataplane::{Dataplane, Family};
use handover::ServingState;
use modes::{MechanismState, RulesByMechanism};
use reconciler::Report;

use super::Board;
use crate::affinity::exhausted;

impl Snapshot for Board {
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
        self.report.borrow().clone()
    }

    fn modes(&self) -> BTreeMap<Family, MechanismState> {
        self.modes()
    }

    fn held(&self, family: Family) -> Option<RulesByMechanism> {
        self.held(family)
    }

    fn elements(&self) -> usize {
        self.elements()
    }
}
