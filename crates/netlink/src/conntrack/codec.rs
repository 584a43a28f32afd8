//! Encodes and decodes flows and filters as ctnetlink messages.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use thiserror::Error;

use super::{Answers, Filter, Flow, Protocol, Status, Tuple};
use crate::nf_tables::Family;
use crate::wire::{ACK, Attributes, DUMP, Message, REQUEST, Writer};

/// `NFNL_SUBSYS_CTNETLINK`, in the upper byte of a message's type.
const SUBSYSTEM: u16 = 1 << 8;
/// `IPCTNL_MSG_CT_NEW`: the type of the messages that list flows.
pub(super) const NEW: u16 = SUBSYSTEM;
/// `IPCTNL_MSG_CT_GET`.
const GET: u16 = SUBSYSTEM | 1;
/// `IPCTNL_MSG_CT_DELETE`. Without a tuple, the request deletes every flow.
const DELETE: u16 = SUBSYSTEM | 2;

/// `enum ctattr_type`.
mod flow {
    pub(super) const ORIGINAL: u16 = 1;
    pub(super) const REPLY: u16 = 2;
    pub(super) const STATUS: u16 = 3;
    pub(super) const ID: u16 = 12;
    pub(super) const ZONE: u16 = 18;
    /// Since Linux 5.8; older kernels ignore it.
    pub(super) const FILTER: u16 = 25;
    /// Since Linux 5.15; older kernels ignore it.
    pub(super) const STATUS_MASK: u16 = 26;
}

/// `enum ctattr_tuple`.
mod tuple {
    pub(super) const ADDRESSES: u16 = 1;
    pub(super) const PROTOCOL: u16 = 2;
    pub(super) const ZONE: u16 = 3;
}

/// `enum ctattr_ip`: source, then destination.
const ADDRESSES_V4: [u16; 2] = [1, 2];
const ADDRESSES_V6: [u16; 2] = [3, 4];

/// `enum ctattr_l4proto`.
mod transport {
    pub(super) const NUMBER: u16 = 1;
    pub(super) const PORTS: [u16; 2] = [2, 3];
}

/// `CTA_FILTER_ORIG_FLAGS`.
const ORIGINAL_FLAGS: u16 = 1;
/// `CTA_FILTER_F_CTA_PROTO_NUM`: compare the protocol of the original tuple.
const BY_PROTOCOL: u32 = 1 << 3;

/// Why a listed entry cannot be decoded as a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{attribute} is missing or malformed")]
pub struct DecodeError {
    attribute: &'static str,
}

/// Encodes a request for all flows that `filter` selects; a kernel without filters lists all flows.
pub(super) fn encode_dump(filter: &Filter, sequence: u32) -> Vec<u8> {
    let mut writer = Writer::default();
    let flags = REQUEST | DUMP;
    let message = writer.begin(GET, flags, sequence, filter.family.number(), 0);
    let original = writer.nest(flow::ORIGINAL);
    let protocol = writer.nest(tuple::PROTOCOL);
    writer.u8(transport::NUMBER, filter.protocol.number());
    writer.close(protocol);
    writer.close(original);
    let by = writer.nest(flow::FILTER);
    // The only number of this subsystem that is not big-endian.
    writer.bytes(ORIGINAL_FLAGS, &BY_PROTOCOL.to_ne_bytes());
    writer.close(by);
    if filter.answers == Answers::None {
        let Status(mask) = Status::SEEN_REPLY;
        writer.u32(flow::STATUS, 0);
        writer.u32(flow::STATUS_MASK, mask);
    }
    writer.end(message);
    writer.into_bytes()
}

/// Encodes a request to delete `doomed` and no other entry.
pub(super) fn encode_deletion(doomed: &Flow, sequence: u32) -> Vec<u8> {
    let mut writer = Writer::default();
    let family = match doomed.original.destination {
        SocketAddr::V4(_) => Family::Ipv4,
        SocketAddr::V6(_) => Family::Ipv6,
    };
    let message = writer.begin(DELETE, REQUEST | ACK, sequence, family.number(), 0);
    write_flow_key(&mut writer, doomed);
    writer.end(message);
    writer.into_bytes()
}

fn write_flow_key(writer: &mut Writer, key: &Flow) {
    write_tuple(writer, flow::ORIGINAL, key.protocol, &key.original);
    if key.zone != 0 {
        writer.bytes(flow::ZONE, &key.zone.to_be_bytes());
    }
    writer.u32(flow::ID, key.id);
}

