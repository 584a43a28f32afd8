//! The intended differences between the two proxies.

use std::collections::BTreeSet;

use super::Difference;
use super::case::{Front, Origin};
use super::configuration::{Configuration, NodePorts};
use super::mode::Mode;
use super::population::{Policy, Service};
use super::sight::{Seen, Sight};

/// An intended difference and its documentation.
#[derive(Debug, Clone, Copy)]
pub struct ExpectedDifference {
    /// The first cell of its row in `docs/parity.md`.
    pub row: &'static str,
    /// Whether a difference is this one: as narrow as possible.
    pub shows: fn(&Difference, &Service, Configuration) -> bool,
}

/// All intended differences. Any other difference is a bug in Signpost.
pub const EXPECTED_DIFFERENCES: &[ExpectedDifference] = &[
    ExpectedDifference {
        row: "session affinity",
        shows: |difference, _, configuration| {
            configuration.mode == Mode::Nftables
                && difference.case.front == Front::ClusterIpThenNodePort
                && difference.signpost.0.contains(&Seen::Unsteady)
        },
    },
    // The differences of mode iptables, each with its cause in kube-proxy's
    // pkg/proxy/iptables/proxier.go. kube-proxy has no rule for addresses in a Service CIDR without
    // a Service.
    ExpectedDifference {
        row: "a wrong port of a cluster IP is routed on",
        shows: |difference, _, configuration| {
            is_of_iptables(configuration)
                && difference.case.front == Front::WrongPort
                && is_ignored(&difference.kube_proxy)
                && is_only(&difference.signpost, Seen::Refused)
        },
    },
    ExpectedDifference {
        row: "an address in a Service CIDR that no Service has is routed on",
        shows: |difference, _, configuration| {
            // The cluster IP may be that of a deleted Service, or of one for another proxy.
            let asks_one = matches!(
                difference.case.front,
                Front::ClusterIp
                    | Front::ClusterIpThenNodePort
                    | Front::WrongPort
                    | Front::Unallocated
            );
            (is_of_iptables(configuration) || is_of_ipvs(configuration))
                && asks_one
                && !difference.signpost.has_answer()
                && silenced(&difference.kube_proxy) == difference.signpost
        },
    },
    // Only INPUT and FORWARD jump to KUBE-EXTERNAL-SERVICES (iptablesJumpChains).
    ExpectedDifference {
        row: "… at external and load-balancer IPs not in OUTPUT: what the node itself sends there is routed on",
        shows: |difference, _, configuration| {
            let asks_one = matches!(
                difference.case.front,
                Front::LoadBalancerIp | Front::ExternalIp
            );
            is_of_iptables(configuration)
                && difference.case.origin == Origin::Node
                && asks_one
                && is_ignored(&difference.kube_proxy)
                && is_only(&difference.signpost, Seen::Refused)
        },
    },
    // kube-proxy's rule has `-m addrtype --dst-type LOCAL` for any value of nodePortAddresses.
    ExpectedDifference {
        row: "… at node ports on every address of the node, also on those that take no node ports",
        shows: |difference, service, configuration| {
            let destination = difference.case.destination.ip();
            let asks_one = matches!(
                difference.case.front,
                Front::NodePort | Front::NodePortElsewhere | Front::NodePortAtLoopback
            );
            is_of_iptables(configuration)
                && asks_one
                && service.external == Policy::Local
                && !configuration.node_ports.take(destination)
                && is_only(&difference.kube_proxy, Seen::Silence)
                && is_only(&difference.signpost, Seen::Refused)
        },
    },
    // Without endpoints kube-proxy has no firewall chain (usesFWChain).
    ExpectedDifference {
        row: "source ranges: packets of sources that are not allowed pass table nat unchanged, and are dropped in table filter; only where there are endpoints",
        shows: |difference, service, configuration| {
            is_of_iptables(configuration)
                && difference.case.front == Front::LoadBalancerIp
                && !service.source_ranges.is_empty()
                && is_only(&difference.kube_proxy, Seen::Refused)
                && is_only(&difference.signpost, Seen::Silence)
        },
    },
    // kube-proxy supports this for IPv4 only: route_localnet has no IPv6 counterpart.
    ExpectedDifference {
        row: "node ports on localhost by `route_localnet=1`, IPv4; `KUBE-FIREWALL` against the martians that lets in",
        shows: |difference, _, configuration| {
            is_of_iptables(configuration)
                && configuration.node_ports == NodePorts::Anywhere
                && difference.case.front == Front::NodePortAtLoopback
                && difference.case.destination.is_ipv6()
                && !difference.kube_proxy.has_answer()
                && difference.signpost.has_answer()
        },
    },
    // The differences of mode ipvs, each with its cause in kube-proxy's pkg/proxy/ipvs/proxier.go.
    // A virtual server has one list of endpoints (syncEndpoint).
    ExpectedDifference {
        row: "policy Local: endpoints of this node for all clients, those of other nodes where there are none; no short-circuits",
        shows: |difference, service, configuration| {
            let Difference {
                case,
                kube_proxy,
                signpost,
            } = difference;
            let policy = match case.front {
                Front::ClusterIp | Front::ClusterIpThenNodePort => service.internal,
                _ => service.external,
            };
            let on_node = matches!(
                case.origin,
                Origin::Node | Origin::Pod | Origin::EndpointPod
            );
            is_of_ipvs(configuration)
                && policy == Policy::Local
                && (is_only(signpost, Seen::Silence)
                    || on_node && signpost.has_answer() && kube_proxy.has_answer())
        },
    },
    // All addresses but those of node ports are on kube-ipvs0, whose ports KUBE-IPVS-FILTER rejects.
    ExpectedDifference {
        row: "a wrong port of a load-balancer IP is refused",
        shows: |difference, _, configuration| {
            is_of_ipvs(configuration)
                && difference.case.front == Front::WrongPortOfLoadBalancer
                && is_only(&difference.kube_proxy, Seen::Refused)
                && is_ignored(&difference.signpost)
        },
    },
    ExpectedDifference {
        row: "no node ports on localhost",
        shows: |difference, _, configuration| {
            is_of_ipvs(configuration)
                && configuration.node_ports == NodePorts::Anywhere
                && difference.case.front == Front::NodePortAtLoopback
                && !difference.kube_proxy.has_answer()
        },
    },
];

fn is_of_ipvs(configuration: Configuration) -> bool {
    configuration.mode == Mode::Ipvs
}

fn is_of_iptables(configuration: Configuration) -> bool {
    configuration.mode.variant().is_some()
}

fn is_only(sight: &Sight, seen: Seen) -> bool {
    sight.0 == BTreeSet::from([seen])
}

/// Whether no rule matched: the packet left the node, and no host has its destination.
fn is_ignored(sight: &Sight) -> bool {
    let went_on = |seen: &Seen| matches!(seen, Seen::Silence | Seen::Failed(_));
    sight.0.iter().all(went_on)
}

/// Returns what clients would have observed if unmatched packets had been dropped.
fn silenced(sight: &Sight) -> Sight {
    let silenced = |seen: &Seen| match seen {
        Seen::Failed(_) => Seen::Silence,
        seen => seen.clone(),
    };
    Sight(sight.0.iter().map(silenced).collect())
}
