//! The kernel's connection tracking table: its entries as values, and a socket that lists and
//! deletes them.
//!
//! ```text
//! Filter --encode--> bytes --FlowSocket--> kernel --> bytes --decode--> Flow, one at a time
//! Flow   --encode--> bytes --FlowSocket--> kernel, which deletes exactly that entry
//! ```
//!
//! Sources: `include/uapi/linux/netfilter/nfnetlink_conntrack.h`, `nf_conntrack_common.h` and
//! `net/netfilter/nf_conntrack_netlink.c` of Linux 6.1 to 6.18.

mod codec;
mod socket;

use std::fmt;
use std::net::SocketAddr;

use address::Family;

pub use address::Protocol;

pub use codec::DecodeError;
pub use socket::{DeleteError, Deletion, FlowSocket, Listed, ObserveError};

/// One conntrack entry, of a protocol that has ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The protocol.
    pub protocol: Protocol,
    /// The original direction: the packets that the client sends.
    pub original: Tuple,
    /// The reply direction. Its source is where the client's packets really go.
    pub reply: Tuple,
    /// Its status bits.
    pub status: Status,
    /// The zone it is tracked in (`CT --zone`, `ct zone set`); 0 by default.
    pub zone: u16,
    /// Distinguishes this entry from a later one with the same addresses; has no other meaning.
    pub id: u32,
}

/// Source and destination of one direction. Both are of the same family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// The sender.
    pub source: SocketAddr,
    /// The receiver.
    pub destination: SocketAddr,
}

/// The bits of `enum ip_conntrack_status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(u32);

/// Selects the flows to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filter {
    /// Only flows of this family.
    pub family: Family,
    /// Only flows of this protocol.
    pub protocol: Protocol,
    /// Only flows that were answered, or that were not.
    pub answers: Answers,
}

/// Selects flows by whether any packet was sent in reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// All flows.
    Any,
    /// Flows without any packet in the reply direction, such as a TCP connection in SYN_SENT.
    None,
}

// === impl Flow ===

impl fmt::Display for Flow {
    /// `udp 10.0.1.9:4000 -> 10.96.0.53:53, answered from 10.0.1.5:5353`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tuple {
            source,
            destination,
        } = self.original;
        let answers = match self.status.is_answered() {
            true => "answered from",
            false => "never answered from",
        };
        let protocol = self.protocol;
        let from = self.reply.source;
        write!(f, "{protocol} {source} -> {destination}, {answers} {from}")
    }
}

// === impl Status ===

impl Status {
    /// `IPS_SEEN_REPLY`: packets were seen in both directions.
    pub const SEEN_REPLY: Status = Status(1 << 1);
    /// `IPS_ASSURED`: not dropped early when the table is full.
    pub const ASSURED: Status = Status(1 << 2);
    /// `IPS_DST_NAT`: a rule changed the destination.
    pub const DST_NAT: Status = Status(1 << 5);

    /// The combination of these bits.
    pub fn of(bits: &[Status]) -> Status {
        Status(bits.iter().fold(0, |all, Status(bit)| all | bit))
    }

    /// Whether any packet was sent in reply.
    pub fn is_answered(self) -> bool {
        self.has(Status::SEEN_REPLY)
    }

    /// Whether a rule changed the destination.
    pub fn is_redirected(self) -> bool {
        self.has(Status::DST_NAT)
    }

    fn has(self, Status(bit): Status) -> bool {
        self.0 & bit != 0
    }
}

// === impl Filter ===

impl Filter {
    /// Whether the filter selects `flow`.
    pub fn admits(&self, flow: &Flow) -> bool {
        let family = match flow.original.destination {
            SocketAddr::V4(_) => Family::Ipv4,
            SocketAddr::V6(_) => Family::Ipv6,
        };
        let desired = match self.answers {
            Answers::Any => true,
            Answers::None => !flow.status.is_answered(),
        };
        family == self.family && flow.protocol == self.protocol && desired
    }
}

#[cfg(test)]
mod tests;
