//! Clients that make new connections all the time, and what came of them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dataplane::{Family, Protocol};

use super::Cluster;
use super::shop::{cluster_address, node_port_address};
use crate::deadline::wait_for;
use crate::network::{Namespace, Outcome, Probe, Traffic, probe, start_traffic};

/// How long a client waits for an answer. Far more than it takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest time a client may go without an answer: less than the second after which TCP sends
/// again what was lost, so that a connection which came through only by that is noticed.
const LONGEST_GAP: Duration = Duration::from_secs(1);
/// Connections that say which servers there are: that one of four answers none of them has a
/// chance of four in 10^8.
const CONNECTIONS: u32 = 64;

/// Clients of the Service `web` on several ways to it.
#[derive(Debug)]
pub struct Clients(Vec<(String, Traffic)>);

impl Cluster {
    /// Starts clients outside and in pods, of both protocols and families; each makes a connection
    /// every `interval`. Returns once each was answered.
    pub fn start_clients(&self, interval: Duration) -> Result<Clients> {
        use {Family::*, Protocol::*};
        let outside = self.topology.outside()?;
        let ways: [(&str, &Namespace, Protocol, SocketAddr); 4] = [
            (
                "outside to node-1",
                outside,
                Tcp,
                node_port_address(1, Ipv4),
            ),
            (
                "outside to node-2",
                outside,
                Udp,
                node_port_address(2, Ipv6),
            ),
            (
                "a pod of node-2",
                self.client_pod(2)?,
                Tcp,
                cluster_address(Ipv6),
            ),
            (
                "a pod of node-3",
                self.client_pod(3)?,
                Udp,
                cluster_address(Ipv4),
            ),
        ];
        let start = |(from, inside, protocol, destination): (&str, _, _, _)| {
            let name = format!("{protocol} from {from} at {destination}");
            let traffic = start_traffic(inside, &asking(protocol, destination), interval);
            Ok((name.clone(), traffic.with_context(|| name)?))
        };
        Ok(Clients(ways.map(start).into_iter().collect::<Result<_>>()?))
    }

    /// Waits until connections to `destination` are answered by these servers, all of them and
    /// nobody else.
    pub fn wait_for_servers(
        &self,
        inside: &Namespace,
        (protocol, destination): (Protocol, SocketAddr),
        servers: &[&str],
        deadline: Duration,
    ) -> Result<()> {
        let expected: BTreeSet<&str> = servers.iter().copied().collect();
        let what = format!("{protocol} {destination} to be answered by {servers:?} alone");
        let mut last = String::new();
        let answered = wait_for(&what, deadline, || {
            let outcomes = probe(inside, &asking(protocol, destination), CONNECTIONS)?;
            let seen: BTreeSet<String> = outcomes.iter().map(describe).collect();
            last = format!("last seen: {seen:?}");
            Ok(seen
                .iter()
                .map(String::as_str)
                .eq(expected.iter().copied())
                .then_some(()))
        });
        answered.with_context(|| last)
    }

    /// Waits until every node sends connections from outside to these servers alone, in both
    /// families.
    pub fn wait_until_served_by(&self, servers: &[&str], deadline: Duration) -> Result<()> {
        for node in self.nodes() {
            for family in Family::ALL {
                let way = (Protocol::Tcp, node_port_address(node, family));
                self.wait_for_servers(self.topology.outside()?, way, servers, deadline)?;
            }
        }
        Ok(())
    }
}

impl Clients {
    /// Stops them and prints what came of their connections. Fails unless every one was answered,
    /// without a gap that somebody would notice.
    pub fn finish_unharmed(self) -> Result<()> {
        let mut harm = Vec::new();
        for (name, traffic) in self.0 {
            let tally = traffic.stop().with_context(|| name.clone())?;
            println!("    {name}: {tally}");
            if tally.failures() > 0 || tally.longest_gap > LONGEST_GAP {
                harm.push(format!("{name}: {tally}"));
            }
        }
        ensure!(
            harm.is_empty(),
            "connections failed or waited:\n{}",
            harm.join("\n")
        );
        Ok(())
    }
}

fn asking(protocol: Protocol, destination: SocketAddr) -> Probe {
    Probe {
        protocol,
        source: None,
        destination,
        deadline: PATIENCE,
    }
}

/// The name of the server that answered, or what went wrong.
fn describe(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Answered { server, .. } => server.clone(),
        other => other.to_string(),
    }
}
