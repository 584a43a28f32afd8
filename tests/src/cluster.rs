//! A whole cluster on one machine: a real control plane, Signpost's operator, an agent for each
//! node, and clients and servers that exchange real packets.
//!
//! ```text
//!   control: etcd, API server, controllers, signpost-operator
//!      |
//!    world ---- outside (clients)
//!      |  |  `---- node-1, signpost-agent ---- pods: servers, a client
//!      |  `------- node-2, signpost-agent ---- …
//!      `---------- node-3, signpost-agent ---- …
//! ```
//!
//! Each of these is a network namespace. Nodes and Pods are objects whose status the test writes in
//! place of kubelets; everything that follows from them is real. The operator and the agents are
//! the built programs, authenticated as in their Pods and with only the permissions of `deploy/`.
//! Everything is removed when the [`Cluster`] is dropped.

mod access;
mod agents;
mod clients;
mod operator;
mod pods;
mod program;
pub mod resources;
pub mod shop;
mod slices;

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use dataplane::Family;
use tempfile::TempDir;
use testkit::address_plan as addresses;

pub use program::Program;

use crate::binaries;
use crate::control_plane::{Component, ControlPlane, Options};
use crate::deadline::wait_for;
use crate::network::{Namespace, Outsider, Plan, PlannedNode, Server, Topology, start_server};
use shop::{SERVICES, SPARE, WEB};

/// The address of the control plane.
pub const CONTROL_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 123, 0, 1);
/// The nodes that exist from the start.
pub const NODES: [u8; 3] = [1, 2, 3];
/// A node with a network and servers that is not in the cluster until it joins.
pub const NEWCOMER: u8 = 4;
/// The host number of each node's client pod.
const CLIENT: u8 = 9;
/// The deadline for operations that take a second or two on an idle machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    // Fields are dropped in this order: users before what they use.
    operator: Option<Program>,
    agents: BTreeMap<u8, Program>,
    #[expect(dead_code, reason = "held for the sake of their end")]
    servers: Vec<Server>,
    control_plane: ControlPlane,
    topology: Topology,
    files: Files,
    operator_kubeconfig: PathBuf,
    operators_started: u32,
}

/// The folder of the programs' logs and state.
#[derive(Debug)]
struct Files(TempDir);

// === impl Files ===

impl Files {
    fn log(&self, program: &str) -> PathBuf {
        self.0.path().join(format!("{program}.log"))
    }

    /// Returns the folder in which an agent keeps state for its next start.
    fn state(&self, node: &str) -> PathBuf {
        self.0.path().join(format!("{node}-state"))
    }
}

// === impl Cluster ===

impl Cluster {
    /// Starts everything; returns when the API server has the nodes, Services and Pods and all
    /// programs run. There is no profile yet.
    pub fn start() -> Result<Cluster> {
        // Check first, so that missing programs are reported at once.
        for program in ["signpost-operator", "signpost-agent"] {
            binaries::find(program)?;
        }
        let topology = Topology::build(&plan())?;
        let mut servers = Vec::new();
        for pod in WEB.iter().chain([&SPARE]) {
            let own = Family::ALL.map(|family| pod.address(family));
            let own = own.map(|address| SocketAddr::new(address, shop::TARGET_PORT));
            servers.push(start_server(
                topology.pod(pod.node, pod.host)?,
                pod.name,
                &own,
            )?);
        }
        let control_plane = ControlPlane::start(Options {
            bind: CONTROL_ADDRESS,
            network: Some(topology.other("control")?.clone()),
            ..Options::default()
        })?;
        access::install(&control_plane)?;
        control_plane.apply(SERVICES)?;
        let files = tempfile::Builder::new()
            .prefix("signpost-cluster-")
            .tempdir();
        let operator_kubeconfig = access::kubeconfig_of_operator(&control_plane)?;
        let mut cluster = Cluster {
            operator: None,
            agents: BTreeMap::new(),
            servers,
            control_plane,
            topology,
            files: Files(files.context("failed to make a folder for logs")?),
            operator_kubeconfig,
            operators_started: 0,
        };
        let populated = cluster.populate();
        populated.with_context(|| cluster.describe_logs())?;
        Ok(cluster)
    }

    fn populate(&mut self) -> Result<()> {
        for number in NODES {
            self.join(number)?;
        }
        self.restore_pods()?;
        self.start_operator()
    }

