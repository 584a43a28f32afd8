//! Encodes values as messages.

use std::net::{IpAddr, SocketAddr};

use super::{
    AddressedServer, Destination, Forwarding, Operation, Timeouts, VirtualServer,
    VirtualServerFlags, VirtualServerKey,
};
use crate::generic::FamilyId;
use crate::wire::{ACK, DUMP, REQUEST, Writer};
use address::Family;

/// `IPVS_GENL_VERSION`.
const VERSION: u8 = 1;
/// The size of one send. The reply to each message takes at most 1 KiB of the receive buffer, and
/// the kernel queues all replies before the first is read.
const BATCH: usize = 64 << 10;

/// `IPVS_CMD_*`, without the commands that flush and zero tables.
pub(super) mod command {
    pub(crate) const NEW_SERVICE: u8 = 1;
    pub(crate) const SET_SERVICE: u8 = 2;
    pub(crate) const DELETE_SERVICE: u8 = 3;
    pub(crate) const GET_SERVICE: u8 = 4;
    pub(crate) const NEW_DESTINATION: u8 = 5;
    pub(crate) const SET_DESTINATION: u8 = 6;
    pub(crate) const DELETE_DESTINATION: u8 = 7;
    pub(crate) const GET_DESTINATION: u8 = 8;
    pub(crate) const SET_CONFIG: u8 = 12;
    pub(crate) const GET_CONFIG: u8 = 13;
}

/// `IPVS_CMD_ATTR_*`.
pub(super) mod attribute {
    pub(crate) const SERVICE: u16 = 1;
    pub(crate) const DESTINATION: u16 = 2;
    pub(crate) const TIMEOUT_TCP: u16 = 4;
    pub(crate) const TIMEOUT_TCP_FIN: u16 = 5;
    pub(crate) const TIMEOUT_UDP: u16 = 6;
}

/// `IPVS_SVC_ATTR_*`.
pub(super) mod service {
    pub(crate) const FAMILY: u16 = 1;
    pub(crate) const PROTOCOL: u16 = 2;
    pub(crate) const ADDRESS: u16 = 3;
    pub(crate) const PORT: u16 = 4;
    pub(crate) const MARK: u16 = 5;
    pub(crate) const SCHEDULER: u16 = 6;
    pub(crate) const FLAGS: u16 = 7;
    pub(crate) const TIMEOUT: u16 = 8;
    pub(crate) const NETMASK: u16 = 9;
    pub(crate) const COUNTERS: u16 = 10;
}

/// `IPVS_STATS_ATTR_*`.
pub(super) mod counter {
    pub(crate) const CONNECTIONS: u16 = 1;
}

/// `IPVS_DEST_ATTR_*`.
pub(super) mod destination {
    pub(crate) const ADDRESS: u16 = 1;
    pub(crate) const PORT: u16 = 2;
    pub(crate) const FORWARDING: u16 = 3;
    pub(crate) const WEIGHT: u16 = 4;
    pub(crate) const UPPER: u16 = 5;
    pub(crate) const LOWER: u16 = 6;
    pub(crate) const ACTIVE: u16 = 7;
    pub(crate) const INACTIVE: u16 = 8;
    pub(crate) const FAMILY: u16 = 11;
}

/// Encodes as many of `operations` as fit in one send, with sequence numbers from `first` on.
/// Returns the number encoded: all, or at least one.
pub(super) fn batch(operations: &[Operation], family: FamilyId, first: u32) -> (Vec<u8>, usize) {
    let mut writer = Writer::default();
    let (mut count, mut sequence) = (0, first);
    for operation in operations {
        write_operation(&mut writer, family, sequence, operation);
        count += 1;
        sequence = sequence.wrapping_add(1);
        if writer.len() >= BATCH {
            break;
        }
    }
    (writer.into_bytes(), count)
}

fn write_operation(writer: &mut Writer, family: FamilyId, sequence: u32, operation: &Operation) {
    let command = match operation {
        Operation::AddVirtualServer { .. } => command::NEW_SERVICE,
        Operation::SetVirtualServer { .. } => command::SET_SERVICE,
        Operation::RemoveVirtualServer { .. } => command::DELETE_SERVICE,
        Operation::AddDestination { .. } => command::NEW_DESTINATION,
        Operation::SetDestination { .. } => command::SET_DESTINATION,
        Operation::RemoveDestination { .. } => command::DELETE_DESTINATION,
    };
    let message = writer.begin_generic(family.0, REQUEST | ACK, sequence, command, VERSION);
    match operation {
        Operation::AddVirtualServer { key, server }
        | Operation::SetVirtualServer { key, server } => {
            write_service(writer, *key, Some(server));
        }
        Operation::RemoveVirtualServer { key } => write_service(writer, *key, None),
        Operation::AddDestination {
            key,
            address,
            destination,
        }
        | Operation::SetDestination {
            key,
            address,
            destination,
        } => {
            write_service(writer, *key, None);
            write_destination(writer, *address, Some(destination));
        }
        Operation::RemoveDestination { key, address } => {
            write_service(writer, *key, None);
            write_destination(writer, *address, None);
        }
    }
    writer.end(message);
}

