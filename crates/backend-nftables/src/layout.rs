//! The names and shapes of everything in our tables.
//!
//! A Service is nothing but elements: no chain, set or rule is ever made for one. What grows with
//! the cluster is data in maps, which the kernel adds and removes in constant time; what decides is
//! a fixed handful of chains, and one pair of chains for each number of endpoints in use. No element
//! of a Service is a verdict: for one that leads to a chain, the kernel looks through every map of
//! verdicts that a packet can come to (`nft_chain_validate`).

mod sets;

use std::net::IpAddr;
use std::sync::Arc;

use dataplane::{Family, FrontendKey, Hairpin, Port, Protocol, Target};
use ipnet::IpNet;
use netlink::nf_tables::{Bytes, DataType, jhash, reciprocal_scale};

pub(crate) use self::sets::{Keyed, Room, SetName};

/// The name of our table, in each family.
pub const TABLE: &str = "signpost";

/// The name of the table that serves while one of another form is replaced: there for as long as that
/// takes, and no longer.
pub const NEXT: &str = "signpost-next";

/// Slots of the endpoints of this node begin here, those of all endpoints at 0, and neither can grow
/// into the other. The kernel draws a number below the count of endpoints and adds this.
pub(crate) const LOCAL_SLOTS: u32 = 1 << 31;

/// Slots that affinity remembers begin here and end before [`LOCAL_SLOTS`]. An endpoint's is made
/// of its address and port, so that it stays the same whatever the other endpoints do. One of this
/// node has another one, as far behind [`LOCAL_SLOTS`]: who may be sent to nothing else is only
/// looked up there.
pub(crate) const STICKY_SLOTS: u32 = 1 << 30;
/// How many of them there are.
pub(crate) const STICKY_MODULUS: u32 = 1 << 30;
/// What the hash of an endpoint starts from. Any number will do, as long as it stays: the slots
/// that packets have written down outlive the agent.
pub(crate) const STICKY_SEED: u32 = 0x5370_5374;

/// The bytes of an address.
pub(crate) fn address(address: IpAddr) -> Bytes {
    match address {
        IpAddr::V4(address) => Bytes::new().with(&address.octets()),
        IpAddr::V6(address) => Bytes::new().with(&address.octets()),
    }
}

/// The address that a key begins with; `None` if it is too short for one.
pub(crate) fn parse_address(family: Family, bytes: &[u8]) -> Option<(IpAddr, &[u8])> {
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

/// The key of a frontend, in every set it is in.
pub(crate) fn frontend(key: &FrontendKey) -> Bytes {
    let bytes = match key {
        FrontendKey::Address { address: ip, .. } => address(*ip),
        FrontendKey::NodePort { .. } => Bytes::new(),
    };
    bytes
        .with(&[key.protocol().number()])
        .with(&key.port().get().to_be_bytes())
}

/// The frontend that a key of a set begins with; `None` if it is no such key.
pub(crate) fn parse_frontend(family: Family, keyed: Keyed, bytes: &[u8]) -> Option<FrontendKey> {
    let (ip, rest) = match keyed {
        Keyed::NodePort => (None, bytes),
        Keyed::Address => {
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

/// What a key of a set that begins with `key` has behind that.
pub(crate) fn behind_frontend<'a>(key: &FrontendKey, bytes: &'a [u8]) -> &'a [u8] {
    let address = match (key, key.family()) {
        (FrontendKey::NodePort { .. }, _) => 0,
        (FrontendKey::Address { .. }, Family::Ipv4) => DataType::Ipv4Address.width(),
        (FrontendKey::Address { .. }, Family::Ipv6) => DataType::Ipv6Address.width(),
    };
    let frontend = address + DataType::Protocol.width() + DataType::Service.width();
    bytes.get(frontend..).unwrap_or_default()
}

/// The key of one slot of a frontend. Numbers in registers are in the host's order.
pub(crate) fn slot(frontend: Bytes, slot: u32) -> Bytes {
    frontend.with(&slot.to_ne_bytes())
}

/// The slot by which affinity remembers an endpoint: what the kernel's hash of its address and port
/// as they lie in registers comes to. Two endpoints of one frontend may have the same, once in a
/// billion; then the clients of both go to one of them.
pub(crate) fn sticky_slot(to: &Target) -> u32 {
    let hash = jhash(target(to).as_slice(), STICKY_SEED);
    STICKY_SLOTS + reciprocal_scale(hash, STICKY_MODULUS)
}

/// The key of one range of sources that may connect to a frontend.
pub(crate) fn source(frontend: Bytes, range: &IpNet) -> Bytes {
    frontend.with(address(range.network()).as_slice())
}

/// An endpoint, as the value of a slot.
pub(crate) fn target(target: &Target) -> Bytes {
    address(target.address).with(&target.port.get().to_be_bytes())
}

/// The endpoint that the value of a slot stands for.
pub(crate) fn parse_target(family: Family, bytes: &Bytes) -> Option<Target> {
    let (address, rest) = parse_address(family, bytes.as_slice())?;
    let &[high, low, ..] = rest else { return None };
    let port = Port::new(u16::from_be_bytes([high, low]))?;
    Some(Target { address, port })
}

/// The key of a hairpin.
pub(crate) fn hairpin(hairpin: &Hairpin) -> Bytes {
    let ip = address(hairpin.address);
    ip.clone()
        .with(ip.as_slice())
        .with(&[hairpin.protocol.number()])
        .with(&hairpin.port.get().to_be_bytes())
}

/// A name, shared by whoever holds it.
pub(crate) fn name(name: &str) -> Arc<str> {
    Arc::from(name)
}
