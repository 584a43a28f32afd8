//! The node ports that a takeover would close: those on addresses where kube-proxy's rules accept
//! them and Signpost's do not.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crds::profile::forwarding::LocalhostNodePorts;
use dataplane::{Dataplane, Family, FrontendKey, Port};

use super::preflight::{Point, some_of};
use crate::NodeView;
use foreign_proxy::kernel::ScanError;
use foreign_proxy::node_ports::{
    Loopback, NodePort, NodePortRules, NodePortScope, observe_counts, observe_entrance,
    observe_flows, observe_virtual_server_counts,
};

/// Where Signpost's rules accept node ports, or would.
#[derive(Debug, Clone)]
pub(super) struct SignpostNodePorts {
    desired: Dataplane,
    localhost: LocalhostNodePorts,
}

/// The node ports that would close in one family.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Closing {
    family: Family,
    addresses: BTreeSet<IpAddr>,
    /// The number of current connections.
    flows: BTreeMap<(IpAddr, NodePort), u64>,
    /// The connections that kube-proxy's counters have counted.
    counts: BTreeMap<CountedPort, Count>,
    counted_at: CountedAt,
}

/// A node port that kube-proxy's rules count: at one address or, if they do not distinguish
/// addresses, at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct CountedPort {
    address: Option<IpAddr>,
    node_port: NodePort,
}

/// The number of connections to a node port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Count {
    /// Since kube-proxy wrote its rule.
    all: u64,
    /// Since the last check of this agent, if there was one.
    recent: Option<u64>,
}

/// Where the counted connections went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CountedAt {
    /// To addresses that close.
    Closing,
    /// To any address where kube-proxy's rules take node ports, of which some stay open.
    Any,
}

/// kube-proxy's counters, as of the last check.
#[derive(Debug, Default)]
pub(super) struct Counters(BTreeMap<(NodePortRules, Family), BTreeMap<CountedPort, u64>>);

/// Returns notes and warnings about node ports that would close; none if nothing closes.
/// `counters` are those of the last check, and become those of this one.
pub(super) fn observe_points(
    place: NodePortRules,
    family: Family,
    signpost: &SignpostNodePorts,
    counters: &mut Counters,
) -> Result<Vec<Point>, ScanError> {
    let taken = signpost.taken(family, &observe_entrance(place, family)?);
    let addresses = signpost.closing(&taken);
    if addresses.is_empty() {
        return Ok(Vec::new());
    }
    let flows = observe_flows(family, &addresses, |port| signpost.has(family, port))?;
    let (counts, counted_at) = match place {
        // Elements of its maps have no counters.
        NodePortRules::Nftables => (BTreeMap::new(), CountedAt::Any),
        NodePortRules::Iptables(variant) => {
            let counts = observe_counts(variant, family)?.into_iter();
            let counts = counts.map(|(node_port, all)| {
                let address = None;
                (CountedPort { address, node_port }, all)
            });
            let counted_at = match addresses == taken {
                true => CountedAt::Closing,
                false => CountedAt::Any,
            };
            let counts = counters.replace((place, family), counts.collect());
            (counts, counted_at)
        }
        NodePortRules::Ipvs => {
            let counts = observe_virtual_server_counts(family)?.into_iter();
            let counts = counts.filter(|((address, _), _)| addresses.contains(address));
            let counts = counts.map(|((address, node_port), all)| {
                let address = Some(address);
                (CountedPort { address, node_port }, all)
            });
            let counts = counters.replace((place, family), counts.collect());
            (counts, CountedAt::Closing)
        }
    };
    let closing = Closing {
        family,
        addresses,
        flows,
        counts,
        counted_at,
    };
    Ok(closing.points())
}

// === impl SignpostNodePorts ===

impl SignpostNodePorts {
    /// The node ports of `view`; `None` before there is a desired state.
    pub(super) fn of(view: &NodeView) -> Option<SignpostNodePorts> {
        Some(SignpostNodePorts {
            desired: view.desired.clone()?,
            localhost: view.effective.localhost_node_ports,
        })
    }

