//! Decodes messages to values. It first checks whether a virtual server is in the reserved range,
//! before it decodes anything else of it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;

use super::encode::{attribute, counter, destination, forwarding_number, service};
use super::{
    AddressedServer, Connections, Destination, ForeignVirtualServer, Forwarding, Mark, MarkRange,
    SchedulerName, Seconds, Thresholds, Timeouts, VirtualServer, VirtualServerFlags,
    VirtualServerKey, Weight,
};
use crate::generic::QueryError;
use crate::wire::{Attributes, Message};
use address::Family;

/// A listed virtual server, by whether it is in the range.
#[derive(Debug, PartialEq)]
pub(super) enum Listed {
    Own(VirtualServerKey, VirtualServer),
    Foreign(ForeignVirtualServer),
}

pub(super) const SERVERS: &str = "virtual servers";
pub(super) const DESTINATIONS: &str = "destinations";
pub(super) const TIMEOUTS: &str = "timeouts";

fn illegible(what: &'static str, part: &'static str) -> QueryError {
    QueryError::Illegible { what, part }
}

pub(super) fn virtual_server(
    message: &Message<'_>,
    range: MarkRange,
) -> Result<Listed, QueryError> {
    let illegible = |part| illegible(SERVERS, part);
    let attributes = message.attributes().nested(attribute::SERVICE);
    let attributes = attributes.ok_or(illegible("a virtual server"))?;
    let family = attributes.native_u16(service::FAMILY).and_then(family_of);
    let family = family.ok_or(illegible("its family"))?;
    let Some(mark) = attributes.native_u32(service::MARK) else {
        let protocol = attributes.native_u16(service::PROTOCOL);
        let protocol = protocol.and_then(|number| u8::try_from(number).ok());
        let protocol = protocol.ok_or(illegible("its protocol"))?;
        let address = socket_address(&attributes, family, service::ADDRESS, service::PORT);
        let address = address.ok_or(illegible("its address"))?;
        let server = AddressedServer { protocol, address };
        return Ok(Listed::Foreign(ForeignVirtualServer::Addressed(server)));
    };
    if !range.contains(mark) {
        return Ok(Listed::Foreign(ForeignVirtualServer::Mark { family, mark }));
    }
    let key = VirtualServerKey {
        family,
        mark: Mark(mark),
    };
    let scheduler = attributes.string(service::SCHEDULER);
    let scheduler = scheduler.and_then(SchedulerName::new);
    let scheduler = scheduler.ok_or(illegible("its scheduler"))?;
    // `struct ip_vs_flags`: the flags, then the mask.
    let flags = attributes.get(service::FLAGS).filter(|f| f.len() == 8);
    let flags = flags.and_then(|flags| flags[..4].try_into().ok());
    let flags = u32::from_ne_bytes(flags.ok_or(illegible("its flags"))?);
    let flags = VirtualServerFlags(flags & !VirtualServerFlags::HASHED);
    Ok(Listed::Own(key, VirtualServer { scheduler, flags }))
}

/// The number of connections that a listed virtual server has had; 0 if the kernel does not say.
pub(super) fn connections_ever(message: &Message<'_>) -> u64 {
    let attributes = message.attributes().nested(attribute::SERVICE);
    let counters = attributes.and_then(|attributes| attributes.nested(service::COUNTERS));
    let connections = counters.and_then(|counters| counters.native_u32(counter::CONNECTIONS));
    connections.map_or(0, u64::from)
}

pub(super) fn destination(
    message: &Message<'_>,
    family: Family,
) -> Result<(SocketAddr, (Destination, Connections)), QueryError> {
    let illegible = |part| illegible(DESTINATIONS, part);
    let attributes = message.attributes().nested(attribute::DESTINATION);
    let attributes = attributes.ok_or(illegible("a destination"))?;
    // Kernels before 3.18 do not state it; then it is the virtual server's.
    let family = match attributes.native_u16(destination::FAMILY) {
        None => family,
        Some(number) => family_of(number).ok_or(illegible("its family"))?,
    };
    let address = socket_address(&attributes, family, destination::ADDRESS, destination::PORT);
    let address = address.ok_or(illegible("its address"))?;
    let number = |kind, part| attributes.native_u32(kind).ok_or(illegible(part));
    let forwarding = number(destination::FORWARDING, "its forwarding")?;
    let forwarding = [
        Forwarding::Masquerade,
        Forwarding::Local,
        Forwarding::Tunnel,
        Forwarding::Route,
        Forwarding::Bypass,
    ]
    .into_iter()
    .find(|known| forwarding_number(*known) == forwarding)
    .ok_or(illegible("its forwarding"))?;
    let what = Destination {
        forwarding,
        weight: Weight(number(destination::WEIGHT, "its weight")?),
        thresholds: Thresholds {
            upper: number(destination::UPPER, "its upper threshold")?,
            lower: number(destination::LOWER, "its lower threshold")?,
        },
    };
    let connections = Connections {
        active: number(destination::ACTIVE, "its active connections")?,
        inactive: number(destination::INACTIVE, "its inactive connections")?,
    };
    Ok((address, (what, connections)))
}

pub(super) fn timeouts(message: &Message<'_>) -> Result<Timeouts, QueryError> {
    let attributes = message.attributes();
    let seconds = |kind, part| {
        let seconds = attributes.native_u32(kind).and_then(NonZeroU32::new);
        seconds.map(Seconds).ok_or(illegible(TIMEOUTS, part))
    };
    Ok(Timeouts {
        tcp: seconds(attribute::TIMEOUT_TCP, "that of TCP")?,
        tcp_fin: seconds(attribute::TIMEOUT_TCP_FIN, "that of closing TCP")?,
        udp: seconds(attribute::TIMEOUT_UDP, "that of UDP")?,
    })
}

fn family_of(number: u16) -> Option<Family> {
    let families = [Family::Ipv4, Family::Ipv6].into_iter();
    families
        .map(|family| (family, u16::from(family.number())))
        .find_map(|(family, known)| (known == number).then_some(family))
}

/// An address as `union nf_inet_addr`, which has the size of the longest address, and a port.
fn socket_address(
    attributes: &Attributes<'_>,
    family: Family,
    address: u16,
    port: u16,
) -> Option<SocketAddr> {
    let octets = attributes.get(address)?;
    let ip = match family {
        Family::Ipv4 => {
            let octets: [u8; 4] = octets.get(..4)?.try_into().ok()?;
            IpAddr::V4(Ipv4Addr::from(octets))
        }
        Family::Ipv6 => {
            let octets: [u8; 16] = octets.get(..16)?.try_into().ok()?;
            IpAddr::V6(Ipv6Addr::from(octets))
        }
    };
    let port = u16::from_be_bytes(attributes.get(port)?.try_into().ok()?);
    Some(SocketAddr::new(ip, port))
}
