//! What a ProxyProfile and a Node say about packets in general, resolved for one node.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::{Family, Scheduler};

/// The part of a node's effective configuration that changes where packets go, or what takes them
/// there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// Which of the kernel's mechanisms carries the dataplane out. Backends ignore it: it says
    /// which of them is asked.
    pub mechanism: Mechanism,
    /// Which of the node's addresses accept node ports.
    pub node_ports: NodePortAddresses,
    /// How traffic of this node's own pods is distinguished from other traffic.
    pub local_detection: LocalDetection,
    /// Who is masqueraded beside external traffic.
    pub masquerade: Masquerade,
    /// The packet mark that asks for masquerade.
    pub mark: Mark,
    /// The cluster's Service CIDRs; empty when they are not known. An address inside them that no
    /// Service has is dropped.
    pub service_cidrs: BTreeSet<IpNet>,
    /// Whether `spec.externalIPs` is honoured.
    pub external_ips: ExternalIps,
    /// How an endpoint is chosen for Services that do not say.
    pub scheduler: Scheduler,
    /// How long IPVS remembers connections without a packet. Other mechanisms ignore it.
    pub ipvs_timeouts: IpvsTimeouts,
}

/// After how long without a packet IPVS forgets a connection; `None` leaves the kernel's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IpvsTimeouts {
    /// Established ones of TCP.
    pub tcp: Option<Duration>,
    /// Those of TCP that one side has closed.
    pub tcp_fin: Option<Duration>,
    /// Those of UDP.
    pub udp: Option<Duration>,
}

/// One of the kernel's mechanisms that can carry a dataplane out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Mechanism {
    /// Sets and maps of nf_tables.
    #[default]
    Nftables,
    /// Rules in the tables of iptables.
    Iptables,
    /// Virtual servers of IPVS.
    Ipvs,
}

/// Which addresses of this node accept node ports, per family. Loopback never does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePortAddresses {
    /// `None`: every IPv4 address of the node that is not loopback. `Some`: just these.
    pub ipv4: Option<BTreeSet<IpAddr>>,
    /// As `ipv4`.
    pub ipv6: Option<BTreeSet<IpAddr>>,
}

/// How a packet from a pod of this node is recognised.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LocalDetection {
    /// It is not: no traffic counts as local.
    #[default]
    None,
    /// By source address, per family; a family without a CIDR has no detection.
    Source {
        /// The IPv4 range.
        ipv4: Option<Ipv4Net>,
        /// The IPv6 range.
        ipv6: Option<Ipv6Net>,
    },
    /// By the interface it came in on.
    Interface(InterfaceMatch),
}

/// Names of interfaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InterfaceMatch {
    /// This one (a bridge).
    Named(Arc<str>),
    /// Every one whose name starts like this.
    Prefix(Arc<str>),
}

/// Which traffic to cluster IPs leaves with this node's address as its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Masquerade {
    /// What local detection says is not from a pod of this node.
    #[default]
    NonLocal,
    /// All of it.
    All,
}

/// One bit of the packet mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    bit: u8,
}

/// Whether `spec.externalIPs` is honoured (CVE-2020-8554: anyone who may write a Service may claim
/// any address with it).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExternalIps {
    /// Programmed like load-balancer addresses.
    #[default]
    Honoured,
    /// Left alone.
    Ignored,
}

// === impl Config ===

impl Config {
    /// Whether [`compile`](crate::compile) gives every Service the same rules under both: nothing else of a configuration is
    /// part of them.
    pub fn compiles_like(&self, other: &Config) -> bool {
        let of_rules = |config: &Config| (config.external_ips, config.mechanism, config.scheduler);
        of_rules(self) == of_rules(other)
    }
}

// === impl LocalDetection ===

impl LocalDetection {
    /// The source range of `family`, where detection is by source.
    pub fn source(&self, family: Family) -> Option<IpNet> {
        match (self, family) {
            (LocalDetection::Source { ipv4, .. }, Family::Ipv4) => ipv4.map(IpNet::V4),
            (LocalDetection::Source { ipv6, .. }, Family::Ipv6) => ipv6.map(IpNet::V6),
            _ => None,
        }
    }
}

// === impl Mechanism ===

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mechanism::Nftables => "nftables",
            Mechanism::Iptables => "iptables",
            Mechanism::Ipvs => "ipvs",
        })
    }
}

// === impl NodePortAddresses ===

impl NodePortAddresses {
    /// Every address of both families.
    pub const ANY: NodePortAddresses = NodePortAddresses {
        ipv4: None,
        ipv6: None,
    };

    /// The list for `family`; `None` stands for every address.
    pub fn of(&self, family: Family) -> Option<&BTreeSet<IpAddr>> {
        match family {
            Family::Ipv4 => self.ipv4.as_ref(),
            Family::Ipv6 => self.ipv6.as_ref(),
        }
    }
}

impl Default for NodePortAddresses {
    fn default() -> NodePortAddresses {
        NodePortAddresses::ANY
    }
}

// === impl InterfaceMatch ===

impl InterfaceMatch {
    /// Whether the interface called `name` is meant.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            InterfaceMatch::Named(own) => **own == *name,
            InterfaceMatch::Prefix(prefix) => name.starts_with(&**prefix),
        }
    }
}

// === impl Mark ===

impl Mark {
    /// The mark with this bit set, or `None` above 31.
    pub fn from_bit(bit: u8) -> Option<Mark> {
        (bit < 32).then_some(Mark { bit })
    }

    /// The mark's value.
    pub fn value(self) -> u32 {
        1 << self.bit
    }
}

impl Default for Mark {
    /// Bit 14, 0x4000: what kube-proxy and the CNIs that avoid it have agreed on.
    fn default() -> Mark {
        Mark { bit: 14 }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.value())
    }
}
