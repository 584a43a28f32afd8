//! Virtual servers of IPVS as values, and a socket that lists and changes those of a reserved range
//! of packet marks.
//!
//! ```text
//! Operation --encode--> many messages a send --IpvsSocket::commit--> kernel, which answers each
//! IpvsSocket::observe_* --> bytes --decode--> VirtualServers, Destinations, Timeouts
//! ```
//!
//! A virtual server is named by a [`Mark`] of the [`MarkRange`] that its socket was opened with. There
//! is no way to write one with an address, nor one of another mark, and no message that empties or
//! zeroes a table: virtual servers of other programs cannot be changed, and need no list of exceptions.
//!
//! The kernel has no transactions for this: each message takes effect by itself, in order.
//!
//! Sources: `include/uapi/linux/ip_vs.h` and `net/netfilter/ipvs/ip_vs_ctl.c` of Linux 6.1 to 6.18.

mod decode;
mod encode;
mod error;
mod operation;
mod socket;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use address::Family;

pub use self::error::{CommitError, Recovery, RefusedOperation};
pub use self::operation::Operation;
pub use self::socket::{IpvsSocket, SchedulerSupport};

/// Packet marks that begin with the same bits, reserved for the virtual servers of one program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MarkRange {
    first: u32,
    bits: u8,
}

/// A mark of a [`MarkRange`], which names a virtual server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark(u32);

/// What a virtual server is found by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VirtualServerKey {
    /// The family of the packets that it takes.
    pub family: Family,
    /// The mark of these packets.
    pub mark: Mark,
}

/// How a virtual server chooses a destination for a new connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VirtualServer {
    /// Who chooses.
    pub scheduler: SchedulerName,
    /// How.
    pub flags: VirtualServerFlags,
}

/// A scheduler by its name in the kernel: `rr`, `wlc`, `mh`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SchedulerName(Arc<str>);

/// `IP_VS_SVC_F_*`, without those that the kernel sets by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct VirtualServerFlags(u32);

/// How packets go to one of the endpoints behind a virtual server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Destination {
    /// How they are sent on.
    pub forwarding: Forwarding,
    /// Its share of new connections.
    pub weight: Weight,
    /// When it counts as overloaded.
    pub thresholds: Thresholds,
}

/// `IP_VS_CONN_F_FWD_MASK`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Forwarding {
    /// The destination address is rewritten, and back in replies.
    Masquerade,
    /// To a process on this node.
    Local,
    /// In an envelope.
    Tunnel,
    /// To its link-layer address.
    Route,
    /// As if there were no virtual server.
    Bypass,
}

/// A destination's share of new connections, relative to the other destinations of its virtual server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(pub u32);

/// How many connections make a destination overloaded, and how few make it available again; 0 for
/// no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Thresholds {
    /// From this many on, it gets no new ones.
    pub upper: u32,
    /// Below this many, it gets some again.
    pub lower: u32,
}

/// How many connections a destination has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Connections {
    /// Established ones.
    pub active: u32,
    /// Those that are closing, and those of protocols without a state.
    pub inactive: u32,
}

/// The virtual servers of a network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VirtualServers {
    /// Those of the socket's own range.
    pub own: BTreeMap<VirtualServerKey, VirtualServer>,
    /// All other virtual servers.
    pub foreign: Vec<ForeignVirtualServer>,
}

/// What is behind a virtual server, by address and port.
pub type Destinations = BTreeMap<SocketAddr, (Destination, Connections)>;

/// A virtual server of another program.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ForeignVirtualServer {
    /// Found by the packet's mark.
    Mark {
        /// The family of the packets.
        family: Family,
        /// Their mark.
        mark: u32,
    },
    /// Found by where the packet goes.
    Address {
        /// The number of its protocol.
        protocol: u8,
        /// Its address and port.
        address: SocketAddr,
    },
}

/// After how long without a packet the kernel forgets a connection, in the whole network namespace:
/// virtual servers of other programs included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Timeouts {
    /// Established ones of TCP.
    pub tcp: Seconds,
    /// Those of TCP that one side has closed.
    pub tcp_fin: Seconds,
    /// Those of UDP.
    pub udp: Seconds,
}

/// A time in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seconds(pub NonZeroU32);

// === impl MarkRange ===

impl MarkRange {
    /// The marks that differ from `first` in the lowest `bits` bits alone. `None` where `first` is one
    /// of them other than the first, where there would be fewer than two, and where a packet without
    /// a mark would have one of them.
    pub const fn new(first: u32, bits: u8) -> Option<MarkRange> {
        if bits == 0 || bits > 31 || first == 0 || first & ((1 << bits) - 1) != 0 {
            return None;
        }
        Some(MarkRange { first, bits })
    }

