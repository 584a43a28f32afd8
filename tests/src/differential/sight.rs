//! What clients saw of one proxy.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::network::Outcome;

/// Everything that came of the connections of one case, each thing once.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sight(pub(super) BTreeSet<Seen>);

/// What came of one connection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Seen {
    /// A server answered.
    Answer {
        /// The address it was reached at.
        at: SocketAddr,
        /// Whom it saw.
        source: Source,
    },
    /// All connections of a client that is to stay with one endpoint were answered by the same one,
    /// whichever that is.
    Steady,
    /// They were not.
    Unsteady,
    /// Somebody refused.
    Refused,
    /// Nothing came back.
    Silence,
    /// Something else went wrong.
    Failed(String),
}

/// Whom a server saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The client, by the address it connected from.
    Client,
    /// Somebody else, or a client that did not choose its address.
    Address(IpAddr),
}

// === impl Sight ===

impl Sight {
    /// What a client saw that connected from `source`, or from wherever its kernel liked.
    pub(super) fn of(outcomes: &[Outcome], source: Option<IpAddr>) -> Sight {
        let seen = outcomes.iter().map(|outcome| Seen::of(outcome, source));
        Sight(seen.collect())
    }

    /// Whether every connection was answered, and by one and the same endpoint.
    pub(super) fn is_steady(&self) -> bool {
        let servers: Option<BTreeSet<&SocketAddr>> = self.0.iter().map(Seen::server).collect();
        servers.is_some_and(|servers| servers.len() == 1)
    }

    /// In a word, for a count.
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
