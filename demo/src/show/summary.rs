//! The results of the demo in numbers.

use std::time::{Duration, Instant};

use super::crowd::Connection;
use super::stage::SERVERS;

/// The results of the demo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The results of each path to a Service.
    pub spread: Vec<Spread>,
    /// The results of the removal of an endpoint.
    pub removal: Removal,
    /// The results of the restart of the agent.
    pub restart: Restart,
    /// The resources that the demo created and could not remove.
    pub left_behind: Vec<String>,
}

/// The results of one path to a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spread {
    /// The path as `CLIENT -> ADDRESS PROTOCOL`.
    pub path: String,
    /// The number of connections.
    pub connections: u64,
    /// The number of connections that each server answered.
    pub answered: [u64; 3],
}

/// New connections while an endpoint is removed. Its server keeps running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// The number of connections.
    pub connections: u64,
    /// The number that each server answered of the connections opened before the rename of the
    /// file.
    pub before: [u64; 3],
    /// The number that each server answered of those opened after the rename.
    pub after: [u64; 3],
    /// The connections that no server answered.
    pub failures: Vec<String>,
    /// The time from the rename to the opening of the last connection that the removed server
    /// answered; `None` if that was before the rename.
    pub last_to_removed: Option<Duration>,
}

/// New connections while the agent is killed and restarted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restart {
    /// The number of connections.
    pub connections: u64,
    /// The number of connections opened while no agent was running.
    pub without_agent: u64,
    /// The connections that no server answered, and those that the removed server answered.
    pub failures: Vec<String>,
    /// The syncs of the new agent that found something to do.
    pub writes: Vec<String>,
}

// === impl Summary ===

impl Summary {
    /// Returns the number of connections.
    pub fn connections(&self) -> u64 {
        let spread: u64 = self.spread.iter().map(|way| way.connections).sum();
        spread + self.removal.connections + self.restart.connections
    }

    /// Returns the number of failed connections.
    pub fn failures(&self) -> u64 {
        let spread: u64 = self.spread.iter().map(Spread::failures).sum();
        let later = self.removal.failures.len() + self.restart.failures.len();
        spread.saturating_add(u64::try_from(later).unwrap_or(u64::MAX))
    }

    /// Whether there were no failures: every connection was answered, nothing was written
    /// unnecessarily, and nothing is left behind.
    pub fn is_flawless(&self) -> bool {
        self.failures() == 0 && self.restart.writes.is_empty() && self.left_behind.is_empty()
    }
}

// === impl Spread ===

impl Spread {
    /// Returns the number of connections that no server answered.
    pub fn failures(&self) -> u64 {
        self.connections.saturating_sub(self.answered.iter().sum())
    }
}

// === impl Removal ===

impl Removal {
    /// Evaluates `connections` around the removal of the server `removed` at `renamed`.
    pub(super) fn of(connections: &[Connection], renamed: Instant, removed: &str) -> Removal {
        let (before, after): (Vec<&Connection>, Vec<&Connection>) = connections
            .iter()
            .partition(|connection| connection.opened < renamed);
        let to_removed = after.iter().filter(|c| c.is_answered_by(removed));
        let last = to_removed.map(|connection| connection.opened).max();
        Removal {
            connections: count(connections.iter()),
            before: by_server(&before),
            after: by_server(&after),
            failures: connections
                .iter()
                .filter(|connection| connection.has_failed())
                .map(|connection| described(connection, renamed))
                .collect(),
            last_to_removed: last.map(|opened| opened.duration_since(renamed)),
        }
    }
}

// === impl Restart ===

impl Restart {
    /// Evaluates `connections` with no agent from `killed` to `restarted`, and the `syncs` of the
    /// new agent.
    pub(super) fn of(
        connections: &[Connection],
        killed: Instant,
        restarted: Instant,
        removed: &str,
        syncs: &str,
    ) -> Restart {
        let meanwhile = connections
            .iter()
            .filter(|c| (killed..restarted).contains(&c.opened));
        let failed = connections
            .iter()
            .filter(|c| c.has_failed() || c.is_answered_by(removed));
        let writes = syncs.lines().filter(|sync| !sync.contains("): unchanged"));
        Restart {
            connections: count(connections.iter()),
            without_agent: count(meanwhile),
            failures: failed.map(|c| described(c, killed)).collect(),
            writes: writes.map(str::to_owned).collect(),
        }
    }
}

