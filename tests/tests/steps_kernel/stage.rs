//! A node with serving pods and clients, and the ways of all clients to healthy Services.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use dataplane::{Family, Protocol};
use tempfile::TempDir;
use testkit::address_plan as addresses;
use tests::network::{
    Namespace, Plan, PlannedNode, Server, SourcePorts, Topology, Way, start_server,
};

use crate::services::{
    API_SERVER, GUARDED, NODE_PORT, OUTSIDERS, SERVED, SERVICE_PORT, SERVING, STICKY, WEB,
};

/// The client pod.
const ASKING: u8 = 9;
/// The name of the server that answers at node ports without a rule. Without it the node itself
/// would refuse such a connection, which would look like a rejection by a rule.
pub(crate) const NODE_ITSELF: &str = "the-node-itself";
/// The name of a server on the node that listens at the Services' port on all addresses. No rule ever
/// leads to it.
pub(crate) const BYSTANDER: &str = "a-process-on-all-addresses";

/// The environment of a test. It ends on drop.
#[derive(Debug)]
pub(crate) struct Stage {
    _servers: Vec<Server>,
    folder: TempDir,
    /// A separate source port for each question, because conntrack keeps the destination of a known
    /// flow whatever the present rules are.
    pub(crate) ports: SourcePorts,
    topology: Topology,
}

// === impl Stage ===

impl Stage {
    /// Builds a node without rules.
    pub(crate) fn build() -> Result<Stage> {
        let topology = Topology::build(&Plan {
            nodes: vec![PlannedNode {
                number: 1,
                pods: SERVING.into_iter().chain([ASKING]).collect(),
            }],
            clients: OUTSIDERS.into(),
            others: Vec::new(),
        })?;
        // A refusal that the kernel leaves out would look like a lost packet, and the next one like a change.
        topology.node(1)?.set_sysctls(&[
            ("net/ipv4/icmp_ratelimit", "0"),
            ("net/ipv6/icmp/ratelimit", "0"),
        ])?;
        let mut servers = Vec::new();
        for pod in SERVING {
            let listening = Family::ALL
                .map(|family| SocketAddr::new(addresses::pod_address(1, pod, family), SERVED));
            servers.push(start_server(
                topology.pod(1, pod)?,
                &server(pod),
                &listening,
            )?);
        }
        let node_ports = Family::ALL.map(node_port);
        servers.push(start_server(topology.node(1)?, NODE_ITSELF, &node_ports)?);
        // For both families.
        let everywhere = [SocketAddr::from((Ipv6Addr::UNSPECIFIED, SERVICE_PORT))];
        servers.push(start_server(topology.node(1)?, BYSTANDER, &everywhere)?);
        // A packet to a cluster IP that leaves the node untranslated gets no answer.
        let mut routes = String::new();
        for family in Family::ALL {
            let range = addresses::service_cidr(family);
            routes += &format!("route replace blackhole {range}\n");
        }
        topology.world().configure(&routes)?;
        // Nor does a packet to a load-balancer IP loop between node and world.
        for family in Family::ALL {
            let balancer = addresses::load_balancer_ip(GUARDED, family);
            let route = format!("route add blackhole {balancer}");
            topology.node(1)?.configure(&route)?;
        }
        Ok(Stage {
            _servers: servers,
            folder: tempfile::tempdir_in("/run")?,
            ports: SourcePorts::default(),
            topology,
        })
    }

    pub(crate) fn node(&self) -> Result<&Namespace> {
        self.topology.node(1)
    }

    pub(crate) fn lock_file(&self) -> PathBuf {
        self.folder.path().join("lock")
    }

    /// Returns all clients' ways to the Services that exist before and after.
    pub(crate) fn ways(&self, family: Family) -> Result<Vec<Way>> {
        let at = |number| SocketAddr::new(addresses::cluster_ip(number, family), SERVICE_PORT);
        let mut ways = Vec::new();
        for (from, inside) in [
            ("a pod", self.topology.pod(1, ASKING)?),
            ("the node", self.topology.node(1)?),
        ] {
            for (protocol, destination) in [
                (Protocol::Tcp, at(API_SERVER)),
                (Protocol::Tcp, at(WEB)),
                (Protocol::Udp, at(WEB)),
                (Protocol::Tcp, at(STICKY)),
                (Protocol::Tcp, node_port(family)),
                (Protocol::Udp, node_port(family)),
            ] {
                ways.push(Way {
                    from: from.to_owned(),
                    inside: inside.clone(),
                    protocol,
                    destination,
                });
            }
        }
        Ok(ways)
    }

    /// Returns the way of the outside clients to `shop/guarded`.
    pub(crate) fn guarded_way(&self, family: Family) -> Result<Way> {
        Ok(Way {
            from: "outside".to_owned(),
            inside: self.topology.outside()?.clone(),
            protocol: Protocol::Tcp,
            destination: SocketAddr::new(
                addresses::load_balancer_ip(GUARDED, family),
                SERVICE_PORT,
            ),
        })
    }

    /// Runs a line of shell on the node.
    pub(crate) fn shell(&self, line: &str) -> Result<()> {
        let mut command = self.node()?.command("sh");
        command.args(["-e", "-c", line]);
        command.env("XTABLES_LOCKFILE", self.lock_file());
        let output = command.output().context("unable to run sh")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{line}: {errors}");
        Ok(())
    }
}

/// Returns the name of the server in a pod.
pub(crate) fn server(pod: u8) -> String {
    format!("pod-{pod}")
}

fn node_port(family: Family) -> SocketAddr {
    SocketAddr::new(addresses::node_address(1, family), NODE_PORT)
}
