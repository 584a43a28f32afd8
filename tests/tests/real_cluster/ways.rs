//! The clients and destinations of connections.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use dataplane::{Family, Protocol};
use tests::network::{Connections, Kind, Way};

use crate::shop::{STEADY, Shop, client};
use crate::stage::Stage;

/// The place of a client, with the node that its connections go through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Outside the cluster: uses a node port of this node.
    Outside(u8),
    /// On this node itself: uses the cluster IP.
    Node(u8),
    /// In a Pod on this node: uses the cluster IP.
    Pod(u8),
}

/// The place of a client, and its protocol and family.
pub(crate) type Client = (Place, (Protocol, Family));

/// Clients outside, on nodes and in Pods that cover each node, protocol and family.
pub(crate) const EVERYWHERE: [Client; 9] = [
    (Place::Outside(1), (Protocol::Tcp, Family::Ipv4)),
    (Place::Outside(2), (Protocol::Udp, Family::Ipv6)),
    (Place::Outside(3), (Protocol::Tcp, Family::Ipv4)),
    (Place::Node(2), (Protocol::Tcp, Family::Ipv6)),
    (Place::Node(3), (Protocol::Udp, Family::Ipv4)),
    (Place::Pod(1), (Protocol::Tcp, Family::Ipv6)),
    (Place::Pod(2), (Protocol::Tcp, Family::Ipv4)),
    (Place::Pod(3), (Protocol::Udp, Family::Ipv4)),
    (Place::Pod(3), (Protocol::Tcp, Family::Ipv6)),
];

/// The interval of each client's requests.
const INTERVAL: Duration = Duration::from_millis(20);

impl Stage {
    /// Returns the way from a place to a Service.
    pub(crate) fn way(
        &self,
        place: Place,
        shop: Shop,
        (protocol, family): (Protocol, Family),
    ) -> Result<Way> {
        let (from, inside, destination) = match place {
            Place::Outside(node) => (
                "outside".to_owned(),
                self.cluster.lan().outside().clone(),
                shop.node_address(node, family),
            ),
            Place::Node(node) => (
                format!("node-{node}"),
                self.cluster.node(node)?.namespace().clone(),
                shop.cluster_address(family)?,
            ),
            Place::Pod(node) => (
                format!("a pod of node-{node}"),
                self.cluster
                    .node(node)?
                    .observe_pod_network(&client(node))?,
                shop.cluster_address(family)?,
            ),
        };
        Ok(Way {
            from,
            inside,
            protocol,
            destination,
        })
    }

    /// Returns the ways from a place over TCP in each family.
    pub(crate) fn tcp_ways(&self, place: Place, shop: Shop) -> Result<Vec<Way>> {
        let families = Family::ALL.into_iter();
        families
            .map(|family| self.way(place, shop, (Protocol::Tcp, family)))
            .collect()
    }

    /// Waits until connections from outside, from nodes and from Pods of every node reach exactly
    /// these servers.
    pub(crate) fn wait_until_served(
        &self,
        shop: Shop,
        servers: &BTreeSet<String>,
        deadline: Duration,
    ) -> Result<()> {
        let nodes: Vec<u8> = self.cluster.nodes().map(|node| node.number()).collect();
        for node in nodes {
            for place in [Place::Outside(node), Place::Node(node), Place::Pod(node)] {
                for way in self.tcp_ways(place, shop)? {
                    way.wait_for_servers(servers, deadline)?;
                }
            }
        }
        Ok(())
    }

    /// Starts clients in all places for a Service whose servers stay, over new and over kept
    /// connections.
    pub(crate) fn connect(&self) -> Result<Connections> {
        self.connect_from(&EVERYWHERE)
    }

    /// Starts such clients in these places.
    pub(crate) fn connect_from(&self, clients: &[Client]) -> Result<Connections> {
        let ways = clients
            .iter()
            .map(|(place, how)| self.way(*place, STEADY, *how));
        let ways: Vec<Way> = ways.collect::<Result<_>>()?;
        Connections::start(&ways, &[Kind::New, Kind::Kept], INTERVAL)
    }
}
