//! kube-proxy's mode ipvs after a takeover: its virtual servers stay until their last connection has
//! ended.
//!
//! IPVS cannot hand a connection over, and drops its packets once its virtual server is gone
//! (`ip_vs_in_hook` in net/netfilter/ipvs/ip_vs_core.c). New connections follow Signpost's rules,
//! which come before virtual servers, so every virtual server becomes idle, and is then removed.
//!
//! A takeover marks the device `kube-ipvs0` with an alias. The mark lasts as long as what it is
//! about: until the device is removed, or the node restarts. It counts only while no chains of
//! kube-proxy are in the kernel: a kube-proxy that returns creates its chains first.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use dataplane::{
    Claims, Dataplane, Family, Frontend, FrontendKey, FrontendKind, is_ipv6_link_local,
};
use netlink::ip_set::IpSetSocket;
use netlink::ipvs::{AddressedServer, AddressedServerSocket};
use netlink::link::{Link, LinkSocket};
use netlink::{ChangeError, OpenError, QueryError};
use nix::ifaddrs::getifaddrs;
use thiserror::Error;

use processes::socket_table::observe_own_addresses;

/// The device that has the addresses of virtual servers (pkg/proxy/ipvs/proxier.go).
const DEVICE: &str = "kube-ipvs0";
/// The alias of the device after a takeover.
const ENDS: &str = "signpost: removed when its connections have ended";
/// The prefix of the names of kube-proxy's sets (pkg/proxy/ipvs/ipset.go).
const SETS: &str = "KUBE-";
/// The sets that contain node ports, one for each protocol, with and without the word `LOCAL`; those
/// of IPv6 begin with `KUBE-6-`.
const NODE_PORT_SETS: &str = "NODE-PORT-";
/// How many virtual servers one pass removes. The kernel keeps the destinations of removed virtual
/// servers in a list that each new destination is compared with (`ip_vs_trash_get_dest`).
const REMOVED_AT_ONCE: usize = 1000;

/// Whether kube-proxy's virtual servers are here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum VirtualServers {
    /// They are not.
    #[default]
    None,
    /// kube-proxy has them, or has left them.
    Present,
    /// A takeover has ended them.
    Ending,
}

/// What is left of virtual servers that end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Remaining {
    /// The number of virtual servers.
    pub virtual_servers: usize,
    /// The number of their connections, including those that are closed and not yet forgotten.
    pub connections: u64,
    /// The number of addresses, which virtual servers or connections of this node have.
    pub addresses: usize,
}

/// Removes virtual servers that have become idle, with a socket that stays open.
#[derive(Debug, Default)]
pub struct IdleRemoval {
    /// Kept, because while a socket is closed the kernel holds the lock of nf_tables for an RCU grace period.
    sets: Option<IpSetSocket>,
}

