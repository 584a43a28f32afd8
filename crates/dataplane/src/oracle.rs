//! The specification: where a packet may go, in one function.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::{
    Basis, Dataplane, Family, Frontend, FrontendKey, FrontendKind, Hairpin, LocalDetection,
    Masquerade, Port, Protocol, Target, TrafficPolicy,
};

/// The first packet of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// The sender, and how the packet reached this node's kernel.
    pub origin: Origin,
    /// Its source address.
    pub source: IpAddr,
    /// Its destination address.
    pub destination: IpAddr,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its destination port.
    pub port: Port,
}

/// The sender of a packet. Determines which kernel hooks the packet traverses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A pod on this node, through this interface.
    Pod {
        /// The name of the node's end of the pod's link, or of the bridge it is on.
        interface: Arc<str>,
    },
    /// A pod on another node, routed to this node with its own source address (not through a
    /// tunnel).
    PodElsewhere {
        /// The interface it came in on.
        interface: Arc<str>,
    },
    /// A process in this node's network namespace, from one of the node's addresses.
    Node,
    /// A process in this node's network namespace, from a loopback address.
    Loopback,
    /// A client outside the cluster.
    Outside {
        /// The interface it came in on.
        interface: Arc<str>,
    },
}

/// What may happen to a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is sent to one of these, sorted by target.
    Deliver(Vec<Choice>),
    /// It is answered with a refusal.
    Reject,
    /// It is dropped silently.
    Drop,
    /// Signpost leaves it unchanged; routing decides where it goes.
    Untouched,
}

/// An endpoint that a packet may be delivered to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Choice {
    /// The endpoint's address and port.
    pub target: Target,
    /// The frequency, relative to the other choices.
    pub weight: u32,
    /// Whether the packet's source becomes this node's address.
    pub masquerade: bool,
}

/// Whether a packet keeps its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Kept,
    Masqueraded,
}

// === impl Dataplane ===

impl Dataplane {
    /// Where `packet` may go.
    pub fn verdict(&self, packet: &Packet) -> Verdict {
        match self.frontend_at(packet.destination, packet.protocol, packet.port) {
            Some(frontend) => self.behind(frontend, packet),
            None => self.without_frontend(packet),
        }
    }

    /// What the choice of [`Dataplane::verdict`] among endpoints depends on, for a client without
    /// an affinity entry. Returns `None` for a destination without a frontend.
    pub fn basis(&self, packet: &Packet) -> Option<Basis> {
        let frontend = self.frontend_at(packet.destination, packet.protocol, packet.port)?;
        Some(frontend.scheduler.basis())
    }

    fn is_local(&self, address: IpAddr) -> bool {
        self.node().local_addresses.contains(&address)
    }

    /// The verdict on a packet to a destination that no Service serves. Packets to Service
    /// addresses must not leak to the network that they would be routed to.
    fn without_frontend(&self, packet: &Packet) -> Verdict {
        let arrives = self.is_local(packet.destination) && packet.origin.interface().is_some();
        if self.cluster_ips().get(&packet.destination).is_some() {
            // A cluster IP may be on a device of this node, where a process that listens on all
            // addresses would answer instead of the Service. But the node's own address stays the
            // node's, even if a Service was given it, too.
            let own = self.node().address(Family::of(packet.destination));
            if arrives && own.is_none_or(|own| own == packet.destination) {
                Verdict::Untouched
            } else {
                Verdict::Reject
            }
        } else if arrives {
            Verdict::Untouched
        } else if self.in_service_cidr(packet.destination) {
            Verdict::Drop
        } else {
            Verdict::Untouched
        }
    }

    fn in_service_cidr(&self, address: IpAddr) -> bool {
        let mut cidrs = self.config().service_cidrs.iter();
        cidrs.any(|cidr| cidr.contains(&address))
    }

    fn behind(&self, frontend: &Frontend, packet: &Packet) -> Verdict {
        let ranges = &frontend.source_ranges;
        if !ranges.is_empty() && !ranges.iter().any(|range| range.contains(&packet.source)) {
            return Verdict::Drop;
        }
        let (targets, source) = match (frontend.kind, frontend.policy) {
            (FrontendKind::ClusterIp, policy) => {
                (by_policy(frontend, policy), self.cluster_ip_source(packet))
            }
            (_, TrafficPolicy::Cluster) => (&frontend.cluster, Source::Masqueraded),
            (_, TrafficPolicy::Local) => self.local_policy(frontend, packet),
        };
        if targets.is_empty() {
            // A packet that this node sends to a Service address is refused on output, where node
            // ports are not matched yet.
            let leaves = packet.origin.interface().is_none();
            let by_node_port = frontend.kind == FrontendKind::NodePort;
            return if leaves && by_node_port && self.is_of_services(packet.destination) {
                self.without_frontend(packet)
            } else if frontend.has_endpoints {
                Verdict::Drop
            } else {
                Verdict::Reject
            };
        }
        self.deliver(targets, source, packet)
    }

    fn cluster_ip_source(&self, packet: &Packet) -> Source {
        let detection = &self.config().local_detection;
        match self.config().masquerade {
            Masquerade::All => Source::Masqueraded,
            Masquerade::NonLocal => match detection.recognises(packet) {
                Some(false) => Source::Masqueraded,
                Some(true) | None => Source::Kept,
            },
        }
    }

