//! Network devices: which there are; and to mark and to remove one that another program has left behind.
//!
//! Sources: `include/uapi/linux/{rtnetlink,if_link,if_addr}.h` and `net/core/rtnetlink.c` of Linux
//! 6.1.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use address::Family;
use rustix::io::Errno;

use crate::channel::Channel;
use crate::descriptor::{OpenError, Subsystem};
use crate::generic::{ChangeError, GenericChannel, QueryError};
use crate::wire::{ACK, CREATE, DUMP, EXCLUSIVE, Message, REPLACE, REQUEST, Writer};

/// `RTM_NEWLINK`: also the type of the reply with a device.
const NEW_LINK: u16 = 16;
/// `RTM_DELLINK`.
const DELETE_LINK: u16 = 17;
/// `RTM_GETLINK`.
const GET_LINK: u16 = 18;
/// `RTM_SETLINK`.
const SET_LINK: u16 = 19;
/// `RTM_DELADDR`.
const DELETE_ADDRESS: u16 = 21;
/// `RTM_NEWROUTE`.
const NEW_ROUTE: u16 = 24;
/// `RTM_DELROUTE`.
const DELETE_ROUTE: u16 = 25;
/// `RT_TABLE_LOCAL`: the routes to addresses of this node.
const LOCAL_TABLE: u8 = 255;
/// `RTPROT_KERNEL`.
const BY_KERNEL: u8 = 2;
/// `RT_SCOPE_HOST`.
const SCOPE_HOST: u8 = 254;
/// `RTN_LOCAL`.
const LOCAL_ROUTE: u8 = 2;
/// `LOOPBACK_IFINDEX`: `lo` has this number in every network namespace.
const LOOPBACK: NonZeroU32 = NonZeroU32::MIN;
/// The metric of Signpost's IPv6 routes. Only the kernel can add one with metric 0.
const METRIC: u32 = 1;
/// `AF_UNSPEC`.
const ANY_FAMILY: u8 = 0;
/// A device with thousands of attributes does not exist; the kernel sends one in 16 KiB.
const DATAGRAM: usize = 64 << 10;

/// `IFLA_*`.
mod attribute {
    pub(super) const NAME: u16 = 3;
    pub(super) const LINK_INFO: u16 = 18;
    pub(super) const ALIAS: u16 = 20;
    pub(super) const EXTENSION_MASK: u16 = 29;
}

/// `IFLA_INFO_KIND`, within `IFLA_LINKINFO`.
const KIND: u16 = 1;
/// The kind of a device that drops what it is to send and receives nothing, such as kube-ipvs0.
const DUMMY: &str = "dummy";
/// `IFF_LOOPBACK`.
const IS_LOOPBACK: u32 = 0x8;
/// `RTEXT_FILTER_SKIP_STATS`.
const WITHOUT_STATISTICS: u32 = 1 << 3;

/// `IFA_LOCAL`.
const LOCAL: u16 = 2;

/// `RTA_*`.
mod route {
    pub(super) const DESTINATION: u16 = 1;
    pub(super) const INTERFACE: u16 = 4;
    pub(super) const METRIC: u16 = 6;
    pub(super) const SOURCE: u16 = 7;
}

/// A network device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its number in the network namespace.
    pub index: NonZeroU32,
    /// The text that administrators and programs may attach to it (`ip link set alias`).
    pub alias: Option<String>,
}

/// A socket for the devices of the network namespace in which it was opened.
#[derive(Debug)]
pub struct LinkSocket {
    channel: GenericChannel,
}

// === impl LinkSocket ===

impl LinkSocket {
    /// Opens a socket in the network namespace of this thread. Changes need `CAP_NET_ADMIN` there.
    pub fn open() -> Result<LinkSocket, OpenError> {
        let channel = GenericChannel {
            channel: Channel::open(Subsystem::Route, DATAGRAM)?,
            sequence: 0,
        };
        Ok(LinkSocket { channel })
    }

    /// Reads the device of this name; `None` if there is none.
    pub fn observe(&mut self, name: &str) -> Result<Option<Link>, QueryError> {
        let encode = |sequence| {
            let write = |writer: &mut Writer| writer.string(attribute::NAME, name);
            about_link(GET_LINK, REQUEST, sequence, None, write)
        };
        match self
            .channel
            .ask("network devices", NEW_LINK, encode, decode)
        {
            Err(QueryError::Refused { source, .. })
                if Errno::from_io_error(&source) == Some(Errno::NODEV) =>
            {
                Ok(None)
            }
            found => found.map(Some),
        }
    }

