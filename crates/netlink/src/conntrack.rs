//! The kernel's connection tracking table: its entries as values, and a socket that lists and deletes
//! them.
//!
//! ```text
//! Filter --encode--> bytes --FlowSocket--> kernel --> bytes --decode--> Flow, one after the other
//! Flow   --encode--> bytes --FlowSocket--> kernel, which forgets that very entry
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

/// One entry of the table, of a protocol that has ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The protocol.
    pub protocol: Protocol,
    /// What the client sent.
    pub original: Tuple,
    /// What is taken for an answer to it. Its source is where the client's packets really go.
    pub reply: Tuple,
    /// What has happened to it.
    pub status: Status,
    /// The zone it is tracked in (`CT --zone`, `ct zone set`); 0 by default.
    pub zone: u16,
    /// Tells this entry from a later one with the same addresses; means nothing else.
    pub id: u32,
}

/// Who sends to whom. Both ends are of one family.
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

/// Which flows to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filter {
    /// Those of this family.
    pub family: Family,
    /// Those of this protocol.
    pub protocol: Protocol,
    /// Those that were answered, or that were not.
    pub answers: Answers,
}

/// Flows by whether anything ever came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// All of them.
    Any,
    /// Those to which no packet was ever sent back: a TCP connection in SYN_SENT.
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
    /// `IPS_SEEN_REPLY`: packets went both ways.
    pub const SEEN_REPLY: Status = Status(1 << 1);
    /// `IPS_ASSURED`: not dropped early when the table is full.
    pub const ASSURED: Status = Status(1 << 2);
    /// `IPS_DST_NAT`: a rule changed the destination.
    pub const DST_NAT: Status = Status(1 << 5);

    /// All of these bits.
    pub fn of(bits: &[Status]) -> Status {
        Status(bits.iter().fold(0, |all, Status(bit)| all | bit))
    }

    /// Whether anything ever came back.
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
    /// Whether `flow` is to be listed.
    pub fn admits(&self, flow: &Flow) -> bool {
        let family = match flow.original.destination {
            SocketAddr::V4(_) => Family::Ipv4,
            SocketAddr::V6(_) => Family::Ipv6,
        };
        let wanted = match self.answers {
            Answers::Any => true,
            Answers::None => !flow.status.is_answered(),
        };
        family == self.family && flow.protocol == self.protocol && wanted
    }
}

#[cfg(test)]
mod tests;
