//! All clients of the Service during a handover: established connections and new ones.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dataplane::{Family, Protocol};
use testkit::address_plan as addresses;
use tests::network::{Namespace, Probe, Topology, Traffic, start_traffic};

use crate::conversation::Conversation;
use crate::stage::{CLIENT, NODE_PORT};

/// The interval between two new connections of one client.
const EVERY: Duration = Duration::from_millis(5);

/// The clients, each with a name for error messages.
#[derive(Debug)]
pub(crate) struct Crowd {
    new: Vec<(String, Traffic)>,
    established: Vec<(String, Conversation)>,
    every: Duration,
}

// === impl Crowd ===

impl Crowd {
    /// Starts the clients; returns once each has received an answer.
    pub(crate) fn gather(topology: &Topology) -> Result<Crowd> {
        Crowd::gather_for(topology, EVERY)
    }

    /// Like [`Crowd::gather`], with another interval between new connections and between requests:
    /// many clients leave an emulated machine no time for its proxies.
    pub(crate) fn gather_for(topology: &Topology, every: Duration) -> Result<Crowd> {
        let mut crowd = Crowd {
            new: Vec::new(),
            established: Vec::new(),
            every,
        };
        let pod = topology.pod(1, CLIENT)?;
        let (outside, node) = (topology.outside()?, topology.node(1)?);
        for family in Family::ALL {
            let cluster_ip = SocketAddr::new(addresses::cluster_ip(10, family), 80);
            let node_port = SocketAddr::new(addresses::node_address(1, family), NODE_PORT);
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                crowd.add("a pod", pod, protocol, cluster_ip)?;
                crowd.add("a client outside", outside, protocol, node_port)?;
            }
            crowd.add("the node itself", node, Protocol::Tcp, cluster_ip)?;
        }
        Ok(crowd)
    }

    fn add(
        &mut self,
        who: &str,
        inside: &Namespace,
        protocol: Protocol,
        destination: SocketAddr,
    ) -> Result<()> {
        let name = format!("{who} to {destination}/{protocol}");
        let probe = Probe {
            protocol,
            source: None,
            destination,
            deadline: Duration::from_secs(5),
        };
        let new = start_traffic(inside, &probe, self.every).with_context(|| name.clone())?;
        self.new.push((name.clone(), new));
        let old = Conversation::begin(inside, protocol, destination, self.every);
        let old = old.with_context(|| name.clone())?;
        self.established.push((name, old));
        Ok(())
    }

    /// Stops the clients. Every connection must have been answered, and every established one must
    /// have survived.
    pub(crate) fn disperse(self) -> Result<()> {
        let (mut new, mut said) = (0, 0);
        for (name, traffic) in self.new {
            let tally = traffic.stop().with_context(|| name.clone())?;
            ensure!(
                tally.failures() == 0,
                "new connections of {name} were lost: {tally}"
            );
            new += tally.answers();
        }
        let established = self.established.len();
        for (name, conversation) in self.established {
            said += conversation
                .end()
                .with_context(|| format!("the connection of {name} was lost"))?;
        }
        println!(
            "    {new} new connections and {said} answers over {established} established ones, none lost"
        );
        Ok(())
    }
}
