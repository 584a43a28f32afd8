//! Policy routing: packets with certain marks are delivered to this node.
//!
//! Two objects of the kernel for each address family: a rule that leads the marks to a table of their own, and in
//! that table the route `local default dev lo`. What they are found by is reserved for Signpost.
//!
//! Sources: `include/uapi/linux/{rtnetlink,fib_rules}.h`, `net/core/fib_rules.c`, `net/ipv4/route.c` and
//! `net/ipv6/route.c` of Linux 6.1 to 6.18.

mod codec;
mod socket;

use std::fmt;

pub use socket::{CommitError, Recovery, RouteSocket};

/// Which packets are delivered to this node, and where the kernel keeps that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalDelivery {
    /// The bits of `mask` in the marks of the packets.
    pub mark: u32,
    /// Which bits of a mark count.
    pub mask: u32,
    /// The routing table: used for nothing else.
    pub table: u32,
    /// The priority of the rule; lower numbers are asked first.
    pub priority: u32,
}

/// How much of a [`LocalDelivery`] the kernel has in one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Presence {
    /// No rule leads to the table.
    #[default]
    Absent,
    /// A rule does, and the table does not deliver.
    Partial,
    /// All of it.
    Whole,
}

impl fmt::Display for LocalDelivery {
    /// As `ip rule` lists it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LocalDelivery {
            mark,
            mask,
            table,
            priority,
        } = self;
        write!(
            f,
            "{priority}: from all fwmark {mark:#x}/{mask:#x} lookup {table}"
        )
    }
}

#[cfg(test)]
mod tests;
