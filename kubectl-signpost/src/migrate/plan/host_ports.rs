//! Host ports of Pods that are ports of Services, too, and that a takeover gives from one to the
//! other. Pure.
//!
//! Where another one certainly answers afterwards, that is an obstacle, and where the API does not say
//! which one answers now, a warning. Which backend plugin portmap has, the API does not say either.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crds::EffectiveConfig;
use crds::address::NodePortAddress;
use crds::condition::reason::{KUBE_PROXY_IPTABLES, KUBE_PROXY_IPVS, KUBE_PROXY_NFTABLES};
use crds::condition::{FOREIGN_PROXY_DETECTED, Status, status_of};
use crds::host_ports::{Change, GIVE_ANOTHER_PORT, Kind, OwnRules, Proxy, Tables};
use crds::profile::mode::Mode;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::find;
use super::obstacle::{Obstacle, Warning};
use super::service_ports::{ServicePorts, Sources};
use crate::check::first;
use crate::pod_network::{PodNetwork, Protocol};

/// The Services that have a port of nodes, by protocol and number.
type Index<'a> = BTreeMap<(Protocol, i32), Vec<(&'a ServicePorts, Kind)>>;

/// A node before its takeover.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mover<'a> {
    pub(super) node: &'a Node,
    /// The conditions of its NodeProxy.
    pub(super) conditions: &'a [Condition],
    pub(super) config: &'a EffectiveConfig,
}

/// A common port that changes hands.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Clash<'a> {
    protocol: Protocol,
    port: i32,
    service: &'a str,
    kind: Kind,
    change: Change,
}

/// The host ports of a node that change hands, or may.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Findings {
    /// Another one answers after the takeover.
    pub(super) obstacles: Vec<Obstacle>,
    /// Another one may answer.
    pub(super) warnings: Vec<Warning>,
}

