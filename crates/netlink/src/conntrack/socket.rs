//! The socket that flows are listed and deleted through.

use std::ops::ControlFlow;

use thiserror::Error;

use super::codec::{self, NEW};
use super::{Filter, Flow};
use crate::channel::Channel;
use crate::descriptor::{OpenError, Subsystem};
use crate::wire::{DONE, DUMP_INTERRUPTED, ERROR, Messages};

/// The kernel sends at most 32 KiB of a list at once.
const DATAGRAM: usize = 64 << 10;
/// How often a list begins anew because the table was resized meanwhile.
const LIST_ATTEMPTS: u32 = 5;

/// A netlink socket for the connection tracking table of the network namespace it was opened in. Keep it:
/// when one is closed, the kernel holds the lock that a transaction of nf_tables needs until the objects
/// of earlier transactions are freed (`nft_rcv_nl_event`), after an RCU grace period, which takes up to
/// a second on a busy machine.
#[derive(Debug)]
pub struct FlowSocket {
    channel: Channel,
    sequence: u32,
}

/// How much was listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Listed {
    /// How many flows were handed over.
    pub flows: u64,
    /// How many entries of the table could not be read, and were passed over.
    pub unreadable: u64,
}

/// What came of a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletion {
    /// The kernel has forgotten the flow.
    Deleted,
    /// There was no such flow any more.
    Absent,
}

/// Why not every flow was listed.
#[derive(Debug, Error)]
pub enum ObserveError {
    /// The socket failed.
    #[error("failed to {step} netlink")]
    Socket {
        /// What was being done.
        step: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The kernel refused.
    #[error("the kernel refused to list connections")]
    Refused {
        /// Why.
        source: std::io::Error,
    },
    /// The table changed its size at every attempt.
    #[error(
        "the connection tracking table changed during each of {LIST_ATTEMPTS} attempts to list it"
    )]
    Unsteady,
}

/// Why a flow is not deleted.
#[derive(Debug, Error)]
pub enum DeleteError {
    /// The socket failed; whether the flow is there is not known.
    #[error("failed to {step} netlink")]
    Socket {
        /// What was being done.
        step: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The kernel refused, which concerns this flow alone: it is offloaded to a device.
    #[error("the kernel refused to delete {flow}")]
    Refused {
        /// The flow.
        flow: Box<Flow>,
        /// Why.
        source: std::io::Error,
    },
}

/// How an attempt to list ended.
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

    /// Gives every flow that `filter` admits to `take`, as the kernel lists them, until `take` has
    /// had enough: what is kept of them is for the caller to bound. A flow may come twice, where the
    /// list had to begin anew. Flows may be deleted meanwhile, through another socket. After a list that
    /// was not read to its end, the next request opens the socket anew.
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

    /// Makes the kernel forget `flow`, and no other: not even a later one with the same addresses.
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
                        // A kernel without filters lists everything.
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

    /// Without `CAP_NET_ADMIN` the kernel refuses, which is an answer too.
    fn is_answered(socket: &mut FlowSocket) -> bool {
        let listed = socket.observe_flows(&FILTER, |_| ControlFlow::Continue(()));
        matches!(listed, Ok(_) | Err(ObserveError::Refused { .. }))
    }

    #[test]
    fn t161_a_list_that_was_read_to_its_end_leaves_its_socket_open() {
        let mut socket = FlowSocket::open().expect("anybody may open one");
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
