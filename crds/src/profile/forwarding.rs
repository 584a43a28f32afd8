//! Packet forwarding settings that are independent of the mechanism.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    address::{Cidr, NodePortAddress},
    profile::mode::{Iptables, Mode},
    rule::{self, PRIMARY_ALONE},
    section::section,
    span::Span,
};

/// How a new connection chooses among a Service's endpoints.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub enum Scheduler {
    /// Every endpoint is as likely.
    Random,
    /// One endpoint after the other.
    RoundRobin,
    /// By the client's address: a client keeps its endpoint while the set of endpoints stays the same.
    SourceHash,
    /// By the client's address: a client keeps its endpoint unless that leaves, with few exceptions.
    Maglev,
    /// IPVS's name of roundRobin.
    Rr,
    /// IPVS's name of sourceHash.
    Sh,
    /// IPVS's name of maglev.
    Mh,
    /// One endpoint after the other, in proportion to weight.
    Wrr,
    /// The endpoint with fewest connections.
    Lc,
    /// Fewest connections in proportion to weight.
    Wlc,
    /// Fewest connections, keeping a destination at one endpoint.
    Lblc,
    /// As lblc with a set of endpoints.
    Lblcr,
    /// By the destination's address.
    Dh,
    /// The shortest expected delay.
    Sed,
    /// An idle endpoint, else the shortest expected delay.
    Nq,
    /// The endpoint of the highest weight.
    Fo,
    /// The endpoint of the highest weight that is not full.
    Ovf,
    /// Of two endpoints chosen at random, the one with fewer connections.
    Twos,
}

/// How the endpoint of a new connection is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerSpec {
    /// How endpoints are chosen, for Services without a valid annotation signpost.dev/scheduler. Default random, and
    /// roundRobin in mode ipvs. Where the mode does not have the scheduler, the nearest is used and condition
    /// FeaturesHonoured names both.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Scheduler")]
    pub scheduler: Option<Scheduler>,
}

/// Which of a node's addresses take node-port traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodePortsSpec {
    /// CIDRs, at most 32: node addresses inside one of them take node-port traffic, and a family without a CIDR takes it
    /// on all its addresses. Or the single word primary: the node's own first address of each family. If omitted or empty,
    /// it is primary in mode nftables and every address in modes iptables and ipvs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), extend("x-kubernetes-validations" = rule::list(&[&PRIMARY_ALONE])))]
    pub addresses: Option<Vec<NodePortAddress>>,

    /// Whether node ports, TCP and UDP, answer on 127.0.0.1 and ::1 as well, for processes of the node. none: they
    /// do not. userspace: the agent listens there and relays to the endpoints; such connections cost a copy and end when
    /// the agent exits. A port that another process uses is reported by condition FeaturesHonoured. If omitted, it is none,
    /// and in mode iptables what iptables.localhostNodePorts specifies.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "LocalhostNodePorts")]
    pub localhost: Option<LocalhostNodePorts>,
}

/// Who answers on the node ports of a node's loopback addresses. The kernel cannot: it refuses a reply to 127.0.0.1 that
/// comes from another machine.
///
/// There is no word "off": YAML 1.1, which kubectl reads, takes that for false.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub enum LocalhostNodePorts {
    /// None: connections are refused.
    #[default]
    None,
    /// The agent, which relays.
    Userspace,
}

/// When and how the source address of forwarded traffic is replaced by the node's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Masquerade {
    /// Whether all traffic to cluster IPs is masqueraded, instead of only traffic whose replies would not come back.
    /// Default false.
    pub all: bool,

    /// The bit of the packet mark that marks packets to masquerade, from 0 to 31; no other software on the node may use it.
    /// Default 14.
    #[schemars(range(min = 0, max = 31))]
    pub mark_bit: u8,
}

