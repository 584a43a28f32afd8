//! Policy routing: delivers packets with certain marks to this node.
//!
//! It takes two kernel objects for each address family: a rule that leads the marks to a separate
//! routing table, and in that table the route `local default dev lo`. The mark, the table number
//! and the rule priority are reserved for Signpost.
//!
//! Sources: `include/uapi/linux/{rtnetlink,fib_rules}.h`, `net/core/fib_rules.c`,
//! `net/ipv4/route.c` and `net/ipv6/route.c` of Linux 6.1 to 6.18.

mod codec;
mod socket;

use std::fmt;

pub use socket::{CommitError, Recovery, RouteSocket};

/// The packets to deliver to this node, and the routing rule and table for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalDelivery {
    /// The value of the packets' marks under `mask`.
    pub mark: u32,
    /// The bits of a mark to compare.
    pub mask: u32,
    /// The routing table, which has no other use.
    pub table: u32,
    /// The priority of the rule; rules with lower numbers are evaluated first.
    pub priority: u32,
}

/// Which parts of a [`LocalDelivery`] the kernel has in one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Presence {
    /// No rule leads to the table.
    #[default]
    Absent,
    /// A rule leads to the table, but the table does not deliver.
    Partial,
    /// The rule and the route exist.
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
