//! Generic netlink: the numeric ids of families, and requests to a family.
//!
//! Sources: `include/uapi/linux/genetlink.h` and `net/netlink/genetlink.c` of Linux 6.1 to 6.18.

use rustix::io::Errno;
use thiserror::Error;

use crate::channel::Channel;
use crate::wire::{DONE, DUMP, DUMP_INTERRUPTED, ERROR, Message, Messages, REQUEST, Writer};

/// `GENL_ID_CTRL`: the family that lists all families.
const CONTROL: u16 = 16;
/// `CTRL_CMD_NEWFAMILY`: the command of the messages that list families.
const NEW_FAMILY: u8 = 1;
/// `CTRL_CMD_GETFAMILY`.
const GET_FAMILY: u8 = 3;
/// The version of [`CONTROL`].
const VERSION: u8 = 2;
/// How often a dump is repeated while the listed objects change.
const DUMP_ATTEMPTS: u32 = 20;

/// `CTRL_ATTR_*`.
mod attribute {
    pub(super) const FAMILY_ID: u16 = 1;
    pub(super) const FAMILY_NAME: u16 = 2;
}

/// The message type of a family. Valid until the module of the family is unloaded; after that the
/// kernel may assign the number to another family, though not soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FamilyId(pub(crate) u16);