/// Why virtual servers were not read or not removed. What was removed before stays removed; another
/// pass continues.
#[derive(Debug, Error)]
pub enum VirtualServerError {
    /// No socket.
    #[error("failed to open a socket to the kernel")]
    Open(#[from] OpenError),
    /// The kernel refused to list.
    #[error("failed to look for virtual servers of kube-proxy")]
    Query(#[from] QueryError),
    /// The addresses of the devices could not be listed.
    #[error("failed to list the addresses of {DEVICE}")]
    Addresses(#[from] nix::Error),
    /// The sockets of this node could not be listed.
    #[error("failed to list the addresses of sockets")]
    Sockets(#[from] io::Error),
    /// The kernel refused a change.
    #[error("failed to remove what kube-proxy has left of mode ipvs")]
    Change(#[from] ChangeError),
}

/// Reads whether kube-proxy's virtual servers are in the network namespace of this thread.
/// `Ending` supposes that kube-proxy has no chains.
pub(crate) fn observe() -> Result<VirtualServers, VirtualServerError> {
    Ok(match LinkSocket::open()?.observe(DEVICE)? {
        None => VirtualServers::None,
        Some(link) if link.alias.as_deref() == Some(ENDS) => VirtualServers::Ending,
        Some(_) => VirtualServers::Present,
    })
}

/// Marks the virtual servers: from now on each is removed once it is idle. New connections of this
/// node to a Service come from its address in `own`: while the Service's own address is on the
/// device, they would come from that, and end with it.
pub fn commit_ending(own: &[IpAddr]) -> Result<(), VirtualServerError> {
    let mut socket = LinkSocket::open()?;
    let Some(Link { index, .. }) = socket.observe(DEVICE)? else {
        return Ok(());
    };
    for address in observe_addresses()?.kube_proxy {
        let mut own = own.iter().copied();
        if let Some(source) = own.find(|own| Family::of(*own) == Family::of(address)) {
            socket.commit_source(index, address, source)?;
        }
    }
    socket.commit_alias(index, ENDS)?;
    Ok(())
}

/// Takes the mark away, for a kube-proxy that serves again.
pub fn commit_return() -> Result<(), VirtualServerError> {
    if observe()? == VirtualServers::Ending {
        let mut socket = LinkSocket::open()?;
        if let Some(link) = socket.observe(DEVICE)? {
            socket.commit_alias(link.index, "")?;
        }
    }
    Ok(())
}

/// Returns the addresses of this node at which virtual servers of kube-proxy take node ports.
pub(crate) fn observe_node_port_addresses(
    family: Family,
) -> Result<BTreeSet<IpAddr>, VirtualServerError> {
    let servers = observe_node_ports_counted(family)?.into_iter();
    Ok(servers.map(|(server, _)| server.address.ip()).collect())
}

/// Returns the virtual servers of kube-proxy that take node ports, with the number of connections
/// that each has had.
pub(crate) fn observe_node_ports_counted(
    family: Family,
) -> Result<Vec<(AddressedServer, u64)>, VirtualServerError> {
    let addresses = observe_addresses()?;
    let mut sets = IpSetSocket::open()?;
    let names = observe_sets(&mut sets)?;
    let node_ports = observe_node_ports(&mut sets, &names)?;
    let mut servers = AddressedServerSocket::open()?.observe_counted()?;
    servers.retain(|(server, _)| {
        let address = server.address.ip();
        is_kube_proxys(*server, &addresses, &node_ports)
            && !addresses.kube_proxy.contains(&address)
            && Family::of(address) == family
    });
    Ok(servers)
}

/// Returns the cluster IPs of `desired` in `family` for which there is no virtual server.
pub fn observe_missing(
    desired: &Dataplane,
    family: Family,
) -> Result<Vec<FrontendKey>, VirtualServerError> {
    let servers = AddressedServerSocket::open()?.observe()?;
    let servers: BTreeSet<AddressedServer> = servers.into_iter().collect();
    let frontends = desired.frontends().iter();
    let is_cluster_ip = |claims: &Claims<Arc<Frontend>>| {
        let (_, frontend) = claims.winner();
        frontend.kind == FrontendKind::ClusterIp
    };
    let missing = frontends.filter_map(|(key, claims)| match *key {
        FrontendKey::Address {
            address,
            protocol,
            port,
        } if Family::of(address) == family && is_cluster_ip(claims) => {
            let server = AddressedServer {
                protocol: protocol.number(),
                address: SocketAddr::new(address, port.get()),
            };
            (!servers.contains(&server)).then_some(*key)
        }
        FrontendKey::Address { .. } | FrontendKey::NodePort { .. } => None,
    });
    Ok(missing.collect())
}

/// The addresses of this node.
#[derive(Debug, Default)]
struct Addresses {
    /// Those of kube-proxy's device, without the link-local address that the kernel adds.
    kube_proxy: BTreeSet<IpAddr>,
    /// Those of all other devices.
    others: BTreeSet<IpAddr>,
}

fn observe_addresses() -> Result<Addresses, VirtualServerError> {
    let mut addresses = Addresses::default();
    for interface in getifaddrs()? {
        let Some(storage) = interface.address else {
            continue;
        };
        let ipv4 = storage.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        let ipv6 = storage.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip()));
        let Some(address) = ipv4.or(ipv6) else {
            continue;
        };
        match interface.interface_name == DEVICE {
            true => addresses.kube_proxy.insert(address),
            false => addresses.others.insert(address),
        };
    }
    addresses
        .kube_proxy
        .retain(|address| !is_ipv6_link_local(*address));
    Ok(addresses)
}

fn observe_sets(sets: &mut IpSetSocket) -> Result<Vec<String>, VirtualServerError> {
    let mut names = sets.observe_names()?;
    names.retain(|name| name.starts_with(SETS));
    Ok(names)
}

fn observe_node_ports(
    sets: &mut IpSetSocket,
    names: &[String],
) -> Result<BTreeMap<Family, BTreeSet<u16>>, VirtualServerError> {
    let mut node_ports: BTreeMap<Family, BTreeSet<u16>> = BTreeMap::new();
    for name in names {
        if let Some(family) = family_of_node_ports(name) {
            let ports = sets.observe_ports(name)?;
            node_ports.entry(family).or_default().extend(ports);
        }
    }
    Ok(node_ports)
}

/// Returns the family of a set of node ports by its name; `None` for other sets.
fn family_of_node_ports(name: &str) -> Option<Family> {
    let rest = name.strip_prefix(SETS)?;
    let (family, rest) = match rest.strip_prefix("6-") {
        Some(rest) => (Family::Ipv6, rest),
        None => (Family::Ipv4, rest),
    };
    rest.starts_with(NODE_PORT_SETS).then_some(family)
}

fn is_kube_proxys(
    server: AddressedServer,
    addresses: &Addresses,
    node_ports: &BTreeMap<Family, BTreeSet<u16>>,
) -> bool {
    let address = server.address.ip();
    let family = Family::of(address);
    let has_node_port = || {
        let ports = node_ports.get(&family);
        ports.is_some_and(|ports| ports.contains(&server.address.port()))
    };
    addresses.kube_proxy.contains(&address)
        || addresses.others.contains(&address) && has_node_port()
}

// === impl IdleRemoval ===

impl IdleRemoval {
    /// Removes virtual servers of kube-proxy without connections, a thousand at most, and the addresses
    /// that no virtual server and no socket has any more; after the last one the device and the sets as
    /// well. A connection of this node that began before the takeover has the Service's address on both
    /// ends.
    ///
    /// Virtual servers of other programs stay: kube-proxy's have an address of its device, or a node
    /// port of its sets and another address of the node.
    pub fn commit(&mut self) -> Result<Remaining, VirtualServerError> {
        let mut links = LinkSocket::open()?;
        let Some(Link { index, .. }) = links.observe(DEVICE)? else {
            return Ok(Remaining::default());
        };
        let addresses = observe_addresses()?;
        let sets = match &mut self.sets {
            Some(sets) => sets,
            kept => kept.insert(IpSetSocket::open()?),
        };
        let names = observe_sets(sets)?;
        let node_ports = observe_node_ports(sets, &names)?;
        let mut servers = AddressedServerSocket::open()?;
        let (mut remaining, mut removed) = (Remaining::default(), 0);
        let mut needed = observe_own_addresses()?;
        for server in servers.observe()? {
            if !is_kube_proxys(server, &addresses, &node_ports) {
                continue;
            }
            let connections = servers.observe_connections(server)?;
            let connections = u64::from(connections.active) + u64::from(connections.inactive);
            if connections == 0 && removed < REMOVED_AT_ONCE {
                servers.commit_removal(server)?;
                removed += 1;
            } else {
                remaining.virtual_servers += 1;
                remaining.connections += connections;
                needed.insert(server.address.ip());
            }
        }
        needed.retain(|address| addresses.kube_proxy.contains(address));
        remaining.addresses = needed.len();
        for address in addresses.kube_proxy.difference(&needed) {
            links.commit_address_removal(index, *address)?;
        }
        if remaining == Remaining::default() {
            for name in names {
                // What is in use stays: rules of legacy iptables keep `KUBE-LOOP-BACK`.
                sets.commit_removal(&name)?;
            }
            // Last, because it has the mark.
            links.commit_removal(index)?;
        }
        Ok(remaining)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_server_is_kube_proxys_by_its_device_or_by_its_sets() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let addresses = Addresses {
            kube_proxy: [ip("10.96.0.10"), ip("fd00:96::10")].into(),
            others: [ip("192.168.0.1"), ip("fd00:192::1")].into(),
        };
        let node_ports = BTreeMap::from([(Family::Ipv4, BTreeSet::from([30080]))]);
        let is_its = |address: &str| {
            let address = address.parse().expect("an address and a port");
            let server = AddressedServer {
                protocol: 6,
                address,
            };
            is_kube_proxys(server, &addresses, &node_ports)
        };
        for its in ["10.96.0.10:53", "[fd00:96::10]:53", "192.168.0.1:30080"] {
            assert!(is_its(its), "{its}");
        }
        let others = [
            "10.96.0.11:53",
            "192.168.0.1:80",
            "[fd00:192::1]:30080",
            "192.168.0.2:30080",
        ];
        for others in others {
            assert!(!is_its(others), "{others}");
        }
    }

    #[test]
    fn sets_of_node_ports_are_known_by_their_names() {
        let family = family_of_node_ports;
        assert_eq!(family("KUBE-NODE-PORT-TCP"), Some(Family::Ipv4));
        assert_eq!(family("KUBE-NODE-PORT-LOCAL-UDP"), Some(Family::Ipv4));
        assert_eq!(family("KUBE-6-NODE-PORT-SCTP-HASH"), Some(Family::Ipv6));
        assert_eq!(family("KUBE-CLUSTER-IP"), None);
        assert_eq!(family("KUBE-HEALTH-CHECK-NODE-PORT"), None);
        assert_eq!(family("NODE-PORT-TCP"), None);
    }
}
