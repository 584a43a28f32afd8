//! Few Services that use the same few addresses and ports, so that most changes move some from one
//! Service to another.

use std::sync::Arc;

use dataplane::{Config, Endpoints, Node, Origin, Packet, Protocol, Service, ServiceKey};
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use crate::{Cluster, EndpointsBuilder, mk_config, mk_endpoints, mk_node, mk_service, port};

/// The last one is on a device of the node. Some of them may also be external IPs.
const CLUSTER_IPS: [&str; 4] = ["10.96.0.1", "10.96.0.2", "198.51.100.1", "172.20.0.1"];
const EXTERNAL_IPS: [&str; 2] = ["198.51.100.1", "10.96.0.2"];
/// The second one is an address of the node.
const LOAD_BALANCER_IPS: [&str; 2] = ["192.0.2.1", "172.20.0.1"];
const NODE_ADDRESSES: [&str; 2] = ["192.168.0.1", "172.20.0.1"];
/// The second one is also the node port.
const PORTS: [u16; 2] = [80, 30080];
const SOURCES: [&str; 4] = ["203.0.113.2", "203.0.113.200", "10.0.1.9", "192.168.0.1"];
const SOURCE_RANGES: [&str; 3] = ["203.0.113.0/25", "203.0.113.128/25", "10.0.1.0/24"];
const ENDPOINTS: [(&str, &str); 3] = [
    ("10.0.1.5:80", "node-1"),
    ("10.0.2.7:80", "node-2"),
    ("10.0.2.8:80", "node-2"),
];

fn services() -> impl Strategy<Value = (Service, Endpoints)> {
    let endpoints = prop_oneof![1 => Just(0..=0), 2 => Just(1..=2)];
    let endpoints = endpoints.prop_flat_map(|count| subsequence(ENDPOINTS.to_vec(), count));
    (
        select(CLUSTER_IPS.to_vec()),
        (select(PORTS.to_vec()), weighted(0.6, Just(30080))),
        subsequence(EXTERNAL_IPS.to_vec(), 0..=1),
        subsequence(LOAD_BALANCER_IPS.to_vec(), 0..=2),
        subsequence(SOURCE_RANGES.to_vec(), 0..=2),
        any::<[bool; 2]>(),
        endpoints,
    )
        .prop_map(
            |(cluster_ip, ports, external, balanced, ranges, local, endpoints)| {
                let mut service = mk_service("crowd/unnamed").cluster_ip(cluster_ip);
                service = external
                    .iter()
                    .fold(service, |s, address| s.external_ip(address));
                service = balanced
                    .iter()
                    .fold(service, |s, address| s.load_balancer_ip(address));
                service = ranges
                    .iter()
                    .fold(service, |s, range| s.source_range(range));
                service = service.port("", ports.0);
                if let Some(node_port) = ports.1 {
                    service = service.node_port(node_port);
                }
                if local[0] {
                    service = service.external_local();
                }
                if local[1] {
                    service = service.internal_local();
                }
                let list = mk_endpoints().tcp("");
                let add = |list: EndpointsBuilder, (address, node): &(&str, &str)| {
                    list.ready(address, node)
                };
                (service.build(), endpoints.iter().fold(list, add).build())
            },
        )
}

fn nodes() -> impl Strategy<Value = (Arc<Node>, Arc<Config>)> {
    let nodes = select(vec![
        mk_node(1).build(),
        mk_node(1).local_address("10.96.0.2").build(),
    ]);
    let configs = select(vec![
        mk_config().build(),
        mk_config().node_ports_anywhere().build(),
        mk_config()
            .node_ports_anywhere()
            .without_service_cidrs()
            .build(),
        mk_config()
            .node_ports_at(&NODE_ADDRESSES)
            .detect_nothing()
            .build(),
    ]);
    (nodes, configs)
}

fn packets() -> impl Strategy<Value = Packet> {
    let destinations = [&CLUSTER_IPS[..], &LOAD_BALANCER_IPS, &NODE_ADDRESSES].concat();
    let ports = [&PORTS[..], &[999]].concat();
    (
        select(destinations),
        select(ports),
        select(SOURCES.to_vec()),
    )
        .prop_map(|(destination, number, source)| {
            let interface = |name: &str| name.into();
            let origin = match source {
                "10.0.1.9" => Origin::Pod {
                    interface: interface("veth9"),
                },
                "192.168.0.1" => Origin::Node,
                _ => Origin::Outside {
                    interface: interface("eth0"),
                },
            };
            Packet {
                origin,
                source: source.parse().expect("an address"),
                destination: destination.parse().expect("an address"),
                protocol: Protocol::Tcp,
                port: port(number),
            }
        })
}

/// Two states of one node, and packets.
pub fn services_at_shared_addresses() -> impl Strategy<Value = (Cluster, Cluster, Vec<Packet>)> {
    (
        nodes(),
        vec(services(), 1..4),
        vec(services(), 1..4),
        vec(packets(), 24),
    )
        .prop_map(|((node, config), before, after, packets)| {
            let [before, after] = [before, after].map(|services| Cluster {
                node: Arc::clone(&node),
                config: Arc::clone(&config),
                services: numbered(services),
            });
            (before, after, packets)
        })
}

/// Gives each Service a name and drops duplicate cluster IPs, which the API server never assigns
/// twice.
fn numbered(services: Vec<(Service, Endpoints)>) -> Vec<(Service, Endpoints)> {
    let mut numbered: Vec<(Service, Endpoints)> = Vec::new();
    for ((mut service, endpoints), number) in services.into_iter().zip(1..) {
        service.key = ServiceKey::new("crowd", format!("service-{number}"));
        let taken = |other: &(Service, Endpoints)| other.0.cluster_ipv4 == service.cluster_ipv4;
        if !numbered.iter().any(taken) {
            numbered.push((service, endpoints));
        }
    }
    numbered
}
