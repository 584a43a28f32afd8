//! The addresses on which kube-proxy's rules accept node ports, and the node ports that clients
//! have used.

pub(crate) mod legacy;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::ControlFlow;

use dataplane::{Family, Protocol};
use netlink::conntrack::{Answers, Filter, Flow, FlowSocket};
use netlink::nf_tables::{DataType, Expression, ListedRule, Operator, PayloadBase, Rule};
use netlink::{ObserveError, Socket};
use xtables::Variant;

use super::kernel::{ScanError, TABLE, open};
use super::{Mode, virtual_servers};

/// The set of node port addresses in mode nftables. It does not exist if kube-proxy accepts node
/// ports on all addresses (pkg/proxy/nftables/proxier.go).
const ADDRESSES: &str = "nodeport-ips";
/// The chains of mode iptables through which a packet reaches a node port. They are in table `nat`,
/// which sees only the first packet of each connection.
const SERVICES: &str = "KUBE-SERVICES";
const NODE_PORTS: &str = "KUBE-NODEPORTS";

/// The addresses of the node on which kube-proxy's rules accept node ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodePortScope {
    /// All addresses, with or without those of loopback.
    Everywhere(Loopback),
    /// These addresses.
    At(BTreeSet<IpAddr>),
}

/// Whether loopback addresses are included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loopback {
    /// They are.
    In,
    /// They are not.
    Out,
}

/// A node port, with its protocol.
pub type NodePort = (Protocol, u16);

/// Where kube-proxy's rules for node ports are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodePortRules {
    /// In its own table.
    Nftables,
    /// In the tables of this variant of iptables.
    Iptables(Variant),
    /// Among the virtual servers.
    Ipvs,
}

/// Reads the addresses on which kube-proxy's rules of `family` accept node ports.
pub fn observe_entrance(place: NodePortRules, family: Family) -> Result<NodePortScope, ScanError> {
    match place {
        NodePortRules::Nftables => observe_set(&mut open()?, family),
        NodePortRules::Iptables(Variant::NfTables) => observe_rules(&mut open()?, family),
        NodePortRules::Iptables(Variant::Legacy) => legacy::observe_rules(family),
        NodePortRules::Ipvs => {
            let at = virtual_servers::observe_node_port_addresses(family);
            at.map(NodePortScope::At).map_err(ScanError::VirtualServers)
        }
    }
}

fn observe_set(socket: &mut Socket, family: Family) -> Result<NodePortScope, ScanError> {
    match socket.observe_elements(family, TABLE, ADDRESSES) {
        Ok(elements) => {
            let keys = elements
                .iter()
                .map(|(key, _)| key.typed(&[DataType::address(family)]).to_string());
            Ok(NodePortScope::At(
                keys.filter_map(|key| key.parse().ok()).collect(),
            ))
        }
        Err(ObserveError::Refused { source, .. })
            if source.kind() == std::io::ErrorKind::NotFound =>
        {
            Ok(NodePortScope::Everywhere(Loopback::Out))
        }
        Err(error) => Err(ScanError::Observe(error)),
    }
}

fn observe_rules(socket: &mut Socket, family: Family) -> Result<NodePortScope, ScanError> {
    let leads_there = |rule: &ListedRule<'_>| {
        let leads = rule.leads_to() == Some(NODE_PORTS);
        leads.then(|| {
            rule.decode()
                .map_or(DestinationMatch::Any, |rule| destination(&rule, family))
        })
    };
    let matches = socket.observe_chosen_rules(family, "nat", Some(SERVICES), leads_there);
    matches.map(scope).map_err(ScanError::Observe)
}

