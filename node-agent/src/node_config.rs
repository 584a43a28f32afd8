//! Converts the node's configuration and addresses to the compiler's input. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use catalog::OwnNode;
use crds::EffectiveConfig;
use crds::address::NodePortAddress;
use crds::profile::detect_local::{DetectLocal, DetectLocalMode};
use crds::profile::forwarding as profile;
use crds::profile::mode::{Ipvs, Mode as ProfileMode};
use crds::span::Span;
use dataplane::{
    Config, ExternalIps, Family, InterfaceMatch, IpvsTimeouts, LocalDetection, Mark, Masquerade,
    Node, NodePortAddresses, Scheduler, is_ipv6_link_local,
};
use ipnet::IpNet;
use modes::profile_mode::from_profile;
use source::LocalAddresses;

/// The facts about this node that complete its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The node's name.
    pub(crate) name: Arc<str>,
    /// Its Node object, as far as it is known.
    pub(crate) own: Option<OwnNode>,
    /// The addresses of this network namespace, all as [`without_unused_link_local`] leaves them.
    pub(crate) addresses: LocalAddresses,
    /// As [`flowtable_interfaces`] returns them.
    pub(crate) flowtable_interfaces: Option<BTreeSet<Arc<str>>>,
    /// The cluster's Service CIDRs.
    pub(crate) service_cidrs: BTreeSet<IpNet>,
}

/// Returns `observed` without the IPv6 link-local addresses that no range of `effective` selects
/// for node ports. The host side of each Pod's link has a different one, which would otherwise
/// cause a sync for each Pod.
pub(crate) fn without_unused_link_local(
    observed: &BTreeSet<IpAddr>,
    effective: &EffectiveConfig,
) -> BTreeSet<IpAddr> {
    let ranges = ranges(&effective.node_port_addresses, Family::Ipv6);
    let chosen = |address: &IpAddr| {
        !is_everything(&ranges) && ranges.iter().any(|range| range.contains(address))
    };
    let addresses = observed.iter().copied();
    addresses
        .filter(|address| !is_ipv6_link_local(*address) || chosen(address))
        .collect()
}

/// Returns the interfaces of `observed` that `effective` selects for the flowtable; `None` if it asks
/// for none.
pub(crate) fn flowtable_interfaces(
    observed: &BTreeSet<Arc<str>>,
    effective: &EffectiveConfig,
) -> Option<BTreeSet<Arc<str>>> {
    if !asks_for_flowtable(effective) {
        return None;
    }
    let patterns = &effective.nftables.flowtable_interfaces;
    let is_selected = |name: &&Arc<str>| patterns.iter().any(|pattern| pattern.matches(name));
    Some(observed.iter().filter(is_selected).cloned().collect())
}

/// Whether `effective` asks for a flowtable.
pub(crate) fn asks_for_flowtable(effective: &EffectiveConfig) -> bool {
    !effective.nftables.flowtable_interfaces.is_empty() && effective.mode == ProfileMode::Nftables
}

/// Converts the timeouts. A timeout of zero leaves the kernel's value.
fn ipvs_timeouts(profile: &Ipvs) -> IpvsTimeouts {
    let asked = |span: Span| (span != Span::ZERO).then(|| span.duration());
    IpvsTimeouts {
        tcp: asked(profile.tcp_timeout),
        tcp_fin: asked(profile.tcp_fin_timeout),
        udp: asked(profile.udp_timeout),
        drain: asked(profile.drain_timeout),
    }
}

/// Converts a profile's scheduler.
fn scheduler(profile: profile::Scheduler) -> Scheduler {
    match profile {
        profile::Scheduler::Random => Scheduler::Random,
        profile::Scheduler::RoundRobin | profile::Scheduler::Rr => Scheduler::RoundRobin,
        profile::Scheduler::SourceHash | profile::Scheduler::Sh => Scheduler::SourceHash,
        profile::Scheduler::Maglev | profile::Scheduler::Mh => Scheduler::Maglev,
        profile::Scheduler::Wrr => Scheduler::WeightedRoundRobin,
        profile::Scheduler::Lc => Scheduler::LeastConnection,
        profile::Scheduler::Wlc => Scheduler::WeightedLeastConnection,
        profile::Scheduler::Lblc => Scheduler::LocalityLeastConnection,
        profile::Scheduler::Lblcr => Scheduler::LocalityLeastConnectionReplicated,
        profile::Scheduler::Dh => Scheduler::DestinationHash,
        profile::Scheduler::Sed => Scheduler::ShortestExpectedDelay,
        profile::Scheduler::Nq => Scheduler::NeverQueue,
        profile::Scheduler::Fo => Scheduler::Failover,
        profile::Scheduler::Ovf => Scheduler::Overflow,
        profile::Scheduler::Twos => Scheduler::PowerOfTwo,
    }
}