/// Returns for each node the host ports of its Pods that change hands. Nodes that have the same in
/// common have the same finding, so that it is printed once.
pub(super) fn find_clashes(
    movers: &[Mover<'_>],
    pods: &[PodNetwork],
    services: &[ServicePorts],
) -> BTreeMap<String, Findings> {
    let movers = movers.iter();
    let movers: BTreeMap<String, (Mover<'_>, Change)> = movers
        .filter_map(|mover| Some((mover.node.name_any(), (*mover, change_of(mover)?))))
        .collect();
    let services = index(services);
    let mut clashes: BTreeMap<Clash<'_>, BTreeSet<(&str, &str)>> = BTreeMap::new();
    for pod in pods {
        let Some((mover, change)) = movers.get(&pod.node) else {
            continue;
        };
        for host_port in &pod.host_ports {
            let key = (host_port.protocol, host_port.port);
            let alike = services.get(&key).map_or(&[][..], Vec::as_slice);
            let takes = |service, kind| mover.takes(host_port.address, service, kind);
            // A load-balancer IP comes before an external IP at the same address.
            let is_balanced = alike.iter().any(|(service, kind)| {
                let of_balancer = [Kind::LoadBalancer, Kind::LoadBalancerWithRanges];
                of_balancer.contains(kind) && takes(service, *kind)
            });
            for (service, kind) in alike {
                let is_after = *kind == Kind::External && is_balanced;
                if is_after || !change.moves(*kind) || !takes(service, *kind) {
                    continue;
                }
                let clash = Clash {
                    protocol: host_port.protocol,
                    port: host_port.port,
                    service: &service.name,
                    kind: *kind,
                    change: *change,
                };
                let found = clashes.entry(clash).or_default();
                found.insert((&pod.node, &pod.name));
            }
        }
    }
    let mut findings: BTreeMap<String, Findings> = BTreeMap::new();
    for (clash, pods) in clashes {
        let names: BTreeSet<String> = pods.iter().map(|(_, pod)| (*pod).to_owned()).collect();
        let what = clash.in_words(&names);
        let nodes: BTreeSet<&str> = pods.iter().map(|(node, _)| *node).collect();
        for node in nodes {
            let of_node = findings.entry(node.to_owned()).or_default();
            let what = what.clone();
            match clash.change.is_certain(clash.kind) {
                false => of_node.warnings.push(Warning {
                    what,
                    next: GIVE_ANOTHER_PORT.to_owned(),
                }),
                true => of_node.obstacles.push(Obstacle {
                    what,
                    next: format!("{GIVE_ANOTHER_PORT}; to ignore this, run again with --force"),
                    yields_to_force: true,
                }),
            }
        }
    }
    findings
}

fn index(services: &[ServicePorts]) -> Index<'_> {
    let mut index = Index::new();
    for service in services {
        for port in &service.node_ports {
            let found = index.entry(*port).or_default();
            found.push((service, Kind::NodePort));
        }
        let kind = match service.sources {
            Sources::All => Kind::LoadBalancer,
            Sources::InRanges => Kind::LoadBalancerWithRanges,
        };
        let balanced = service.ports.iter();
        for port in balanced.filter(|_| !service.load_balancer_ips.is_empty()) {
            index.entry(*port).or_default().push((service, kind));
        }
        let external = service.ports.iter();
        for port in external.filter(|_| !service.external_ips.is_empty()) {
            let found = index.entry(*port).or_default();
            found.push((service, Kind::External));
        }
    }
    index
}

// === impl Mover ===

impl Mover<'_> {
    /// Whether a port of `service` at this address of the node, or at any, is the proxies': Signpost
    /// takes it, or at an external IP kube-proxy does.
    fn takes(&self, address: Option<IpAddr>, service: &ServicePorts, kind: Kind) -> bool {
        if kind == Kind::NodePort {
            return self.takes_node_ports(address);
        }
        // An ExternalIP may be on no device of the node, and then both proxies serve it.
        let (own, mut ips) = match kind {
            Kind::External => (self.addresses_of("InternalIP"), service.external_ips.iter()),
            Kind::NodePort | Kind::LoadBalancer | Kind::LoadBalancerWithRanges => {
                (self.addresses(), service.load_balancer_ips.iter())
            }
        };
        ips.any(|ip| own.contains(ip) && address.is_none_or(|at| at == *ip))
    }

    /// Whether Signpost takes node ports at this address of the node, or at any.
    fn takes_node_ports(&self, address: Option<IpAddr>) -> bool {
        let Some(address) = address else {
            return true;
        };
        let is_alike = |other: &IpAddr| other.is_ipv4() == address.is_ipv4();
        let listed = &self.config.node_port_addresses;
        if listed.contains(&NodePortAddress::Primary) {
            return self.addresses().into_iter().find(is_alike) == Some(address);
        }
        let ranges = listed.iter().filter_map(|entry| match entry {
            NodePortAddress::Within(cidr) => Some(cidr.net()),
            NodePortAddress::Primary => None,
        });
        let mut ranges = ranges.filter(|range| is_alike(&range.addr())).peekable();
        // A list without an entry of a family leaves that family open.
        let is_open = ranges.peek().is_none() || ranges.any(|range| range.contains(&address));
        is_open && !address.is_loopback()
    }

    /// Returns the addresses in the Node's status, InternalIPs first.
    fn addresses(&self) -> Vec<IpAddr> {
        let own = ["InternalIP", "ExternalIP"].map(|kind| self.addresses_of(kind));
        own.concat()
    }

    fn addresses_of(&self, kind: &str) -> Vec<IpAddr> {
        let status = self.node.status.as_ref();
        let listed = status.and_then(|status| status.addresses.as_ref());
        let listed = listed.into_iter().flatten();
        let own = listed.filter(|listed| listed.type_ == kind);
        own.filter_map(|own| own.address.parse().ok()).collect()
    }
}

/// Returns the change of modes; `None` if it is not known.
fn change_of(mover: &Mover<'_>) -> Option<Change> {
    let conditions = mover.conditions;
    if status_of(conditions, FOREIGN_PROXY_DETECTED) != Status::True {
        return None;
    }
    let reason = &find(conditions, FOREIGN_PROXY_DETECTED)?.reason;
    let of_reason = [
        (KUBE_PROXY_NFTABLES, Mode::Nftables),
        (KUBE_PROXY_IPTABLES, Mode::Iptables),
        (KUBE_PROXY_IPVS, Mode::Ipvs),
    ];
    let mut of_reason = of_reason.into_iter();
    let (_, from) = of_reason.find(|(known, _)| known.name == reason)?;
    let tables = Tables::Shared;
    let proxy = |mode| Proxy { mode, tables };
    Some(Change {
        from: proxy(from),
        to: proxy(mover.config.mode),
        own_rules: OwnRules::of(conditions),
    })
}

// === impl Clash ===

impl Clash<'_> {
    fn in_words(&self, pods: &BTreeSet<String>) -> String {
        let Clash {
            protocol,
            port,
            service,
            kind,
            change,
        } = self;
        let protocol = protocol.name();
        let of = kind.in_words();
        format!(
            "host port {port}/{protocol} ({}) is also {of} of Service {service}: {}",
            first(pods.iter()),
            change.in_words(*kind)
        )
    }
}

#[cfg(test)]
mod tests;