/// Returns the addresses that the rules for cluster IPs of kube-proxy's mode iptables require.
pub(crate) fn observe_cluster_ips(
    family: Family,
    variant: Variant,
) -> Result<BTreeSet<IpAddr>, ScanError> {
    let matches = match variant {
        Variant::NfTables => {
            let required = |rule: &ListedRule<'_>| Some(destination(&rule.decode().ok()?, family));
            let matches = open()?.observe_chosen_rules(family, "nat", Some(SERVICES), required);
            matches.map_err(ScanError::Observe)?
        }
        Variant::Legacy => legacy::observe_services(family)?,
    };
    let addresses = matches.into_iter().filter_map(|required| match required {
        DestinationMatch::Is(address) => Some(address),
        DestinationMatch::Within | DestinationMatch::Outside | DestinationMatch::Any => None,
    });
    Ok(addresses.collect())
}

/// Returns the addresses that rules to the chain of node ports require.
fn scope(matches: Vec<DestinationMatch>) -> NodePortScope {
    let mut at = BTreeSet::new();
    for destination in matches {
        match destination {
            DestinationMatch::Is(address) => drop(at.insert(address)),
            // The range is that of loopback.
            DestinationMatch::Outside => return NodePortScope::Everywhere(Loopback::Out),
            DestinationMatch::Within | DestinationMatch::Any => {
                return NodePortScope::Everywhere(Loopback::In);
            }
        }
    }
    NodePortScope::At(at)
}

/// What a rule requires of the destination address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DestinationMatch {
    /// It is this address.
    Is(IpAddr),
    /// It is one of several, such as those of a range.
    Within,
    /// It is none of several.
    Outside,
    /// Nothing, or any address of the node.
    Any,
}

pub(crate) fn destination(rule: &Rule, family: Family) -> DestinationMatch {
    // The offset of the destination in the header, and its length.
    let (at, whole) = match family {
        Family::Ipv4 => (16, 4),
        Family::Ipv6 => (24, 16),
    };
    let expressions = rule.expressions.iter();
    let mut after = expressions.skip_while(|expression| {
        !matches!(expression, Expression::Payload { base: PayloadBase::Network, offset, .. } if *offset == at)
    });
    if after.next().is_none() {
        return DestinationMatch::Any;
    }
    let mut after = after.peekable();
    let is_masked = after
        .next_if(|expression| matches!(expression, Expression::Bitwise { .. }))
        .is_some();
    match after.next() {
        Some(Expression::Compare {
            operator: Operator::NotEqual,
            ..
        }) => DestinationMatch::Outside,
        Some(Expression::Compare {
            operator: Operator::Equal,
            value,
            ..
        }) if !is_masked && value.len() == whole => {
            address(value).map_or(DestinationMatch::Within, DestinationMatch::Is)
        }
        _ => DestinationMatch::Within,
    }
}

pub(crate) fn address(bytes: &[u8]) -> Option<IpAddr> {
    let ipv4 = || Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into());
    let ipv6 = || Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into());
    ipv4().or_else(ipv6)
}

/// Returns how many connections each node port has had since kube-proxy's mode iptables wrote its
/// rule. The counters do not distinguish addresses. Node ports without connections are left out.
pub fn observe_counts(
    variant: Variant,
    family: Family,
) -> Result<BTreeMap<NodePort, u64>, ScanError> {
    let counted = match variant {
        Variant::NfTables => {
            let counted = |rule: &ListedRule<'_>| {
                let packets = rule.packets().filter(|packets| *packets > 0)?;
                Some((node_port(&rule.decode().ok()?)?, packets))
            };
            let counted = open()?.observe_chosen_rules(family, "nat", Some(NODE_PORTS), counted);
            counted.map_err(ScanError::Observe)?
        }
        Variant::Legacy => legacy::observe_counts(family)?,
    };
    let mut counts = BTreeMap::new();
    for (port, packets) in counted {
        *counts.entry(port).or_default() += packets;
    }
    Ok(counts)
}

