//! What clients observe of one proxy.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::network::Outcome;

/// The distinct results of all connections of one case.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sight(pub(super) BTreeSet<Seen>);

/// The result of one connection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Seen {
    /// A server answered.
    Answer {
        /// The address of the server.
        at: SocketAddr,
        /// The source address that the server received.
        source: Source,
    },
    /// All connections of a client with session affinity reached the same endpoint, no matter
    /// which.
    Steady,
    /// The connections of such a client reached different endpoints.
    Unsteady,
    /// The connection was refused.
    Refused,
    /// No answer arrived.
    Silence,
    /// Another error.
    Failed(String),
}

/// The source of a connection as the server received it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The client's own address.
    Client,
    /// Another address, or any address of a client whose kernel chose it.
    Address(IpAddr),
}

// === impl Sight ===

impl Sight {
    /// Returns the distinct results for a client that connected from `source`, or from an address
    /// chosen by its kernel.
    pub(super) fn of(outcomes: &[Outcome], source: Option<IpAddr>) -> Sight {
        let seen = outcomes.iter().map(|outcome| Seen::of(outcome, source));
        Sight(seen.collect())
    }

    /// Whether a single endpoint answered every connection.
    pub(super) fn is_steady(&self) -> bool {
        let servers: Option<BTreeSet<&SocketAddr>> = self.0.iter().map(Seen::server).collect();
        servers.is_some_and(|servers| servers.len() == 1)
    }

    /// Returns the sort of the result, for counting.
    pub(super) fn sort(&self) -> &'static str {
        let mut kinds = self.0.iter().map(|seen| match seen {
            Seen::Answer { .. } => "answered",
            Seen::Steady => "answered by one endpoint",
            Seen::Unsteady => "answered by several endpoints",
            Seen::Refused => "refused",
            Seen::Silence => "silent",
            Seen::Failed(_) => "failed",
        });
        let first = kinds.next().unwrap_or("not asked");
        match kinds.all(|kind| kind == first) {
            true => first,
            false => "mixed",
        }
    }

    /// Whether both are of packets that no rule takes, of which one client saw nothing more often
    /// than the other: whether the error arrives in time depends on the machine.
    pub(super) fn is_as_unserved_as(&self, other: &Sight) -> bool {
        let failed = |seen: &&Seen| matches!(seen, Seen::Failed(_));
        let errors = |sight: &Sight| sight.0.iter().filter(failed).cloned().collect::<Vec<_>>();
        let is_unserved = |seen: &Seen| matches!(seen, Seen::Silence | Seen::Failed(_));
        let mut both = self.0.iter().chain(&other.0);
        both.all(is_unserved) && !errors(self).is_empty() && errors(self) == errors(other)
    }

    /// Whether any connection was answered.
    pub fn has_answer(&self) -> bool {
        self.0
            .iter()
            .any(|seen| seen.server().is_some() || *seen == Seen::Steady)
    }
}

impl fmt::Display for Sight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(Seen::to_string).collect();
        f.write_str(&all.join(" | "))
    }
}

// === impl Seen ===

impl Seen {
    fn of(outcome: &Outcome, source: Option<IpAddr>) -> Seen {
        match outcome {
            Outcome::Answered { at, saw, .. } => Seen::Answer {
                at: *at,
                source: match source == Some(saw.ip()) {
                    true => Source::Client,
                    false => Source::Address(saw.ip()),
                },
            },
            Outcome::Refused => Seen::Refused,
            Outcome::TimedOut => Seen::Silence,
            Outcome::Failed(error) => Seen::Failed(error.clone()),
        }
    }

    fn server(&self) -> Option<&SocketAddr> {
        match self {
            Seen::Answer { at, .. } => Some(at),
            _ => None,
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Seen::Answer {
                at,
                source: Source::Client,
            } => write!(f, "{at} who saw the client"),
            Seen::Answer {
                at,
                source: Source::Address(ip),
            } => write!(f, "{at} who saw {ip}"),
            Seen::Steady => f.write_str("one endpoint"),
            Seen::Unsteady => f.write_str("several endpoints for one client"),
            Seen::Refused => f.write_str("refused"),
            Seen::Silence => f.write_str("silence"),
            Seen::Failed(error) => write!(f, "failed: {error}"),
        }
    }
}
