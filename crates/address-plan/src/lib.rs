//! The addresses that all tests use, so that every address shows its role.
//!
//! | what | IPv4 | IPv6 |
//! |---|---|---|
//! | node N (the node under test is 1) | 192.168.0.N | fd00:192:168::N |
//! | node N, second interface | 172.20.0.N | fd00:172:20::N |
//! | node N, its address on the pod bridge | 10.0.N.1 | fd00:10:0:N::1 |
//! | pods of node N | 10.0.N.0/24 | fd00:10:0:N::/64 |
//! | pods of the cluster | 10.0.0.0/16 | fd00:10::/48 |
//! | Services | 10.96.0.0/16 | fd00:10:96::/112 |
//! | of these, on a device of the node under test, too | 10.96.0.200 | fd00:10:96::200 |
//! | link-local, of the node under test | 169.254.20.1 | |
//! | load-balancer IPs | 192.0.2.0/24 | 2001:db8:2::/64 |
//! | external IPs | 198.51.100.0/24 | 2001:db8:51::/64 |
//! | clients outside the cluster | 203.0.113.0/24 | 2001:db8:113::/64 |
//!
//! Nodes are called `node-N`. On node 1, pods are behind [`BRIDGE`] or interfaces that start with
//! [`POD_INTERFACE_PREFIX`]; all other traffic arrives through [`UPLINK`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use dataplane::Family;
use ipnet::IpNet;

/// The name of the node under test.
pub const NODE: &str = "node-1";
/// The bridge of the node's pods.
pub const BRIDGE: &str = "cni0";
/// The prefix of the names of the pods' own interfaces.
pub const POD_INTERFACE_PREFIX: &str = "veth";
/// The interface to other nodes and to outside the cluster.
pub const UPLINK: &str = "eth0";

/// The name of node `n`.
pub fn node_name(n: u8) -> Arc<str> {
    format!("node-{n}").into()
}

/// The address by which others reach node `n`.
pub fn node_address(n: u8, family: Family) -> IpAddr {
    match family {
        Family::Ipv4 => v4([192, 168, 0, n]),
        Family::Ipv6 => v6([0xfd00, 0x192, 0x168, 0], n),
    }
}

/// The address of node `n` on a second network.
pub fn second_address(n: u8, family: Family) -> IpAddr {
    match family {
        Family::Ipv4 => v4([172, 20, 0, n]),
        Family::Ipv6 => v6([0xfd00, 0x172, 0x20, 0], n),
    }
}

/// The address of node `n` on its pod bridge.
pub fn bridge_address(n: u8, family: Family) -> IpAddr {
    pod_address(n, 1, family)
}

/// The address of pod `host` on node `n`; pods start at 2.
pub fn pod_address(n: u8, host: u8, family: Family) -> IpAddr {
    match family {
        Family::Ipv4 => v4([10, 0, n, host]),
        Family::Ipv6 => v6([0xfd00, 0x10, 0, u16::from(n)], host),
    }
}

/// The pod range of node `n`.
pub fn pod_cidr(n: u8, family: Family) -> IpNet {
    match family {
        Family::Ipv4 => net(v4([10, 0, n, 0]), 24),
        Family::Ipv6 => net(v6([0xfd00, 0x10, 0, u16::from(n)], 0), 64),
    }
}

/// The pod range of the cluster.
pub fn cluster_cidr(family: Family) -> IpNet {
    match family {
        Family::Ipv4 => net(v4([10, 0, 0, 0]), 16),
        Family::Ipv6 => net(v6([0xfd00, 0x10, 0, 0], 0), 48),
    }
}

/// The range of cluster IPs.
pub fn service_cidr(family: Family) -> IpNet {
    match family {
        Family::Ipv4 => net(v4([10, 96, 0, 0]), 16),
        Family::Ipv6 => net(v6([0xfd00, 0x10, 0x96, 0], 0), 112),
    }
}

/// Cluster IP `n`.
pub fn cluster_ip(n: u8, family: Family) -> IpAddr {
    match family {
        Family::Ipv4 => v4([10, 96, 0, n]),
        Family::Ipv6 => v6([0xfd00, 0x10, 0x96, 0], n),
    }
}

/// The cluster IP that scenarios also assign to a device of the node under test.
pub fn shared_cluster_ip(family: Family) -> IpAddr {
    cluster_ip(200, family)
}

/// The link-local address that the node under test has in scenarios.
pub fn link_local_address() -> IpAddr {
    v4([169, 254, 20, 1])
}

/// Load-balancer IP `n`.
pub fn load_balancer_ip(n: u8, family: Family) -> IpAddr {
    match family {
        Family::Ipv4 => v4([192, 0, 2, n]),
        Family::Ipv6 => v6([0x2001, 0xdb8, 0x2, 0], n),
    }
}

/// External IP `n`.
pub fn external_ip(n: u8, family: Family) -> IpAddr {
    match family {
        Family::Ipv4 => v4([198, 51, 100, n]),
        Family::Ipv6 => v6([0x2001, 0xdb8, 0x51, 0], n),
    }
}

/// Client `n` outside the cluster.
pub fn outside_client(n: u8, family: Family) -> IpAddr {
    match family {
        Family::Ipv4 => v4([203, 0, 113, n]),
        Family::Ipv6 => v6([0x2001, 0xdb8, 0x113, 0], n),
    }
}

/// The range of clients outside the cluster.
pub fn outside_cidr(family: Family) -> IpNet {
    match family {
        Family::Ipv4 => net(v4([203, 0, 113, 0]), 24),
        Family::Ipv6 => net(v6([0x2001, 0xdb8, 0x113, 0], 0), 64),
    }
}

/// The loopback address.
pub fn loopback(family: Family) -> IpAddr {
    match family {
        Family::Ipv4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Family::Ipv6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
    }
}

fn v4(octets: [u8; 4]) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(octets))
}

/// The last digits read as decimal: host 10 ends in `::10`.
fn v6(network: [u16; 4], host: u8) -> IpAddr {
    let [a, b, c, d] = network;
    let host = u16::from(host);
    let as_written = ((host / 100) << 8) | ((host / 10 % 10) << 4) | (host % 10);
    IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, as_written))
}

fn net(address: IpAddr, prefix: u8) -> IpNet {
    IpNet::new(address, prefix).expect("the plan's prefixes fit their families")
}
