//! The counters of the relays.

use std::sync::atomic::{AtomicU64, Ordering};

use dataplane::Family;

use crate::Transport;

/// Counters for a scrape; they can be read while relays run.
#[derive(Debug, Default)]
pub struct Counts {
    listeners: ByFamily,
    creation_failures: ByFamily,
    rejected_tcp: AtomicU64,
    rejected_udp: AtomicU64,
}

#[derive(Debug, Default)]
struct ByFamily {
    ipv4: AtomicU64,
    ipv6: AtomicU64,
}

// === impl Counts ===

impl Counts {
    /// The number of open ports of `family`.
    pub fn listeners(&self, family: Family) -> u64 {
        self.listeners.of(family).load(Ordering::Relaxed)
    }

    /// The number of failed attempts to listen on a port of `family`.
    pub fn creation_failures(&self, family: Family) -> u64 {
        self.creation_failures.of(family).load(Ordering::Relaxed)
    }

    /// The number of connections, or datagrams, rejected at an open port: too many at once, not
    /// from this node, or no endpoint that accepts them.
    pub fn rejected(&self, transport: Transport) -> u64 {
        self.of_rejected(transport).load(Ordering::Relaxed)
    }

    pub(crate) fn opened(&self, family: Family) {
        self.listeners.of(family).fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn closed(&self, family: Family) {
        self.listeners.of(family).fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self, family: Family) {
        let failures = self.creation_failures.of(family);
        failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn reject(&self, transport: Transport) {
        self.of_rejected(transport).fetch_add(1, Ordering::Relaxed);
    }

    fn of_rejected(&self, transport: Transport) -> &AtomicU64 {
        match transport {
            Transport::Tcp => &self.rejected_tcp,
            Transport::Udp => &self.rejected_udp,
        }
    }
}

// === impl ByFamily ===

impl ByFamily {
    fn of(&self, family: Family) -> &AtomicU64 {
        match family {
            Family::Ipv4 => &self.ipv4,
            Family::Ipv6 => &self.ipv6,
        }
    }
}
