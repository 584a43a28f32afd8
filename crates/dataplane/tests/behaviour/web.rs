//! The Service that most tests use.

use std::sync::Arc;

use dataplane::{Config, Dataplane, Endpoints, Node};
use testkit::{ServiceBuilder, mk_endpoints, mk_node, mk_service};

use crate::dataplane_of;

/// One endpoint on this node, one on node 2, for the TCP port `http`.
pub(crate) fn here_and_there() -> Endpoints {
    mk_endpoints()
        .tcp("http")
        .ready("10.0.1.5:8080", "node-1")
        .ready("10.0.2.7:8080", "node-2")
        .build()
}

/// The same, both on other nodes.
pub(crate) fn elsewhere() -> Endpoints {
    mk_endpoints()
        .tcp("http")
        .ready("10.0.2.7:8080", "node-2")
        .ready("10.0.3.8:8080", "node-3")
        .build()
}

pub(crate) fn web() -> ServiceBuilder {
    mk_service("shop/web")
        .cluster_ip("10.96.0.10")
        .port("http", 80)
}

/// Reachable from outside in each of the three ways.
pub(crate) fn exposed_web() -> ServiceBuilder {
    web()
        .node_port(30080)
        .external_ip("198.51.100.1")
        .load_balancer_ip("192.0.2.1")
}

pub(crate) fn one(
    service: ServiceBuilder,
    endpoints: Endpoints,
    config: &Arc<Config>,
) -> Dataplane {
    on(&mk_node(1).build(), service, endpoints, config)
}

pub(crate) fn on(
    node: &Arc<Node>,
    service: ServiceBuilder,
    endpoints: Endpoints,
    config: &Arc<Config>,
) -> Dataplane {
    dataplane_of(node, config, &[(service.build(), endpoints)])
}
