//! Clients that continuously make requests to a Service over new and over kept connections, and
//! their results.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dataplane::Protocol;

use super::{
    Namespace, Outcome, Probe, StandstillWatch, Tally, Traffic, keep_connection, probe,
    start_traffic,
};
use crate::deadline::{patience, wait_for};

/// The timeout of an answer: far more than needed on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest acceptable time without an answer. Clients and servers share their processors with
/// kubelets that start containers and with an API server that restarts: beside those, gaps of 3.4 s
/// occurred although no packet was lost. A new connection that succeeded only because of a TCP
/// retransmission is detected by the duration of its handshake, independent of the gap.
const LONGEST_GAP: Duration = Duration::from_secs(6);
/// The number of connections to find all servers: with four servers, all of them miss one with a
/// probability of four in 10^8.
const CONNECTIONS: u32 = 64;

/// A client and a destination.
#[derive(Debug, Clone)]
pub struct Way {
    /// The name of the client's location, for messages.
    pub from: String,
    /// The namespace of the client.
    pub inside: Namespace,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The destination.
    pub destination: SocketAddr,
}

/// Clients that make requests until they are stopped.
#[derive(Debug)]
pub struct Connections {
    clients: Vec<Client>,
    standstill: StandstillWatch,
}

#[derive(Debug)]
struct Client {
    way: String,
    kind: Kind,
    traffic: Traffic,
}

/// How a client makes requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A new connection for every request.
    New,
    /// One connection, or one UDP flow, for all requests.
    Kept,
}

// === impl Way ===

impl Way {
    /// Waits until all of these servers and no others answer connections.
    pub fn wait_for_servers(&self, servers: &BTreeSet<String>, deadline: Duration) -> Result<()> {
        let mut last = BTreeSet::new();
        let answered = wait_for(&format!("{self} by {servers:?} alone"), deadline, || {
            last = self.observe_servers()?;
            Ok((last == *servers).then_some(()))
        });
        answered.with_context(|| format!("last seen: {last:?}"))
    }

    /// Returns the servers that answer, or the errors, over enough connections to reach every
    /// server.
    pub fn observe_servers(&self) -> Result<BTreeSet<String>> {
        let outcomes = probe(&self.inside, &self.probe(PATIENCE), CONNECTIONS)?;
        Ok(outcomes.iter().map(describe).collect())
    }

    /// Makes one connection with this timeout; returns its outcome.
    pub fn observe_once(&self, deadline: Duration) -> Result<Outcome> {
        let outcomes = probe(&self.inside, &self.probe(deadline), 1)?;
        outcomes
            .into_iter()
            .next()
            .context("one connection was made")
    }

    fn probe(&self, deadline: Duration) -> Probe {
        Probe {
            protocol: self.protocol,
            source: None,
            destination: self.destination,
            deadline,
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Way {
            from,
            protocol,
            destination,
            ..
        } = self;
        write!(f, "{protocol} from {from} at {destination}")
    }
}

// === impl Connections ===

impl Connections {
    /// Starts one client of each of `kinds` on each way, with a request every `interval`. Returns
    /// once each has received an answer.
    pub fn start(ways: &[Way], kinds: &[Kind], interval: Duration) -> Result<Connections> {
        let (mut clients, standstill) = (Vec::new(), StandstillWatch::start());
        for way in ways {
            for kind in kinds {
                let start = match kind {
                    Kind::New => start_traffic,
                    Kind::Kept => keep_connection,
                };
                let traffic = start(&way.inside, &way.probe(PATIENCE), interval);
                clients.push(Client {
                    way: way.to_string(),
                    kind: *kind,
                    traffic: traffic.with_context(|| way.to_string())?,
                });
            }
        }
        Ok(Connections {
            clients,
            standstill,
        })
    }

    /// Stops the clients and prints their number of requests. Fails unless every request was
    /// answered, without a noticeable gap, and on every kept connection by one server.
    pub fn finish_unharmed(self) -> Result<()> {
        self.finish(patience(LONGEST_GAP), Duration::ZERO)
    }

    /// The same, where no kept connection may be without an answer for longer than `silence` and the
    /// longest gap of the clients `beside`. Those ask servers that no rule is about: they wait only
    /// for the machine.
    pub fn finish_unharmed_within(self, silence: Duration, beside: Connections) -> Result<()> {
        let mut stalled = Duration::ZERO;
        for Client { way, traffic, .. } in beside.clients {
            let tally = traffic.stop().with_context(|| way.clone())?;
            ensure!(tally.failures() == 0, "beside the rules: {way}: {tally}");
            stalled = stalled.max(tally.longest_gap);
        }
        println!("    longest gap beside the rules {stalled:.1?}");
        self.finish(patience(silence), stalled)
    }

