//! IP families, transport protocols and ports: the types that the dataplane model and the kernel's
//! wire formats share.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;

/// An IP family. Each family is programmed, and fails, separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// A transport protocol that a Service port can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP, protocol number 6.
    Tcp,
    /// UDP, protocol number 17.
    Udp,
    /// SCTP, protocol number 132.
    Sctp,
}

/// A transport port, 1 to 65535.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(NonZeroU16);

/// Whether `address` is in fe80::/10, which is valid on one link only. Every interface has one,
/// including those of pods.
pub fn is_ipv6_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

// === impl Family ===

impl Family {
    /// Both families, in the order in which they are programmed.
    pub const ALL: [Family; 2] = [Family::Ipv4, Family::Ipv6];

    /// The family of `address`.
    pub fn of(address: IpAddr) -> Family {
        match address {
            IpAddr::V4(_) => Family::Ipv4,
            IpAddr::V6(_) => Family::Ipv6,
        }
    }

    /// The number for netlink and sockets: `AF_INET`, `AF_INET6`.
    pub fn number(self) -> u8 {
        match self {
            Family::Ipv4 => 2,
            Family::Ipv6 => 10,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Ipv4 => "IPv4",
            Family::Ipv6 => "IPv6",
        })
    }
}

// === impl Protocol ===

impl Protocol {
    /// All protocols.
    pub const ALL: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

    /// The number in the IP header (IANA protocol numbers).
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }

    /// The protocol with this number, if a Service can have it.
    pub fn from_number(number: u8) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|p| p.number() == number)
    }
}

impl fmt::Display for Protocol {
    /// Lower case, as in `80/tcp`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        })
    }
}

// === impl Port ===

impl Port {
    /// A port, or `None` for 0.
    pub fn new(number: u16) -> Option<Port> {
        NonZeroU16::new(number).map(Port)
    }

    /// The number.
    pub fn get(self) -> u16 {
        self.0.get()
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