    /// Returns the control plane.
    pub fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    /// Returns the control plane, to stop and start parts of it.
    pub fn control_plane_mut(&mut self) -> &mut ControlPlane {
        &mut self.control_plane
    }

    /// Returns the namespaces of nodes, pods and clients.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns the client pod of a node.
    pub fn client_pod(&self, node: u8) -> Result<&Namespace> {
        self.topology.pod(node, CLIENT)
    }

    /// Returns the numbers of the nodes that have an agent.
    pub fn nodes(&self) -> impl Iterator<Item = u8> {
        self.agents.keys().copied()
    }

    /// Creates the Node object, reports it as ready in place of its kubelet, and starts its agent.
    pub fn join(&mut self, number: u8) -> Result<()> {
        let name = addresses::node_name(number);
        self.control_plane.apply(&shop::node(number))?;
        let status = shop::node_status(number);
        self.control_plane
            .patch_status(&format!("node/{name}"), "default", &status)?;
        self.start_agent(number)
    }

    /// Deletes the Node object. Returns the agent, which is not notified by the test.
    pub fn leave(&mut self, number: u8) -> Result<Program> {
        let name = addresses::node_name(number);
        let agent = self.take_agent(number)?;
        self.control_plane
            .kubectl(&["delete", "node", &name, "--ignore-not-found"])?;
        Ok(agent)
    }

    /// Supervises the programs for this long, as kubelets would: an agent that ends is a failure;
    /// an operator that ends, as it does when it loses its lease, is restarted.
    pub fn look_on(&mut self, span: Duration) -> Result<()> {
        let end = Instant::now() + span;
        wait_for("the time to pass", span + DEADLINE, || {
            self.ensure_agents_run()?;
            self.start_operator()?;
            Ok((Instant::now() >= end).then_some(()))
        })
    }

    /// Restores the idle state and waits for it: the profile as originally written, every node
    /// Ready, every Pod ready and served.
    pub fn settle(&mut self) -> Result<()> {
        self.control_plane.start_api_server()?;
        self.control_plane.ensure_runs()?;
        self.start_operator()?;
        if self.agents.contains_key(&NEWCOMER) {
            self.leave(NEWCOMER)?;
        }
        for number in NODES {
            let agent = self.agents.get_mut(&number);
            let ended = agent.map(Program::observe_end).transpose()?;
            if !matches!(ended, Some(None)) {
                self.start_agent(number)?;
            }
        }
        self.control_plane.apply(resources::PROFILE)?;
        self.restore_pods()?;
        self.wait_until_ready(DEADLINE)?;
        let names = WEB.map(|pod| pod.name);
        self.wait_until_served_by(&names, DEADLINE)
    }

    /// Returns the log of Signpost's `operator` or `agent-NODE`.
    pub fn observe_log(&self, program: &str) -> Result<String> {
        let file = self.files.log(program);
        let text = fs::read(&file).with_context(|| format!("failed to read {}", file.display()))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Returns the ends of all logs, for an error message.
    pub fn describe_logs(&self) -> String {
        let agents = (1..=NEWCOMER).map(|number| format!("agent-node-{number}"));
        let programs = agents.chain(["operator".to_owned()]);
        let own = programs.map(|program| {
            let log = program::describe_log(&self.files.log(&program));
            format!("--- the end of the log of {program}:\n{log}")
        });
        let api_server = self
            .control_plane
            .logs(Component::ApiServer)
            .unwrap_or_default();
        let lines: Vec<&str> = api_server.lines().collect();
        let end = lines[lines.len().saturating_sub(10)..].join("\n");
        let of_api_server = format!("--- the end of the log of the API server:\n{end}");
        own.chain([of_api_server]).collect::<Vec<_>>().join("\n")
    }
}

fn plan() -> Plan {
    let pods = WEB.iter().chain([&SPARE]);
    let node = |number| PlannedNode {
        number,
        pods: pods
            .clone()
            .filter(|pod| pod.node == number)
            .map(|pod| pod.host)
            .chain([CLIENT])
            .collect(),
    };
    Plan {
        nodes: NODES.into_iter().chain([NEWCOMER]).map(node).collect(),
        clients: [2].into(),
        others: vec![Outsider {
            name: "control".to_owned(),
            addresses: vec![CONTROL_ADDRESS.into()],
        }],
    }
}
