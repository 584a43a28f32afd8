//! IPVS virtual servers as values, and a socket that lists and changes those of a reserved range of
//! packet marks.
//!
//! ```text
//! Operation --encode--> many messages per send --IpvsSocket::commit--> kernel, which answers each
//! IpvsSocket::observe_* --> bytes --decode--> VirtualServers, Destinations, Timeouts
//! ```
//!
//! A virtual server is identified by a [`Mark`] of the [`MarkRange`] that its socket was opened
//! with. This module cannot write a virtual server with an address or with another mark, and has no
//! message that flushes or zeroes a table. Virtual servers of other programs therefore cannot be
//! changed, and no list of exceptions is needed. The exception is an [`AddressedServerSocket`],
//! which removes single virtual servers of a program that has ended.
//!
//! IPVS has no transactions: each message takes effect separately, in order.
//!
//! Sources: `include/uapi/linux/ip_vs.h` and `net/netfilter/ipvs/ip_vs_ctl.c` of Linux 6.1 to 6.18.

mod addressed;
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

pub use self::addressed::AddressedServerSocket;
pub use self::error::{CommitError, Recovery, RefusedOperation};
pub use self::operation::Operation;
pub use self::socket::{IpvsSocket, SchedulerSupport};

/// A range of packet marks with a common prefix, reserved for the virtual servers of one program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MarkRange {
    first: u32,
    bits: u8,
}

/// A mark of a [`MarkRange`], which identifies a virtual server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark(u32);

/// The key of a virtual server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VirtualServerKey {
    /// The family of its packets.
    pub family: Family,
    /// The mark of its packets.
    pub mark: Mark,
}

/// How a virtual server chooses a destination for a new connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VirtualServer {
    /// The scheduler that chooses.
    pub scheduler: SchedulerName,
    /// The flags of the scheduler.
    pub flags: VirtualServerFlags,
}

/// A scheduler by its name in the kernel: `rr`, `wlc`, `mh`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SchedulerName(Arc<str>);

/// `IP_VS_SVC_F_*`, without the flags that the kernel sets itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct VirtualServerFlags(u32);

/// How packets are sent to one of the endpoints of a virtual server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Destination {
    /// The forwarding method.
    pub forwarding: Forwarding,
    /// Its share of new connections.
    pub weight: Weight,
    /// The number of connections from which on it counts as overloaded.
    pub thresholds: Thresholds,
}

/// `IP_VS_CONN_F_FWD_MASK`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Forwarding {
    /// Rewrites the destination address, and the source address of replies.
    Masquerade,
    /// Delivers to a process on this node.
    Local,
    /// Encapsulates the packet.
    Tunnel,
    /// Sends to the destination's link-layer address.
    Route,
    /// Forwards as if there were no virtual server.
    Bypass,
}

/// A destination's share of new connections, relative to the virtual server's other destinations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(pub u32);

/// The numbers of connections at which a destination becomes overloaded and available again; 0
/// means no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Thresholds {
    /// From this number on, it gets no new connections.
    pub upper: u32,
    /// Below this number, it gets new connections again.
    pub lower: u32,
}

/// The number of a destination's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Connections {
    /// Established connections.
    pub active: u32,
    /// Connections that are closing, and those of protocols without a state.
    pub inactive: u32,
}

/// The virtual servers of a network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VirtualServers {
    /// Those in the socket's range.
    pub own: BTreeMap<VirtualServerKey, VirtualServer>,
    /// All other virtual servers.
    pub foreign: Vec<ForeignVirtualServer>,
}

/// The destinations of a virtual server, by address and port.
pub type Destinations = BTreeMap<SocketAddr, (Destination, Connections)>;

/// A virtual server of another program.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ForeignVirtualServer {
    /// Selected by the packet's mark.
    Mark {
        /// The family of the packets.
        family: Family,
        /// Their mark.
        mark: u32,
    },
    /// Selected by the packet's destination.
    Addressed(AddressedServer),
}

/// A virtual server that the packet's destination selects, which Signpost's never do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressedServer {
    /// The number of its protocol.
    pub protocol: u8,
    /// Its address and port.
    pub address: SocketAddr,
}

