//! The connections of each endpoint, as IPVS counts them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use backend::{Connections, EndpointConnections};
use dataplane::ServicePortName;

use super::Ipvs;
use crate::rules::{Figures, Rules};

/// The connections that some figures show: they are asked for after each sync, and read less often.
pub(super) type Counted = Mutex<(Arc<Figures>, Connections)>;

impl Ipvs {
    /// The connections of each endpoint as last read. Counts once for each read.
    pub(super) fn count(&self, rules: &Rules) -> Connections {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let (figures, connections) = &mut *counted;
        if !Arc::ptr_eq(figures, &self.figures) {
            *connections = self.count_all(rules);
            *figures = Arc::clone(&self.figures);
        }
        connections.clone()
    }

    fn count_all(&self, rules: &Rules) -> Connections {
        let mut all: BTreeMap<(ServicePortName, SocketAddr), (u64, u64)> = BTreeMap::new();
        for ((number, endpoint), counted) in self.figures.connections.iter().flatten() {
            let held = rules.servers.get(number);
            let owner = held.and_then(|server| server.owner.clone());
            let Some(owner) = owner.or_else(|| self.draining.owner(self.family, *number)) else {
                continue;
            };
            // The frontends of a Service port may lead to several virtual servers.
            let (active, inactive) = all.entry((owner, *endpoint)).or_default();
            *active += u64::from(counted.active);
            *inactive += u64::from(counted.inactive);
        }
        let all = all.into_iter();
        let all = all.map(
            |((service_port, endpoint), (active, inactive))| EndpointConnections {
                service_port,
                endpoint,
                active,
                inactive,
            },
        );
        Connections::of(all.collect())
    }
}
