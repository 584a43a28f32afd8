//! The node ports that a takeover would close: those on addresses where kube-proxy's rules accept
//! them and Signpost's do not.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crds::profile::forwarding::LocalhostNodePorts;
use dataplane::{Dataplane, Family, FrontendKey, Port};

use super::preflight::{Point, some_of};
use crate::engine::View;
use foreign_proxy::Mechanism;
use foreign_proxy::kernel::ScanError;
use foreign_proxy::node_ports::{
    Loopback, NodePort, NodePortScope, observe_counts, observe_entrance, observe_flows,
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
    /// The number of connections since kube-proxy wrote its rules, at any address.
    counts: BTreeMap<NodePort, u64>,
}

/// Returns notes and warnings about node ports that would close; none if nothing closes.
pub(super) fn observe_points(
    mechanism: Mechanism,
    family: Family,
    signpost: &SignpostNodePorts,
) -> Result<Vec<Point>, ScanError> {
    let addresses = signpost.closing(family, &observe_entrance(mechanism, family)?);
    if addresses.is_empty() {
        return Ok(Vec::new());
    }
    let flows = observe_flows(family, &addresses, |port| signpost.has(family, port))?;
    let counts = match mechanism {
        Mechanism::Iptables => observe_counts(family)?,
        Mechanism::Nftables | Mechanism::Ipvs => BTreeMap::new(),
    };
    let closing = Closing {
        family,
        addresses,
        flows,
        counts,
    };
    Ok(closing.points())
}

// === impl SignpostNodePorts ===

impl SignpostNodePorts {
    /// The node ports of `view`; `None` before there is a desired state.
    pub(super) fn of(view: &View) -> Option<SignpostNodePorts> {
        Some(SignpostNodePorts {
            desired: view.desired.clone()?,
            localhost: view.effective.localhost_node_ports,
        })
    }

    /// Returns the node's addresses where `node_port_scope` accepts node ports and Signpost's rules do
    /// not.
    fn closing(&self, family: Family, node_port_scope: &NodePortScope) -> BTreeSet<IpAddr> {
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
            .filter(|address| !self.takes(*address))
            .collect()
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
                    let address = std::net::SocketAddr::new(*address, *port);
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
            let counts = counts.into_iter().map(|((protocol, port), count)| {
                format!("{port}/{protocol} ({count} connections)")
            });
            let counts: Vec<String> = counts.collect();
            points.push(Point::note(format!(
                "{family}: node ports that were used since kube-proxy wrote their rules, which do not count by \
                 address: {}",
                some_of(&counts)
            )));
        }
        points
    }
}

#[cfg(test)]
mod tests;
