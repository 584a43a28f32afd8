//! A node with the rules of mode ipvs, its pods and their servers.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use backend::{Backend, Rendered};
use backend_ipvs::{Ipvs, Rules, Step};
use dataplane::{Config, Dataplane, Family, Mode, compile};
use netlink::nf_tables::Operation;
use testkit::address_plan as addresses;
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};
use tests::deadline::patience;
use tests::network::{
    Connection, Kept, Namespace, Outcome, Plan, PlannedNode, Server, SourcePorts, Topology,
    Transport, start_server,
};
use tests::programmed::program;

/// The pods with a server.
pub(crate) const SERVING: [u8; 2] = [5, 6];
/// The client.
const ASKING: u8 = 9;
/// The port of the Service.
const PORT: u16 = 80;
/// Its node port.
const NODE_PORT: u16 = 30_080;
const CLUSTER_IP: u8 = 10;
/// The name of the node's own server, which listens at the Service's port on all addresses.
const BYSTANDER: &str = "a-process-on-all-addresses";
/// How long a client waits for an answer or an error.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// It ends on drop.
pub(crate) struct Stage {
    _servers: Vec<Server>,
    pub(crate) backends: Vec<(Ipvs, Rendered<Rules>)>,
    /// How long connections to endpoints that leave last; `None` until they end.
    pub(crate) drains_for: Option<Duration>,
    ports: SourcePorts,
    topology: Topology,
}

/// Whether a client stays with an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Affinity {
    None,
    ClientIp,
}

/// What an agent that starts replaces of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replaced {
    /// Rules in place.
    Rules,
    /// Each table as a whole.
    Table,
}

/// A connection that stays open.
pub(crate) struct Open {
    asked: Connection,
    kept: Option<Kept>,
    /// The server at its other end.
    pub(crate) server: String,
}

// === impl Stage ===

impl Stage {
    /// Builds a node that serves nothing.
    pub(crate) fn build() -> Result<Stage> {
        let topology = Topology::build(&Plan {
            nodes: vec![PlannedNode {
                number: 1,
                pods: SERVING.into_iter().chain([ASKING]).collect(),
            }],
            ..Plan::default()
        })?;
        let mut servers = Vec::new();
        for pod in SERVING {
            let inside = topology.pod(1, pod)?;
            let listening = Family::ALL.map(|family| endpoint(pod, family));
            servers.push(start_server(inside, &server(pod), &listening)?);
        }
        let everywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT));
        servers.push(start_server(topology.node(1)?, BYSTANDER, &[everywhere])?);
        let open = || backend_ipvs::open(Path::new("/proc/sys"));
        let backends = topology.node(1)?.enter(open)??;
        Ok(Stage {
            _servers: servers,
            drains_for: None,
            backends: backends.map(|one| (one, Rendered::default())).into(),
            ports: SourcePorts::default(),
            topology,
        })
    }

    /// Programs the Service `shop/web` over TCP and UDP with these endpoints.
    pub(crate) fn serve(&mut self, pods: &[u8], affinity: Affinity) -> Result<()> {
        let at = |family| -> Vec<SocketAddr> {
            let pods = pods.iter();
            pods.map(|pod| endpoint(*pod, family)).collect()
        };
        self.program(&service(&Family::ALL.map(at), affinity, self.drains_for))
    }

    /// Programs a node with these Services.
    pub(crate) fn program(&mut self, desired: &Dataplane) -> Result<()> {
        let backends = &mut self.backends;
        // Sysctls are those of the thread's namespace.
        self.topology.node(1)?.enter(|| {
            for (backend, held) in backends {
                *held = program(backend, desired, held)?;
            }
            anyhow::Ok(())
        })?
    }

    /// Lets an agent that starts program the same node. Returns what it replaced.
    pub(crate) fn restart(&mut self) -> Result<Replaced> {
        let node = self.topology.node(1)?;
        let started = node.enter(|| backend_ipvs::open(Path::new("/proc/sys")))??;
        let mut replaced = Vec::new();
        for (mut backend, (before, held)) in started.into_iter().zip(&mut self.backends) {
            let found = Rendered {
                dataplane: Dataplane::default(),
                rules: backend.observe()?,
            };
            let desired = backend.render(&held.dataplane, &found);
            let change = backend.diff(&found.rules, &desired);
            let operations = change.steps().iter().filter_map(|step| match step {
                Step::Table(transaction) => Some(&transaction.operations),
                _ => None,
            });
            let mut operations = operations.flatten();
            replaced.push(operations.any(|one| matches!(one, Operation::DeleteTable)));
            let committed = node.enter(|| backend.commit(change))?;
            let _ = committed.context("it is refused")?;
            held.rules = desired;
            *before = backend;
        }
        ensure!(replaced[0] == replaced[1], "{replaced:?}");
        Ok(match replaced[0] {
            true => Replaced::Table,
            false => Replaced::Rules,
        })
    }

    pub(crate) fn node(&self) -> Result<&Namespace> {
        self.topology.node(1)
    }

    pub(crate) fn client(&self) -> Result<&Namespace> {
        self.topology.pod(1, ASKING)
    }

    /// Opens a connection from the client, and asks over it.
    pub(crate) fn connect(&self, destination: SocketAddr) -> Result<Open> {
        let asked = Connection {
            deadline_ms: patience(PATIENCE).as_millis().try_into()?,
            from: None,
            ports: self.ports.clone(),
            protocol: Transport::Tcp,
            destination,
        };
        let mut kept = None;
        let outcome = self.client()?.enter(|| asked.ask_over(&mut kept))??;
        let Outcome::Answered { server, .. } = outcome else {
            anyhow::bail!("{destination}: {outcome}");
        };
        Ok(Open {
            asked,
            kept,
            server,
        })
    }
}

