//! Who answers at a port of a node that is both a Pod's host port and a Service's, before and after a
//! takeover. Pure.
//!
//! A host port is a DNAT rule of CNI plugin portmap. Which rule comes first is a matter of the
//! proxy's mode (decision 0027). Where Signpost's rules are beside kube-proxy's, they decide already,
//! and a takeover changes nothing (decision 0076).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::condition::{IPV4_PROGRAMMED, IPV6_PROGRAMMED, READY, Status, status_of};
use crate::profile::mode::Mode;
use crate::starter::is_handed_back;

/// The next step about a common port.
pub const GIVE_ANOTHER_PORT: &str = "give the Pods or the Service another port, or make sure that clients of this port may reach the other one";

/// What a port of nodes is of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A node port.
    NodePort,
    /// A port of a load-balancer IP that is the node's address.
    LoadBalancer,
    /// The same, with `loadBalancerSourceRanges`.
    LoadBalancerWithRanges,
    /// A port of an external IP that is the node's address. Signpost serves none there.
    External,
}

/// Which of the two a connection to the common port reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PortRecipient {
    /// The Service.
    Service,
    /// The Pod.
    Pod,
    /// It depends on which program attached its rules last.
    Latest,
}

/// A proxy, as seen from the rule of a host port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Proxy {
    /// Its mode.
    pub mode: Mode,
    /// Where its rules of iptables are, if the mode has any.
    pub tables: Tables,
}

/// Whether a proxy in mode iptables, or kube-proxy in mode ipvs, has its rules of iptables in the table
/// of the host port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tables {
    /// It does, and puts them before all others.
    Shared,
    /// The host port is in the other variant of iptables, or in a table of its own.
    Separate,
}

/// What a takeover changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change {
    /// kube-proxy.
    pub from: Proxy,
    /// Signpost.
    pub to: Proxy,
    /// Signpost's rules before it.
    pub own_rules: OwnRules,
}

/// Signpost's rules before a takeover, on a node or in one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OwnRules {
    /// They are beside kube-proxy's.
    Present,
    /// The node was handed back, or nothing is programmed.
    Absent,
}

// === impl Change ===

impl Change {
    /// Whether the takeover makes another one of the two answer.
    #[must_use]
    pub fn moves(self, kind: Kind) -> bool {
        let after = self.after(kind);
        let before = match self.own_rules {
            // Signpost's rules, which give a Service precedence, do so beside kube-proxy's, too.
            OwnRules::Present if after != PortRecipient::Pod => after,
            OwnRules::Present | OwnRules::Absent => self.before(kind),
        };
        before != after
    }

    /// Whether it is certain which one answers before and after.
    #[must_use]
    pub fn is_certain(self, kind: Kind) -> bool {
        self.before(kind) != PortRecipient::Latest && self.after(kind) != PortRecipient::Latest
    }

    /// By kube-proxy's rules: modes iptables and ipvs put them before all others of their table, and mode
    /// nftables has portmap's priority. Virtual servers take packets after DNAT. Mode ipvs therefore
    /// accepts packets to external and load-balancer IPs, from every source, which ends that table for
    /// them; it does not accept those to node ports (`externalIPRules` and `acceptIPVSTraffic` in
    /// pkg/proxy/ipvs/proxier.go).
    fn before(self, kind: Kind) -> PortRecipient {
        match (self.from.mode, self.from.tables, kind) {
            (Mode::Nftables, ..) | (Mode::Iptables, Tables::Separate, _) => PortRecipient::Latest,
            (Mode::Ipvs, Tables::Separate, _) | (Mode::Ipvs, _, Kind::NodePort) => {
                PortRecipient::Pod
            }
            (Mode::Iptables | Mode::Ipvs, Tables::Shared, _) => PortRecipient::Service,
        }
    }

    /// By Signpost's rules, without kube-proxy's.
    fn after(self, kind: Kind) -> PortRecipient {
        match (self.to.mode, kind) {
            (Mode::Ipvs, Kind::LoadBalancerWithRanges) => PortRecipient::Pod,
            // Refused by Signpost, and reported.
            (_, Kind::External) => PortRecipient::Pod,
            (Mode::Iptables, _) if self.to.tables == Tables::Separate => PortRecipient::Latest,
            (Mode::Nftables | Mode::Iptables | Mode::Ipvs, _) => PortRecipient::Service,
        }
    }

    /// Says who answers before and after.
    #[must_use]
    pub fn in_words(self, kind: Kind) -> String {
        format!(
            "in kube-proxy's mode {} {}, in Signpost's mode {} {}",
            self.from.mode,
            self.before(kind).in_words(),
            self.to.mode,
            self.after(kind).in_words()
        )
    }
}

// === impl OwnRules ===