    /// Returns the node's addresses where `node_port_scope` accepts node ports.
    fn taken(&self, family: Family, node_port_scope: &NodePortScope) -> BTreeSet<IpAddr> {
        let addresses = self.desired.node().local_addresses.iter().copied();
        let addresses = addresses.filter(|address| Family::of(*address) == family);
        addresses
            .filter(|address| match node_port_scope {
                NodePortScope::At(at) => at.contains(address),
                NodePortScope::Everywhere(Loopback::Out) => !address.is_loopback(),
                // The kernel does not route packets from ::1 to other hosts.
                NodePortScope::Everywhere(Loopback::In) => {
                    !address.is_loopback() || family == Family::Ipv4
                }
            })
            .collect()
    }

    /// Returns those of the addresses where Signpost's rules accept no node ports.
    fn closing(&self, taken: &BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
        let addresses = taken.iter().copied();
        addresses.filter(|address| !self.takes(*address)).collect()
    }

    fn takes(&self, address: IpAddr) -> bool {
        match address.is_loopback() {
            true => self.localhost == LocalhostNodePorts::Userspace,
            false => self.desired.has_node_ports_at(address),
        }
    }

    fn has(&self, family: Family, (protocol, port): NodePort) -> bool {
        Port::new(port).is_some_and(|port| {
            let key = FrontendKey::NodePort {
                family,
                protocol,
                port,
            };
            self.desired.frontends().get(&key).is_some()
        })
    }
}

// === impl Closing ===

impl Closing {
    fn points(&self) -> Vec<Point> {
        let family = self.family;
        let addresses: Vec<String> = self.addresses.iter().map(IpAddr::to_string).collect();
        let mut points = vec![Point::note(format!(
            "{family}: node ports close at {}: kube-proxy's rules serve them there, Signpost's do not; nodePorts.addresses and \
             nodePorts.localhost of a profile open them",
            some_of(&addresses)
        ))];
        if !self.flows.is_empty() {
            let mut flows: Vec<_> = self.flows.iter().collect();
            flows.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
            let flows = flows
                .into_iter()
                .map(|((address, (protocol, port)), count)| {
                    let address = SocketAddr::new(*address, *port);
                    format!("{address}/{protocol} ({count} connections)")
                });
            let flows: Vec<String> = flows.collect();
            points.push(Point::warning(format!(
                "{family}: clients use node ports now at addresses that close, and their next connections would be \
                 refused: {}",
                some_of(&flows)
            )));
        }
        if !self.counts.is_empty() {
            let mut counts: Vec<_> = self.counts.iter().collect();
            counts.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
            let counts = counts
                .into_iter()
                .map(|(port, count)| format!("{port} ({count})"));
            let counts: Vec<String> = counts.collect();
            let counts = some_of(&counts);
            points.push(match self.counted_at {
                CountedAt::Closing => Point::warning(format!(
                    "{family}: since kube-proxy wrote their rules, clients have used node ports at addresses that close, \
                     and would be refused: {counts}"
                )),
                CountedAt::Any => Point::note(format!(
                    "{family}: node ports that were used since kube-proxy wrote their rules, which do not count by \
                     address: {counts}"
                )),
            });
        }
        points
    }
}

// === impl Counters ===

impl Counters {
    /// Replaces the counters of one family in one place. Returns them with what has come since.
    fn replace(
        &mut self,
        of: (NodePortRules, Family),
        counts: BTreeMap<CountedPort, u64>,
    ) -> BTreeMap<CountedPort, Count> {
        let before = self.0.insert(of, counts.clone());
        let counts = counts.into_iter().map(|(port, all)| {
            let recent = before.as_ref().map(|before| {
                let before = before.get(&port).copied().unwrap_or_default();
                // kube-proxy has written the rule again if its counter is behind.
                all.checked_sub(before).unwrap_or(all)
            });
            (port, Count { all, recent })
        });
        counts.collect()
    }
}

// === impl CountedPort ===

impl fmt::Display for CountedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (protocol, port) = self.node_port;
        match self.address {
            Some(address) => write!(f, "{}/{protocol}", SocketAddr::new(address, port)),
            None => write!(f, "{port}/{protocol}"),
        }
    }
}

// === impl Count ===

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Count { all, recent } = self;
        write!(f, "{all} connections")?;
        match recent {
            Some(recent) => write!(f, ", {recent} of them since the last check"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
