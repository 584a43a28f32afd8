//! The network between the machines of a cluster.
//!
//! ```text
//!   control 172.30.0.1   node-1 172.30.0.11   node-2 172.30.0.12   outside 172.30.0.100
//!         |                   |                    |                    |
//!         '-------------------+------ bridge ------+--------------------'
//!                              router 172.30.0.254
//! ```
//!
//! Each is a network namespace with an `eth0`, and has an IPv6 address with the same ending. Nodes
//! and the control plane have routes to the pods of each node; the outside machine has not. The
//! router has no further connections, but provides the default route that every real machine has:
//! without one, the kernel rejects a packet to a Service before any rule matches it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Result;

use crate::network::{Link, Namespace, Network};

/// The address of the control plane.
pub const CONTROL: Ipv4Addr = Ipv4Addr::new(172, 30, 0, CONTROL_HOST);

/// The ranges that contain the pod CIDRs of all nodes, IPv4 first: see [`pod_cidrs`].
pub const POD_CIDRS: &str = "10.244.0.0/16,fd00:10:244::/48";

const CONTROL_HOST: u8 = 1;
const OUTSIDE_HOST: u8 = 100;
const ROUTER_HOST: u8 = 254;

/// The connected machines.
#[derive(Debug)]
pub struct Lan {
    bridge: Namespace,
    control: Namespace,
    outside: Namespace,
    network: Network,
}

/// Returns the addresses of the control plane, IPv4 first.
pub fn control_addresses() -> [IpAddr; 2] {
    addresses(CONTROL_HOST)
}

/// Returns the addresses of a machine, IPv4 first.
fn addresses(host: u8) -> [IpAddr; 2] {
    [
        Ipv4Addr::new(172, 30, 0, host).into(),
        Ipv6Addr::new(0xfd00, 0x172, 0x30, 0, 0, 0, 0, host.into()).into(),
    ]
}

/// Returns the addresses of a node, IPv4 first.
pub fn node_addresses(node: u8) -> [IpAddr; 2] {
    addresses(10 + node)
}

/// Returns the pod CIDRs of a node, IPv4 first.
pub fn pod_cidrs(node: u8) -> [String; 2] {
    [
        format!("10.244.{node}.0/24"),
        format!("fd00:10:244:{node:x}::/64"),
    ]
}

// === impl Lan ===

impl Lan {
    /// Creates the control plane's machine and one outside, without nodes.
    pub fn build() -> Result<Lan> {
        let mut network = Network::new()?;
        let [bridge, control, outside] = network.add_namespaces(["lan", "control", "outside"])?;
        let [ipv4, ipv6] = addresses(ROUTER_HOST);
        // The router answers at once for the rest of the world: no route.
        bridge.set_sysctls(&FORWARDING)?;
        bridge.configure(&format!(
            "link add br0 type bridge mcast_snooping 0\n\
             addr add {ipv4}/24 dev br0\n\
             addr add {ipv6}/64 dev br0 nodad\n\
             link set br0 up\n"
        ))?;
        let lan = Lan {
            bridge,
            control,
            outside,
            network,
        };
        lan.plug(&lan.control, "control", CONTROL_HOST)?;
        lan.plug(&lan.outside, "outside", OUTSIDE_HOST)?;
        Ok(lan)
    }

    /// Returns the machine of the control plane.
    pub fn control(&self) -> &Namespace {
        &self.control
    }

    /// Returns the machine outside the cluster, without routes to pods.
    pub fn outside(&self) -> &Namespace {
        &self.outside
    }

    /// Adds a machine for the node with this number, between 1 and 80.
    pub fn add_node(&mut self, node: u8) -> Result<Namespace> {
        let name = format!("node-{node}");
        let [namespace] = self.network.add_namespaces([name.as_str()])?;
        namespace.set_sysctls(&FORWARDING)?;
        self.plug(&namespace, &name, 10 + node)?;
        Ok(namespace)
    }

    /// Adds a route to the pods of `node` in `namespace`.
    pub fn add_route(&self, namespace: &Namespace, node: u8) -> Result<()> {
        let lines = pod_cidrs(node).into_iter().zip(node_addresses(node));
        let lines = lines.map(|(pods, via)| format!("route replace {pods} via {via}\n"));
        namespace.configure(&lines.collect::<String>())
    }

    /// Removes the machine of a node.
    pub fn remove_node(&mut self, namespace: &Namespace) -> Result<()> {
        self.network.remove_namespace(namespace)
    }

    fn plug(&self, namespace: &Namespace, port: &str, host: u8) -> Result<()> {
        self.network.add_links(&[Link {
            from: (namespace, "eth0"),
            to: (&self.bridge, port),
        }])?;
        self.bridge.configure(&format!(
            "link set {port} master br0\n\
             link set {port} up\n"
        ))?;
        let ([ipv4, ipv6], [via_ipv4, via_ipv6]) = (addresses(host), addresses(ROUTER_HOST));
        namespace.configure(&format!(
            "addr add {ipv4}/24 dev eth0\n\
             addr add {ipv6}/64 dev eth0 nodad\n\
             link set eth0 up\n\
             route add default via {via_ipv4}\n\
             route add default via {via_ipv6} dev eth0\n"
        ))
    }
}

const FORWARDING: [(&str, &str); 2] = [
    ("net/ipv4/ip_forward", "1"),
    ("net/ipv6/conf/all/forwarding", "1"),
];
