//! The endpoints of a local port.

use std::sync::Arc;

use dataplane::{Affinity, Frontend, ServicePortName, Target};

/// The endpoints of a local port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The Service port.
    pub service_port: ServicePortName,
    /// The endpoints, all equally likely; one that is listed twice is twice as likely. Never empty.
    pub targets: Arc<[Target]>,
    /// The endpoints that keep their existing sessions, sorted: those in `targets`, and those that
    /// are terminating or hinted for other nodes or zones.
    pub serving: Arc<[Target]>,
    /// Whether a client returns to its endpoint.
    pub affinity: Affinity,
}

// === impl Route ===

impl Route {
    /// Returns the route of the node's own connections to `frontend`; `None` if they have no
    /// endpoint.
    ///
    /// Uses all endpoints of the cluster under either policy: the external policy Local applies to
    /// clients outside the node, and lets the node itself reach the same endpoints as a cluster IP
    /// (kube-proxy, pkg/proxy/nftables/proxier.go, the short-circuit for local sources).
    pub fn of(frontend: &Frontend) -> Option<Route> {
        (!frontend.cluster.is_empty()).then(|| Route {
            service_port: frontend.service_port.clone(),
            targets: Arc::clone(&frontend.cluster),
            serving: Arc::clone(&frontend.serving),
            affinity: frontend.affinity,
        })
    }
}
