//! Sets of `ipset`, to read and to remove those that another program has left behind.
//!
//! Sources: `include/uapi/linux/netfilter/ipset/ip_set.h` and
//! `net/netfilter/ipset/ip_set_core.c` of Linux 6.1.

use rustix::io::Errno;

use crate::channel::Channel;
use crate::descriptor::{OpenError, Subsystem};
use crate::generic::{ChangeError, GenericChannel, QueryError};
use crate::wire::{ACK, Attributes, DUMP, Message, REQUEST, Writer};

/// `NFNL_SUBSYS_IPSET`, as the high byte of a message's type.
const SUBSYSTEM: u16 = 6 << 8;
/// `IPSET_CMD_DESTROY`.
const DESTROY: u16 = SUBSYSTEM | 3;
/// `IPSET_CMD_LIST`.
const LIST: u16 = SUBSYSTEM | 7;
/// `IPSET_PROTOCOL_MIN`, which newer kernels accept as well.
const PROTOCOL: u8 = 6;
/// `IPSET_FLAG_LIST_SETNAME`: names without elements.
const NAMES_ONLY: u32 = 1 << 1;
/// `IPSET_ERR_BUSY`, which is not an errno.
const BUSY: i32 = 4100;
/// `NFPROTO_UNSPEC`: neither request depends on a family.
const ANY_FAMILY: u8 = 0;
/// The kernel sends at most 32 KiB of a dump at once.
const DATAGRAM: usize = 64 << 10;

/// `IPSET_ATTR_*`.
mod attribute {
    pub(super) const PROTOCOL: u16 = 1;
    pub(super) const NAME: u16 = 2;
    pub(super) const FLAGS: u16 = 6;
    pub(super) const DATA: u16 = 7;
    pub(super) const ELEMENTS: u16 = 8;
    /// Within an element.
    pub(super) const PORT: u16 = 4;
}

/// The outcome of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// The set does not exist any more.
    Removed,
    /// A rule or another set refers to the set.
    InUse,
}

/// A socket for the sets of the network namespace in which it was opened.
#[derive(Debug)]
pub struct IpSetSocket {
    channel: GenericChannel,
}

// === impl IpSetSocket ===

impl IpSetSocket {
    /// Opens a socket in the network namespace of this thread. All its requests need
    /// `CAP_NET_ADMIN` there. The first one loads the module of sets if the kernel has it.
    pub fn open() -> Result<IpSetSocket, OpenError> {
        let channel = GenericChannel {
            channel: Channel::open(Subsystem::Netfilter, DATAGRAM)?,
            sequence: 0,
        };
        Ok(IpSetSocket { channel })
    }

    /// Lists the names of all sets; none if the kernel has no sets.
    pub fn observe_names(&mut self) -> Result<Vec<String>, QueryError> {
        let encode = |sequence| {
            request(LIST, REQUEST | DUMP, sequence, |writer| {
                writer.u32(attribute::FLAGS, NAMES_ONLY);
            })
        };
        let listed = self.channel.dump("sets of ipset", LIST, encode, name);
        match listed {
            // nfnetlink knows no such subsystem.
            Err(QueryError::Refused { source, .. })
                if Errno::from_io_error(&source) == Some(Errno::INVAL) =>
            {
                Ok(Vec::new())
            }
            listed => listed,
        }
    }

    /// Lists the ports of the elements of a set; none if the set does not exist or has no ports.
    pub fn observe_ports(&mut self, name: &str) -> Result<Vec<u16>, QueryError> {
        let encode = |sequence| {
            request(LIST, REQUEST | DUMP, sequence, |writer| {
                writer.string(attribute::NAME, name);
            })
        };
        match self.channel.dump("a set of ipset", LIST, encode, ports) {
            Err(QueryError::Refused { source, .. })
                if Errno::from_io_error(&source) == Some(Errno::NOENT) =>
            {
                Ok(Vec::new())
            }
            listed => Ok(listed?.concat()),
        }
    }

    /// Removes a set with its elements, unless something refers to it. Succeeds if it does not exist.
    pub fn commit_removal(&mut self, name: &str) -> Result<Removal, ChangeError> {
        let change = || format!("remove set {name} of ipset");
        let removed = self.channel.change(change, &[Errno::NOENT], |sequence| {
            request(DESTROY, REQUEST | ACK, sequence, |writer| {
                writer.string(attribute::NAME, name);
            })
        });
        match removed {
            Ok(()) => Ok(Removal::Removed),
            Err(ChangeError::Refused { source, .. }) if source.raw_os_error() == Some(BUSY) => {
                Ok(Removal::InUse)
            }
            Err(error) => Err(error),
        }
    }
}

fn request(kind: u16, flags: u16, sequence: u32, write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::default();
    let message = writer.begin(kind, flags, sequence, ANY_FAMILY, 0);
    writer.u8(attribute::PROTOCOL, PROTOCOL);
    write(&mut writer);
    writer.end(message);
    writer.into_bytes()
}

fn name(message: &Message<'_>) -> Result<String, QueryError> {
    let name = message.attributes().string(attribute::NAME);
    name.map(str::to_owned).ok_or(QueryError::Illegible {
        what: "a set of ipset",
        part: "its name",
    })
}

/// Decodes the ports of a part of a list. Elements without a port are skipped.
fn ports(message: &Message<'_>) -> Result<Vec<u16>, QueryError> {
    let Some(elements) = message.attributes().nested(attribute::ELEMENTS) else {
        return Ok(Vec::new());
    };
    let elements = elements.filter(|(kind, _)| *kind == attribute::DATA);
    let port = |element: &[u8]| {
        let port = Attributes::parse(element).get(attribute::PORT)?;
        Some(u16::from_be_bytes(port.try_into().ok()?))
    };
    Ok(elements.filter_map(|(_, element)| port(element)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostile::for_every_input;
    use crate::wire::Messages;

    /// Encodes a part of a list as the kernel does (`ip_set_dump_do`, `bitmap_port_list`).
    fn listing(name: &str, ports: &[u16]) -> Vec<u8> {
        request(LIST, 0, 1, |writer| {
            writer.string(attribute::NAME, name);
            let elements = writer.nest(attribute::ELEMENTS);
            for port in ports {
                let element = writer.nest(attribute::DATA);
                writer.bytes(attribute::PORT, &port.to_be_bytes());
                writer.close(element);
            }
            writer.close(elements);
        })
    }

    #[test]
    fn a_listed_set_is_read_with_its_ports() {
        let bytes = listing("KUBE-NODE-PORT-TCP", &[30080, 32767]);
        let message = Messages::parse(&bytes).next().expect("one message");
        assert_eq!(name(&message).expect("a name"), "KUBE-NODE-PORT-TCP");
        assert_eq!(ports(&message).expect("ports"), [30080, 32767]);
        let bytes = listing("KUBE-LOOP-BACK", &[]);
        let message = Messages::parse(&bytes).next().expect("one message");
        assert!(ports(&message).expect("none").is_empty());
    }

    #[test]
    fn damaged_messages_are_at_most_an_error() {
        for_every_input(|input| {
            for message in Messages::parse(input) {
                let _ = name(&message);
                let _ = ports(&message);
            }
        });
    }
}