    /// External policy Local is meant for clients outside: a pod of this node and the node itself
    /// are served as through the cluster IP. Pods are matched first, so that a source that is both
    /// keeps its address.
    fn local_policy<'a>(
        &self,
        frontend: &'a Frontend,
        packet: &Packet,
    ) -> (&'a Arc<[Target]>, Source) {
        if self.config().local_detection.recognises(packet) == Some(true) {
            (&frontend.cluster, Source::Kept)
        } else if self.is_local(packet.source) {
            (&frontend.cluster, Source::Masqueraded)
        } else {
            (&frontend.local, Source::Kept)
        }
    }

    fn deliver(&self, targets: &[Target], source: Source, packet: &Packet) -> Verdict {
        let mut weights: BTreeMap<Target, u32> = BTreeMap::new();
        for target in targets {
            *weights.entry(*target).or_default() += 1;
        }
        let choices = weights.into_iter().map(|(target, weight)| Choice {
            target,
            weight,
            masquerade: self.is_seen_leaving(target, packet)
                && (source == Source::Masqueraded
                    || self.is_hairpin(target, packet)
                    || self.is_of_services(packet.source)),
        });
        Verdict::Deliver(choices.collect())
    }

    /// Whether `address` is a Service address. A process uses such a source if the address it
    /// connects to is also on a device of this node, as an IPVS proxy adds it to `kube-ipvs0`. The
    /// endpoint's reply would then go to the device with that address on the endpoint's node.
    fn is_of_services(&self, address: IpAddr) -> bool {
        self.cluster_ips().get(&address).is_some() || self.in_service_cidr(address)
    }

    /// Whether the packet leaves, so that its source can be rewritten. A packet that arrives and
    /// whose endpoint has one of the node's own addresses goes to a local process and never leaves.
    fn is_seen_leaving(&self, target: Target, packet: &Packet) -> bool {
        packet.origin.interface().is_none() || !self.is_local(target.address)
    }

    fn is_hairpin(&self, target: Target, packet: &Packet) -> bool {
        let hairpin = Hairpin {
            address: target.address,
            protocol: packet.protocol,
            port: target.port,
        };
        target.address == packet.source && self.hairpins().get(&hairpin).is_some()
    }
}

fn by_policy(frontend: &Frontend, policy: TrafficPolicy) -> &Arc<[Target]> {
    match policy {
        TrafficPolicy::Cluster => &frontend.cluster,
        TrafficPolicy::Local => &frontend.local,
    }
}

// === impl LocalDetection ===

impl LocalDetection {
    /// Whether `packet` counts as sent by a pod of this node. Returns `None` if pods of its family
    /// cannot be recognised. Uses only what a rule can match: a process of this node with a source
    /// inside the pods' range counts as a pod.
    fn recognises(&self, packet: &Packet) -> Option<bool> {
        match self {
            LocalDetection::None => None,
            LocalDetection::Source { .. } => self
                .source(Family::of(packet.source))
                .map(|range| range.contains(&packet.source)),
            LocalDetection::Interface(desired) => Some(
                packet
                    .origin
                    .interface()
                    .is_some_and(|name| desired.matches(name)),
            ),
        }
    }
}

// === impl Origin ===

impl Origin {
    /// The interface on which the packet arrived; `None` if this node sent it.
    pub fn interface(&self) -> Option<&str> {
        match self {
            Origin::Pod { interface }
            | Origin::PodElsewhere { interface }
            | Origin::Outside { interface } => Some(interface),
            Origin::Node | Origin::Loopback => None,
        }
    }
}

// === impl Packet ===

impl fmt::Display for Packet {
    /// Prints `pod 10.0.1.9 via veth9 -> 10.96.0.10:80/tcp`, without `via` if the interface has no
    /// name. Origins are `pod`, `remote-pod`, `node`, `loopback` and `outside`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = match self.origin {
            Origin::Pod { .. } => "pod",
            Origin::PodElsewhere { .. } => "remote-pod",
            Origin::Node => "node",
            Origin::Loopback => "loopback",
            Origin::Outside { .. } => "outside",
        };
        write!(f, "{origin} {}", self.source)?;
        match self.origin.interface() {
            None | Some("") => {}
            Some(interface) => write!(f, " via {interface}")?,
        }
        let destination = FrontendKey::Address {
            address: self.destination,
            protocol: self.protocol,
            port: self.port,
        };
        write!(f, " -> {destination}")
    }
}

// === impl Verdict ===

impl fmt::Display for Verdict {
    /// Prints `10.0.1.5:8080, 10.0.2.7:8080 masqueraded`, `reject`, `drop` or `untouched`.
    /// `masqueraded` applies to the whole list; if only some are masqueraded, there are two lists
    /// separated by `; `, the others first. A weight other than 1 follows its target:
    /// `10.0.1.5:80 x2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let choices = match self {
            Verdict::Deliver(choices) => choices,
            Verdict::Reject => return f.write_str("reject"),
            Verdict::Drop => return f.write_str("drop"),
            Verdict::Untouched => return f.write_str("untouched"),
        };
        let list = |masquerade| -> Vec<String> {
            let chosen = choices
                .iter()
                .filter(|choice| choice.masquerade == masquerade);
            chosen.map(Choice::to_string).collect()
        };
        let (kept, masqueraded) = (list(false).join(", "), list(true).join(", "));
        match (kept.is_empty(), masqueraded.is_empty()) {
            (_, true) => f.write_str(&kept),
            (true, false) => write!(f, "{masqueraded} masqueraded"),
            (false, false) => write!(f, "{kept}; {masqueraded} masqueraded"),
        }
    }
}

// === impl Choice ===

impl fmt::Display for Choice {
    /// Prints the target, and its weight unless that is 1. [`Verdict`] prints whether it is
    /// masqueraded.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.weight {
            1 => self.target.fmt(f),
            weight => write!(f, "{} x{weight}", self.target),
        }
    }
}
