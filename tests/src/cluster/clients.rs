//! Clients that reach the Services over several paths.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use dataplane::{Family, Protocol};

use super::Cluster;
use super::shop::{cluster_address, node_port_address};
use crate::network::{Connections, Kind, Namespace, Way};

impl Cluster {
    /// Starts clients of the Service `web` outside and in pods, for both protocols and families;
    /// each connects every `interval`. Returns once each has received an answer.
    pub fn start_clients(&self, interval: Duration) -> Result<Connections> {
        use {Family::*, Protocol::*};
        let outside = self.topology.outside()?;
        let ways = [
            ("outside", outside, Tcp, node_port_address(1, Ipv4)),
            ("outside", outside, Udp, node_port_address(2, Ipv6)),
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
        let ways = ways.map(|(from, inside, protocol, destination)| Way {
            from: from.to_owned(),
            inside: inside.clone(),
            protocol,
            destination,
        });
        Connections::start(&ways, &[Kind::New], interval)
    }

    /// Waits until connections to `destination` are answered by all of these servers and by no
    /// others.
    pub fn wait_for_servers(
        &self,
        inside: &Namespace,
        (protocol, destination): (Protocol, SocketAddr),
        servers: &[&str],
        deadline: Duration,
    ) -> Result<()> {
        let way = Way {
            from: "a client".to_owned(),
            inside: inside.clone(),
            protocol,
            destination,
        };
        let servers = servers.iter().map(|server| (*server).to_owned());
        way.wait_for_servers(&servers.collect(), deadline)
    }

    /// Waits until every node forwards connections from outside to exactly these servers, in both
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
