//! The socket that reads and changes rules and routes.

use std::collections::BTreeSet;
use std::io;
use std::net::Ipv4Addr;

use address::Family;
use rustix::io::Errno;
use thiserror::Error;

use super::codec::{self, NEW_ADDRESS, NEW_ROUTE, NEW_RULE, Verb};
use super::{LocalDelivery, Presence};
use crate::channel::Channel;
use crate::descriptor::{OpenError, Subsystem};
use crate::errno::{is_impossible, is_transient};
use crate::generic::{GenericChannel, QueryError};

/// The kernel sends at most 32 KiB of a dump at once.
const DATAGRAM: usize = 64 << 10;
/// The maximum number of equal rules to remove: other programs may have added some.
const DUPLICATES: usize = 16;

/// A socket for policy routing, in the network namespace in which it was opened.
#[derive(Debug)]
pub struct RouteSocket {
    channel: GenericChannel,
}

/// Why a rule or a route was not changed, or why that is unknown.
#[derive(Debug, Error)]
pub enum CommitError {
    /// The socket failed; it is unknown what took effect.
    #[error("failed to {step} netlink")]
    Socket {
        /// The step that failed.
        step: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The kernel refused the request.
    #[error(
        "the kernel refused to {action} {delivery}: policy routing needs CONFIG_IP_MULTIPLE_TABLES and CONFIG_IPV6_MULTIPLE_TABLES, and the route a loopback device that is up"
    )]
    Refused {
        /// The change, and whether to a rule or a route.
        action: &'static str,
        /// The delivery that the rule or route belongs to.
        delivery: LocalDelivery,
        /// The cause.
        source: io::Error,
    },
}

/// How to recover after the kernel refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// The cause is temporary: retry the same later.
    Retry,
    /// The kernel's state is unknown: read it.
    Observe,
    /// This process lacks the permission, or this kernel lacks the feature.
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

    /// Which parts of `delivery` exist. Without policy routing or the family in the kernel: none.
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
        beside_rule(found)
    }

    /// The addresses of this node's networks that stand for all hosts, as far as their addresses tell:
    /// another program may have added routes of this kind.
    pub fn observe_broadcast_addresses(&mut self) -> Result<BTreeSet<Ipv4Addr>, QueryError> {
        let listed = self.channel.dump(
            "addresses of this node",
            NEW_ADDRESS,
            codec::list_addresses,
            codec::broadcast_addresses,
        )?;
        Ok(listed.into_iter().flatten().flatten().collect())
    }

    /// Adds the missing parts of `delivery`: the route, then the rule that leads to it.
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

    /// Removes `delivery`, the rule last: while the rule exists, [`RouteSocket::observe`] finds the
    /// rest.
    pub fn commit_removal(
        &mut self,
        family: Family,
        delivery: &LocalDelivery,
    ) -> Result<(), CommitError> {
        // ENOENT: the kernel no longer has the table.
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

    /// Sends a message and reads the reply. `done` lists the errnos that mean there is nothing to
    /// do.
    fn send(
        &mut self,
        delivery: &LocalDelivery,
        action: &'static str,
        done: &[Errno],
        encode: impl FnOnce(u32) -> Vec<u8>,
    ) -> Result<Done, CommitError> {
        let answered = self.channel.acknowledged(encode);
        match answered.map_err(|(step, source)| CommitError::Socket { step, source })? {
            0 => Ok(Done::Now),
            errno if done.iter().any(|done| done.raw_os_error() == errno) => Ok(Done::Before),
            errno => Err(CommitError::Refused {
                action,
                delivery: *delivery,
                source: io::Error::from_raw_os_error(errno),
            }),
        }
    }
}

/// Whether a change was necessary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Done {
    Now,
    Before,
}

/// What exists of a delivery whose rule does, from the answer about its route.
pub(super) fn beside_rule(found: Result<bool, QueryError>) -> Result<Presence, QueryError> {
    let lacks_memory = |source: &io::Error| {
        let errno = Errno::from_io_error(source);
        matches!(errno, Some(Errno::NOMEM | Errno::NOBUFS))
    };
    match found {
        Ok(true) => Ok(Presence::Whole),
        Ok(false) => Ok(Presence::Partial),
        // The kernel replies with an error if no route matches, but also if it has no memory to look.
        Err(QueryError::Refused { ref source, .. }) if !lacks_memory(source) => {
            Ok(Presence::Partial)
        }
        Err(error) => Err(error),
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::OPNOTSUPP | Errno::AFNOSUPPORT)
    )
}

// === impl CommitError ===

impl CommitError {
    /// How to recover.
    pub fn recovery(&self) -> Recovery {
        match self {
            CommitError::Socket { .. } => Recovery::Observe,
            CommitError::Refused { source, .. } if is_transient(source) => Recovery::Retry,
            CommitError::Refused { source, .. } if is_impossible(source) => Recovery::Halt,
            // For example, the loopback device is down, or the namespace is being removed.
            CommitError::Refused { .. } => Recovery::Observe,
        }
    }
}