section! {
    /// The kernel's connection tracking table.
    ConntrackSpec;
    /// The kernel's connection tracking table, every default filled in.
    Conntrack {
        /// Entries of the table for each CPU core, at most 1048576 from this field; 0 leaves the kernel's limit and ignores min. The
        /// limit is never lowered, and never raised above what a sixteenth of memory holds. Default 32768.
        #[schemars(range(min = 0, max = 2_147_483_647))]
        max_per_core: u32 = 32_768,

        /// The least number of entries, however few cores there are. Default 131072.
        #[schemars(range(min = 0, max = 2_147_483_647))]
        min: u32 = 131_072,

        /// How long an idle established TCP connection is remembered; 0s leaves the kernel's value. Default 24h.
        tcp_established_timeout: Span = Span::hours(24),

        /// How long a TCP connection in CLOSE_WAIT is remembered; 0s leaves the kernel's value. Default 1h.
        tcp_close_wait_timeout: Span = Span::hours(1),

        /// Whether TCP packets outside the window are still tracked instead of being marked invalid; false leaves the
        /// kernel's value. Default false.
        tcp_be_liberal: bool = false,

        /// How long a UDP flow with traffic in one direction is remembered. Default 0s, which leaves the kernel's value.
        udp_timeout: Span = Span::ZERO,

        /// How long a UDP flow with traffic in both directions is remembered. Default 0s, which leaves the kernel's value.
        udp_stream_timeout: Span = Span::ZERO,
    }
}

// === impl Scheduler ===

impl Scheduler {
    /// The default scheduler of a profile in `mode`.
    #[must_use]
    pub const fn default_of(mode: Mode) -> Self {
        match mode {
            Mode::Nftables | Mode::Iptables => Self::Random,
            Mode::Ipvs => Self::Rr,
        }
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

// === impl LoadBalancerSpec ===

impl LoadBalancerSpec {
    /// Whether no field of this section is set.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.scheduler.is_none()
    }
}

// === impl NodePortsSpec ===

impl NodePortsSpec {
    /// Whether no field of this section is set.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.addresses.is_none() && self.localhost.is_none()
    }

    /// The effective addresses of a profile in `mode`; never empty.
    #[must_use]
    pub fn complete(&self, mode: Mode) -> Vec<NodePortAddress> {
        match self.addresses.as_deref() {
            Some(addresses) if !addresses.is_empty() => addresses.to_vec(),
            _ => match mode {
                Mode::Nftables => vec![NodePortAddress::Primary],
                Mode::Iptables | Mode::Ipvs => every_address(),
            },
        }
    }

    /// Which component answers on loopback addresses for a profile in `mode` with section
    /// `iptables`. A value set here takes precedence; without one, mode iptables behaves as
    /// kube-proxy does.
    #[must_use]
    pub fn complete_localhost(&self, mode: Mode, iptables: &Iptables) -> LocalhostNodePorts {
        let implied = mode == Mode::Iptables
            && iptables.localhost_node_ports
            && take_in_localhost(&self.complete(mode));
        self.localhost.unwrap_or(if implied {
            LocalhostNodePorts::Userspace
        } else {
            LocalhostNodePorts::None
        })
    }
}

/// Whether node ports are also open on 127.0.0.1, by the criteria of kube-proxy's mode iptables: a
/// family without a block is open on every address, and primary is never a loopback address.
fn take_in_localhost(addresses: &[NodePortAddress]) -> bool {
    let mut ipv4 = addresses
        .iter()
        .filter_map(|address| match address {
            NodePortAddress::Primary => None,
            NodePortAddress::Within(cidr) => Some(cidr.net()),
        })
        .filter(|net| net.addr().is_ipv4())
        .peekable();
    let open = ipv4.peek().is_none() && !addresses.contains(&NodePortAddress::Primary);
    open || ipv4.any(|net| net.contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)))
}

fn every_address() -> Vec<NodePortAddress> {
    let everything: [ipnet::IpNet; 2] = [
        ipnet::Ipv4Net::default().into(),
        ipnet::Ipv6Net::default().into(),
    ];
    everything
        .map(|net| NodePortAddress::Within(Cidr::from(net)))
        .to_vec()
}

// === impl Masquerade ===

impl Default for Masquerade {
    fn default() -> Self {
        Self {
            all: false,
            mark_bit: 14,
        }
    }
}
