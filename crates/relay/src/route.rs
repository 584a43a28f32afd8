//! Where what arrives at a local port may go.

use std::sync::Arc;

use dataplane::{Affinity, Frontend, ServicePortName, Target};

/// Where what arrives at a local port may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Whose port it is.
    pub service_port: ServicePortName,
    /// The endpoints, all equally likely; one that is listed twice is twice as likely.
    /// Never empty.
    pub targets: Arc<[Target]>,
    /// The endpoints that keep their existing sessions, sorted: those above, and those that are
    /// terminating or hinted for other nodes or zones.
    pub serving: Arc<[Target]>,
    /// Whether a client returns to the endpoint it was given.
    pub affinity: Affinity,
}

// === impl Route ===

impl Route {
    /// Where the node's own connections to `frontend` go; `None` when that is nowhere.
    ///
    /// All endpoints of the cluster under either policy: an external policy Local is about clients
    /// outside the node, and lets the node itself reach what a cluster IP would (kube-proxy,
    /// pkg/proxy/nftables/proxier.go, the short-circuit for local sources).
    pub fn of(frontend: &Frontend) -> Option<Route> {
        (!frontend.cluster.is_empty()).then(|| Route {
            service_port: frontend.service_port.clone(),
            targets: Arc::clone(&frontend.cluster),
            serving: Arc::clone(&frontend.serving),
            affinity: frontend.affinity,
        })
    }
}
