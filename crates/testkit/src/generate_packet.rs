//! Generates packets that are relevant to a cluster.

use std::net::IpAddr;

use dataplane::{Dataplane, Family, FrontendKey, Origin, Packet, Port, Protocol};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::strategy::Union;

use crate::{Cluster, address_plan as plan, clusters, port};

/// The destination of a packet.
type Destination = (IpAddr, Protocol, Port);

/// Generates clusters, each with up to `count` packets.
pub fn questions(count: usize) -> impl Strategy<Value = (Cluster, Vec<Packet>)> {
    clusters().prop_flat_map(move |cluster| {
        let packets = vec(packets(&cluster), 1..=count);
        (Just(cluster), packets)
    })
}

/// Generates packets from every origin, addressed to the frontends of `cluster`, to its cluster IPs
/// with ports and protocols that no Service has, to unassigned addresses of the Service CIDRs, to
/// every address of the node, to endpoints, and to unrelated addresses.
pub fn packets(cluster: &Cluster) -> impl Strategy<Value = Packet> + use<> {
    let dataplane = cluster.compile();
    let kinds = [
        (6, frontends(&dataplane)),
        (2, node_ports(&dataplane)),
        (1, wrong_ports(&dataplane)),
        (1, service_cidr_gaps()),
        (1, endpoints(cluster)),
        (1, unrelated()),
    ];
    let destinations = kinds
        .into_iter()
        .filter(|(_, destinations)| !destinations.is_empty())
        .map(|(weight, destinations)| (weight, select(destinations)));
    let sources = Family::ALL.map(|family| sources(cluster, family));
    (Union::new_weighted(destinations.collect()), any::<Index>()).prop_map(
        move |((destination, protocol, port), source)| {
            let [ipv4, ipv6] = &sources;
            let (origin, source) = match Family::of(destination) {
                Family::Ipv4 => source.get(ipv4),
                Family::Ipv6 => source.get(ipv6),
            };
            Packet {
                origin: origin.clone(),
                source: *source,
                destination,
                protocol,
                port,
            }
        },
    )
}

fn frontends(dataplane: &Dataplane) -> Vec<Destination> {
    let addresses = dataplane.frontends().sorted().into_iter();
    addresses
        .filter_map(|(key, _)| match key {
            FrontendKey::Address {
                address,
                protocol,
                port,
            } => Some((*address, *protocol, *port)),
            FrontendKey::NodePort { .. } => None,
        })
        .collect()
}

/// Every node port, and one that no Service has, on every address of the node, including loopback.
fn node_ports(dataplane: &Dataplane) -> Vec<Destination> {
    let keys = dataplane.frontends().sorted().into_iter();
    let mut ports: Vec<_> = keys
        .filter(|(key, _)| matches!(key, FrontendKey::NodePort { .. }))
        .map(|(key, _)| (key.family(), key.protocol(), key.port()))
        .collect();
    ports.extend(Family::ALL.map(|family| (family, Protocol::Tcp, port(30999))));
    let node = dataplane.node();
    let on_every_address = |(family, protocol, port)| {
        node.local_addresses
            .iter()
            .filter(move |address| Family::of(**address) == family)
            .map(move |address| (*address, protocol, port))
    };
    ports.into_iter().flat_map(on_every_address).collect()
}

fn wrong_ports(dataplane: &Dataplane) -> Vec<Destination> {
    let addresses = dataplane.cluster_ips().sorted().into_iter();
    addresses
        .flat_map(|(address, _)| Protocol::ALL.map(|protocol| (*address, protocol, port(999))))
        .collect()
}

fn service_cidr_gaps() -> Vec<Destination> {
    Family::ALL
        .map(|family| (plan::cluster_ip(250, family), Protocol::Tcp, port(80)))
        .into()
}

fn endpoints(cluster: &Cluster) -> Vec<Destination> {
    let lists = cluster
        .services
        .iter()
        .flat_map(|(_, endpoints)| &endpoints.by_port);
    lists
        .flat_map(|(key, list)| {
            list.iter()
                .map(|endpoint| (endpoint.address, key.protocol, endpoint.port))
        })
        .collect()
}

fn unrelated() -> Vec<Destination> {
    let of = |family| {
        [
            (plan::outside_client(9, family), Protocol::Tcp, port(443)),
            (plan::external_ip(200, family), Protocol::Udp, port(53)),
            (plan::node_address(2, family), Protocol::Tcp, port(30080)),
        ]
    };
    Family::ALL.into_iter().flat_map(of).collect()
}

fn sources(cluster: &Cluster, family: Family) -> Vec<(Origin, IpAddr)> {
    let mut sources = Vec::new();
    // The host numbers of endpoints, so that some packets are sent to their own sender.
    for host in 2..=6 {
        let interface = match host {
            2..=4 => format!("{}{host}", plan::POD_INTERFACE_PREFIX).into(),
            _ => plan::BRIDGE.into(),
        };
        sources.push((
            Origin::Pod { interface },
            plan::pod_address(1, host, family),
        ));
    }
    for node in 2..=3 {
        let interface = plan::UPLINK.into();
        sources.push((
            Origin::PodElsewhere { interface },
            plan::pod_address(node, 2, family),
        ));
    }
    // The last one is in the upper half of the clients' range, which some source ranges exclude.
    let upper_half = match family {
        Family::Ipv4 => plan::outside_client(200, family),
        Family::Ipv6 => crate::parse("2001:db8:113:0:8000::200", "an address"),
    };
    for address in [
        plan::outside_client(2, family),
        plan::outside_client(3, family),
        upper_half,
    ] {
        let interface = plan::UPLINK.into();
        sources.push((Origin::Outside { interface }, address));
    }
    for address in &cluster.node.local_addresses {
        if Family::of(*address) == family {
            let origin = if address.is_loopback() {
                Origin::Loopback
            } else {
                Origin::Node
            };
            sources.push((origin, *address));
        }
    }
    sources
}
