//! What may be asked of the kernel, one message each.

use std::fmt;
use std::net::SocketAddr;

use super::{Destination, Forwarding, VirtualServer, VirtualServerFlags, VirtualServerKey};

/// One change to a virtual server or to what is behind it. Prints as `ipvsadm` would be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Makes one, without destinations.
    AddVirtualServer {
        /// Which.
        key: VirtualServerKey,
        /// What it is.
        server: VirtualServer,
    },
    /// Changes how one chooses; its connections and destinations stay.
    SetVirtualServer {
        /// Which.
        key: VirtualServerKey,
        /// What it becomes.
        server: VirtualServer,
    },
    /// Removes one, with all behind it; its connections end.
    RemoveVirtualServer {
        /// Which.
        key: VirtualServerKey,
    },
    /// Puts a destination behind one.
    AddDestination {
        /// Which.
        key: VirtualServerKey,
        /// Its address and port.
        address: SocketAddr,
        /// What it is.
        destination: Destination,
    },
    /// Changes a destination; its connections stay.
    SetDestination {
        /// Behind which.
        key: VirtualServerKey,
        /// Its address and port.
        address: SocketAddr,
        /// What it becomes.
        destination: Destination,
    },
    /// Takes a destination away. What becomes of its connections, sysctl `expire_nodest_conn` says.
    RemoveDestination {
        /// Behind which.
        key: VirtualServerKey,
        /// Its address and port.
        address: SocketAddr,
    },
}

// === impl Operation ===

impl Operation {
    /// The virtual server that it is about.
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
        let (fallback, port, persistent) = (
            flags.has(VirtualServerFlags::FALLBACK),
            flags.has(VirtualServerFlags::HASH_PORT),
            flags.has(VirtualServerFlags::PERSISTENT),
        );
        let named = [(fallback, "flag-1"), (port, "flag-2")];
        let named: Vec<_> = named.iter().filter(|(is_set, _)| *is_set).collect();
        for (index, (_, name)) in named.iter().enumerate() {
            f.write_str(if index == 0 { " -b " } else { "," })?;
            f.write_str(name)?;
        }
        f.write_str(if persistent { " -p" } else { "" })
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
