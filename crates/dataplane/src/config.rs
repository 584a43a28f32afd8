//! The configuration from ProxyProfile and Node that applies to all packets on one node.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::{Family, Scheduler};

/// The part of a node's effective configuration that affects where packets go, or by which
/// mode.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// The kernel mechanism that implements the dataplane. Selects the backend; backends ignore it.
    pub mode: Mode,
    /// Which of the node's addresses accept node ports.
    pub node_ports: NodePortAddresses,
    /// How traffic from pods of this node is distinguished from other traffic.
    pub local_detection: LocalDetection,
    /// Which traffic to cluster IPs is masqueraded, in addition to external traffic.
    pub masquerade: Masquerade,
    /// The packet mark that requests masquerade.
    pub mark: Mark,
    /// The cluster's Service CIDRs; empty if unknown. Packets to an address inside them that no
    /// Service has are dropped.
    pub service_cidrs: BTreeSet<IpNet>,
    /// Whether `spec.externalIPs` is honoured.
    pub external_ips: ExternalIps,
    /// The scheduler of Services that do not set one.
    pub scheduler: Scheduler,
    /// How long IPVS remembers idle connections. Other modes ignore it.
    pub ipvs_timeouts: IpvsTimeouts,
}

/// How long IPVS keeps connections; `None` leaves the kernel's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IpvsTimeouts {
    /// The idle time of established TCP connections.
    pub tcp: Option<Duration>,
    /// The idle time of TCP connections that one side has closed.
    pub tcp_fin: Option<Duration>,
    /// The idle time of UDP.
    pub udp: Option<Duration>,
    /// How long connections to an endpoint that has left its Service last; `None` for as long as
    /// they do.
    pub drain: Option<Duration>,
}

/// A kernel mechanism that can implement a dataplane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Mode {
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
    /// `None`: every IPv4 address of the node except loopback. `Some`: only these.
    pub ipv4: Option<BTreeSet<IpAddr>>,
    /// Like `ipv4`.
    pub ipv6: Option<BTreeSet<IpAddr>>,
}

/// How packets from pods of this node are recognised.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LocalDetection {
    /// Not at all: no traffic counts as local.
    #[default]
    None,
    /// By source address, for each family; without a CIDR, nothing is recognised in that family.
    Source {
        /// The IPv4 range.
        ipv4: Option<Ipv4Net>,
        /// The IPv6 range.
        ipv6: Option<Ipv6Net>,
    },
    /// By the interface on which they arrived.
    Interface(InterfaceMatch),
}

/// Matches interface names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InterfaceMatch {
    /// Exactly this name (a bridge).
    Named(Arc<str>),
    /// Every name with this prefix.
    Prefix(Arc<str>),
}

/// Which traffic to cluster IPs gets this node's address as its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Masquerade {
    /// Traffic that local detection does not attribute to a pod of this node.
    #[default]
    NonLocal,
    /// All traffic.
    All,
}

/// One bit of the packet mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    bit: u8,
}

/// Whether `spec.externalIPs` is honoured (CVE-2020-8554: any user who may write a Service can
/// claim any address with it).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExternalIps {
    /// Programmed like load-balancer addresses.
    #[default]
    Honoured,
    /// Ignored.
    Ignored,
}

// === impl Config ===

impl Config {
    /// Whether [`compile`](crate::compile) produces the same rules for every Service under both: it
    /// reads nothing else of a configuration.
    pub fn compiles_like(&self, other: &Config) -> bool {
        let of_rules = |config: &Config| (config.external_ips, config.mode, config.scheduler);
        of_rules(self) == of_rules(other)
    }

    /// Whether both are the same for a backend, which ignores the mode.
    pub fn equals_in_any_mode(&self, other: &Config) -> bool {
        let mode = other.mode;
        self == other
            || Config {
                mode,
                ..self.clone()
            } == *other
    }
}

// === impl LocalDetection ===

impl LocalDetection {
    /// The source range of `family`, if detection is by source.
    pub fn source(&self, family: Family) -> Option<IpNet> {
        match (self, family) {
            (LocalDetection::Source { ipv4, .. }, Family::Ipv4) => ipv4.map(IpNet::V4),
            (LocalDetection::Source { ipv6, .. }, Family::Ipv6) => ipv6.map(IpNet::V6),
            _ => None,
        }
    }
}

// === impl Mode ===

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Nftables => "nftables",
            Mode::Iptables => "iptables",
            Mode::Ipvs => "ipvs",
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
    /// Whether it matches the interface called `name`.
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
    /// Bit 14, 0x4000: kube-proxy's mark, which CNIs avoid.
    fn default() -> Mark {
        Mark { bit: 14 }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.value())
    }
}
