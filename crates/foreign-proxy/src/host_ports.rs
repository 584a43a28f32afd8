//! The host ports of Pods: rules of CNI plugin portmap, with which it sends packets to a port of the
//! node to a Pod.
//!
//! Its backend `iptables` has one chain for each Pod in table `nat`, of the variant that the programs
//! on its node are of; its backend `nftables` has a table of its own (plugins/meta/portmap).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use dataplane::Family;
use netlink::nf_tables::{Expression, ListedRule, NatKind, Rule};
use xtables::{CountedRule, Variant};

use super::kernel::{ScanError, open};
use super::node_ports::{self, DestinationMatch, NodePort, address, destination, node_port};

/// The chain of backend `iptables` through which packets reach those of Pods, and how the names of those
/// begin. One to which no rule leads any more may be left of a Pod that has gone.
const ENTRANCE: &str = "CNI-HOSTPORT-DNAT";
const CHAIN_OF_POD: &str = "CNI-DN-";
/// The table of backend `nftables`, and the chains that have its rules: versions before 1.9.1 have
/// those with an address of the node in the second one.
const TABLE: &str = "cni_hostport";
const CHAINS: [&str; 2] = ["hostports", "hostip_hostports"];

/// Where the rules are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backend {
    /// In table `nat` of this variant of iptables.
    Iptables(Variant),
    /// In their own table of nf_tables.
    Nftables,
}

/// A port of the node that leads to a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    /// The port of the node.
    pub port: NodePort,
    /// The address of the node, if it is not every one.
    pub address: Option<IpAddr>,
    /// The Pod, with its own port.
    pub pod: SocketAddr,
}

/// Reads the host ports of `family` that are in one place. Rules of another shape are left out.
pub fn observe_host_ports(backend: Backend, family: Family) -> Result<Vec<HostPort>, ScanError> {
    match backend {
        Backend::Iptables(Variant::NfTables) => {
            let of_pod = |rule: &ListedRule<'_>| rule.leads_to().and_then(chain_of_pod);
            let of_pods = open()?.observe_chosen_rules(family, "nat", Some(ENTRANCE), of_pod);
            let of_pods = BTreeSet::from_iter(of_pods.map_err(ScanError::Observe)?);
            if of_pods.is_empty() {
                return Ok(Vec::new());
            }
            observe_rules(family, "nat", |chain| of_pods.contains(chain))
        }
        Backend::Nftables => observe_rules(family, TABLE, |chain| CHAINS.contains(&chain)),
        Backend::Iptables(Variant::Legacy) => {
            let entrance = node_ports::legacy::observe_chains(family, |chain| chain == ENTRANCE)?;
            let of_pods = entrance.iter().filter_map(|rule| rule.leads_to.as_deref());
            let of_pods: BTreeSet<String> = of_pods.filter_map(chain_of_pod).collect();
            if of_pods.is_empty() {
                return Ok(Vec::new());
            }
            let is_pods = |chain: &str| of_pods.contains(chain);
            let rules = node_ports::legacy::observe_chains(family, is_pods)?;
            Ok(rules.iter().filter_map(in_legacy_rule).collect())
        }
    }
}

fn chain_of_pod(name: &str) -> Option<String> {
    name.starts_with(CHAIN_OF_POD).then(|| name.to_owned())
}

// === impl HostPort ===

impl fmt::Display for HostPort {
    /// Prints the port of the node, and its address if it is only one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (protocol, port) = self.port;
        match self.address {
            Some(address) => write!(f, "{}/{protocol}", SocketAddr::new(address, port)),
            None => write!(f, "{port}/{protocol}"),
        }
    }
}

fn observe_rules(
    family: Family,
    table: &str,
    is_chosen: impl Fn(&str) -> bool,
) -> Result<Vec<HostPort>, ScanError> {
    let host_port = |rule: &ListedRule<'_>| {
        let is_chosen = is_chosen(rule.chain());
        is_chosen.then(|| in_rule(&rule.decode().ok()?, family))?
    };
    let found = open()?.observe_chosen_rules(family, table, None, host_port);
    found.map_err(ScanError::Observe)
}

fn in_rule(rule: &Rule, family: Family) -> Option<HostPort> {
    Some(HostPort {
        port: node_port(rule)?,
        address: one_or_all(destination(rule, family))?,
        pod: translates_to(rule, family)?,
    })
}

fn in_legacy_rule(rule: &CountedRule) -> Option<HostPort> {
    Some(HostPort {
        port: (rule.protocol?, rule.destination_port?),
        address: one_or_all(node_ports::legacy::destination(rule))?,
        pod: rule.translates_to?,
    })
}

/// Returns the address of a host port, if it is not at every one; `None` for a match that the plugin
/// does not write.
fn one_or_all(destination: DestinationMatch) -> Option<Option<IpAddr>> {
    match destination {
        DestinationMatch::Is(address) => Some(Some(address)),
        DestinationMatch::Any => Some(None),
        DestinationMatch::Within | DestinationMatch::Outside => None,
    }
}

/// Returns the new destination, either from an xtables target or from a native expression.
fn translates_to(rule: &Rule, family: Family) -> Option<SocketAddr> {
    let mut registers = BTreeMap::new();
    for expression in &rule.expressions {
        let (to, port) = match expression {
            Expression::Load { value, to } => {
                registers.insert(to.0, value.as_slice());
                continue;
            }
            Expression::Nat {
                kind: NatKind::Destination,
                address,
                port,
                ..
            } => (*registers.get(&address.0)?, *registers.get(&port.0)?),
            // `struct nf_nat_range2` (include/uapi/linux/netfilter/nf_nat.h): the first address and
            // the first port of the range.
            Expression::Target(module) if &*module.name == "DNAT" && module.revision == 2 => {
                let length = match family {
                    Family::Ipv4 => 4,
                    Family::Ipv6 => 16,
                };
                let payload = &module.payload;
                (payload.get(4..4 + length)?, payload.get(36..38)?)
            }
            _ => continue,
        };
        let port = u16::from_be_bytes(*port.first_chunk()?);
        return Some(SocketAddr::new(address(to)?, port));
    }
    None
}

#[cfg(test)]
mod tests;