fn write_tuple(writer: &mut Writer, kind: u16, protocol: Protocol, ends: &Tuple) {
    let tuple = writer.nest(kind);
    let addresses = writer.nest(tuple::ADDRESSES);
    let ends = [ends.source, ends.destination];
    for (end, (v4, v6)) in ends.iter().zip(ADDRESSES_V4.into_iter().zip(ADDRESSES_V6)) {
        match end.ip() {
            IpAddr::V4(address) => writer.bytes(v4, &address.octets()),
            IpAddr::V6(address) => writer.bytes(v6, &address.octets()),
        }
    }
    writer.close(addresses);
    let transport = writer.nest(tuple::PROTOCOL);
    writer.u8(transport::NUMBER, protocol.number());
    for (end, kind) in ends.iter().zip(transport::PORTS) {
        writer.bytes(kind, &end.port().to_be_bytes());
    }
    writer.close(transport);
    writer.close(tuple);
}

/// Decodes a listed flow; `None` if its protocol has no ports.
pub(super) fn decode(message: &Message<'_>) -> Result<Option<Flow>, DecodeError> {
    let attributes = message.attributes();
    let nested = |kind, attribute| attributes.nested(kind).ok_or(DecodeError { attribute });
    let original = nested(flow::ORIGINAL, "CTA_TUPLE_ORIG")?;
    let Some((protocol, ends)) = decode_tuple(&original)? else {
        return Ok(None);
    };
    let Some((_, reply)) = decode_tuple(&nested(flow::REPLY, "CTA_TUPLE_REPLY")?)? else {
        return Ok(None);
    };
    let number = |kind, attribute| attributes.u32(kind).ok_or(DecodeError { attribute });
    Ok(Some(Flow {
        protocol,
        original: ends,
        reply,
        status: Status(number(flow::STATUS, "CTA_STATUS")?),
        // A zone that applies to one direction only is in that direction's tuple.
        zone: decode_u16(&attributes, flow::ZONE)
            .or_else(|| decode_u16(&original, tuple::ZONE))
            .unwrap_or(0),
        id: number(flow::ID, "CTA_ID")?,
    }))
}

fn decode_tuple(tuple: &Attributes<'_>) -> Result<Option<(Protocol, Tuple)>, DecodeError> {
    let nested = |kind, attribute| tuple.nested(kind).ok_or(DecodeError { attribute });
    let transport = nested(tuple::PROTOCOL, "CTA_TUPLE_PROTO")?;
    let number = transport.u8(transport::NUMBER).ok_or(DecodeError {
        attribute: "CTA_PROTO_NUM",
    })?;
    let mut known = Protocol::ALL.into_iter();
    let Some(protocol) = known.find(|protocol| protocol.number() == number) else {
        return Ok(None);
    };
    let addresses = nested(tuple::ADDRESSES, "CTA_TUPLE_IP")?;
    let end = |at: usize| -> Result<SocketAddr, DecodeError> {
        let address = decode_address(&addresses, at).ok_or(DecodeError {
            attribute: "CTA_IP",
        })?;
        let port = decode_u16(&transport, transport::PORTS[at]).ok_or(DecodeError {
            attribute: "CTA_PROTO_PORT",
        })?;
        Ok(SocketAddr::new(address, port))
    };
    let (source, destination) = (end(0)?, end(1)?);
    Ok(Some((
        protocol,
        Tuple {
            source,
            destination,
        },
    )))
}

fn decode_address(addresses: &Attributes<'_>, at: usize) -> Option<IpAddr> {
    if let Some(bytes) = addresses.get(ADDRESSES_V4[at]) {
        let octets: [u8; 4] = bytes.try_into().ok()?;
        return Some(Ipv4Addr::from(octets).into());
    }
    let octets: [u8; 16] = addresses.get(ADDRESSES_V6[at])?.try_into().ok()?;
    Some(Ipv6Addr::from(octets).into())
}

fn decode_u16(attributes: &Attributes<'_>, kind: u16) -> Option<u16> {
    Some(u16::from_be_bytes(attributes.get(kind)?.try_into().ok()?))
}

/// Encodes `listed` as the kernel lists it, for tests of the decoder.
#[cfg(test)]
pub(super) fn encode_listing(listed: &Flow, sequence: u32) -> Vec<u8> {
    let mut writer = Writer::default();
    let message = writer.begin(NEW, 0, sequence, Family::Ipv4.number(), 0);
    write_flow_key(&mut writer, listed);
    write_tuple(&mut writer, flow::REPLY, listed.protocol, &listed.reply);
    let Status(status) = listed.status;
    writer.u32(flow::STATUS, status);
    writer.end(message);
    writer.into_bytes()
}
