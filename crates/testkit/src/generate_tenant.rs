//! Generates tenants that claim addresses of others.

use std::collections::BTreeSet;
use std::net::IpAddr;

use dataplane::{
    EndpointPort, Endpoints, Family, Packet, Port, Precedence, Protocol, Service, ServiceKey,
    ServiceKind, ServicePort, TrafficPolicy,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use crate::generate_cluster::{affinity, allowed_sources, scheduler};
use crate::generate_endpoints::endpoint_list;
use crate::{Cluster, address_plan as plan, clusters, packets, port};

/// The first number of the tenants' cluster IPs, above those of all others.
const FIRST_CLUSTER_IP: u8 = 101;

/// Generates a cluster, and Services of hostile tenants in namespaces that sort before and after
/// all others. The tenants claim every address of the cluster's Services, of their endpoints and of
/// the node as external IPs, and addresses that no load balancer was assigned as load-balancer IPs.
/// They use ports that are taken, also by node ports, and others. They have separate endpoints,
/// those of the attacked Services, or none, and any source ranges, affinity and scheduler. What the API server assigns only once is unique:
/// cluster IPs and node ports.
pub fn clusters_with_tenants() -> impl Strategy<Value = (Cluster, Vec<(Service, Endpoints)>)> {
    clusters().prop_flat_map(|cluster| {
        let tenants = vec(services(&cluster), 1..5);
        (Just(cluster), tenants).prop_map(|(cluster, tenants)| {
            let tenants = tenants.into_iter().zip(0..);
            let tenants =
                tenants.map(|((service, endpoints), n)| (numbered(service, n), endpoints));
            (cluster, tenants.collect())
        })
    })
}

/// Like [`clusters_with_tenants`], with up to `count` packets for each.
pub fn questions_beside_tenants(
    count: usize,
) -> impl Strategy<Value = (Cluster, Vec<(Service, Endpoints)>, Vec<Packet>)> {
    clusters_with_tenants().prop_flat_map(move |(cluster, tenants)| {
        let packets = vec(packets(&cluster), 1..=count);
        (Just(cluster), Just(tenants), packets)
    })
}

fn services(cluster: &Cluster) -> impl Strategy<Value = (Service, Endpoints)> + use<> {
    let honest = || cluster.services.iter().map(|(service, _)| service);
    let lists = || {
        let endpoints = cluster.services.iter().map(|(_, endpoints)| endpoints);
        endpoints.flat_map(|endpoints| endpoints.by_port.values().flatten())
    };
    let cluster_ips: BTreeSet<IpAddr> = honest()
        .flat_map(|service| Family::ALL.map(|family| service.cluster_ip(family)))
        .flatten()
        .collect();
    let balanced: BTreeSet<IpAddr> = honest()
        .flat_map(|service| &service.load_balancer_ips)
        .copied()
        .collect();
    let external = honest().flat_map(|service| &service.external_ips).copied();
    let targets: BTreeSet<IpAddr> = cluster_ips
        .iter()
        .chain(&balanced)
        .chain(&cluster.node.local_addresses)
        .copied()
        .chain(external.clone())
        .chain(Family::ALL.map(|family| plan::cluster_ip(250, family)))
        .chain(lists().map(|endpoint| endpoint.address))
        .collect();
    let given: BTreeSet<IpAddr> = cluster_ips
        .iter()
        .copied()
        .chain(external)
        .chain(Family::ALL.map(|family| plan::load_balancer_ip(9, family)))
        .filter(|address| !balanced.contains(address))
        .filter(|address| !cluster.node.local_addresses.contains(address))
        .collect();
    let ports = honest().flat_map(|service| &service.ports);
    let numbers = ports.flat_map(|port| [Some(port.port), port.node_port]);
    let mut numbers: BTreeSet<Port> = numbers.flatten().collect();
    numbers.extend([53, 999].map(port));
    numbers.extend(lists().map(|endpoint| endpoint.port));
    let mut served: Vec<Vec<dataplane::Endpoint>> = cluster
        .services
        .iter()
        .flat_map(|(_, endpoints)| endpoints.by_port.values().cloned())
        .collect();
    served.push(Vec::new());
    let endpoints = prop_oneof![1 => select(served), 1 => endpoint_list(), 1 => Just(Vec::new())];
    let port = (
        select(Protocol::ALL.to_vec()),
        select(numbers.into_iter().collect::<Vec<_>>()),
        option::of(select(vec![port(31000), port(31001)])),
        endpoints,
    );
    let policy = || select(vec![TrafficPolicy::Cluster, TrafficPolicy::Local]);
    (
        select(vec!["aaa", "zzz"]),
        some_of(targets),
        some_of(given),
        (policy(), policy()),
        vec(port, 1..5),
        select(vec![Precedence::First, Precedence::Ordinary]),
        (allowed_sources(), affinity(), scheduler()),
    )
        .prop_map(
            |(namespace, external, balanced, policies, ports, precedence, choice)| {
                let (source_ranges, affinity, scheduler) = choice;
                let mut endpoints = Endpoints::default();
                let mut own = Vec::new();
                for (number, (protocol, port, node_port, list)) in ports.into_iter().enumerate() {
                    let name = format!("port-{number}").into();
                    own.push(ServicePort {
                        name: std::sync::Arc::clone(&name),
                        protocol,
                        port,
                        node_port,
                    });
                    endpoints
                        .by_port
                        .insert(EndpointPort { name, protocol }, list);
                }
                let service = Service {
                    key: ServiceKey::new(namespace, ""),
                    kind: ServiceKind::LoadBalancer,
                    cluster_ipv4: None,
                    cluster_ipv6: None,
                    external_ips: external,
                    load_balancer_ips: balanced,
                    source_ranges,
                    affinity,
                    scheduler,
                    internal_policy: policies.0,
                    external_policy: policies.1,
                    health_check_node_port: None,
                    ports: own,
                    precedence,
                };
                (service, endpoints)
            },
        )
}

fn some_of(addresses: BTreeSet<IpAddr>) -> impl Strategy<Value = Vec<IpAddr>> {
    let addresses: Vec<IpAddr> = addresses.into_iter().collect();
    let most = addresses.len();
    subsequence(addresses, 0..=most)
}

fn numbered(mut service: Service, number: u8) -> Service {
    service.key = ServiceKey::new(service.key.namespace, format!("tenant-{number}"));
    for family in Family::ALL {
        match plan::cluster_ip(FIRST_CLUSTER_IP + number, family) {
            IpAddr::V4(address) => service.cluster_ipv4 = Some(address),
            IpAddr::V6(address) => service.cluster_ipv6 = Some(address),
        }
    }
    service
}
