//! The standard network: nodes with pods, the router between them, and outside clients.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;

use address_plan as addresses;
use anyhow::{Context, Result};
use dataplane::Family;
use ipnet::IpNet;

use super::{Link, Namespace, Network};

/// The router's own address on each of its links.
const NEXT_HOP_IPV4: &str = "169.254.1.1";
/// Like [`NEXT_HOP_IPV4`]; also every node's address on the links to its pods.
const NEXT_HOP_IPV6: &str = "fe80::1";

/// The hosts of a network.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// The nodes. Service addresses are routed to the first node, unless the packet passes another
    /// node with its own rules before.
    pub nodes: Vec<PlannedNode>,
    /// The numbers of the outside clients, which share one namespace.
    pub clients: BTreeSet<u8>,
    /// Additional namespaces: a control plane, a load balancer.
    pub others: Vec<Outsider>,
}

/// A node to build.
#[derive(Debug, Clone, Default)]
pub struct PlannedNode {
    /// Its number in the address plan.
    pub number: u8,
    /// The numbers of its pods; each has a separate namespace.
    pub pods: BTreeSet<u8>,
}

/// An additional host, connected to the router.
#[derive(Debug, Clone)]
pub struct Outsider {
    /// The short name of the namespace, also the name of the router's interface to it.
    pub name: String,
    /// All its addresses.
    pub addresses: Vec<IpAddr>,
}

/// A finished network.
#[derive(Debug)]
pub struct Topology {
    nodes: BTreeMap<u8, Namespace>,
    pods: BTreeMap<(u8, u8), Namespace>,
    others: BTreeMap<String, Namespace>,
    world: Namespace,
    // Dropped last: the other fields hold only names of namespaces.
    network: Network,
}

// === impl Plan ===

impl Plan {
    /// Plans two nodes, three pods on the first and two on the second, and two outside clients.
    pub fn standard() -> Plan {
        let node = |number, pods: &[u8]| PlannedNode {
            number,
            pods: pods.iter().copied().collect(),
        };
        Plan {
            nodes: vec![node(1, &[5, 6, 9]), node(2, &[7, 8])],
            clients: [2, 3].into(),
            others: Vec::new(),
        }
    }
}

// === impl Topology ===

impl Topology {
    /// Builds `plan`. When this returns, every address is reachable from everywhere.
    pub fn build(plan: &Plan) -> Result<Topology> {
        let mut network = Network::new()?;
        let [world] = network.add_namespaces(["world"])?;
        route_packets(&world)?;
        let mut topology = Topology {
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            others: BTreeMap::new(),
            world,
            network,
        };
        for node in &plan.nodes {
            topology.add_node(node)?;
        }
        if let Some(first) = plan.nodes.first() {
            topology.route_services(first.number)?;
        }
        if !plan.clients.is_empty() {
            let all = plan.clients.iter().flat_map(|number| {
                Family::ALL.map(|family| addresses::outside_client(*number, family))
            });
            topology.add_other(&Outsider {
                name: "outside".to_owned(),
                addresses: all.collect(),
            })?;
        }
        for other in &plan.others {
            topology.add_other(other)?;
        }
        // The other ends were set up after these, and pass packets at once.
        for first in topology.nodes.values().chain(topology.others.values()) {
            first.wait_for_links()?;
        }
        Ok(topology)
    }

    /// Returns node `number`.
    pub fn node(&self, number: u8) -> Result<&Namespace> {
        let node = self.nodes.get(&number);
        node.with_context(|| format!("the plan has no node {number}"))
    }

    /// Returns pod `number` of node `node`.
    pub fn pod(&self, node: u8, number: u8) -> Result<&Namespace> {
        let pod = self.pods.get(&(node, number));
        pod.with_context(|| format!("the plan has no pod {number} on node {node}"))
    }

    /// Returns the namespace of the outside clients.
    pub fn outside(&self) -> Result<&Namespace> {
        self.other("outside")
    }

    /// Returns the namespace with this short name other than nodes and pods.
    pub fn other(&self, name: &str) -> Result<&Namespace> {
        let other = self.others.get(name);
        other.with_context(|| format!("the plan has no namespace called {name}"))
    }

    /// Returns the router between all hosts.
    pub fn world(&self) -> &Namespace {
        &self.world
    }

