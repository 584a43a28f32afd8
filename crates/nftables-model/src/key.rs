//! Keys and values of elements.

use std::net::IpAddr;
use std::sync::Arc;

use dataplane::{Family, FrontendKey, Hairpin, Port, Protocol, Target};
use ipnet::IpNet;
use netlink::nf_tables::{Bytes, DataType};

/// The fields of a frontend that its key contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontendFields {
    /// Its address, protocol and port.
    AddressAndPort,
    /// Its protocol and port: the address is one of the node's.
    Port,
}

/// The bytes of an address.
pub fn address(address: IpAddr) -> Bytes {
    match address {
        IpAddr::V4(address) => Bytes::new().with(&address.octets()),
        IpAddr::V6(address) => Bytes::new().with(&address.octets()),
    }
}

/// The address that a key begins with; `None` if it is too short for one.
pub fn parse_address(family: Family, bytes: &[u8]) -> Option<(IpAddr, &[u8])> {
    match family {
        Family::Ipv4 => {
            let (octets, rest) = bytes.split_first_chunk::<4>()?;
            Some((IpAddr::from(*octets), rest))
        }
        Family::Ipv6 => {
            let (octets, rest) = bytes.split_first_chunk::<16>()?;
            Some((IpAddr::from(*octets), rest))
        }
    }
}

/// The key of a frontend, the same in every set.
pub fn frontend(key: &FrontendKey) -> Bytes {
    let bytes = match key {
        FrontendKey::Address { address: ip, .. } => address(*ip),
        FrontendKey::NodePort { .. } => Bytes::new(),
    };
    bytes
        .with(&[key.protocol().number()])
        .with(&key.port().get().to_be_bytes())
}

/// Decodes the frontend that a key of a set begins with; `None` if there is none.
pub fn parse_frontend(family: Family, fields: FrontendFields, bytes: &[u8]) -> Option<FrontendKey> {
    let (ip, rest) = match fields {
        FrontendFields::Port => (None, bytes),
        FrontendFields::AddressAndPort => {
            let (address, rest) = parse_address(family, bytes)?;
            (Some(address), rest)
        }
    };
    let &[number, _, _, _, high, low, ..] = rest else {
        return None;
    };
    let protocol = Protocol::from_number(number)?;
    let port = Port::new(u16::from_be_bytes([high, low]))?;
    Some(match ip {
        Some(address) => FrontendKey::Address {
            address,
            protocol,
            port,
        },
        None => FrontendKey::NodePort {
            family,
            protocol,
            port,
        },
    })
}

/// The part of a key behind the frontend `key` that it begins with.
pub fn behind_frontend<'a>(key: &FrontendKey, bytes: &'a [u8]) -> &'a [u8] {
    let address = match (key, key.family()) {
        (FrontendKey::NodePort { .. }, _) => 0,
        (FrontendKey::Address { .. }, Family::Ipv4) => DataType::Ipv4Address.width(),
        (FrontendKey::Address { .. }, Family::Ipv6) => DataType::Ipv6Address.width(),
    };
    let frontend = address + DataType::Protocol.width() + DataType::Service.width();
    bytes.get(frontend..).unwrap_or_default()
}

/// The key of a source range that may connect to a frontend.
pub fn source(frontend: Bytes, range: &IpNet) -> Bytes {
    frontend.with(address(range.network()).as_slice())
}

/// The value of a slot: an endpoint.
pub fn target(target: &Target) -> Bytes {
    address(target.address).with(&target.port.get().to_be_bytes())
}

/// Decodes the endpoint from the value of a slot.
pub fn parse_target(family: Family, bytes: &Bytes) -> Option<Target> {
    let (address, rest) = parse_address(family, bytes.as_slice())?;
    let &[high, low, ..] = rest else { return None };
    let port = Port::new(u16::from_be_bytes([high, low]))?;
    Some(Target { address, port })
}

/// The key of a hairpin.
pub fn hairpin(hairpin: &Hairpin) -> Bytes {
    let ip = address(hairpin.address);
    ip.clone()
        .with(ip.as_slice())
        .with(&[hairpin.protocol.number()])
        .with(&hairpin.port.get().to_be_bytes())
}

/// A shared name.
pub fn name(name: &str) -> Arc<str> {
    Arc::from(name)
}
