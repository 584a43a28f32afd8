//! The socket that lists and deletes flows.

use std::ops::ControlFlow;

use thiserror::Error;

use super::codec::{self, NEW};
use super::{Filter, Flow};
use crate::channel::Channel;
use crate::descriptor::{OpenError, Subsystem};
use crate::wire::{DONE, DUMP_INTERRUPTED, ERROR, Messages};

/// The kernel sends at most 32 KiB of a dump at once.
const DATAGRAM: usize = 64 << 10;
/// How often a dump is started again because the table was resized meanwhile.
const LIST_ATTEMPTS: u32 = 5;

/// A netlink socket for the connection tracking table of the network namespace in which it was
/// opened. Keep it open: when such a socket is closed, the kernel holds the lock that an nf_tables
/// transaction needs until the objects of earlier transactions are freed (`nft_rcv_nl_event`),
/// which takes an RCU grace period: up to a second on a busy machine.
#[derive(Debug)]
pub struct FlowSocket {
    channel: Channel,
    sequence: u32,
}

/// The result of a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Listed {
    /// The number of flows passed to the caller.
    pub flows: u64,
    /// The number of table entries that could not be decoded and were skipped.
    pub unreadable: u64,
}

/// The result of a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletion {
    /// The kernel has deleted the flow.
    Deleted,
    /// The flow no longer existed.
    Absent,
}

/// Why a dump failed.
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
    #[error("the kernel refused to list connections")]
    Refused {
        /// The cause.
        source: std::io::Error,
    },
    /// The table was resized during every attempt.
    #[error(
        "the connection tracking table changed during each of {LIST_ATTEMPTS} attempts to list it"
    )]
    Unsteady,
}

/// Why a flow was not deleted.
#[derive(Debug, Error)]
pub enum DeleteError {
    /// The socket failed; it is unknown whether the flow still exists.
    #[error("failed to {step} netlink")]
    Socket {
        /// The step that failed.
        step: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// The kernel refused to delete this flow because it is offloaded to a device. Other flows are
    /// not affected.
    #[error("the kernel refused to delete {flow}")]
    Refused {
        /// The flow.
        flow: Box<Flow>,
        /// The cause.
        source: std::io::Error,
    },
}

/// The outcome of one attempt to dump the table.
enum Attempt {
    Ended,
    Interrupted,
}

// === impl FlowSocket ===

impl FlowSocket {
    /// Opens a socket in the network namespace of this thread. Needs `CAP_NET_ADMIN` there.
    pub fn open() -> Result<FlowSocket, OpenError> {
        Ok(FlowSocket {
            channel: Channel::open(Subsystem::Netfilter, DATAGRAM)?,
            sequence: 0,
        })
    }

    /// Calls `take` with every flow that `filter` selects until `take` returns `Break`. The caller
    /// bounds what it keeps. If the dump had to start again, a flow may be passed twice. Flows may
    /// be deleted meanwhile through another socket. If the dump was not read to its end, the next
    /// request reopens the socket.
    pub fn observe_flows(
        &mut self,
        filter: &Filter,
        mut take: impl FnMut(&Flow) -> ControlFlow<()>,
    ) -> Result<Listed, ObserveError> {
        let mut listed = Listed::default();
        for _ in 0..LIST_ATTEMPTS {
            match self.list(filter, &mut listed, &mut take)? {
                Attempt::Ended => return Ok(listed),
                Attempt::Interrupted => {}
            }
        }
        Err(ObserveError::Unsteady)
    }

    /// Deletes `flow` and no other entry, not even a later one with the same addresses.
    pub fn commit_deletion(&mut self, flow: &Flow) -> Result<Deletion, DeleteError> {
        let failed = |step| move |source: std::io::Error| DeleteError::Socket { step, source };
        let sequence = self.next_sequence();
        let request = codec::encode_deletion(flow, sequence);
        self.channel.send(&request).map_err(failed("send to"))?;
        loop {
            let datagram = self.channel.receive().map_err(failed("receive from"))?;
            let mut messages = Messages::parse(datagram);
            let answer = messages.find(|m| m.sequence == sequence && m.kind == ERROR);
            let Some(answer) = answer else { continue };
            if answer.errno() == 0 {
                return Ok(Deletion::Deleted);
            }
            let source = std::io::Error::from_raw_os_error(answer.errno());
            return match source.kind() {
                std::io::ErrorKind::NotFound => Ok(Deletion::Absent),
                _ => Err(DeleteError::Refused {
                    flow: Box::new(*flow),
                    source,
                }),
            };
        }
    }

    fn list(
        &mut self,
        filter: &Filter,
        listed: &mut Listed,
        take: &mut impl FnMut(&Flow) -> ControlFlow<()>,
    ) -> Result<Attempt, ObserveError> {
        let failed = |step| move |source: std::io::Error| ObserveError::Socket { step, source };
        let sequence = self.next_sequence();
        let request = codec::encode_dump(filter, sequence);
        self.channel.send(&request).map_err(failed("send to"))?;
        let mut attempt = Attempt::Ended;
        loop {
            let datagram = self.channel.receive().map_err(failed("receive from"))?;
            for message in Messages::parse(datagram) {
                if message.sequence != sequence {
                    continue;
                }
                if message.flags & DUMP_INTERRUPTED != 0 {
                    attempt = Attempt::Interrupted;
                }
                match message.kind {
                    DONE if message.errno() == 0 => return Ok(attempt),
                    DONE | ERROR if message.errno() != 0 => {
                        let source = std::io::Error::from_raw_os_error(message.errno());
                        return match source.kind() {
                            std::io::ErrorKind::Interrupted => Ok(Attempt::Interrupted),
                            _ => Err(ObserveError::Refused { source }),
                        };
                    }
                    NEW => match codec::decode(&message) {
                        // A kernel without filters lists all flows.
                        Ok(Some(flow)) if filter.admits(&flow) => {
                            listed.flows += 1;
                            if take(&flow).is_break() {
                                self.channel.abandon();
                                return Ok(Attempt::Ended);
                            }
                        }
                        Ok(_) => {}
                        Err(_) => listed.unreadable += 1,
                    },
                    _ => {}
                }
            }
        }
    }

    fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use address::{Family, Protocol};

    use super::*;
    use crate::conntrack::Answers;

    const FILTER: Filter = Filter {
        family: Family::Ipv4,
        protocol: Protocol::Udp,
        answers: Answers::Any,
    };

    /// Without `CAP_NET_ADMIN` the kernel refuses, which is a reply too.
    fn is_answered(socket: &mut FlowSocket) -> bool {
        let listed = socket.observe_flows(&FILTER, |_| ControlFlow::Continue(()));
        matches!(listed, Ok(_) | Err(ObserveError::Refused { .. }))
    }

    #[test]
    fn t161_a_list_that_was_read_to_its_end_leaves_its_socket_open() {
        let mut socket = FlowSocket::open().expect("any process may open one");
        let port = socket.channel.port();
        let before = port.load(Ordering::Relaxed);
        assert!(is_answered(&mut socket));
        assert!(is_answered(&mut socket));
        assert_eq!(port.load(Ordering::Relaxed), before);

        socket.channel.abandon();
        assert!(is_answered(&mut socket));
        assert_ne!(port.load(Ordering::Relaxed), before);
    }
}
