//! Generates whole clusters, as seen from one node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use dataplane::{
    Affinity, Config, Dataplane, EndpointPort, Endpoints, ExternalIps, Family, InterfaceMatch,
    LocalDetection, Mark, Masquerade, Node, NodePortAddresses, Precedence, Protocol, Scheduler,
    Service, ServiceKey, ServiceKind, ServicePort, TrafficPolicy, compile,
};
use ipnet::IpNet;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use crate::generate_endpoints::endpoint_list;
use crate::{address_plan as plan, build_node, mk_node, port};

/// A node, its configuration, and the Services of its cluster.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// Node 1 of the address plan.
    pub node: Arc<Node>,
    /// Its configuration.
    pub config: Arc<Config>,
    /// The Services with their endpoints, with distinct names.
    pub services: Vec<(Service, Endpoints)>,
}

/// One port of a Service before it is named, with its endpoints.
type PortDraft = (ServicePort, Vec<dataplane::Endpoint>);

/// Generates any cluster that a source can deliver: both families, every field of a Service,
/// addresses that several Services claim or that the node has, endpoints in every condition, with
/// and without hints, on this node and on others.
pub fn clusters() -> impl Strategy<Value = Cluster> {
    (nodes(), configs(), vec(services(), 0..6)).prop_map(|(node, config, services)| Cluster {
        node: Arc::new(node),
        config: Arc::new(config),
        services: services
            .into_iter()
            .zip(1..)
            .map(|((service, endpoints), number)| (numbered(service, number), endpoints))
            .collect(),
    })
}

impl Cluster {
    /// Compiles every Service, in order.
    pub fn compile(&self) -> Dataplane {
        let mut dataplane = Dataplane::new(Arc::clone(&self.node), Arc::clone(&self.config));
        for (service, endpoints) in &self.services {
            let rules = compile(service, endpoints, &self.node, &self.config);
            dataplane.set(Arc::new(rules));
        }
        dataplane
    }
}

fn nodes() -> impl Strategy<Value = Node> {
    let knows = || proptest::bool::weighted(0.9);
    let shared = proptest::bool::weighted(0.3);
    (option::of(select(vec!["a", "b"])), knows(), knows(), shared).prop_map(
        |(zone, ipv4, ipv6, shared)| {
            let mut node = Node::clone(&mk_node(1).build());
            if shared {
                // Cluster IPs that are also on a device of the node.
                let addresses = Family::ALL.map(|family| plan::cluster_ip(1, family));
                node.local_addresses.extend(addresses);
            }
            node.zone = zone.map(Arc::from);
            node.ipv4 = node.ipv4.filter(|_| ipv4);
            node.ipv6 = node.ipv6.filter(|_| ipv6);
            node
        },
    )
}

fn configs() -> impl Strategy<Value = Config> {
    let masquerade = prop_oneof![3 => Just(Masquerade::NonLocal), 1 => Just(Masquerade::All)];
    let external_ips =
        prop_oneof![4 => Just(ExternalIps::Honoured), 1 => Just(ExternalIps::Ignored)];
    let scheduler = prop_oneof![2 => Just(Scheduler::Random), 1 => Just(Scheduler::RoundRobin)];
    (
        node_port_addresses(Family::Ipv4),
        node_port_addresses(Family::Ipv6),
        local_detection(),
        masquerade,
        (0..32u8).prop_filter_map("a bit of the mark", Mark::from_bit),
        subsequence(Family::ALL.map(plan::service_cidr).to_vec(), 0..=2),
        external_ips,
        scheduler,
    )
        .prop_map(
            |(ipv4, ipv6, local_detection, masquerade, mark, cidrs, external_ips, scheduler)| {
                Config {
                    node_ports: NodePortAddresses { ipv4, ipv6 },
                    local_detection,
                    masquerade,
                    mark,
                    service_cidrs: cidrs.into_iter().collect(),
                    external_ips,
                    scheduler,
                    ..Config::default()
                }
            },
        )
}

/// Users can list loopback addresses, but these never accept node ports.
fn node_port_addresses(family: Family) -> impl Strategy<Value = Option<BTreeSet<IpAddr>>> {
    let own = vec![
        plan::node_address(1, family),
        plan::second_address(1, family),
        plan::loopback(family),
    ];
    option::of(subsequence(own, 0..=3).prop_map(BTreeSet::from_iter))
}

fn local_detection() -> impl Strategy<Value = LocalDetection> {
    let ranges = |of: fn(Family) -> IpNet| {
        subsequence(Family::ALL.map(of).to_vec(), 1..=2)
            .prop_map(|ranges| build_node::source_detection(&ranges))
    };
    let interface = |matched| Just(LocalDetection::Interface(matched));
    prop_oneof![
        1 => Just(LocalDetection::None),
        3 => ranges(|family| plan::pod_cidr(1, family)),
        2 => ranges(plan::cluster_cidr),
        1 => interface(InterfaceMatch::Named(plan::BRIDGE.into())),
        1 => interface(InterfaceMatch::Prefix(plan::POD_INTERFACE_PREFIX.into())),
    ]
}