    fn add_node(&mut self, planned: &PlannedNode) -> Result<()> {
        let number = planned.number;
        let name = format!("node-{number}");
        let [node] = self.network.add_namespaces([name.as_str()])?;
        route_packets(&node)?;
        // Rejections are ICMP errors, and tests trigger many of them per second.
        node.set_sysctls(&[
            ("net/ipv4/icmp_ratelimit", "0"),
            ("net/ipv6/icmp/ratelimit", "0"),
        ])?;
        let far_end = format!("node{number}");
        let own = [addresses::node_address, addresses::second_address]
            .map(|address| Family::ALL.map(|family| address(number, family)));
        self.connect(&node, &far_end, own.as_flattened())?;
        let mut routes = String::new();
        for family in Family::ALL {
            let pods = addresses::pod_cidr(number, family);
            let via = addresses::node_address(number, family);
            writeln!(routes, "route add {pods} via {via} dev {far_end} onlink")?;
        }
        self.world.configure(&routes)?;
        for pod in &planned.pods {
            self.add_pod(&node, number, *pod)?;
        }
        self.nodes.insert(number, node);
        Ok(())
    }

    /// Adds a link to each pod without a bridge, as the CNI plugin `ptp` does.
    fn add_pod(&mut self, node: &Namespace, node_number: u8, number: u8) -> Result<()> {
        let name = format!("pod-{node_number}-{number}");
        let [pod] = self.network.add_namespaces([name.as_str()])?;
        let near = format!("{}{number}", addresses::POD_INTERFACE_PREFIX);
        self.network.add_links(&[Link {
            from: (node, near.as_str()),
            to: (&pod, addresses::UPLINK),
        }])?;
        let (mut on_node, mut in_pod) = (String::new(), String::new());
        writeln!(on_node, "link set {near} up")?;
        writeln!(in_pod, "link set {} up", addresses::UPLINK)?;
        for family in Family::ALL {
            let gateway = addresses::bridge_address(node_number, family);
            let address = addresses::pod_address(node_number, number, family);
            let uplink = addresses::UPLINK;
            writeln!(on_node, "{}", add_address(gateway, &near))?;
            writeln!(on_node, "route add {address} dev {near}")?;
            writeln!(in_pod, "{}", add_address(address, uplink))?;
            writeln!(
                in_pod,
                "route add default via {gateway} dev {uplink} onlink"
            )?;
        }
        node.configure(&on_node)?;
        pod.configure(&in_pod)?;
        self.pods.insert((node_number, number), pod);
        Ok(())
    }

    fn add_other(&mut self, planned: &Outsider) -> Result<()> {
        let [other] = self.network.add_namespaces([planned.name.as_str()])?;
        self.connect(&other, &planned.name, &planned.addresses)?;
        self.others.insert(planned.name.clone(), other);
        Ok(())
    }

    /// Connects `namespace` to the router; `far_end` is the name of the router's interface.
    fn connect(&self, namespace: &Namespace, far_end: &str, own: &[IpAddr]) -> Result<()> {
        let uplink = addresses::UPLINK;
        self.network.add_links(&[Link {
            from: (namespace, uplink),
            to: (&self.world, far_end),
        }])?;
        let (mut near, mut far) = (String::new(), String::new());
        writeln!(near, "link set {uplink} up")?;
        writeln!(far, "link set {far_end} up")?;
        writeln!(far, "addr add {NEXT_HOP_IPV4}/32 dev {far_end}")?;
        writeln!(far, "addr add {NEXT_HOP_IPV6}/64 dev {far_end} nodad")?;
        for address in own {
            writeln!(near, "{}", add_address(*address, uplink))?;
            writeln!(far, "route add {address} dev {far_end}")?;
        }
        writeln!(
            near,
            "route add default via {NEXT_HOP_IPV4} dev {uplink} onlink"
        )?;
        writeln!(near, "route add default via {NEXT_HOP_IPV6} dev {uplink}")?;
        namespace.configure(&near)?;
        self.world.configure(&far)
    }

    fn route_services(&self, node: u8) -> Result<()> {
        let mut routes = String::new();
        for family in Family::ALL {
            let via = addresses::node_address(node, family);
            for range in [
                addresses::service_cidr(family),
                subnet(addresses::load_balancer_ip(0, family)),
                subnet(addresses::external_ip(0, family)),
            ] {
                writeln!(routes, "route add {range} via {via} dev node{node} onlink")?;
            }
        }
        self.world.configure(&routes)
    }
}

fn route_packets(namespace: &Namespace) -> Result<()> {
    namespace.set_sysctls(&[
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv6/conf/all/forwarding", "1"),
    ])
}

/// Returns the subnet of `address` in the address plan.
fn subnet(address: IpAddr) -> IpNet {
    let length = match address {
        IpAddr::V4(_) => 24,
        IpAddr::V6(_) => 64,
    };
    IpNet::new_assert(address, length).trunc()
}

fn add_address(address: IpAddr, interface: &str) -> String {
    match address {
        IpAddr::V4(address) => format!("addr add {address}/32 dev {interface}"),
        IpAddr::V6(address) => format!("addr add {address}/128 dev {interface} nodad"),
    }
}