impl OwnRules {
    /// By the conditions of a NodeProxy: whether they are there in each family.
    #[must_use]
    pub fn of(conditions: &[Condition]) -> OwnRules {
        let families = [IPV4_PROGRAMMED, IPV6_PROGRAMMED];
        let in_families = families.map(|programmed| OwnRules::in_family(conditions, programmed));
        match in_families.contains(&OwnRules::Absent) {
            true => OwnRules::Absent,
            false => OwnRules::Present,
        }
    }

    /// By the conditions of a NodeProxy: whether they are there in the family of which condition
    /// `programmed` tells.
    #[must_use]
    pub fn in_family(conditions: &[Condition], programmed: &str) -> OwnRules {
        let is = |kind| status_of(conditions, kind) == Status::True;
        match (is(READY) || is(programmed)) && !is_handed_back(conditions) {
            true => OwnRules::Present,
            false => OwnRules::Absent,
        }
    }
}

// === impl Kind ===

impl Kind {
    /// Says what the port is, to be followed by `of Service`.
    #[must_use]
    pub fn in_words(self) -> &'static str {
        match self {
            Kind::NodePort => "a node port",
            Kind::LoadBalancer | Kind::LoadBalancerWithRanges => {
                "a port of a load-balancer IP that is the node's address"
            }
            Kind::External => {
                "a port of an external IP that is the node's address, where Signpost serves none,"
            }
        }
    }
}

// === impl PortRecipient ===

impl PortRecipient {
    fn in_words(self) -> &'static str {
        match self {
            PortRecipient::Service => "the Service answers",
            PortRecipient::Pod => "the Pod answers",
            PortRecipient::Latest => "the program that attached its rules last decides",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(from: (Mode, Tables), to: (Mode, Tables), own_rules: OwnRules) -> Change {
        let proxy = |(mode, tables)| Proxy { mode, tables };
        Change {
            from: proxy(from),
            to: proxy(to),
            own_rules,
        }
    }

    #[test]
    fn rules_in_another_table_than_the_host_ports_decide_by_the_order_of_attachment() {
        let shared = (Mode::Iptables, Tables::Shared);
        let separate = (Mode::Iptables, Tables::Separate);
        let nftables = (Mode::Nftables, Tables::Separate);
        let moves = |from, to, own_rules| change(from, to, own_rules).moves(Kind::NodePort);
        assert!(!moves(shared, nftables, OwnRules::Absent));
        assert!(moves(separate, nftables, OwnRules::Absent));
        assert!(!moves(separate, separate, OwnRules::Absent));
        assert!(moves(shared, separate, OwnRules::Absent));
        let is_certain = |from, kind| change(from, nftables, OwnRules::Absent).is_certain(kind);
        assert!(is_certain(shared, Kind::External));
        assert!(!is_certain(separate, Kind::External));
        // In mode ipvs of kube-proxy they decide nothing.
        let ipvs = (Mode::Ipvs, Tables::Separate);
        for kind in [Kind::LoadBalancer, Kind::LoadBalancerWithRanges] {
            assert!(change(ipvs, nftables, OwnRules::Absent).moves(kind));
        }
        assert!(!change(ipvs, nftables, OwnRules::Absent).moves(Kind::External));
        // Signpost's rules are there before as after.
        for from in [shared, separate, nftables, (Mode::Ipvs, Tables::Separate)] {
            for to in [shared, separate, nftables] {
                assert!(!moves(from, to, OwnRules::Present), "{from:?} {to:?}");
            }
        }
    }

    /// Failure story T317: what kube-proxy's mode ipvs accepts, no later rule of the table redirects.
    #[test]
    fn mode_ipvs_of_kube_proxy_leaves_node_ports_alone_to_the_pod() {
        let ipvs = (Mode::Ipvs, Tables::Shared);
        let moves = |to, own_rules, kind| {
            let change = change(ipvs, (to, Tables::Shared), own_rules);
            assert!(change.is_certain(kind));
            change.moves(kind)
        };
        let kinds = [
            Kind::NodePort,
            Kind::LoadBalancer,
            Kind::LoadBalancerWithRanges,
            Kind::External,
        ];
        for to in [Mode::Nftables, Mode::Iptables] {
            let all = kinds.map(|kind| moves(to, OwnRules::Absent, kind));
            assert_eq!(all, [true, false, false, true], "{to:?}");
            let beside = kinds.map(|kind| moves(to, OwnRules::Present, kind));
            assert_eq!(beside, [false, false, false, true], "{to:?}");
        }
        let all = kinds.map(|kind| moves(Mode::Ipvs, OwnRules::Absent, kind));
        assert_eq!(all, [true, false, true, true]);
        let beside = kinds.map(|kind| moves(Mode::Ipvs, OwnRules::Present, kind));
        assert_eq!(beside, [false, false, true, true]);
    }
}