/// Returns how many connections each node port of kube-proxy's mode ipvs has had at each address of
/// the node since kube-proxy created its virtual server, as far as the kernel counts: it does not
/// where sysctl `run_estimation` is 0. Those without connections are left out.
pub fn observe_virtual_server_counts(
    family: Family,
) -> Result<BTreeMap<(IpAddr, NodePort), u64>, ScanError> {
    let counted = virtual_servers::observe_node_ports_counted(family);
    let counted = counted.map_err(ScanError::VirtualServers)?.into_iter();
    let counts = counted.filter_map(|(server, connections)| {
        let node_port = (
            Protocol::from_number(server.protocol)?,
            server.address.port(),
        );
        (connections > 0).then_some(((server.address.ip(), node_port), connections))
    });
    Ok(counts.collect())
}

// === impl NodePortRules ===

impl From<Mode> for NodePortRules {
    /// Where nf_tables has the rules, where it has any.
    fn from(mode: Mode) -> NodePortRules {
        match mode {
            Mode::Nftables => NodePortRules::Nftables,
            Mode::Iptables => NodePortRules::Iptables(Variant::NfTables),
            Mode::Ipvs => NodePortRules::Ipvs,
        }
    }
}

/// Returns the protocol and the port that a rule matches, either with an xtables match or, as later versions of
/// iptables write it, with native expressions.
pub(crate) fn node_port(rule: &Rule) -> Option<NodePort> {
    let mut protocol = None;
    let mut port = None;
    let mut loaded = None;
    for expression in &rule.expressions {
        match expression {
            Expression::Payload {
                base: PayloadBase::Transport,
                offset: 2,
                length: 2,
                ..
            } => {
                loaded = Some(Loaded::Port);
            }
            Expression::Meta {
                key: netlink::nf_tables::MetaKey::TransportProtocol,
                ..
            } => {
                loaded = Some(Loaded::Protocol);
            }
            Expression::Payload { .. } | Expression::Meta { .. } => loaded = None,
            Expression::Compare {
                operator: Operator::Equal,
                value,
                ..
            } => match (loaded, value.as_slice()) {
                (Some(Loaded::Port), &[high, low]) => port = Some(u16::from_be_bytes([high, low])),
                (Some(Loaded::Protocol), &[number]) => protocol = Protocol::from_number(number),
                _ => {}
            },
            // `struct xt_tcp` and `xt_udp` (include/uapi/linux/netfilter): the range of source
            // ports, then the range of destination ports, in host byte order. `xt_sctp` has them in
            // the other order.
            Expression::Match(module) if matches!(&*module.name, "tcp" | "udp" | "sctp") => {
                let at = if &*module.name == "sctp" { 0 } else { 4 };
                let bytes = module.payload.get(at..at + 2)?.try_into().ok()?;
                port = Some(u16::from_ne_bytes(bytes));
            }
            _ => {}
        }
    }
    Some((protocol?, port?))
}

/// The field that the last expression loaded into the register.
#[derive(Debug, Clone, Copy)]
enum Loaded {
    Protocol,
    Port,
}

/// Counts the current connections that were redirected from each of `addresses` and a node port for
/// which `is_node_port` is true, by rules or by IPVS. Lists the whole conntrack table.
pub fn observe_flows(
    family: Family,
    addresses: &BTreeSet<IpAddr>,
    is_node_port: impl Fn(NodePort) -> bool,
) -> Result<BTreeMap<(IpAddr, NodePort), u64>, ScanError> {
    let mut counts = BTreeMap::new();
    let mut socket = FlowSocket::open().map_err(ScanError::Open)?;
    for protocol in Protocol::ALL {
        let filter = Filter {
            family,
            protocol,
            answers: Answers::Any,
        };
        let count = |flow: &Flow| {
            let asked = flow.original.destination;
            let port = (protocol, asked.port());
            // IPVS changes the reply, and does not set the status of a redirected connection.
            let is_redirected = flow.reply.source != asked;
            let is_one = is_redirected && addresses.contains(&asked.ip());
            if is_one && is_node_port(port) {
                *counts.entry((asked.ip(), port)).or_default() += 1;
            }
            ControlFlow::Continue(())
        };
        socket
            .observe_flows(&filter, count)
            .map_err(ScanError::Flows)?;
    }
    Ok(counts)
}

#[cfg(test)]
mod tests;
