//! One netlink socket, kept open for the life of the process.

mod commit;
mod foreign;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use thiserror::Error;

use crate::channel::Channel;
use crate::descriptor::{OpenError, Subsystem};
pub use crate::nf_tables::Named;
use crate::nf_tables::{
    self, Bytes, Chain, DecodeError, ElementData, Family, ListedFlowtable, Rule, Set,
};
use crate::wire::{DONE, DUMP_INTERRUPTED, ERROR, Message, Messages};

/// The kernel sends at most 32 KiB of a dump at once; an error includes the message that caused it.
const DATAGRAM: usize = 128 << 10;
/// How often a dump is repeated while the ruleset changes during each attempt.
const DUMP_ATTEMPTS: u32 = 20;

/// A netlink socket of the nfnetlink family, in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Socket {
    channel: Channel,
    sequence: u32,
}

/// The port of a [`Socket`], by which a [`Listener`](crate::Listener) recognizes its transactions. It
/// follows the socket when that is opened again.
#[derive(Debug, Clone)]
pub struct SocketPort(pub(crate) Arc<AtomicU32>);

/// Why the kernel could not be read.
#[derive(Debug, Error)]
pub enum ObserveError {
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
    /// The ruleset changed during every attempt to read it, and no two consecutive attempts read
    /// the same; or every attempt listed an element twice.
    #[error("nf_tables changed during each of {DUMP_ATTEMPTS} attempts to list {what}")]
    Unsteady {
        /// The requested objects.
        what: &'static str,
    },
    /// Signpost's table contains something that Signpost never writes.
    #[error("found an object that Signpost did not write among {what}")]
    Foreign {
        /// The requested objects.
        what: &'static str,
        /// The unknown object.
        source: DecodeError,
    },
}

/// Why a transaction did not take effect, or why that is unknown.
#[derive(Debug, Error)]
pub enum CommitError {
    /// The socket failed; it is unknown whether the transaction took effect.
    #[error("failed to {step} netlink")]
    Socket {
        /// The step that failed.
        step: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// The kernel refused the whole transaction.
    #[error("the kernel refused the transaction at {at}")]
    Refused {
        /// The operation that the kernel named, or the commit itself.
        at: Refusal,
        /// The cause.
        source: std::io::Error,
    },
}

/// The outcome of one dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dumped {
    /// The ruleset did not change.
    Steady,
    /// A transaction took effect during the dump.
    Interrupted,
    /// The kernel aborted the dump, and the list is incomplete.
    CutShort,
}

/// The content of a dump.
#[derive(Debug, PartialEq)]
struct Listed<T> {
    objects: Vec<T>,
    /// An object that this crate has no value for.
    foreign: Option<DecodeError>,
}

/// The part of a transaction that the kernel refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The message with this number, counted from the first message of the transaction.
    Message(u32),
    /// The transaction as a whole.
    Commit,
    /// Its length: it exceeds the socket's send buffer (EMSGSIZE) or the kernel's available memory
    /// (ENOBUFS). The kernel has not parsed it.
    Length,
}

// === impl Socket ===

impl Socket {
    /// Opens a socket in the network namespace of this thread. Needs `CAP_NET_ADMIN` there.
    pub fn open() -> Result<Socket, OpenError> {
        Ok(Socket {
            channel: Channel::open(Subsystem::Netfilter, DATAGRAM)?,
            sequence: 0,
        })
    }

    /// The socket's netlink port.
    pub fn port(&self) -> SocketPort {
        SocketPort(self.channel.port())
    }

    /// The chains of a table by name; a decoding error for each that Signpost did not write.
    pub fn observe_chains(
        &mut self,
        family: Family,
        table: &str,
    ) -> Result<Vec<Named<Chain>>, ObserveError> {
        let kind = nf_tables::request::GET_CHAIN;
        self.observe("chains", kind, family, Some(table), None, nf_tables::chain)
    }

    /// The rules of a table with the names of their chains, in order within each chain; a decoding
    /// error for each that Signpost did not write.
    pub fn observe_rules(
        &mut self,
        family: Family,
        table: &str,
    ) -> Result<Vec<Named<Rule>>, ObserveError> {
        let kind = nf_tables::request::GET_RULE;
        self.observe("rules", kind, family, Some(table), None, |message| {
            nf_tables::rule(message, family)
        })
    }

    /// The sets of a table by name; a decoding error for each that Signpost did not write.
    pub fn observe_sets(
        &mut self,
        family: Family,
        table: &str,
    ) -> Result<Vec<Named<Set>>, ObserveError> {
        let kind = nf_tables::request::GET_SET;
        self.observe("sets", kind, family, Some(table), None, nf_tables::set)
    }

    /// The flowtables of a table by name, with their devices; a decoding error for each that Signpost
    /// did not write. None if the kernel has no flowtables.
    pub fn observe_flowtables(
        &mut self,
        family: Family,
        table: &str,
    ) -> Result<Vec<Named<ListedFlowtable>>, ObserveError> {
        let kind = nf_tables::request::GET_FLOWTABLE;
        let decode = nf_tables::flowtable;
        self.observe("flowtables", kind, family, Some(table), None, decode)
    }

    /// The elements of a set.
    ///
    /// After a transaction has grown or shrunk a hash set, the kernel resizes its table, and for
    /// each datagram of a dump it counts from the start how many elements it has already sent
    /// (nft_rhash_walk). If the order changes in between, as many elements are omitted as are
    /// listed twice. Such a dump is repeated.
    pub fn observe_elements(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
    ) -> Result<Vec<(Bytes, ElementData)>, ObserveError> {
        let what = "elements";
        let kind = nf_tables::request::GET_ELEMENTS;
        for _ in 0..DUMP_ATTEMPTS {
            let lists = self.observe(
                what,
                kind,
                family,
                Some(table),
                Some(set),
                nf_tables::elements,
            )?;
            let elements: Vec<_> = lists.into_iter().flatten().collect();
            if !has_repetition(&elements) {
                return Ok(elements);
            }
        }
        Err(ObserveError::Unsteady { what })
    }

