//! The agents: one process a node, in the node's namespace.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use testkit::address_plan as addresses;

use super::{Cluster, Program, access};
use crate::binaries;

/// The port of an agent's server for people and metrics, on the loopback address of its node.
const PORT: u16 = 10249;
/// Where it serves metrics alone, as in the chart.
const SCRAPE_ADDRESS: &str = "0.0.0.0:10263";
/// How long it may take to answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(15);

impl Cluster {
    /// Starts the agent of a node whose object is there, as the DaemonSet would.
    pub fn start_agent(&mut self, number: u8) -> Result<()> {
        let node = addresses::node_name(number);
        let kubeconfig = access::kubeconfig_of_agent(&self.control_plane, &node)?;
        let agent = self.start_agent_with(number, &kubeconfig)?;
        self.agents.insert(number, agent);
        Ok(())
    }

    /// Starts an agent in the namespace of a node with any kubeconfig; it is the caller's.
    pub fn start_agent_with(&self, number: u8, kubeconfig: &Path) -> Result<Program> {
        let node = addresses::node_name(number);
        let mut command = self
            .topology
            .node(number)?
            .command(binaries::find("signpost-agent")?);
        command
            .args(["run", "--node", &node, "--kubeconfig"])
            .arg(kubeconfig);
        command.arg("--state").arg(self.files.state(&node));
        command.args(["--scrape-address", SCRAPE_ADDRESS]);
        let name = format!("agent-{node}");
        Program::start(&name, command, &self.files.log(&name))
    }

    /// The agent of a node, which from now on counts for nothing and is the caller's.
    pub fn take_agent(&mut self, number: u8) -> Result<Program> {
        let agent = self.agents.remove(&number);
        agent.with_context(|| format!("node-{number} has no agent"))
    }

    /// The process ids of the agents, by the numbers of their nodes.
    pub fn agent_ids(&self) -> BTreeMap<u8, u32> {
        let ids = self
            .agents
            .iter()
            .map(|(number, agent)| (*number, agent.id()));
        ids.collect()
    }

    /// The kubeconfig of the agent of a node, with a token of its own.
    pub fn kubeconfig_of_agent(&self, number: u8) -> Result<PathBuf> {
        access::kubeconfig_of_agent(&self.control_plane, &addresses::node_name(number))
    }

    /// What the agent of a node answers at this path of its own server, with the status code.
    pub fn ask_agent(&self, number: u8, path: &str) -> Result<(u16, String)> {
        let url = format!("http://127.0.0.1:{PORT}{path}");
        let answer = self.topology.node(number)?.get(&url, ANSWERS_WITHIN)?;
        Ok((answer.status().as_u16(), answer.into_body()))
    }

    /// Fails when an agent has ended.
    pub fn ensure_agents_run(&mut self) -> Result<()> {
        self.agents.values_mut().try_for_each(Program::ensure_runs)
    }
}
