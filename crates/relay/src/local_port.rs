//! The ports to listen on.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use dataplane::{Family, FrontendKey, Port, Protocol};

/// A port on this node's loopback address. The type cannot name a port on any other address, so no
/// client outside this node is ever admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalPort {
    /// 127.0.0.1 or ::1.
    pub family: Family,
    /// The protocol.
    pub transport: Transport,
    /// The port number.
    pub port: Port,
}

/// A protocol that can be relayed. SCTP cannot: an association has several addresses and streams,
/// which a copy of bytes would lose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

// === impl LocalPort ===

impl LocalPort {
    /// The loopback port for a node port; `None` for any other frontend and for SCTP.
    pub fn of(key: &FrontendKey) -> Option<LocalPort> {
        let FrontendKey::NodePort {
            family,
            protocol,
            port,
        } = *key
        else {
            return None;
        };
        let transport = match protocol {
            Protocol::Tcp => Transport::Tcp,
            Protocol::Udp => Transport::Udp,
            Protocol::Sctp => return None,
        };
        Some(LocalPort {
            family,
            transport,
            port,
        })
    }

    /// The address to listen on.
    pub fn address(self) -> SocketAddr {
        let loopback = match self.family {
            Family::Ipv4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Family::Ipv6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
        };
        SocketAddr::new(loopback, self.port.get())
    }
}

impl fmt::Display for LocalPort {
    /// `127.0.0.1:30080/tcp`, `[::1]:30053/udp`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address(), self.transport.protocol())
    }
}

// === impl Transport ===

impl Transport {
    /// All of them.
    pub const ALL: [Transport; 2] = [Transport::Tcp, Transport::Udp];

    /// The same protocol in the model.
    pub fn protocol(self) -> Protocol {
        match self {
            Transport::Tcp => Protocol::Tcp,
            Transport::Udp => Protocol::Udp,
        }
    }
}
