//! The changes that can be requested from the kernel, one message each.

use std::fmt;
use std::net::SocketAddr;

use super::{Destination, Forwarding, VirtualServer, VirtualServerFlags, VirtualServerKey};

/// One change to a virtual server or its destinations. Prints as the corresponding call of
/// `ipvsadm`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Creates a virtual server without destinations.
    AddVirtualServer {
        /// The virtual server.
        key: VirtualServerKey,
        /// Its scheduler and flags.
        server: VirtualServer,
    },
    /// Changes the scheduler and flags of a virtual server; its connections and destinations stay.
    SetVirtualServer {
        /// The virtual server.
        key: VirtualServerKey,
        /// Its new scheduler and flags.
        server: VirtualServer,
    },
    /// Removes a virtual server with all its destinations; its connections end.
    RemoveVirtualServer {
        /// The virtual server.
        key: VirtualServerKey,
    },
    /// Adds a destination to a virtual server.
    AddDestination {
        /// The virtual server.
        key: VirtualServerKey,
        /// Its address and port.
        address: SocketAddr,
        /// How packets are sent to it.
        destination: Destination,
    },
    /// Changes a destination; its connections stay.
    SetDestination {
        /// The virtual server.
        key: VirtualServerKey,
        /// Its address and port.
        address: SocketAddr,
        /// How packets are sent to it from now on.
        destination: Destination,
    },
    /// Removes a destination. The sysctl `expire_nodest_conn` decides about its connections.
    RemoveDestination {
        /// The virtual server.
        key: VirtualServerKey,
        /// Its address and port.
        address: SocketAddr,
    },
}

// === impl Operation ===

impl Operation {
    /// The virtual server that it changes.
    pub fn key(&self) -> VirtualServerKey {
        match self {
            Operation::AddVirtualServer { key, .. }
            | Operation::SetVirtualServer { key, .. }
            | Operation::RemoveVirtualServer { key }
            | Operation::AddDestination { key, .. }
            | Operation::SetDestination { key, .. }
            | Operation::RemoveDestination { key, .. } => *key,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::AddVirtualServer { key, server } => write!(f, "-A {key} {server}"),
            Operation::SetVirtualServer { key, server } => write!(f, "-E {key} {server}"),
            Operation::RemoveVirtualServer { key } => write!(f, "-D {key}"),
            Operation::AddDestination {
                key,
                address,
                destination,
            } => write!(f, "-a {key} -r {address} {destination}"),
            Operation::SetDestination {
                key,
                address,
                destination,
            } => write!(f, "-e {key} -r {address} {destination}"),
            Operation::RemoveDestination { key, address } => write!(f, "-d {key} -r {address}"),
        }
    }
}

impl fmt::Display for VirtualServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "-s {}", self.scheduler)?;
        let flags = self.flags;
        let (fallback, port, persistent, one_packet) = (
            flags.has(VirtualServerFlags::FALLBACK),
            flags.has(VirtualServerFlags::HASH_PORT),
            flags.has(VirtualServerFlags::PERSISTENT),
            flags.has(VirtualServerFlags::ONE_PACKET),
        );
        let named = [(fallback, "flag-1"), (port, "flag-2")];
        let named: Vec<_> = named.iter().filter(|(is_set, _)| *is_set).collect();
        for (index, (_, name)) in named.iter().enumerate() {
            f.write_str(if index == 0 { " -b " } else { "," })?;
            f.write_str(name)?;
        }
        f.write_str(if persistent { " -p" } else { "" })?;
        f.write_str(if one_packet { " --ops" } else { "" })
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.forwarding {
            Forwarding::Masquerade => "-m",
            Forwarding::Local => "-m (local)",
            Forwarding::Tunnel => "-i",
            Forwarding::Route => "-g",
            Forwarding::Bypass => "-m (bypass)",
        })?;
        write!(f, " -w {}", self.weight.0)?;
        match self.thresholds.upper {
            0 => {}
            upper => write!(f, " -x {upper}")?,
        }
        match self.thresholds.lower {
            0 => Ok(()),
            lower => write!(f, " -y {lower}"),
        }
    }
}
