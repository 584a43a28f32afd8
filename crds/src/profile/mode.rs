//! The modes, and the fields that only one of them reads.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{address::Cidr, interface_pattern::InterfacePattern, section::section, span::Span};

/// A kernel mechanism that forwards Service traffic.
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
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Maps of nf_tables.
    #[default]
    Nftables,
    /// Rules of iptables, legacy or nft variant.
    Iptables,
    /// Virtual servers of IPVS.
    Ipvs,
}

section! {
    /// Fields that only mode nftables reads.
    NftablesSpec;
    /// Fields that only mode nftables reads, every default filled in.
    Nftables {
        /// Interfaces on which packets of established TCP connections to Services bypass all rules of the node, also
        /// NetworkPolicies that change later. At most 16 entries, each the name of an interface, such as eth0, or the
        /// beginning of names followed by *, such as veth*. Select the interfaces of both sides: packets bypass the rules
        /// only in the direction in which they arrive on a selected interface. Interfaces that appear later are
        /// selected, too; loopback and dummy interfaces never are. Requires mode nftables and Linux 5.14 with flowtables;
        /// elsewhere the field has no effect, and condition FeaturesHonoured says so. Default none.
        #[schemars(length(max = 16))]
        flowtable_interfaces: Vec<InterfacePattern> = Vec::new(),
    }
}

section! {
    /// Fields that only mode iptables reads.
    IptablesSpec;
    /// Fields that only mode iptables reads, every default filled in.
    Iptables {
        /// Whether node ports answer on 127.0.0.1 and ::1 if nodePorts.localhost is omitted: true is its userspace, as long
        /// as nodePorts.addresses includes 127.0.0.1, false its none. The agent relays; sysctl route_localnet is not changed.
        /// Default true.
        localhost_node_ports: bool = true,
    }
}

section! {
    /// Fields that only mode ipvs reads.
    IpvsSpec;
    /// Fields that only mode ipvs reads, every default filled in.
    Ipvs {
        /// Address blocks of other programs' virtual servers, at most 64. Default none. Has no effect, because Signpost
        /// changes only virtual servers that it has created; condition FeaturesHonoured reports that.
        #[serde(rename = "excludeCIDRs")]
        #[schemars(length(max = 64))]
        exclude_cidrs: Vec<Cidr> = Vec::new(),

        /// Whether the node answers ARP only for addresses of the interface that was asked (arp_ignore 1, arp_announce
        /// 2). Default false. Has no effect, because no address of a Service is on a device of the node; condition
        /// FeaturesHonoured reports that.
        #[serde(rename = "strictARP")]
        strict_arp: bool = false,

        /// How long IPVS remembers an idle TCP connection, in whole seconds. Holds for virtual servers of other programs on
        /// the node as well. Default 0s, which leaves the kernel's value.
        tcp_timeout: Span = Span::ZERO,

        /// How long IPVS remembers a TCP connection after a FIN, as tcpTimeout. Default 0s, which leaves the kernel's value.
        tcp_fin_timeout: Span = Span::ZERO,

        /// How long IPVS remembers an idle UDP flow, as tcpTimeout. Default 0s, which leaves the kernel's value.
        udp_timeout: Span = Span::ZERO,

        /// How long TCP and SCTP connections to an endpoint last after the endpoint has left its Service; the next check of
        /// the kernel ends them. Default 0s, which lets them last until they end.
        drain_timeout: Span = Span::ZERO,
    }
}

// === impl Nftables ===

impl Nftables {
    /// Whether every field has its default.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

// === impl Mode ===

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
        })
    }
}