/// Returns the blocks of `family` in `list`.
fn ranges(list: &[NodePortAddress], family: Family) -> Vec<IpNet> {
    let blocks = list.iter().filter_map(|entry| match entry {
        NodePortAddress::Within(cidr) => Some(cidr.net()),
        NodePortAddress::Primary => None,
    });
    blocks
        .filter(|range| Family::of(range.addr()) == family)
        .collect()
}

/// Returns whether a list with these blocks of a family opens every address of it.
fn is_everything(ranges: &[IpNet]) -> bool {
    ranges.is_empty() || ranges.iter().any(|range| range.prefix_len() == 0)
}

impl Facts {
    /// Returns the node as the compiler's input.
    pub(crate) fn node(&self) -> Node {
        let own = self.own.as_ref();
        Node {
            name: Arc::clone(&self.name),
            zone: own.and_then(|own| own.zone.clone()),
            ipv4: own.and_then(|own| self.given_or_present(own.ipv4, own.last_given.ipv4)),
            ipv6: own.and_then(|own| self.given_or_present(own.ipv6, own.last_given.ipv6)),
            local_addresses: self.addresses.all.clone(),
            proxy_addresses: self.addresses.of_proxies.clone(),
            flowtable_interfaces: self.flowtable_interfaces.clone(),
        }
    }

    /// Returns the address in the Node object or, if that has none, the last one, provided an
    /// interface still has it. Node ports thus stay open if the object loses its addresses, and
    /// close if an address leaves the node.
    fn given_or_present<A: Copy + Into<IpAddr>>(
        &self,
        said: Option<A>,
        last: Option<A>,
    ) -> Option<A> {
        said.or_else(|| last.filter(|last| self.addresses.all.contains(&(*last).into())))
    }

    /// Completes `effective` with the facts about the node.
    pub(crate) fn config(&self, effective: &EffectiveConfig) -> Config {
        Config {
            mode: from_profile(effective.mode),
            node_ports: NodePortAddresses {
                ipv4: self.node_port_addresses(&effective.node_port_addresses, Family::Ipv4),
                ipv6: self.node_port_addresses(&effective.node_port_addresses, Family::Ipv6),
            },
            local_detection: self.local_detection(&effective.detect_local),
            masquerade: if effective.masquerade.all {
                Masquerade::All
            } else {
                Masquerade::NonLocal
            },
            mark: Mark::from_bit(effective.masquerade.mark_bit).unwrap_or_default(),
            service_cidrs: self.service_cidrs.clone(),
            external_ips: if effective.allow_service_external_ips {
                ExternalIps::Honoured
            } else {
                ExternalIps::Ignored
            },
            scheduler: scheduler(effective.scheduler),
            ipvs_timeouts: ipvs_timeouts(&effective.ipvs),
        }
    }

    /// Returns the addresses of `family` that accept node ports; `None` means all of them. A list
    /// without an entry for a family leaves that family open, as in kube-proxy. But `primary` on a
    /// node that has no address of a family opens nothing in it, whereas kube-proxy opens
    /// everything.
    fn node_port_addresses(
        &self,
        list: &[NodePortAddress],
        family: Family,
    ) -> Option<BTreeSet<IpAddr>> {
        let primary = list
            .iter()
            .any(|entry| matches!(entry, NodePortAddress::Primary));
        if primary {
            let own = self.own.as_ref().and_then(|own| {
                self.given_or_present(own.address(family), own.last_given.address(family))
            });
            return Some(own.into_iter().filter(|ip| !ip.is_loopback()).collect());
        }
        let ranges = ranges(list, family);
        if is_everything(&ranges) {
            return None;
        }
        let inside = |address: &&IpAddr| ranges.iter().any(|range| range.contains(*address));
        Some(self.addresses.all.iter().filter(inside).copied().collect())
    }

