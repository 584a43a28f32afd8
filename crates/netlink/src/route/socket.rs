//! The socket that rules and routes are read and changed through.

use std::io;

use address::Family;
use rustix::io::Errno;
use thiserror::Error;

use super::codec::{self, NEW_ROUTE, NEW_RULE, Verb};
use super::{LocalDelivery, Presence};
use crate::channel::Channel;
use crate::descriptor::{OpenError, Subsystem};
use crate::errno::{is_impossible, is_transient};
use crate::generic::{GenericChannel, QueryError};
use crate::wire::{ERROR, Messages};

/// The kernel sends at most 32 KiB of a dump at once.
const DATAGRAM: usize = 64 << 10;
/// How many equal rules are removed at the most: other programs may have added some.
const DUPLICATES: usize = 16;

/// A socket for policy routing, in the network namespace it was opened in.
#[derive(Debug)]
pub struct RouteSocket {
    channel: GenericChannel,
}

/// Why a rule or a route was not changed, or why that is not known.
#[derive(Debug, Error)]
pub enum CommitError {
    /// The socket failed; what took effect is not known.
    #[error("failed to {step} netlink")]
    Socket {
        /// What was being done.
        step: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The kernel refused.
    #[error(
        "the kernel refused to {action} {delivery}: policy routing needs CONFIG_IP_MULTIPLE_TABLES and CONFIG_IPV6_MULTIPLE_TABLES, and the route a loopback device that is up"
    )]
    Refused {
        /// What was to be done, and to what.
        action: &'static str,
        /// What it is for.
        delivery: LocalDelivery,
        /// Why.
        source: io::Error,
    },
}

/// What to do after the kernel refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// The cause will pass: try the same again, later.
    Retry,
    /// What the kernel holds is not known: read it.
    Observe,
    /// This process may not, or this kernel cannot.
    Halt,
}

// === impl RouteSocket ===

impl RouteSocket {
    /// Opens a socket in the network namespace of this thread. Changes need `CAP_NET_ADMIN` there.
    pub fn open() -> Result<RouteSocket, OpenError> {
        let channel = GenericChannel {
            channel: Channel::open(Subsystem::Route, DATAGRAM)?,
            sequence: 0,
        };
        Ok(RouteSocket { channel })
    }

    /// How much there is of `delivery`. On a kernel without policy routing, or without the family: nothing.
    pub fn observe(
        &mut self,
        family: Family,
        delivery: &LocalDelivery,
    ) -> Result<Presence, QueryError> {
        let encode = |sequence| codec::list_rules(family, sequence);
        let listed = self
            .channel
            .dump("routing rules", NEW_RULE, encode, |message| {
                codec::is_rule_of(message, family, delivery)
            });
        let has_rule = match listed {
            Ok(listed) => listed.contains(&true),
            Err(QueryError::Refused { source, .. }) if is_unsupported(&source) => false,
            Err(error) => return Err(error),
        };
        if !has_rule {
            return Ok(Presence::Absent);
        }
        let encode = |sequence| codec::find_route(family, delivery, sequence);
        let found = self.channel.ask("routes", NEW_ROUTE, encode, |message| {
            codec::is_route_of(message, delivery)
        });
        match found {
            Ok(true) => Ok(Presence::Whole),
            // The kernel answers with an error where no route leads on.
            Ok(false) | Err(QueryError::Refused { .. }) => Ok(Presence::Partial),
            Err(error) => Err(error),
        }
    }

    /// Adds what is missing of `delivery`: the route, then the rule that leads to it.
    pub fn commit(&mut self, family: Family, delivery: &LocalDelivery) -> Result<(), CommitError> {
        self.send(delivery, "add the route of", &[Errno::EXIST], |sequence| {
            codec::route(Verb::Add, family, delivery, sequence)
        })?;
        self.send(
            delivery,
            "add the routing rule",
            &[Errno::EXIST],
            |sequence| codec::rule(Verb::Add, family, delivery, sequence),
        )?;
        Ok(())
    }

    /// Removes what there is of `delivery`. The rule goes last: as long as it is there, the rest is found.
    pub fn commit_removal(
        &mut self,
        family: Family,
        delivery: &LocalDelivery,
    ) -> Result<(), CommitError> {
        // ENOENT: the kernel has no such table any more.
        let gone = &[Errno::SRCH, Errno::NOENT];
        self.send(delivery, "remove the route of", gone, |sequence| {
            codec::route(Verb::Remove, family, delivery, sequence)
        })?;
        for _ in 0..DUPLICATES {
            let removed = self.send(delivery, "remove the routing rule", gone, |sequence| {
                codec::rule(Verb::Remove, family, delivery, sequence)
            })?;
            if removed == Done::Before {
                break;
            }
        }
        Ok(())
    }

    /// Sends a message and reads the answer. `done` is what the kernel answers where nothing is to be done.
    fn send(
        &mut self,
        delivery: &LocalDelivery,
        action: &'static str,
        done: &[Errno],
        encode: impl FnOnce(u32) -> Vec<u8>,
    ) -> Result<Done, CommitError> {
        let failed = |step| move |source| CommitError::Socket { step, source };
        let sequence = self.channel.next_sequence();
        let channel = &mut self.channel.channel;
        channel.send(&encode(sequence)).map_err(failed("send to"))?;
        loop {
            let datagram = channel.receive().map_err(failed("receive from"))?;
            let mut messages = Messages::parse(datagram);
            let Some(answer) = messages.find(|m| m.kind == ERROR && m.sequence == sequence) else {
                continue;
            };
            return match answer.errno() {
                0 => Ok(Done::Now),
                errno if done.iter().any(|done| done.raw_os_error() == errno) => Ok(Done::Before),
                errno => Err(CommitError::Refused {
                    action,
                    delivery: *delivery,
                    source: io::Error::from_raw_os_error(errno),
                }),
            };
        }
    }
}

/// When a change was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Done {
    Now,
    Before,
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::OPNOTSUPP | Errno::AFNOSUPPORT)
    )
}

// === impl CommitError ===

impl CommitError {
    /// What to do next.
    pub fn recovery(&self) -> Recovery {
        match self {
            CommitError::Socket { .. } => Recovery::Observe,
            CommitError::Refused { source, .. } if is_transient(source) => Recovery::Retry,
            CommitError::Refused { source, .. } if is_impossible(source) => Recovery::Halt,
            // As where the loopback device is down, or the namespace is being taken down.
            CommitError::Refused { .. } => Recovery::Observe,
        }
    }
}
