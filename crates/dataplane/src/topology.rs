//! Selects the endpoints of a Service port that this node may use.

use crate::{Endpoint, Node, Service, ServicePort, TrafficPolicy};

/// The endpoints that this node may choose from, as indexes into the given list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    /// For policy Cluster; empty if no policy of the port uses it.
    pub cluster: Vec<usize>,
    /// For policy Local; empty if no policy of the port uses it.
    pub local: Vec<usize>,
    /// Whether the port has a usable endpoint on any node.
    pub has_endpoints: bool,
}

/// How near endpoints must be, according to the hints of all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopologyLevel {
    /// Hints cannot be obeyed, or there are none.
    Anywhere,
    /// Hinted for this node's zone.
    SameZone,
    /// Hinted for this node.
    SameNode,
}

/// Selects from `endpoints`, which must be of one family: hints in slices of the other family must
/// not affect this one.
pub fn select(
    service: &Service,
    port: &ServicePort,
    endpoints: &[&Endpoint],
    node: &Node,
) -> Selection {
    let external = service.externally_accessible(port);
    let uses_cluster = service.internal_policy == TrafficPolicy::Cluster || external;
    let uses_local = service.internal_policy == TrafficPolicy::Local
        || (external && service.effective_external_policy() == TrafficPolicy::Local);

    let cluster = || {
        let topology_level = topology_level(endpoints, node);
        ready(endpoints, |endpoint| {
            near_enough(endpoint, topology_level, node)
        })
        .or_else(|| draining(endpoints, |_| true))
        .unwrap_or_default()
    };
    // Hints never narrow the local list: a load balancer sends traffic here because this node has
    // endpoints, and only these may answer it.
    let local = || {
        ready(endpoints, |endpoint| node.hosts(endpoint))
            .or_else(|| draining(endpoints, |endpoint| node.hosts(endpoint)))
            .unwrap_or_default()
    };
    Selection {
        cluster: if uses_cluster { cluster() } else { Vec::new() },
        local: if uses_local { local() } else { Vec::new() },
        has_endpoints: endpoints
            .iter()
            .any(|endpoint| endpoint.readiness.ready || endpoint.readiness.draining()),
    }
}

/// The ready endpoints that are `eligible`; `None` if there are none.
fn ready(endpoints: &[&Endpoint], eligible: impl Fn(&Endpoint) -> bool) -> Option<Vec<usize>> {
    positions(endpoints, |endpoint| {
        endpoint.readiness.ready && eligible(endpoint)
    })
}

/// The `eligible` endpoints that still serve while they terminate; `None` if there are none. While
/// the last replica is replaced, there are no others.
fn draining(endpoints: &[&Endpoint], eligible: impl Fn(&Endpoint) -> bool) -> Option<Vec<usize>> {
    positions(endpoints, |endpoint| {
        endpoint.readiness.draining() && eligible(endpoint)
    })
}

fn positions(endpoints: &[&Endpoint], eligible: impl Fn(&Endpoint) -> bool) -> Option<Vec<usize>> {
    let positions: Vec<usize> = endpoints
        .iter()
        .enumerate()
        .filter(|(_, endpoint)| eligible(endpoint))
        .map(|(position, _)| position)
        .collect();
    (!positions.is_empty()).then_some(positions)
}

/// How near the hints require endpoints to be. A level of hints counts if every ready endpoint has
/// one and at least one of them names this node (or its zone). While their controller is still
/// writing them, hints are incomplete, and obeying some would leave endpoints without hints without
/// traffic.
pub fn topology_level(endpoints: &[&Endpoint], node: &Node) -> TopologyLevel {
    let complete = |hinted: fn(&Endpoint) -> bool, names_here: &dyn Fn(&Endpoint) -> bool| {
        let mut ready = endpoints.iter().filter(|endpoint| endpoint.readiness.ready);
        ready.clone().all(|endpoint| hinted(endpoint)) && ready.any(|endpoint| names_here(endpoint))
    };
    if complete(|endpoint| !endpoint.hints.nodes.is_empty(), &|endpoint| {
        hinted_for_node(endpoint, node)
    }) {
        TopologyLevel::SameNode
    } else if complete(|endpoint| !endpoint.hints.zones.is_empty(), &|endpoint| {
        hinted_for_zone(endpoint, node)
    }) {
        TopologyLevel::SameZone
    } else {
        TopologyLevel::Anywhere
    }
}

fn near_enough(endpoint: &Endpoint, topology_level: TopologyLevel, node: &Node) -> bool {
    match topology_level {
        TopologyLevel::Anywhere => true,
        TopologyLevel::SameZone => hinted_for_zone(endpoint, node),
        TopologyLevel::SameNode => hinted_for_node(endpoint, node),
    }
}

fn hinted_for_node(endpoint: &Endpoint, node: &Node) -> bool {
    endpoint.hints.nodes.contains(&node.name)
}

fn hinted_for_zone(endpoint: &Endpoint, node: &Node) -> bool {
    node.zone
        .as_ref()
        .is_some_and(|zone| endpoint.hints.zones.contains(zone))
}

#[cfg(test)]
mod tests;