fn by_server(connections: &[&Connection]) -> [u64; 3] {
    SERVERS.map(|(name, _)| count(connections.iter().filter(|c| c.is_answered_by(name))))
}

fn described(connection: &Connection, event: Instant) -> String {
    let (outcome, opened) = (&connection.outcome, connection.opened);
    match opened.checked_duration_since(event) {
        Some(after) => format!("{outcome}, opened {after:.1?} after it"),
        None => format!(
            "{outcome}, opened {:.1?} before it",
            event.duration_since(opened)
        ),
    }
}

fn count<T>(items: impl Iterator<Item = T>) -> u64 {
    items.map(|_| 1).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Outcome;

    const MS: Duration = Duration::from_millis(1);

    fn connection(opened: Instant, outcome: &str) -> Connection {
        Connection {
            client: 0,
            opened,
            outcome: match outcome {
                "refused" => Outcome::Refused,
                server => Outcome::Answered {
                    server: server.to_owned(),
                    at: ([10, 0, 1, 5], 8080).into(),
                    saw: ([10, 0, 1, 9], 40000).into(),
                },
            },
        }
    }

    #[test]
    fn the_last_connection_to_a_removed_server_is_distinguished_from_the_rename() {
        let rename = Instant::now();
        let removal = Removal::of(
            &[
                connection(rename - MS, "web-2"),
                connection(rename + MS, "web-2"),
                connection(rename + 3 * MS, "web-2"),
                connection(rename + 2 * MS, "web-1"),
                connection(rename + 9 * MS, "web-3"),
            ],
            rename,
            "web-2",
        );
        assert_eq!(removal.last_to_removed, Some(3 * MS));
        assert_eq!((removal.before, removal.after), ([0, 1, 0], [1, 2, 1]));
        assert!(removal.failures.is_empty());
    }

    #[test]
    fn who_is_not_answered_or_answered_by_the_wrong_server_counts_as_failed() {
        let killed = Instant::now();
        let syncs = "IPv4 sync 1 (Startup): unchanged, took 1ms\n\
                      IPv6 sync 1 (Startup): committed, wrote 3 elements\n";
        let connections = [
            connection(killed - MS, "web-1"),
            connection(killed + MS, "refused"),
            connection(killed + 2 * MS, "web-2"),
            connection(killed + 5 * MS, "web-3"),
        ];
        let restart = Restart::of(&connections, killed, killed + 4 * MS, "web-2", syncs);
        assert_eq!((restart.connections, restart.without_agent), (4, 2));
        assert_eq!(restart.failures.len(), 2, "{:?}", restart.failures);
        assert_eq!(restart.failures[0], "refused, opened 1.0ms after it");
        assert_eq!(
            restart.writes,
            ["IPv6 sync 1 (Startup): committed, wrote 3 elements"]
        );
    }

    fn flawless() -> Summary {
        let now = Instant::now();
        Summary {
            spread: vec![Spread {
                path: "pod -> 10.96.0.10:80 tcp".to_owned(),
                connections: 3,
                answered: [1, 1, 1],
            }],
            removal: Removal::of(&[connection(now, "web-1")], now, "web-2"),
            restart: Restart::of(&[connection(now, "web-1")], now, now, "web-2", ""),
            left_behind: Vec::new(),
        }
    }

    #[test]
    fn one_failed_connection_anywhere_is_a_flaw() {
        assert!(flawless().is_flawless());
        assert_eq!(flawless().connections(), 5);
        let (now, refused) = (Instant::now(), [connection(Instant::now(), "refused")]);
        let mut unanswered = flawless();
        unanswered.spread[0].answered = [1, 1, 0];
        let unmoved = Summary {
            removal: Removal::of(&refused, now, "web-2"),
            ..flawless()
        };
        let interrupted = Summary {
            restart: Restart::of(&refused, now, now, "web-2", ""),
            ..flawless()
        };
        for flawed in [unanswered, unmoved, interrupted] {
            assert_eq!(flawed.failures(), 1, "{flawed:?}");
            assert!(!flawed.is_flawless(), "{flawed:?}");
        }
    }
}
