//! Encodes and decodes rules and routes as messages.

use std::net::Ipv4Addr;

use address::Family;

use super::LocalDelivery;
use crate::generic::QueryError;
use crate::wire::{ACK, CREATE, DUMP, EXCLUSIVE, Message, REQUEST, Writer};

/// `RTM_NEWROUTE`: also the type of the reply with a route.
pub(super) const NEW_ROUTE: u16 = 24;
/// `RTM_DELROUTE`.
const DELETE_ROUTE: u16 = 25;
/// `RTM_GETROUTE`.
const GET_ROUTE: u16 = 26;
/// `RTM_NEWRULE`: also the type of the messages that list rules.
pub(super) const NEW_RULE: u16 = 32;
/// `RTM_DELRULE`.
const DELETE_RULE: u16 = 33;
/// `RTM_GETRULE`.
const GET_RULE: u16 = 34;

/// `RTM_NEWADDR`: the type of the messages that list addresses.
pub(super) const NEW_ADDRESS: u16 = 20;
/// `RTM_GETADDR`.
const GET_ADDRESS: u16 = 22;

/// `AF_INET`.
const INET: u8 = 2;
/// `AF_INET6`.
const INET6: u8 = 10;

/// `RT_TABLE_COMPAT`: the number of the table is in an attribute.
const TABLE_IN_ATTRIBUTE: u8 = 252;
/// `RTPROT_KERNEL`. By default, systemd-networkd removes every rule and route of other programs
/// except those with this protocol.
const PROTOCOL: u8 = 2;
/// `RT_SCOPE_HOST`.
const SCOPE_HOST: u8 = 254;
/// `RTN_LOCAL`.
const LOCAL: u8 = 2;
/// `FR_ACT_TO_TBL`.
const TO_TABLE: u8 = 1;
/// `FIB_RULE_INVERT`.
const INVERTED: u32 = 0x2;
/// `RTM_F_LOOKUP_TABLE`: the reply contains the table of the route.
const WITH_TABLE: u32 = 0x1000;
/// `RTM_F_FIB_MATCH`: the reply contains the matching table entry, not the resulting route.
const ENTRY: u32 = 0x2000;
/// The kernel gives `lo` this number in every network namespace (`LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;

/// An address that no interface has: the IPv4 dummy address of RFC 7600.
const NOWHERE_V4: [u8; 4] = [192, 0, 0, 8];
/// An address that no interface has, from the discard prefix of RFC 6666.
const NOWHERE_V6: [u8; 16] = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

/// `IFA_*`.
mod interface_address {
    pub(super) const ADDRESS: u16 = 1;
    pub(super) const BROADCAST: u16 = 4;
}

/// `RTA_*`.
mod route {
    pub(super) const DESTINATION: u16 = 1;
    pub(super) const INTERFACE: u16 = 4;
    pub(super) const TABLE: u16 = 15;
    pub(super) const MARK: u16 = 16;
}

/// `FRA_*`.
mod rule {
    pub(super) const INPUT_INTERFACE: u16 = 3;
    pub(super) const PRIORITY: u16 = 6;
    pub(super) const MARK: u16 = 10;
    pub(super) const TABLE: u16 = 15;
    pub(super) const MASK: u16 = 16;
    pub(super) const OUTPUT_INTERFACE: u16 = 17;
    pub(super) const PROTOCOL: u16 = 21;
}

/// The change to a rule or a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Add,
    Remove,
}

pub(super) fn rule(verb: Verb, family: Family, delivery: &LocalDelivery, sequence: u32) -> Vec<u8> {
    let (kind, flags) = match verb {
        Verb::Add => (NEW_RULE, CREATE | EXCLUSIVE),
        Verb::Remove => (DELETE_RULE, 0),
    };
    let header = header(family, [TABLE_IN_ATTRIBUTE, 0, 0, TO_TABLE], 0);
    let mut writer = Writer::default();
    let message = writer.begin_route(kind, REQUEST | ACK | flags, sequence, header);
    writer.native_u32(rule::PRIORITY, delivery.priority);
    writer.native_u32(rule::MARK, delivery.mark);
    writer.native_u32(rule::MASK, delivery.mask);
    writer.native_u32(rule::TABLE, delivery.table);
    if verb == Verb::Add {
        writer.u8(rule::PROTOCOL, PROTOCOL);
    }
    writer.end(message);
    writer.into_bytes()
}

pub(super) fn route(
    verb: Verb,
    family: Family,
    delivery: &LocalDelivery,
    sequence: u32,
) -> Vec<u8> {
    let (kind, flags) = match verb {
        Verb::Add => (NEW_ROUTE, CREATE | EXCLUSIVE),
        Verb::Remove => (DELETE_ROUTE, 0),
    };
    let details = [TABLE_IN_ATTRIBUTE, PROTOCOL, SCOPE_HOST, LOCAL];
    let mut writer = Writer::default();
    let header = header(family, details, 0);
    let message = writer.begin_route(kind, REQUEST | ACK | flags, sequence, header);
    writer.native_u32(route::TABLE, delivery.table);
    writer.native_u32(route::INTERFACE, LOOPBACK);
    writer.end(message);
    writer.into_bytes()
}