fn services() -> impl Strategy<Value = (Service, Endpoints)> {
    let kind = select(vec![
        ServiceKind::ClusterIp,
        ServiceKind::NodePort,
        ServiceKind::LoadBalancer,
    ]);
    (
        kind,
        prop_oneof![4 => Just((true, true)), 1 => Just((true, false)), 1 => Just((false, true))],
        subsequence(external_ips(), 0..=3),
        subsequence(load_balancer_ips(), 0..=2),
        allowed_sources(),
        (affinity(), scheduler()),
        (policy(), policy()),
        option::of(Just(port(32000))),
        vec(ports(), 0..4),
    )
        .prop_map(
            |(
                kind,
                (ipv4, ipv6),
                external,
                balancers,
                ranges,
                (affinity, scheduler),
                policies,
                health,
                ports,
            )| {
                let (ports, endpoints) = named(ports);
                let service = Service {
                    key: ServiceKey::new("", ""),
                    kind,
                    cluster_ipv4: ipv4.then_some([0, 0, 0, 0].into()),
                    cluster_ipv6: ipv6.then_some([0; 8].into()),
                    external_ips: external,
                    load_balancer_ips: balancers,
                    source_ranges: ranges,
                    affinity,
                    scheduler,
                    internal_policy: policies.0,
                    external_policy: policies.1,
                    health_check_node_port: health,
                    ports,
                    precedence: Precedence::Ordinary,
                };
                (service, endpoints)
            },
        )
}

/// Sets the Service's name and unique cluster IPs, as the API server assigns each only once.
fn numbered(mut service: Service, number: u8) -> Service {
    let namespace = if number.is_multiple_of(2) {
        "even"
    } else {
        "odd"
    };
    service.key = ServiceKey::new(namespace, format!("service-{number}"));
    if number.is_multiple_of(5) {
        service.precedence = Precedence::First;
    }
    for family in Family::ALL {
        match plan::cluster_ip(number, family) {
            IpAddr::V4(address) => service.cluster_ipv4 = service.cluster_ipv4.map(|_| address),
            IpAddr::V6(address) => service.cluster_ipv6 = service.cluster_ipv6.map(|_| address),
        }
    }
    service
}

pub(crate) fn affinity() -> impl Strategy<Value = Affinity> {
    prop_oneof![
        3 => Just(Affinity::None),
        1 => (1..=86_400u64).prop_map(|seconds| Affinity::ClientIp {
            timeout: Duration::from_secs(seconds),
        }),
    ]
}

pub(crate) fn scheduler() -> impl Strategy<Value = Option<Scheduler>> {
    prop_oneof![
        3 => Just(None),
        1 => select(Scheduler::ALL.to_vec()).prop_map(Some),
    ]
}

pub(crate) fn allowed_sources() -> impl Strategy<Value = Vec<IpNet>> {
    prop_oneof![2 => Just(Vec::new()), 1 => subsequence(source_ranges(), 0..=4)]
}

fn policy() -> impl Strategy<Value = TrafficPolicy> {
    prop_oneof![2 => Just(TrafficPolicy::Cluster), 1 => Just(TrafficPolicy::Local)]
}

/// Few, so that Services share them; some are the node's, one is a cluster IP.
fn external_ips() -> Vec<IpAddr> {
    let of = |family| {
        [
            plan::external_ip(1, family),
            plan::external_ip(2, family),
            plan::load_balancer_ip(1, family),
            plan::node_address(1, family),
            plan::cluster_ip(1, family),
        ]
    };
    Family::ALL.into_iter().flat_map(of).collect()
}

fn load_balancer_ips() -> Vec<IpAddr> {
    let of = |family| {
        [
            plan::load_balancer_ip(1, family),
            plan::load_balancer_ip(2, family),
            plan::second_address(1, family),
        ]
    };
    Family::ALL.into_iter().flat_map(of).collect()
}

/// All sources, outside clients, half of them, the node's network, its pods, one pod.
fn source_ranges() -> Vec<IpNet> {
    let of = |family| {
        let outside = plan::outside_cidr(family);
        let narrow = |range: IpNet| {
            IpNet::new(range.addr(), range.prefix_len() + 1).expect("neither is a single address")
        };
        let node_network = match family {
            Family::Ipv4 => IpNet::new(plan::node_address(0, family), 24),
            Family::Ipv6 => IpNet::new(plan::node_address(0, family), 64),
        };
        [
            outside,
            narrow(outside),
            node_network.expect("both prefixes fit"),
            plan::pod_cidr(1, family),
            IpNet::from(plan::pod_address(1, 2, family)),
        ]
    };
    let all_addresses: IpNet = crate::parse("0.0.0.0/0", "a CIDR");
    let specific = Family::ALL.into_iter().flat_map(of);
    specific.chain([all_addresses]).collect()
}

/// Few port numbers, so that they conflict with each other and with a node port's number.
fn ports() -> impl Strategy<Value = PortDraft> {
    let number = |numbers: &[u16]| select(numbers.iter().map(|n| port(*n)).collect::<Vec<_>>());
    (
        select(Protocol::ALL.to_vec()),
        number(&[53, 80, 443, 30080]),
        option::of(number(&[30053, 30080, 30443])),
        endpoint_list(),
    )
        .prop_map(|(protocol, port, node_port, endpoints)| {
            let name = Arc::from("");
            let port = ServicePort {
                name,
                protocol,
                port,
                node_port,
            };
            (port, endpoints)
        })
}

/// Names the ports, as the API server requires for Services with more than one.
fn named(drafts: Vec<PortDraft>) -> (Vec<ServicePort>, Endpoints) {
    let single = drafts.len() == 1;
    let mut by_port = BTreeMap::new();
    let mut ports = Vec::new();
    for (number, (mut port, endpoints)) in drafts.into_iter().enumerate() {
        if !single {
            port.name = format!("port-{number}").into();
        }
        let key = EndpointPort {
            name: Arc::clone(&port.name),
            protocol: port.protocol,
        };
        by_port.insert(key, endpoints);
        ports.push(port);
    }
    let endpoints = Endpoints {
        by_port,
        ..Endpoints::default()
    };
    (ports, endpoints)
}
