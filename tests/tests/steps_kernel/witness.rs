//! Observes packets while the rules change.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use dataplane::{Family, Protocol};
use testkit::address_plan as addresses;
use tests::deadline::patience;
use tests::network::{Connection, Outcome, SourcePorts, Transport, Way};

use crate::services::{ADMITTED, OUTSIDERS, SERVING};
use crate::stage::{BYSTANDER, NODE_ITSELF, Stage, server};

/// How long an answer takes within a machine, with a large margin: a client that was never answered
/// waits no longer, and one that was retries once.
const PROMPTLY: Duration = Duration::from_millis(50);
/// The timeout on a busy machine.
const AT_LAST: Duration = Duration::from_secs(5);
/// The timeout of a client that cannot distinguish a busy machine from the expected result: at
/// first, and if it is excluded.
const DOUBTFUL: Duration = Duration::from_millis(500);

/// Clients that connect at every step, and their unexpected results.
#[derive(Debug)]
pub(crate) struct Witness {
    clients: Vec<Client>,
    faults: Vec<String>,
    looks: usize,
}

#[derive(Debug)]
struct Client {
    way: Way,
    /// The source address; `None` lets the kernel choose.
    source: Option<IpAddr>,
    ports: SourcePorts,
    right: Right,
    before: Before,
    /// Whether the Service must be programmed for this client: it was served before, or the last
    /// step is over.
    is_entitled: bool,
}

/// The expected final result of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Right {
    Served,
    /// No answer, and none meanwhile after the first missing answer.
    Excluded,
}

/// The result of a client before the first step or since.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Before {
    /// Not checked yet.
    Unknown,
    Served,
    /// Any other result.
    Other(Outcome),
}

// === impl Witness ===

impl Witness {
    /// Connects for the first time on all ways to healthy Services. All later results are compared
    /// with these.
    pub(crate) fn begin(stage: &Stage, family: Family) -> Result<Witness> {
        let ways = stage.ways(family)?.into_iter();
        let clients = ways.map(|way| Client::new(stage, way, None, Right::Served));
        Witness::of(clients.collect())
    }

    /// The same for the outside clients, some of which the Service must admit.
    pub(crate) fn begin_outside(stage: &Stage, family: Family) -> Result<Witness> {
        let way = stage.guarded_way(family)?;
        let clients = OUTSIDERS.iter().map(|number| {
            let right = match ADMITTED.contains(number) {
                true => Right::Served,
                false => Right::Excluded,
            };
            let source = addresses::outside_client(*number, family);
            Client::new(stage, way.clone(), Some(source), right)
        });
        Witness::of(clients.collect())
    }

    fn of(clients: Vec<Client>) -> Result<Witness> {
        let mut witness = Witness {
            clients,
            faults: Vec::new(),
            looks: 0,
        };
        witness.look("at first")?;
        Ok(witness)
    }

    /// Connects on every way. A client that was served once must stay served. Before that, it gets
    /// its initial result or no answer, which a client would treat as packet loss.
    pub(crate) fn look(&mut self, moment: &str) -> Result<()> {
        self.looks += 1;
        for (client, outcome) in self.ask()? {
            let client = &mut self.clients[client];
            if let Some(fault) = fault(client.right, &client.before, &outcome) {
                self.faults.push(format!("{moment}: {client}: {fault}"));
            }
            if is_served(&outcome) {
                client.before = Before::Served;
                client.is_entitled = client.right == Right::Served;
            } else if client.before == Before::Unknown || client.right == Right::Excluded {
                client.before = Before::Other(outcome);
            }
        }
        Ok(())
    }

    /// Fails unless all results were valid and all clients have their final result.
    pub(crate) fn finish(mut self) -> Result<usize> {
        for client in &mut self.clients {
            client.is_entitled = client.right == Right::Served;
        }
        self.look("in the end")?;
        for client in &self.clients {
            match (client.right, client.before == Before::Served) {
                (Right::Served, false) => self.faults.push(format!("{client} is never served")),
                (Right::Excluded, true) => self.faults.push(format!("{client} is still served")),
                _ => {}
            }
        }
        ensure!(self.faults.is_empty(), "{self}");
        Ok(self.looks)
    }

    /// Connects for all clients concurrently; serially their timeouts would add up.
    fn ask(&self) -> Result<Vec<(usize, Outcome)>> {
        let clients: Vec<_> = self.clients.iter().enumerate().collect();
        let mut outcomes = Vec::new();
        for neighbours in
            clients.chunk_by(|(_, a), (_, b)| a.way.inside.name() == b.way.inside.name())
        {
            let ask_all = || {
                thread::scope(|scope| {
                    let mut asked = Vec::new();
                    for (number, client) in neighbours {
                        asked.push(scope.spawn(move || (*number, client.ask())));
                    }
                    let joined = asked.into_iter().map(|asked| asked.join());
                    let joined = joined.map(|outcome| outcome.expect("a client does not panic"));
                    joined.collect::<Vec<_>>()
                })
            };
            let Some((_, first)) = neighbours.first() else {
                continue;
            };
            outcomes.extend(first.way.inside.enter(ask_all)?);
        }
        Ok(outcomes)
    }
}

impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "of {} looks:", self.looks)?;
        self.faults
            .iter()
            .try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}

// === impl Client ===

impl Client {
    fn new(stage: &Stage, way: Way, source: Option<IpAddr>, right: Right) -> Client {
        Client {
            way,
            source,
            ports: stage.ports.clone(),
            right,
            before: Before::Unknown,
            is_entitled: false,
        }
    }

    fn ask(&self) -> Outcome {
        let outcome = self.ask_within(PROMPTLY);
        match outcome {
            Outcome::TimedOut if self.is_entitled => self.ask_within(AT_LAST),
            Outcome::TimedOut if self.is_doubtful() => self.ask_within(DOUBTFUL),
            outcome => outcome,
        }
    }

    fn is_doubtful(&self) -> bool {
        matches!(self.before, Before::Unknown | Before::Served)
    }

    fn ask_within(&self, deadline: Duration) -> Outcome {
        let deadline = patience(deadline);
        let connection = Connection {
            deadline_ms: deadline.as_millis().try_into().unwrap_or(u64::MAX),
            from: self.source,
            ports: self.ports.clone(),
            protocol: match self.way.protocol {
                Protocol::Tcp => Transport::Tcp,
                Protocol::Udp => Transport::Udp,
                Protocol::Sctp => Transport::Sctp,
            },
            destination: self.way.destination,
        };
        connection.outcome(deadline)
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            Some(source) => write!(f, "{}, {source}", self.way),
            None => write!(f, "{}", self.way),
        }
    }
}

fn is_served(outcome: &Outcome) -> bool {
    SERVING.iter().any(|pod| is_by(outcome, &server(*pod)))
}

fn is_by(outcome: &Outcome, name: &str) -> bool {
    matches!(outcome, Outcome::Answered { server, .. } if server == name)
}

/// Returns what is wrong with an outcome; `None` if it is valid.
fn fault(right: Right, before: &Before, outcome: &Outcome) -> Option<String> {
    match before {
        _ if is_by(outcome, BYSTANDER) => Some(format!("{outcome}, which no Service has")),
        Before::Other(before) if right == Right::Excluded => {
            is_served(outcome).then(|| format!("{outcome}, and was {before} before"))
        }
        _ if is_served(outcome) || right == Right::Excluded => None,
        Before::Unknown => None,
        Before::Other(before) if is_alike(before, outcome) || *outcome == Outcome::TimedOut => None,
        // The earlier packet was lost on a busy machine, and no rule has matched since either.
        Before::Other(Outcome::TimedOut) if is_by(outcome, NODE_ITSELF) => None,
        Before::Served => Some(format!("{outcome}, and was served before")),
        Before::Other(before) => Some(format!("{outcome}, and was {before} before")),
    }
}

/// Whether two outcomes look the same to a client.
fn is_alike(one: &Outcome, other: &Outcome) -> bool {
    match (one, other) {
        (Outcome::Answered { server: one, .. }, Outcome::Answered { server: other, .. }) => {
            one == other
        }
        (one, other) => one == other,
    }
}

/// Tests that the witness detects invalid results.
pub(crate) fn notices() -> Result<()> {
    let answered = |server: &str| Outcome::Answered {
        server: server.to_owned(),
        at: SocketAddr::from(([10, 0, 1, 5], 80)),
        saw: SocketAddr::from(([10, 0, 1, 9], 40_000)),
    };
    let (good, wrong) = (answered(&server(SERVING[0])), answered("a-stranger"));
    let other = |outcome: &Outcome| Before::Other(outcome.clone());
    let silent = Outcome::TimedOut;
    for (before, outcome, is_fault) in [
        (Before::Served, &good, false),
        (Before::Served, &silent, true),
        (Before::Served, &Outcome::Refused, true),
        (Before::Served, &wrong, true),
        (other(&silent), &silent, false),
        (other(&silent), &Outcome::Refused, true),
        (other(&silent), &wrong, true),
        (other(&wrong), &wrong, false),
        (other(&wrong), &silent, false),
        (other(&wrong), &Outcome::Refused, true),
        (other(&Outcome::Refused), &Outcome::Refused, false),
    ] {
        let found = fault(Right::Served, &before, outcome);
        ensure!(
            found.is_some() == is_fault,
            "{before:?}, then {outcome}: {found:?}"
        );
    }
    let host = answered(BYSTANDER);
    for right in [Right::Served, Right::Excluded] {
        for before in [Before::Unknown, Before::Served, other(&host)] {
            let found = fault(right, &before, &host);
            ensure!(
                found.is_some(),
                "{right:?}, {before:?}: a process of the node"
            );
        }
    }
    let shut_out = other(&silent);
    ensure!(
        fault(Right::Excluded, &shut_out, &good).is_some(),
        "it passes"
    );
    ensure!(fault(Right::Excluded, &shut_out, &silent).is_none());
    ensure!(fault(Right::Excluded, &Before::Served, &silent).is_none());
    Ok(())
}