    fn local_detection(&self, detect: &DetectLocal) -> LocalDetection {
        let source = |ranges: Vec<IpNet>| {
            let ipv4 = ranges.iter().find_map(|range| match range {
                IpNet::V4(range) => Some(range.trunc()),
                IpNet::V6(_) => None,
            });
            let ipv6 = ranges.iter().find_map(|range| match range {
                IpNet::V6(range) => Some(range.trunc()),
                IpNet::V4(_) => None,
            });
            LocalDetection::Source { ipv4, ipv6 }
        };
        match detect.mode {
            DetectLocalMode::NodeCidr => {
                let own = self.own.as_ref();
                source(own.map_or_else(Vec::new, |own| own.pod_cidrs.clone()))
            }
            DetectLocalMode::ClusterCidr => {
                source(detect.cluster_cidrs.iter().map(|cidr| cidr.net()).collect())
            }
            DetectLocalMode::BridgeInterface => LocalDetection::Interface(InterfaceMatch::Named(
                detect.bridge_interface.as_str().into(),
            )),
            DetectLocalMode::InterfaceNamePrefix => LocalDetection::Interface(
                InterfaceMatch::Prefix(detect.interface_name_prefix.as_str().into()),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::time::Duration;

    use catalog::{LastKnownAddresses, NodeLifecycle};
    use crds::ProxyProfileSpec;
    use dataplane::Mode;

    fn facts() -> Facts {
        let own = OwnNode {
            name: "node-1".into(),
            labels: BTreeMap::new(),
            zone: Some("a".into()),
            ipv4: Some([192, 168, 0, 1].into()),
            ipv6: None,
            last_given: LastKnownAddresses {
                ipv4: Some([192, 168, 0, 1].into()),
                ipv6: Some("fd00:192:168::9".parse().expect("an address")),
            },
            pod_cidrs: vec![
                "10.0.1.0/24".parse().expect("a range"),
                "fd00:10:0:1::/64".parse().expect("a range"),
            ],
            lifecycle: NodeLifecycle::Staying,
        };
        let addresses = [
            "127.0.0.1",
            "::1",
            "192.168.0.1",
            "172.20.0.1",
            "fd00:192:168::1",
        ];
        Facts {
            name: "node-1".into(),
            own: Some(own),
            addresses: addresses
                .map(|address| address.parse().expect("an address"))
                .into(),
            flowtable_interfaces: None,
            service_cidrs: BTreeSet::new(),
        }
    }

    fn config(yaml: &str) -> Config {
        let spec: ProxyProfileSpec = serde_saphyr::from_str(yaml).expect("a spec");
        facts().config(&EffectiveConfig::of(&spec))
    }

    fn set(addresses: &[&str]) -> Option<BTreeSet<IpAddr>> {
        let parse = |address: &&str| address.parse().expect("an address");
        Some(addresses.iter().map(parse).collect())
    }

    #[test]
    fn a_name_means_the_same_in_a_profile_and_at_a_service() {
        let names = Scheduler::ALL
            .into_iter()
            .flat_map(|scheduler| [Some(scheduler.name()), scheduler.ipvs_name()]);
        for name in names.flatten() {
            let config = config(&format!("loadBalancer: {{scheduler: {name}}}"));
            assert_eq!(name.parse(), Ok(config.scheduler), "{name}");
        }
    }

    #[test]
    fn primary_is_the_nodes_own_address_and_opens_nothing_in_a_family_without_one() {
        let node_ports = config("nodePorts: {addresses: [primary]}").node_ports;
        assert_eq!(node_ports.ipv4, set(&["192.168.0.1"]));
        assert_eq!(node_ports.ipv6, set(&[]));
    }

    #[test]
    fn ranges_choose_among_the_addresses_the_node_has() {
        let node_ports = config("nodePorts: {addresses: [172.20.0.0/16, 10.0.0.0/8]}").node_ports;
        assert_eq!(node_ports.ipv4, set(&["172.20.0.1"]));
        assert_eq!(node_ports.ipv6, None, "nothing was said of this family");
    }

    #[test]
    fn ranges_choose_link_local_addresses_too_and_others_of_these_are_not_listed() {
        let observed: BTreeSet<IpAddr> =
            ["192.168.0.1", "169.254.20.10", "fe80::1", "fe80:0:0:1::2"]
                .map(|text| text.parse().expect("an address"))
                .into();
        let listed = |yaml: &str| {
            let spec: ProxyProfileSpec = serde_saphyr::from_str(yaml).expect("a spec");
            let effective = EffectiveConfig::of(&spec);
            let facts = Facts {
                addresses: without_unused_link_local(&observed, &effective).into(),
                ..facts()
            };
            (
                facts.config(&effective).node_ports,
                Some(facts.addresses.all),
            )
        };
        let (open, known) = listed("nodePorts: {addresses: [169.254.0.0/16, 'fe80::/64']}");
        assert_eq!(open.ipv4, set(&["169.254.20.10"]));
        assert_eq!(open.ipv6, set(&["fe80::1"]));
        assert_eq!(known, set(&["192.168.0.1", "169.254.20.10", "fe80::1"]));
        for yaml in [
            "nodePorts: {addresses: [primary]}",
            "nodePorts: {addresses: [0.0.0.0/0, '::/0']}",
            "nodePorts: {addresses: ['fd00::/8']}",
        ] {
            let (_, known) = listed(yaml);
            assert_eq!(known, set(&["192.168.0.1", "169.254.20.10"]), "{yaml}");
        }
    }

    #[test]
    fn patterns_select_interfaces_for_the_flowtable_in_mode_nftables() {
        let observed = ["eth0", "eth1", "veth1", "cni0"]
            .map(Arc::<str>::from)
            .into();
        let selected = |yaml: &str| {
            let spec: ProxyProfileSpec = serde_saphyr::from_str(yaml).expect("a spec");
            let selected = flowtable_interfaces(&observed, &EffectiveConfig::of(&spec))?;
            Some(Vec::from_iter(selected).join(" "))
        };
        let some = "nftables: {flowtableInterfaces: [eth0, 'veth*']}";
        assert_eq!(selected(some).as_deref(), Some("eth0 veth1"));
        let none_yet = "nftables: {flowtableInterfaces: [bond0]}";
        assert_eq!(selected(none_yet).as_deref(), Some(""));
        for off in [
            "{}",
            "nftables: {flowtableInterfaces: []}",
            &format!("mode: iptables\n{some}"),
        ] {
            assert_eq!(selected(off), None, "{off}");
        }
    }

    #[test]
    fn an_empty_prefix_opens_everything() {
        let node_ports = config("nodePorts: {addresses: [172.20.0.0/16, 0.0.0.0/0]}").node_ports;
        assert_eq!(node_ports.ipv4, None);
    }

    #[test]
    fn the_mode_is_that_of_the_mode() {
        let of_mode = |mode: &str| config(&format!("mode: {mode}")).mode;
        assert_eq!(of_mode("nftables"), Mode::Nftables);
        assert_eq!(of_mode("iptables"), Mode::Iptables);
        assert_eq!(of_mode("ipvs"), Mode::Ipvs);
    }

    #[test]
    fn a_timeout_of_zero_leaves_the_kernels() {
        let timeouts = config("ipvs: {tcpTimeout: 15m, tcpFinTimeout: 0s}").ipvs_timeouts;
        let expected = IpvsTimeouts {
            tcp: Some(Duration::from_secs(900)),
            ..IpvsTimeouts::default()
        };
        assert_eq!(timeouts, expected);
    }

    #[test]
    fn local_traffic_is_recognised_by_the_nodes_pod_ranges_unless_something_else_is_configured() {
        let by_node = config("{}").local_detection;
        assert_eq!(
            by_node.source(Family::Ipv4),
            Some("10.0.1.0/24".parse().expect("a range"))
        );
        let by_bridge = config("detectLocal: {mode: BridgeInterface, bridgeInterface: cni0}");
        assert_eq!(
            by_bridge.local_detection,
            LocalDetection::Interface(InterfaceMatch::Named("cni0".into()))
        );
    }
}
