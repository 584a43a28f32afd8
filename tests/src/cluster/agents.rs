//! The agents: one process per node, in the node's namespace.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::address_plan as addresses;

use super::{Cluster, Program, access};
use crate::binaries;

/// The port of an agent's debug and metrics server, on the loopback address of its node.
const PORT: u16 = 10249;
/// The address of the metrics-only server, as in the chart.
const SCRAPE_ADDRESS: &str = "0.0.0.0:10263";
/// The timeout of a request.
const ANSWERS_WITHIN: Duration = Duration::from_secs(15);

impl Cluster {
    /// Starts the agent of a node whose object exists, as the DaemonSet would.
    pub fn start_agent(&mut self, number: u8) -> Result<()> {
        let node = addresses::node_name(number);
        let kubeconfig = access::kubeconfig_of_agent(&self.control_plane, &node)?;
        let agent = self.start_agent_with(number, &kubeconfig)?;
        self.agents.insert(number, agent);
        Ok(())
    }

    /// Starts an agent in the namespace of a node with any kubeconfig. The caller owns it.
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

    /// Runs a command of the agent's program on a node, as `kubectl exec` in its Pod would.
    pub fn run_on_node(&self, number: u8, arguments: &[&str]) -> Result<String> {
        let state = self.files.state(&addresses::node_name(number));
        let mut command = self
            .topology
            .node(number)?
            .command(binaries::find("signpost-agent")?);
        let output = command.args(arguments).arg("--state").arg(state).output();
        let output = output.context("failed to run signpost-agent")?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        ensure!(
            output.status.success(),
            "signpost-agent {arguments:?}: {said}"
        );
        Ok(said)
    }

    /// Hands the agent of a node over to the caller; it is no longer supervised.
    pub fn take_agent(&mut self, number: u8) -> Result<Program> {
        let agent = self.agents.remove(&number);
        agent.with_context(|| format!("node-{number} has no agent"))
    }

    /// Returns the process IDs of the agents by node number.
    pub fn agent_ids(&self) -> BTreeMap<u8, u32> {
        let ids = self
            .agents
            .iter()
            .map(|(number, agent)| (*number, agent.id()));
        ids.collect()
    }

    /// Returns a kubeconfig for the agent of a node, with a new token.
    pub fn kubeconfig_of_agent(&self, number: u8) -> Result<PathBuf> {
        access::kubeconfig_of_agent(&self.control_plane, &addresses::node_name(number))
    }

    /// Requests this path from the agent's own server; returns the status code and the body.
    pub fn ask_agent(&self, number: u8, path: &str) -> Result<(u16, String)> {
        let url = format!("http://127.0.0.1:{PORT}{path}");
        let answer = self.topology.node(number)?.get(&url, ANSWERS_WITHIN)?;
        Ok((answer.status().as_u16(), answer.into_body()))
    }

    /// Fails if an agent has ended.
    pub fn ensure_agents_run(&mut self) -> Result<()> {
        self.agents.values_mut().try_for_each(Program::ensure_runs)
    }
}