    /// The mark of this number; `None` beyond the end. The last mark of the range has no number: it
    /// belongs to [`IpvsSocket::check_scheduler`].
    pub fn mark(self, number: u32) -> Option<Mark> {
        (number < !self.mask()).then_some(Mark(self.first | number))
    }

    /// The number that [`MarkRange::mark`] gives `mark` for.
    pub fn number(self, mark: Mark) -> Option<u32> {
        let number = mark.0 & !self.mask();
        (self.contains(mark.0) && number < !self.mask()).then_some(number)
    }

    /// The bits that all marks of the range have in common, as `ip rule` and nft take them.
    pub fn mask(self) -> u32 {
        u32::MAX << self.bits
    }

    /// The first mark of the range.
    pub fn first(self) -> Mark {
        Mark(self.first)
    }

    fn contains(self, mark: u32) -> bool {
        mark & self.mask() == self.first
    }

    /// The mark of a virtual server that no packet is for.
    fn last(self) -> Mark {
        Mark(self.first | !self.mask())
    }
}

// === impl Mark ===

impl Mark {
    /// The mark as packets have it.
    pub fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Mark {
    /// Decimal, as `ipvsadm` prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for VirtualServerKey {
    /// As `ipvsadm` takes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "-f {}", self.mark)?;
        match self.family {
            Family::Ipv4 => Ok(()),
            Family::Ipv6 => f.write_str(" -6"),
        }
    }
}

// === impl SchedulerName ===

impl SchedulerName {
    /// `IP_VS_SCHEDNAME_MAXLEN`, without the zero at its end.
    const LONGEST: usize = 15;

    /// The scheduler of this name; `None` where no scheduler can have it. The kernel asks for a
    /// module `ip_vs_NAME`, so a name is letters, digits, `-` and `_`.
    pub fn new(name: &str) -> Option<SchedulerName> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let fits = (1..=Self::LONGEST).contains(&name.len());
        (fits && name.bytes().all(is_plain)).then(|| SchedulerName(name.into()))
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The kernel's module that has it.
    pub fn module(&self) -> String {
        format!("ip_vs_{}", self.0)
    }
}

impl fmt::Display for SchedulerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl VirtualServerFlags ===

impl VirtualServerFlags {
    /// `IP_VS_SVC_F_PERSISTENT`: clients keep their destination. For a virtual server that is found by
    /// a mark the kernel then ignores the destination's port. Never written here.
    pub const PERSISTENT: VirtualServerFlags = VirtualServerFlags(1);
    /// `IP_VS_SVC_F_SCHED1`: `sh` and `mh` go on to another destination where the one that the hash
    /// leads to has weight 0 (`sh-fallback`, `mh-fallback`).
    pub const FALLBACK: VirtualServerFlags = VirtualServerFlags(1 << 3);
    /// `IP_VS_SVC_F_SCHED2`: `sh` and `mh` take the port into the hash (`sh-port`, `mh-port`).
    pub const HASH_PORT: VirtualServerFlags = VirtualServerFlags(1 << 4);
    /// `IP_VS_SVC_F_HASHED`: the kernel's own note that it has the virtual server in its table.
    const HASHED: u32 = 1 << 1;

    /// All of these.
    pub fn of(flags: &[VirtualServerFlags]) -> VirtualServerFlags {
        VirtualServerFlags(flags.iter().fold(0, |all, flag| all | flag.0))
    }

    /// Whether these have all of `other`.
    pub fn has(self, other: VirtualServerFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

// === impl Weight ===

impl Weight {
    /// No new connections; those that are there live on.
    pub const DRAINING: Weight = Weight(0);
}

// === impl ForeignVirtualServer ===

impl fmt::Display for ForeignVirtualServer {
    /// As `ipvsadm -Ln` lists it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ForeignVirtualServer::Mark {
                family: Family::Ipv4,
                mark,
            } => write!(f, "FWM {mark}"),
            ForeignVirtualServer::Mark {
                family: Family::Ipv6,
                mark,
            } => write!(f, "FWM {mark} IPv6"),
            ForeignVirtualServer::Address { protocol, address } => match protocol {
                6 => write!(f, "TCP {address}"),
                17 => write!(f, "UDP {address}"),
                132 => write!(f, "SCTP {address}"),
                other => write!(f, "protocol {other} {address}"),
            },
        }
    }
}

#[cfg(test)]
mod tests;
