//! The network of the demo: a node, three servers, two clients.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use address_plan as addresses;
use anyhow::Result;
use dataplane::{Family, Protocol};

use crate::network::{Namespace, Plan, PlannedNode, Probe, Server, Topology, probe, start_server};

/// The servers, and the numbers of their pods.
pub(super) const SERVERS: [(&str, u8); 3] = [("web-1", 5), ("web-2", 6), ("web-3", 7)];
/// The number of the node.
const NODE: u8 = 1;
/// The number of the client's pod.
const CLIENT: u8 = 9;
/// The number of the client outside.
const OUTSIDER: u8 = 2;
/// The ports of the servers: for `demo/web` and for `demo/dns`.
const SERVER_PORTS: [u16; 2] = [8080, 5353];
/// The timeout of an answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The namespaces and their servers.
#[derive(Debug)]
pub(super) struct Stage {
    #[expect(
        dead_code,
        reason = "servers stop when they are dropped, before their namespaces go"
    )]
    servers: Vec<Server>,
    topology: Topology,
}

/// A client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Client {
    /// A pod of the node.
    Pod,
    /// A host outside the cluster, which knows only a node's address.
    Outside,
}

/// A path from a client to a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) client: Client,
    pub(super) protocol: Protocol,
    pub(super) destination: SocketAddr,
}

// === impl Stage ===

impl Stage {
    /// Creates the namespaces and starts the servers in them.
    pub(super) fn build() -> Result<Stage> {
        let pods = SERVERS.map(|(_, pod)| pod).into_iter().chain([CLIENT]);
        let topology = Topology::build(&Plan {
            nodes: vec![PlannedNode {
                number: NODE,
                pods: pods.collect(),
            }],
            clients: [OUTSIDER].into(),
            others: Vec::new(),
        })?;
        let mut servers = Vec::new();
        for (name, pod) in SERVERS {
            let listens = Family::ALL.map(|family| {
                let address = addresses::pod_address(NODE, pod, family);
                SERVER_PORTS.map(|port| SocketAddr::new(address, port))
            });
            servers.push(start_server(
                topology.pod(NODE, pod)?,
                name,
                listens.as_flattened(),
            )?);
        }
        Ok(Stage { servers, topology })
    }

    /// Returns the node of the agent.
    pub(super) fn node(&self) -> Result<&Namespace> {
        self.topology.node(NODE)
    }

    /// Returns the namespace of a client.
    pub(super) fn client(&self, client: Client) -> Result<&Namespace> {
        match client {
            Client::Pod => self.topology.pod(NODE, CLIENT),
            Client::Outside => self.topology.outside(),
        }
    }

    /// Connects `count` times; returns how many connections each of [`SERVERS`] answered, in their
    /// order. Connections without an answer are not counted.
    pub(super) fn probe(&self, path: &Path, count: u32) -> Result<[u64; 3]> {
        let asking = Probe {
            protocol: path.protocol,
            source: None,
            destination: path.destination,
            deadline: PATIENCE,
        };
        let outcomes = probe(self.client(path.client)?, &asking, count)?;
        Ok(SERVERS.map(|(name, _)| {
            let by_it = outcomes
                .iter()
                .filter(|outcome| is_answer_of(outcome, name));
            by_it.map(|_| 1).sum()
        }))
    }
}

fn is_answer_of(outcome: &crate::network::Outcome, name: &str) -> bool {
    matches!(outcome, crate::network::Outcome::Answered { server, .. } if server == name)
}

// === impl Path ===

impl Path {
    /// Returns the paths to `demo/web`: the cluster IP from the pod, the node port from outside, in
    /// both families.
    pub(super) fn to_web() -> [Path; 4] {
        let tcp = |client, address, port| Path {
            client,
            protocol: Protocol::Tcp,
            destination: SocketAddr::new(address, port),
        };
        [
            tcp(Client::Pod, addresses::cluster_ip(10, Family::Ipv4), 80),
            tcp(Client::Pod, addresses::cluster_ip(10, Family::Ipv6), 80),
            tcp(
                Client::Outside,
                addresses::node_address(NODE, Family::Ipv4),
                30080,
            ),
            tcp(
                Client::Outside,
                addresses::node_address(NODE, Family::Ipv6),
                30080,
            ),
        ]
    }

    /// Returns the paths to `demo/dns`: the cluster IP from the pod, in both families.
    pub(super) fn to_dns() -> [Path; 2] {
        Family::ALL.map(|family| Path {
            client: Client::Pod,
            protocol: Protocol::Udp,
            destination: SocketAddr::new(addresses::cluster_ip(53, family), 53),
        })
    }
}

impl fmt::Display for Path {
    /// Prints `pod -> 10.96.0.10:80 tcp`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let client = match self.client {
            Client::Pod => "pod",
            Client::Outside => "outside",
        };
        write!(f, "{client} -> {} {}", self.destination, self.protocol)
    }
}

/// Draws the network.
pub(super) fn drawing() -> String {
    let ipv4 = Family::Ipv4;
    let outside = addresses::outside_client(OUTSIDER, ipv4).to_string();
    let node = addresses::node_address(NODE, ipv4).to_string();
    let pod = |number: u8| -> IpAddr { addresses::pod_address(NODE, number, ipv4) };
    let rows = [
        (outside.as_str(), "-- router --", node.as_str(), "-+-"),
        ("a client", "", "the agent", " +-"),
        ("", "", "", " +-"),
        ("", "", "", " +-"),
    ];
    let pods = SERVERS.into_iter().chain([("a client", CLIENT)]);
    let mut text = format!(
        "{:<13}{:<14}{:<13}    {}\n",
        "outside",
        "",
        addresses::NODE,
        "pods"
    );
    for ((left, link, middle, branch), (name, number)) in rows.into_iter().zip(pods) {
        let pod = pod(number);
        text.push_str(&format!(
            "{left:<13}{link:<14}{middle:<13}{branch} {pod} {name}\n"
        ));
    }
    text
}