    /// Does so, with this longest gap of kept connections. All clients may wait for as long as the machine stood
    /// still, or others `stalled` that met no rule.
    fn finish(self, silence: Duration, stalled: Duration) -> Result<()> {
        let (mut asked, mut longest) = (BTreeMap::<Kind, u64>::new(), Duration::ZERO);
        let mut tallies = Vec::new();
        for Client { way, kind, traffic } in self.clients {
            let tally = traffic.stop().with_context(|| way.clone())?;
            *asked.entry(kind).or_default() += tally.answers() + tally.failures();
            longest = longest.max(tally.longest_gap);
            tallies.push((way, kind, tally));
        }
        let stood_still = self.standstill.finish()?;
        let harmed = |(way, kind, tally): &(String, Kind, Tally)| {
            let is_harmed = is_harmed(*kind, tally, silence, stood_still.max(stalled));
            is_harmed.then(|| format!("{kind}: {way}: {tally}"))
        };
        let harm: Vec<String> = tallies.iter().filter_map(harmed).collect();
        let asked = asked
            .iter()
            .map(|(kind, count)| format!("{count} over {kind}"));
        let asked = asked.collect::<Vec<_>>().join(", ");
        let lost = match harm.len() {
            0 => "0 lost".to_owned(),
            harmed => format!("{harmed} clients harmed"),
        };
        println!(
            "    asked {asked}; longest gap {longest:.1?}; the machine stood still for up to {stood_still:.1?}; {lost}"
        );
        ensure!(
            harm.is_empty(),
            "connections were lost, moved or waited:\n{}",
            harm.join("\n")
        );
        Ok(())
    }
}

/// Whether a client was harmed, whose connection may be without an answer for up to `silence` if it
/// is a kept one, and for as long as the machine `stood_still`.
fn is_harmed(kind: Kind, tally: &Tally, silence: Duration, stood_still: Duration) -> bool {
    let (moved, longest) = match kind {
        Kind::Kept => (tally.answered.len() > 1, silence),
        Kind::New => (false, patience(LONGEST_GAP)),
    };
    tally.failures() > 0 || tally.longest_gap > longest + stood_still || moved
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::New => "new connections",
            Kind::Kept => "kept ones",
        })
    }
}

/// Returns the name of the server that answered, or the error.
fn describe(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Answered { server, .. } => server.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(servers: &[&str], gap: Duration) -> Tally {
        let mut tally = Tally::default();
        for server in servers {
            let answer = format!("answered by {server} at 10.0.1.5:80 saw 10.0.1.9:4000");
            let answer: Outcome = answer.parse().expect("the text above is an outcome");
            tally.count(&answer, Duration::ZERO);
        }
        tally.longest_gap = gap;
        tally
    }

    #[test]
    fn a_client_that_waits_is_refused_or_is_moved_from_a_kept_connection_is_harmed() {
        let one = tally(&["web-1"], Duration::ZERO);
        let two = tally(&["web-1", "web-2"], Duration::ZERO);
        let silence = Duration::from_secs(1);
        let silent = tally(&["web-1"], silence + Duration::from_millis(1));
        let late = tally(&["web-1"], patience(LONGEST_GAP) + Duration::from_millis(1));
        let mut refused = one.clone();
        refused.count(&Outcome::Refused, Duration::ZERO);
        for (kind, tally, harmed) in [
            (Kind::New, &one, false),
            (Kind::New, &two, false),
            (Kind::Kept, &one, false),
            (Kind::Kept, &two, true),
            (Kind::New, &silent, false),
            (Kind::Kept, &silent, true),
            (Kind::New, &late, true),
            (Kind::Kept, &refused, true),
        ] {
            let is_harmed = |stood_still| is_harmed(kind, tally, silence, stood_still);
            assert_eq!(is_harmed(Duration::ZERO), harmed, "{kind}: {tally}");
            let is_late = std::ptr::eq(tally, &silent) || std::ptr::eq(tally, &late);
            assert_eq!(is_harmed(silence), harmed && !is_late, "{kind}: {tally}");
        }
    }
}