    /// The generation number of the ruleset in this network namespace. Every transaction of any
    /// program raises it: as long as it is the same, nothing has changed.
    pub fn observe_generation(&mut self) -> Result<u32, ObserveError> {
        self.ask(
            "the generation",
            nf_tables::encode_generation,
            nf_tables::generation,
        )
    }

    /// Requests one object and decodes it.
    fn ask<T>(
        &mut self,
        what: &'static str,
        encode: impl FnOnce(u32) -> Vec<u8>,
        decode: impl FnOnce(&Message<'_>) -> Result<T, DecodeError>,
    ) -> Result<T, ObserveError> {
        let sequence = self.next_sequence();
        let request = encode(sequence);
        self.channel
            .send(&request)
            .map_err(socket_failed("send to"))?;
        loop {
            let datagram = self
                .channel
                .receive()
                .map_err(socket_failed("receive from"))?;
            let mut messages = Messages::parse(datagram);
            let Some(message) = messages.find(|message| message.sequence == sequence) else {
                continue;
            };
            if message.kind == ERROR {
                let source = std::io::Error::from_raw_os_error(message.errno());
                return Err(ObserveError::Refused { what, source });
            }
            return decode(&message).map_err(|source| ObserveError::Foreign { what, source });
        }
    }

    /// Dumps all objects of one type. The kernel marks a dump as interrupted if any transaction
    /// takes effect during it, in any table: beside a process that commits all the time, every dump
    /// of more than one datagram is interrupted. If two consecutive dumps are equal, they are
    /// correct: transactions in other tables affect at most objects at the border of two datagrams,
    /// and changes in this table make the dumps differ.
    fn observe<T: PartialEq>(
        &mut self,
        what: &'static str,
        kind: u16,
        family: Family,
        table: Option<&str>,
        within: Option<&str>,
        decode: impl Fn(&Message<'_>) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, ObserveError> {
        let mut last = None;
        for _ in 0..DUMP_ATTEMPTS {
            let sequence = self.next_sequence();
            let request = nf_tables::encode_dump(kind, family, table, within, sequence);
            self.channel
                .send(&request)
                .map_err(socket_failed("send to"))?;
            let (dumped, listed) = self.receive_dump(what, sequence, family, table, &decode)?;
            match dumped {
                Dumped::Steady => return listed.known(what),
                Dumped::Interrupted if last.as_ref() == Some(&listed) => return listed.known(what),
                Dumped::Interrupted => last = Some(listed),
                Dumped::CutShort => {}
            }
        }
        Err(ObserveError::Unsteady { what })
    }

    fn receive_dump<T>(
        &mut self,
        what: &'static str,
        sequence: u32,
        family: Family,
        table: Option<&str>,
        decode: &impl Fn(&Message<'_>) -> Result<T, DecodeError>,
    ) -> Result<(Dumped, Listed<T>), ObserveError> {
        let mut listed = Listed {
            objects: Vec::new(),
            foreign: None,
        };
        let mut dumped = Dumped::Steady;
        loop {
            let datagram = self
                .channel
                .receive()
                .map_err(socket_failed("receive from"))?;
            for message in Messages::parse(datagram) {
                if message.sequence != sequence {
                    continue;
                }
                if message.flags & DUMP_INTERRUPTED != 0 {
                    dumped = Dumped::Interrupted;
                }
                match message.kind {
                    // A dump that failed after it had begun reports that in its last message.
                    DONE if message.errno() == 0 => return Ok((dumped, listed)),
                    DONE | ERROR => match message.errno() {
                        0 => {}
                        errno => {
                            let source = std::io::Error::from_raw_os_error(errno);
                            return match source.kind() {
                                // ENOENT: the table or set does not exist, so it has no content.
                                std::io::ErrorKind::NotFound => {
                                    listed.objects.clear();
                                    listed.foreign = None;
                                    Ok((Dumped::Steady, listed))
                                }
                                std::io::ErrorKind::Interrupted => Ok((Dumped::CutShort, listed)),
                                _ => Err(ObserveError::Refused { what, source }),
                            };
                        }
                    },
                    // Kernels before 5.x limit dumps of sets and tables by family only.
                    _ if message.family() != Some(family.number()) => {}
                    _ if table.is_some() && message.attributes().string(1) != table => {}
                    _ => match decode(&message) {
                        Ok(object) => listed.objects.push(object),
                        Err(source) => listed.foreign = Some(source),
                    },
                }
            }
        }
    }

    fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }
}

// === impl Listed ===

impl<T> Listed<T> {
    /// All objects, or an error if one is foreign.
    fn known(self, what: &'static str) -> Result<Vec<T>, ObserveError> {
        match self.foreign {
            None => Ok(self.objects),
            Some(source) => Err(ObserveError::Foreign { what, source }),
        }
    }
}

/// Whether a key occurs twice.
fn has_repetition(elements: &[(Bytes, ElementData)]) -> bool {
    let mut keys = HashSet::with_capacity(elements.len());
    !elements.iter().all(|(key, _)| keys.insert(key))
}

fn socket_failed(step: &'static str) -> impl Fn(std::io::Error) -> ObserveError {
    move |source| ObserveError::Socket { step, source }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Message(number) => write!(f, "operation {number}"),
            Refusal::Commit => f.write_str("its end"),
            Refusal::Length => f.write_str("its length"),
        }
    }
}

#[cfg(test)]
mod tests;