/// Why a request for data failed.
#[derive(Debug, Error)]
pub enum QueryError {
    /// The socket failed.
    #[error("failed to {step} netlink")]
    Socket {
        /// The step that failed.
        step: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// The kernel refused the request.
    #[error("the kernel refused to list {what}")]
    Refused {
        /// The requested objects.
        what: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// The objects changed during every attempt to list them.
    #[error("{what} changed during each of {DUMP_ATTEMPTS} attempts to list them")]
    Unsteady {
        /// The requested objects.
        what: &'static str,
    },
    /// The reply cannot be decoded.
    #[error("cannot read {what}: {part} is missing or malformed")]
    Illegible {
        /// The requested objects.
        what: &'static str,
        /// The part that cannot be decoded.
        part: &'static str,
    },
}

/// Why the kernel did not make a change that is not part of a batch.
#[derive(Debug, Error)]
pub enum ChangeError {
    /// The socket failed; it is unknown whether the change took effect.
    #[error("failed to {step} netlink")]
    Socket {
        /// The step that failed.
        step: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// The kernel refused the change.
    #[error("the kernel refused to {change}")]
    Refused {
        /// The change, in words.
        change: String,
        /// The cause.
        source: std::io::Error,
    },
}

/// Where the kernel looks up a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Search {
    /// Among the registered families.
    Loaded,
    /// Among the registered families and those for which it can load a module.
    Loadable,
}

/// A channel and the sequence numbers of its requests; used for generic netlink and for rtnetlink.
#[derive(Debug)]
pub(crate) struct GenericChannel {
    pub(crate) channel: Channel,
    pub(crate) sequence: u32,
}

// === impl GenericChannel ===

impl GenericChannel {
    /// Looks up a family by name; `None` if it does not exist.
    pub(crate) fn find_family(
        &mut self,
        name: &str,
        search: Search,
    ) -> Result<Option<FamilyId>, QueryError> {
        let what = "families of generic netlink";
        match search {
            // A request for a family by name would load its module.
            Search::Loaded => {
                let families = self.dump(what, CONTROL, encode_list, |message| {
                    Ok((family_name(message) == Some(name)).then(|| family_id(message)))
                })?;
                families.into_iter().flatten().next().transpose()
            }
            Search::Loadable => {
                let encode = |sequence| encode_get(name, sequence);
                match self.ask(what, CONTROL, encode, family_id) {
                    Ok(family) => Ok(Some(family)),
                    Err(QueryError::Refused { source, .. })
                        if source.kind() == std::io::ErrorKind::NotFound =>
                    {
                        Ok(None)
                    }
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// Requests one object of the family `kind` and decodes it.
    pub(crate) fn ask<T>(
        &mut self,
        what: &'static str,
        kind: u16,
        encode: impl FnOnce(u32) -> Vec<u8>,
        decode: impl FnOnce(&Message<'_>) -> Result<T, QueryError>,
    ) -> Result<T, QueryError> {
        let sequence = self.next_sequence();
        self.send(&encode(sequence))?;
        loop {
            let datagram = self.channel.receive().map_err(failed("receive from"))?;
            for message in Messages::parse(datagram).filter(|m| m.sequence == sequence) {
                if message.kind == ERROR && message.errno() != 0 {
                    let source = std::io::Error::from_raw_os_error(message.errno());
                    return Err(QueryError::Refused { what, source });
                }
                if message.kind == kind {
                    return decode(&message);
                }
            }
        }
    }

    /// Requests a change, which `change` describes, and reads the kernel's answer. Succeeds if the
    /// kernel answers with one of the errnos `done`, which mean that there is nothing to change.
    pub(crate) fn change(
        &mut self,
        change: impl FnOnce() -> String,
        done: &[Errno],
        encode: impl FnOnce(u32) -> Vec<u8>,
    ) -> Result<(), ChangeError> {
        let answered = self.acknowledged(encode);
        let errno = answered.map_err(|(step, source)| ChangeError::Socket { step, source })?;
        if errno == 0 || done.iter().any(|done| done.raw_os_error() == errno) {
            return Ok(());
        }
        Err(ChangeError::Refused {
            change: change(),
            source: std::io::Error::from_raw_os_error(errno),
        })
    }

    /// Sends one request and returns the errno of the kernel's answer, 0 for success. An error names
    /// the step at which the socket failed.
    pub(crate) fn acknowledged(
        &mut self,
        encode: impl FnOnce(u32) -> Vec<u8>,
    ) -> Result<i32, (&'static str, std::io::Error)> {
        let at = |step| move |source| (step, source);
        let sequence = self.next_sequence();
        let request = encode(sequence);
        self.channel.send(&request).map_err(at("send to"))?;
        loop {
            let datagram = self.channel.receive().map_err(at("receive from"))?;
            let mut messages = Messages::parse(datagram);
            let answer = messages.find(|m| m.kind == ERROR && m.sequence == sequence);
            if let Some(answer) = answer {
                return Ok(answer.errno());
            }
        }
    }

    /// Requests all objects of one type of the family `kind` and decodes each.
    pub(crate) fn dump<T>(
        &mut self,
        what: &'static str,
        kind: u16,
        encode: impl Fn(u32) -> Vec<u8>,
        decode: impl Fn(&Message<'_>) -> Result<T, QueryError>,
    ) -> Result<Vec<T>, QueryError> {
        for _ in 0..DUMP_ATTEMPTS {
            let sequence = self.next_sequence();
            self.send(&encode(sequence))?;
            if let Some(listed) = self.receive_dump(what, kind, sequence, &decode)? {
                return listed.into_iter().collect();
            }
        }
        Err(QueryError::Unsteady { what })
    }

    /// Reads a dump to its end even if one of its objects cannot be decoded: the next request would
    /// receive the rest as its reply. Returns `None` if the kernel reports that the dump was
    /// interrupted.
    fn receive_dump<T>(
        &mut self,
        what: &'static str,
        kind: u16,
        sequence: u32,
        decode: &impl Fn(&Message<'_>) -> Result<T, QueryError>,
    ) -> Result<Option<Vec<Result<T, QueryError>>>, QueryError> {
        let (mut listed, mut is_steady) = (Vec::new(), true);
        loop {
            let datagram = self.channel.receive().map_err(failed("receive from"))?;
            for message in Messages::parse(datagram).filter(|m| m.sequence == sequence) {
                is_steady &= message.flags & DUMP_INTERRUPTED == 0;
                match message.kind {
                    DONE | ERROR if message.errno() != 0 => {
                        let source = std::io::Error::from_raw_os_error(message.errno());
                        return match source.kind() {
                            std::io::ErrorKind::Interrupted => Ok(None),
                            _ => Err(QueryError::Refused { what, source }),
                        };
                    }
                    DONE => return Ok(is_steady.then_some(listed)),
                    _ if message.kind == kind => listed.push(decode(&message)),
                    _ => {}
                }
            }
        }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), QueryError> {
        self.channel.send(bytes).map_err(failed("send to"))
    }

    pub(crate) fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }
}

fn failed(step: &'static str) -> impl Fn(std::io::Error) -> QueryError {
    move |source| QueryError::Socket { step, source }
}

fn encode_list(sequence: u32) -> Vec<u8> {
    let mut writer = Writer::default();
    let message = writer.begin_generic(CONTROL, REQUEST | DUMP, sequence, GET_FAMILY, VERSION);
    writer.end(message);
    writer.into_bytes()
}

fn encode_get(name: &str, sequence: u32) -> Vec<u8> {
    let mut writer = Writer::default();
    let message = writer.begin_generic(CONTROL, REQUEST, sequence, GET_FAMILY, VERSION);
    writer.string(attribute::FAMILY_NAME, name);
    writer.end(message);
    writer.into_bytes()
}

fn family_name<'a>(message: &Message<'a>) -> Option<&'a str> {
    let attributes = message.attributes();
    let is_family = message.command() == Some(NEW_FAMILY);
    is_family.then(|| attributes.string(attribute::FAMILY_NAME))?
}

/// Decodes the id of a family. Types below [`CONTROL`] are reserved for netlink itself.
pub(crate) fn family_id(message: &Message<'_>) -> Result<FamilyId, QueryError> {
    let number = message.attributes().native_u16(attribute::FAMILY_ID);
    match number {
        Some(number) if number >= CONTROL && message.command() == Some(NEW_FAMILY) => {
            Ok(FamilyId(number))
        }
        _ => Err(QueryError::Illegible {
            what: "a family of generic netlink",
            part: "its number",
        }),
    }
}

#[cfg(test)]
mod tests;