    /// The names of the devices on which packets of others may arrive: all but loopback and dummy devices.
    pub fn observe_receiving(&mut self) -> Result<BTreeSet<Arc<str>>, QueryError> {
        let encode = |sequence| {
            let write = |writer: &mut Writer| {
                writer.native_u32(attribute::EXTENSION_MASK, WITHOUT_STATISTICS);
            };
            about_link(GET_LINK, REQUEST | DUMP, sequence, None, write)
        };
        let what = "network devices";
        let names = self
            .channel
            .dump(what, NEW_LINK, encode, decode_receiving)?;
        Ok(names.into_iter().flatten().collect())
    }

    /// Attaches a text to the device, in place of any other.
    pub fn commit_alias(&mut self, index: NonZeroU32, alias: &str) -> Result<(), ChangeError> {
        let change = || format!("set the alias of network device {index}");
        self.channel.change(change, &[], |sequence| {
            let write = |writer: &mut Writer| writer.string(attribute::ALIAS, alias);
            about_link(SET_LINK, REQUEST | ACK, sequence, Some(index), write)
        })
    }

    /// Removes the device with its addresses. Succeeds if it does not exist.
    pub fn commit_removal(&mut self, index: NonZeroU32) -> Result<(), ChangeError> {
        let change = || format!("remove network device {index}");
        self.channel.change(change, &[Errno::NODEV], |sequence| {
            about_link(DELETE_LINK, REQUEST | ACK, sequence, Some(index), |_| {})
        })
    }

    /// Makes `source`, another address of this node, the source of what processes of this node send
    /// to `address` of the device from now on: without that it is `address` itself. Existing
    /// connections keep theirs. In IPv6 this takes a route that [`LinkSocket::commit_address_removal`]
    /// removes; in IPv4 the kernel does.
    pub fn commit_source(
        &mut self,
        index: NonZeroU32,
        address: IpAddr,
        source: IpAddr,
    ) -> Result<(), ChangeError> {
        let change = || format!("change the source of packets to {address}");
        if address.is_ipv4() {
            return self.channel.change(change, &[], |sequence| {
                let flags = REQUEST | ACK | CREATE | REPLACE;
                local_route(NEW_ROUTE, flags, address, index, Some(source), sequence)
            });
        }
        // A route of the kernel cannot be replaced in IPv6, and a device that is down takes none.
        self.channel.change(change, &[Errno::EXIST], |sequence| {
            let flags = REQUEST | ACK | CREATE | EXCLUSIVE;
            local_route(NEW_ROUTE, flags, address, LOOPBACK, Some(source), sequence)
        })?;
        self.channel.change(change, &[Errno::SRCH], |sequence| {
            let flags = REQUEST | ACK;
            local_route(DELETE_ROUTE, flags, address, index, None, sequence)
        })
    }

    /// Removes an address of the device. Succeeds if it does not have it.
    pub fn commit_address_removal(
        &mut self,
        index: NonZeroU32,
        address: IpAddr,
    ) -> Result<(), ChangeError> {
        let change = || format!("remove address {address} from network device {index}");
        let gone = &[Errno::ADDRNOTAVAIL, Errno::NODEV];
        self.channel.change(change, gone, |sequence| {
            remove_address(index, address, sequence)
        })?;
        if address.is_ipv4() {
            return Ok(());
        }
        self.channel.change(change, &[Errno::SRCH], |sequence| {
            let flags = REQUEST | ACK;
            local_route(DELETE_ROUTE, flags, address, LOOPBACK, None, sequence)
        })
    }
}

/// Encodes a request with a `struct ifinfomsg`.
fn about_link(
    kind: u16,
    flags: u16,
    sequence: u32,
    index: Option<NonZeroU32>,
    write: impl FnOnce(&mut Writer),
) -> Vec<u8> {
    let mut header = [0; 16];
    header[0] = ANY_FAMILY;
    header[4..8].copy_from_slice(&index.map_or(0, NonZeroU32::get).to_ne_bytes());
    let mut writer = Writer::default();
    let message = writer.begin_route(kind, flags, sequence, header);
    write(&mut writer);
    writer.end(message);
    writer.into_bytes()
}

/// The bytes of an address, and their number of bits.
fn octets(address: IpAddr) -> (Vec<u8>, u8) {
    match address {
        IpAddr::V4(ip) => (ip.octets().to_vec(), 32),
        IpAddr::V6(ip) => (ip.octets().to_vec(), 128),
    }
}