/// Encodes a request for all rules of `family`.
pub(super) fn list_rules(family: Family, sequence: u32) -> Vec<u8> {
    let mut writer = Writer::default();
    let header = header(family, [0; 4], 0);
    let message = writer.begin_route(GET_RULE, REQUEST | DUMP, sequence, header);
    writer.end(message);
    writer.into_bytes()
}

/// Encodes a request for the routing table entry that a packet with the mark of `delivery` uses.
pub(super) fn find_route(family: Family, delivery: &LocalDelivery, sequence: u32) -> Vec<u8> {
    let mut header = header(family, [0; 4], WITH_TABLE | ENTRY);
    let destination: &[u8] = match family {
        Family::Ipv4 => &NOWHERE_V4,
        Family::Ipv6 => &NOWHERE_V6,
    };
    header[1] = match family {
        Family::Ipv4 => 32,
        Family::Ipv6 => 128,
    };
    let mut writer = Writer::default();
    let message = writer.begin_route(GET_ROUTE, REQUEST, sequence, header);
    writer.bytes(route::DESTINATION, destination);
    writer.native_u32(route::MARK, delivery.mark);
    writer.end(message);
    writer.into_bytes()
}

/// Encodes a request for all IPv4 addresses of this node.
pub(super) fn list_addresses(sequence: u32) -> Vec<u8> {
    let mut writer = Writer::default();
    let header = [INET, 0, 0, 0, 0, 0, 0, 0];
    let message = writer.begin_route(GET_ADDRESS, REQUEST | DUMP, sequence, header);
    writer.end(message);
    writer.into_bytes()
}

/// The addresses to which a broadcast in the network of a listed address goes: the last one of the network,
/// and the one that an administrator has set (`fib_add_ifaddr` in `net/ipv4/fib_frontend.c`).
pub(super) fn broadcast_addresses(
    message: &Message<'_>,
) -> Result<[Option<Ipv4Addr>; 2], QueryError> {
    let Some(header) = message.payload.first_chunk::<8>() else {
        return Err(QueryError::Illegible {
            what: "an address of this node",
            part: "its header",
        });
    };
    let [family, length, ..] = *header;
    if family != INET {
        return Ok([None; 2]);
    }
    let attributes = message.attributes_behind(header.len());
    let address = |kind| {
        let octets = <[u8; 4]>::try_from(attributes.get(kind)?).ok()?;
        Some(Ipv4Addr::from(octets))
    };
    // RFC 3021: a network of two addresses has none.
    let has_one = length < 31;
    let last = address(interface_address::ADDRESS).filter(|_| has_one);
    let last = last.map(|address| {
        let hosts = u32::MAX.checked_shr(length.into()).unwrap_or(0);
        Ipv4Addr::from(u32::from(address) | hosts)
    });
    Ok([last, address(interface_address::BROADCAST)])
}

/// Whether a listed rule of `family` is the rule of `delivery` and has no other selectors.
pub(super) fn is_rule_of(
    message: &Message<'_>,
    family: Family,
    delivery: &LocalDelivery,
) -> Result<bool, QueryError> {
    let header = read_header(message, "a routing rule")?;
    let flags = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
    let attributes = message.attributes_behind(header.len());
    let number = |kind| attributes.native_u32(kind);
    // A kernel without the family lists the rules of other families.
    let is_of_family = header[0] == number_of(family);
    let selects_nothing_else = header[1] == 0
        && header[2] == 0
        && flags & INVERTED == 0
        && attributes.get(rule::INPUT_INTERFACE).is_none()
        && attributes.get(rule::OUTPUT_INTERFACE).is_none();
    Ok(is_of_family
        && selects_nothing_else
        && header[7] == TO_TABLE
        && number(rule::TABLE) == Some(delivery.table)
        && number(rule::MARK) == Some(delivery.mark)
        && number(rule::MASK) == Some(delivery.mask)
        && number(rule::PRIORITY) == Some(delivery.priority))
}

/// Whether the entry that the kernel returned is the one of `delivery`.
pub(super) fn is_route_of(
    message: &Message<'_>,
    delivery: &LocalDelivery,
) -> Result<bool, QueryError> {
    let header = read_header(message, "a route")?;
    let attributes = message.attributes_behind(header.len());
    Ok(header[7] == LOCAL && attributes.native_u32(route::TABLE) == Some(delivery.table))
}

fn read_header(message: &Message<'_>, what: &'static str) -> Result<[u8; 12], QueryError> {
    let header = message.payload.first_chunk();
    header.copied().ok_or(QueryError::Illegible {
        what,
        part: "its header",
    })
}

/// A `struct rtmsg`, or a `struct fib_rule_hdr`, which has the same layout. `details` follow the
/// lengths and the type of service.
fn header(family: Family, details: [u8; 4], flags: u32) -> [u8; 12] {
    let [a, b, c, d] = details;
    let [e, f, g, h] = flags.to_ne_bytes();
    [number_of(family), 0, 0, 0, a, b, c, d, e, f, g, h]
}

fn number_of(family: Family) -> u8 {
    match family {
        Family::Ipv4 => INET,
        Family::Ipv6 => INET6,
    }
}
