//! Tests of the model through its public interface. They are separate from the crate because the
//! builders and generators depend on it.

mod claims;
mod cluster_ip_packets;
mod compile;
mod entitlement;
mod external_packets;
mod next_part;
mod packet_line;
mod parts_at_an_address;
mod parts_beside_others;
mod properties;
mod text;
mod web;

use std::sync::Arc;

use dataplane::{Config, Dataplane, Endpoints, Node, Service};

/// The dataplane of these Services, added in this order.
fn dataplane_of(
    node: &Arc<Node>,
    config: &Arc<Config>,
    services: &[(Service, Endpoints)],
) -> Dataplane {
    let mut dataplane = Dataplane::new(Arc::clone(node), Arc::clone(config));
    for (service, endpoints) in services {
        let rules = dataplane::compile(service, endpoints, node, config);
        dataplane.set(Arc::new(rules));
    }
    dataplane
}