/// Encodes a request about a route to an address of this node.
fn local_route(
    kind: u16,
    flags: u16,
    address: IpAddr,
    index: NonZeroU32,
    source: Option<IpAddr>,
    sequence: u32,
) -> Vec<u8> {
    let (destination, length) = octets(address);
    let mut header = [0; 12];
    header[0] = Family::of(address).number();
    header[1] = length;
    header[4..8].copy_from_slice(&[LOCAL_TABLE, BY_KERNEL, SCOPE_HOST, LOCAL_ROUTE]);
    let mut writer = Writer::default();
    let message = writer.begin_route(kind, flags, sequence, header);
    writer.bytes(route::DESTINATION, &destination);
    writer.native_u32(route::INTERFACE, index.get());
    if let Some(source) = source {
        writer.bytes(route::SOURCE, &octets(source).0);
    }
    // The kernel's own route has metric 0, which in a request means any.
    if address.is_ipv6() && index == LOOPBACK {
        writer.native_u32(route::METRIC, METRIC);
    }
    writer.end(message);
    writer.into_bytes()
}

/// Encodes a request with a `struct ifaddrmsg`.
fn remove_address(index: NonZeroU32, address: IpAddr, sequence: u32) -> Vec<u8> {
    let (octets, length) = octets(address);
    let mut header = [Family::of(address).number(), length, 0, 0, 0, 0, 0, 0];
    header[4..].copy_from_slice(&index.get().to_ne_bytes());
    let mut writer = Writer::default();
    let message = writer.begin_route(DELETE_ADDRESS, REQUEST | ACK, sequence, header);
    writer.bytes(LOCAL, &octets);
    writer.end(message);
    writer.into_bytes()
}

fn decode(message: &Message<'_>) -> Result<Link, QueryError> {
    let illegible = QueryError::Illegible {
        what: "a network device",
        part: "its header",
    };
    let Some(header) = message.payload.first_chunk::<16>() else {
        return Err(illegible);
    };
    let index = u32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
    let Some(index) = NonZeroU32::new(index) else {
        return Err(illegible);
    };
    let attributes = message.attributes_behind(header.len());
    let alias = attributes.string(attribute::ALIAS).map(str::to_owned);
    Ok(Link { index, alias })
}

/// The name of the device, if packets of others may arrive on it and its name is UTF-8.
fn decode_receiving(message: &Message<'_>) -> Result<Option<Arc<str>>, QueryError> {
    let Some(header) = message.payload.first_chunk::<16>() else {
        return Err(QueryError::Illegible {
            what: "a network device",
            part: "its header",
        });
    };
    let flags = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
    let attributes = message.attributes_behind(header.len());
    let info = attributes.nested(attribute::LINK_INFO);
    let is_dummy = info.is_some_and(|info| info.string(KIND) == Some(DUMMY));
    let name = attributes.string(attribute::NAME);
    let name = name.filter(|_| flags & IS_LOOPBACK == 0 && !is_dummy);
    Ok(name.map(Arc::from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostile::for_every_input;
    use crate::wire::Messages;

    #[test]
    fn a_listed_device_is_read_with_its_alias() {
        let index = NonZeroU32::new(7).expect("it is not 0");
        for alias in [None, Some("ends")] {
            let bytes = about_link(NEW_LINK, 0, 1, Some(index), |writer| {
                writer.string(attribute::NAME, "kube-ipvs0");
                if let Some(alias) = alias {
                    writer.string(attribute::ALIAS, alias);
                }
            });
            let message = Messages::parse(&bytes).next().expect("one message");
            let alias = alias.map(str::to_owned);
            assert_eq!(decode(&message).expect("a device"), Link { index, alias });
        }
    }

    #[test]
    fn packets_arrive_on_any_device_but_loopback_and_dummies() {
        let name = |flags: u32, kind: Option<&str>| {
            let mut bytes = about_link(NEW_LINK, 0, 1, None, |writer| {
                writer.string(attribute::NAME, "dev");
                if let Some(kind) = kind {
                    let open = writer.nest(attribute::LINK_INFO);
                    writer.string(KIND, kind);
                    writer.close(open);
                }
            });
            bytes[24..28].copy_from_slice(&flags.to_ne_bytes());
            let message = Messages::parse(&bytes).next().expect("one message");
            decode_receiving(&message).expect("a device")
        };
        assert_eq!(name(0x1043, None).as_deref(), Some("dev"));
        assert_eq!(name(0x1043, Some("veth")).as_deref(), Some("dev"));
        assert_eq!(name(0x49, None), None);
        assert_eq!(name(0xc3, Some("dummy")), None);
    }

    #[test]
    fn loopback_is_listed_as_no_device_that_receives() {
        let mut socket = LinkSocket::open().expect("a socket");
        let names = socket.observe_receiving().expect("the kernel lists them");
        assert!(!names.contains("lo"), "{names:?}");
    }

    #[test]
    fn damaged_messages_are_at_most_an_error() {
        for_every_input(|input| {
            for message in Messages::parse(input) {
                let _ = decode_receiving(&message);
                let _ = decode(&message);
            }
        });
    }
}