// === impl Open ===

impl Open {
    /// Asks over the connection. Fails unless it is answered at its other end.
    pub(crate) fn ask(&mut self) -> Result<()> {
        ensure!(self.kept.is_some(), "it is open");
        let outcome = self.asked.ask_over(&mut self.kept);
        let outcome = outcome.with_context(|| format!("{} is silent", self.server))?;
        ensure!(is_by(&outcome, &self.server), "{outcome}");
        Ok(())
    }
}

pub(crate) fn cluster_ip(family: Family) -> SocketAddr {
    SocketAddr::new(addresses::cluster_ip(CLUSTER_IP, family), PORT)
}

pub(crate) fn node_port(family: Family) -> SocketAddr {
    SocketAddr::new(addresses::node_address(1, family), NODE_PORT)
}

/// The name of the server in a pod.
pub(crate) fn server(pod: u8) -> String {
    format!("pod-{pod}")
}

/// Whether the server with this name has answered.
pub(crate) fn is_by(outcome: &Outcome, name: &str) -> bool {
    matches!(outcome, Outcome::Answered { server, .. } if server == name)
}

fn endpoint(pod: u8, family: Family) -> SocketAddr {
    SocketAddr::new(addresses::pod_address(1, pod, family), 8080)
}

/// The Service `shop/web` over TCP and UDP with these endpoints of each family. The connections of
/// those that leave last for `drains_for`.
pub(crate) fn service(
    endpoints: &[Vec<SocketAddr>; 2],
    affinity: Affinity,
    drains_for: Option<Duration>,
) -> Dataplane {
    let node = mk_node(1).build();
    let mut config = Config::clone(&mk_config().mode(Mode::Ipvs).build());
    config.ipvs_timeouts.drain = drains_for;
    let config = Arc::new(config);
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    let service = mk_service("shop/web").port("tcp", PORT);
    let mut service = service.node_port(NODE_PORT).udp("udp", PORT);
    if affinity == Affinity::ClientIp {
        service = service.client_ip_affinity(Duration::from_secs(600));
    }
    let mut slices = mk_endpoints();
    for (family, endpoints) in Family::ALL.into_iter().zip(endpoints) {
        let address = addresses::cluster_ip(CLUSTER_IP, family).to_string();
        service = service.cluster_ip(&address);
        for endpoint in endpoints {
            let at = endpoint.to_string();
            slices = slices.tcp("tcp").ready(&at, addresses::NODE);
            slices = slices.udp("udp").ready(&at, addresses::NODE);
        }
    }
    let rules = compile(&service.build(), &slices.build(), &node, &config);
    dataplane.set(rules.into());
    dataplane
}