fn write_service(writer: &mut Writer, key: VirtualServerKey, server: Option<&VirtualServer>) {
    let nested = writer.nest(attribute::SERVICE);
    writer.native_u16(service::FAMILY, key.family.number().into());
    writer.native_u32(service::MARK, key.mark.value());
    if let Some(VirtualServer { scheduler, flags }) = server {
        writer.string(service::SCHEDULER, scheduler.as_str());
        let VirtualServerFlags(flags) = flags;
        let [flags, mask] = [flags.to_ne_bytes(), u32::MAX.to_ne_bytes()];
        writer.bytes(service::FLAGS, &[flags, mask].concat());
        // Timeout and netmask only matter for persistent clients, but the kernel requires them.
        writer.native_u32(service::TIMEOUT, 0);
        match key.family {
            Family::Ipv4 => writer.u32(service::NETMASK, u32::MAX),
            Family::Ipv6 => writer.native_u32(service::NETMASK, 128),
        }
    }
    writer.close(nested);
}

fn write_addressed(writer: &mut Writer, server: AddressedServer) {
    let nested = writer.nest(attribute::SERVICE);
    let AddressedServer { protocol, address } = server;
    writer.native_u16(service::FAMILY, Family::of(address.ip()).number().into());
    writer.native_u16(service::PROTOCOL, protocol.into());
    writer.bytes(service::ADDRESS, &union_of(address.ip()));
    writer.bytes(service::PORT, &address.port().to_be_bytes());
    writer.close(nested);
}

/// `union nf_inet_addr`, which has the size of the longest address.
fn union_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(ip) => {
            let mut union = [0; 16];
            union[..4].copy_from_slice(&ip.octets());
            union
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn write_destination(writer: &mut Writer, address: SocketAddr, what: Option<&Destination>) {
    let nested = writer.nest(attribute::DESTINATION);
    writer.native_u16(
        destination::FAMILY,
        Family::of(address.ip()).number().into(),
    );
    writer.bytes(destination::ADDRESS, &union_of(address.ip()));
    writer.bytes(destination::PORT, &address.port().to_be_bytes());
    if let Some(what) = what {
        writer.native_u32(destination::FORWARDING, forwarding_number(what.forwarding));
        writer.native_u32(destination::WEIGHT, what.weight.0);
        writer.native_u32(destination::UPPER, what.thresholds.upper);
        writer.native_u32(destination::LOWER, what.thresholds.lower);
    }
    writer.close(nested);
}

/// `IP_VS_CONN_F_*` within `IP_VS_CONN_F_FWD_MASK`.
pub(super) fn forwarding_number(forwarding: Forwarding) -> u32 {
    match forwarding {
        Forwarding::Masquerade => 0,
        Forwarding::Local => 1,
        Forwarding::Tunnel => 2,
        Forwarding::Route => 3,
        Forwarding::Bypass => 4,
    }
}

/// A request for all virtual servers.
pub(super) fn list_services(family: FamilyId, sequence: u32) -> Vec<u8> {
    request(
        family,
        REQUEST | DUMP,
        sequence,
        command::GET_SERVICE,
        |_| {},
    )
}

/// A request for all destinations of a virtual server. For one that does not exist, the kernel
/// lists none.
pub(super) fn list_destinations(key: VirtualServerKey, family: FamilyId, sequence: u32) -> Vec<u8> {
    let command = command::GET_DESTINATION;
    request(family, REQUEST | DUMP, sequence, command, |writer| {
        write_service(writer, key, None);
    })
}

/// Like [`list_destinations`], for a virtual server that its packets' destination selects.
pub(super) fn list_destinations_of_addressed(
    server: AddressedServer,
    family: FamilyId,
    sequence: u32,
) -> Vec<u8> {
    let command = command::GET_DESTINATION;
    request(family, REQUEST | DUMP, sequence, command, |writer| {
        write_addressed(writer, server);
    })
}

/// A request to remove a virtual server that its packets' destination selects, with its
/// destinations.
pub(super) fn remove_addressed(
    server: AddressedServer,
    family: FamilyId,
    sequence: u32,
) -> Vec<u8> {
    let command = command::DELETE_SERVICE;
    request(family, REQUEST | ACK, sequence, command, |writer| {
        write_addressed(writer, server);
    })
}

/// A request for the timeouts.
pub(super) fn get_timeouts(family: FamilyId, sequence: u32) -> Vec<u8> {
    request(family, REQUEST, sequence, command::GET_CONFIG, |_| {})
}

/// A request to change the timeouts.
pub(super) fn set_timeouts(timeouts: Timeouts, family: FamilyId, sequence: u32) -> Vec<u8> {
    let command = command::SET_CONFIG;
    request(family, REQUEST | ACK, sequence, command, |writer| {
        writer.native_u32(attribute::TIMEOUT_TCP, timeouts.tcp.0.get());
        writer.native_u32(attribute::TIMEOUT_TCP_FIN, timeouts.tcp_fin.0.get());
        writer.native_u32(attribute::TIMEOUT_UDP, timeouts.udp.0.get());
    })
}

fn request(
    family: FamilyId,
    flags: u16,
    sequence: u32,
    command: u8,
    write: impl FnOnce(&mut Writer),
) -> Vec<u8> {
    let mut writer = Writer::default();
    let message = writer.begin_generic(family.0, flags, sequence, command, VERSION);
    write(&mut writer);
    writer.end(message);
    writer.into_bytes()
}