/// The idle times after which the kernel forgets a connection. They apply to the whole network
/// namespace, including virtual servers of other programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Timeouts {
    /// Established TCP connections.
    pub tcp: Seconds,
    /// TCP connections that one side has closed.
    pub tcp_fin: Seconds,
    /// UDP.
    pub udp: Seconds,
}

/// A time in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seconds(pub NonZeroU32);

// === impl MarkRange ===

impl MarkRange {
    /// The marks that differ from `first` in at most the lowest `bits` bits. Returns `None` if
    /// `first` is not the first mark of the range, if the range has fewer than two marks, and if it
    /// contains 0, the mark of unmarked packets.
    pub const fn new(first: u32, bits: u8) -> Option<MarkRange> {
        if bits == 0 || bits > 31 || first == 0 || first & ((1 << bits) - 1) != 0 {
            return None;
        }
        Some(MarkRange { first, bits })
    }

    /// The mark with this number; `None` beyond the end. The last mark of the range has no number:
    /// [`IpvsSocket::check_scheduler`] uses it.
    pub fn mark(self, number: u32) -> Option<Mark> {
        (number < !self.mask()).then_some(Mark(self.first | number))
    }

    /// The number for which [`MarkRange::mark`] returns `mark`.
    pub fn number(self, mark: Mark) -> Option<u32> {
        let number = mark.0 & !self.mask();
        (self.contains(mark.0) && number < !self.mask()).then_some(number)
    }

    /// The mask of the bits that all marks of the range have in common, as `ip rule` and nft take
    /// it.
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

    /// The mark of a virtual server that no packet matches.
    fn last(self) -> Mark {
        Mark(self.first | !self.mask())
    }
}

// === impl Mark ===

impl Mark {
    /// The mark as a number.
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
    /// The arguments of `ipvsadm`.
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
    /// `IP_VS_SCHEDNAME_MAXLEN`, without the terminating zero.
    const LONGEST: usize = 15;

    /// The scheduler with this name; `None` if no scheduler can have it. The kernel requests the
    /// module `ip_vs_NAME`, so a name consists of letters, digits, `-` and `_`.
    pub fn new(name: &str) -> Option<SchedulerName> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let fits = (1..=Self::LONGEST).contains(&name.len());
        (fits && name.bytes().all(is_plain)).then(|| SchedulerName(name.into()))
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The kernel module that implements it.
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
    /// `IP_VS_SVC_F_PERSISTENT`: clients keep their destination. For a virtual server that is
    /// selected by mark, the kernel then ignores the destination's port. Signpost never sets it.
    pub const PERSISTENT: VirtualServerFlags = VirtualServerFlags(1);
    /// `IP_VS_SVC_F_ONEPACKET`: each packet is scheduled by itself. Signpost never sets it.
    pub const ONE_PACKET: VirtualServerFlags = VirtualServerFlags(1 << 2);
    /// `IP_VS_SVC_F_SCHED1`: `sh` and `mh` fall back to another destination if the one that the
    /// hash selects has weight 0 (`sh-fallback`, `mh-fallback`).
    pub const FALLBACK: VirtualServerFlags = VirtualServerFlags(1 << 3);
    /// `IP_VS_SVC_F_SCHED2`: `sh` and `mh` include the port in the hash (`sh-port`, `mh-port`).
    pub const HASH_PORT: VirtualServerFlags = VirtualServerFlags(1 << 4);
    /// `IP_VS_SVC_F_HASHED`: the kernel sets it while the virtual server is in its table.
    const HASHED: u32 = 1 << 1;

    /// The combination of these flags.
    pub fn of(flags: &[VirtualServerFlags]) -> VirtualServerFlags {
        VirtualServerFlags(flags.iter().fold(0, |all, flag| all | flag.0))
    }

    /// Whether all flags of `other` are set.
    pub fn has(self, other: VirtualServerFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

// === impl Weight ===

impl Weight {
    /// No new connections; existing connections continue.
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
            ForeignVirtualServer::Addressed(server) => server.fmt(f),
        }
    }
}

// === impl AddressedServer ===

impl fmt::Display for AddressedServer {
    /// As `ipvsadm -Ln` lists it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AddressedServer { protocol, address } = self;
        match protocol {
            6 => write!(f, "TCP {address}"),
            17 => write!(f, "UDP {address}"),
            132 => write!(f, "SCTP {address}"),
            other => write!(f, "protocol {other} {address}"),
        }
    }
}

#[cfg(test)]
mod tests;
