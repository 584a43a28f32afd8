//! One node: the real agent on a directory of manifests, pods that serve, a pod that asks.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::condition::RULES_CONTESTED;
use dataplane::{Family, Protocol};
use tempfile::TempDir;
use testkit::address_plan as addresses;
use tests::lone_agent::{LoneAgent, Source, Sysctls, Workplace};
use tests::network::{
    Namespace, Outcome, Plan, PlannedNode, Probe, Server, Topology, probe, start_server,
};

/// What it runs on; an hour lies between two looks that nobody prompts.
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/demo");
/// The pods that serve, and the one that asks.
const SERVING: [u8; 3] = [5, 6, 7];
const ASKING: u8 = 9;
/// How long the agent may take for anything that is not about drift.
const PROMPTLY: Duration = Duration::from_secs(20);

/// The node. Everything ends when this is dropped, the agent first.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) agent: LoneAgent,
    #[expect(dead_code, reason = "held for the sake of their end")]
    servers: Vec<Server>,
    #[expect(dead_code, reason = "held for the sake of its end")]
    folder: TempDir,
    topology: Topology,
    /// What the kernel holds when nobody disturbs it.
    undisturbed: Vec<String>,
}

// === impl Node ===

impl Node {
    /// Starts everything; returns once the agent listens to the kernel.
    pub(crate) fn start() -> Result<Node> {
        let plan = Plan {
            nodes: vec![PlannedNode {
                number: 1,
                pods: SERVING.into_iter().chain([ASKING]).collect(),
            }],
            ..Plan::default()
        };
        let topology = Topology::build(&plan)?;
        let mut servers = Vec::new();
        for pod in SERVING {
            let listening = Family::ALL.map(|family| {
                let address = addresses::pod_address(1, pod, family);
                SocketAddr::new(address, 8080)
            });
            let name = format!("web-{pod}");
            servers.push(start_server(topology.pod(1, pod)?, &name, &listening)?);
        }
        let folder = TempDir::new()?;
        let manifests = copy_example(folder.path())?;
        let agent = LoneAgent::start(&Workplace {
            node: topology.node(1)?.clone(),
            source: Source::Manifests(manifests),
            folder: folder.path().to_owned(),
            sysctls: Sysctls::Writable,
            deadline: PROMPTLY,
        })?;
        wait_until_it_listens(&agent)?;
        let mut node = Node {
            agent,
            servers,
            folder,
            topology,
            undisturbed: Vec::new(),
        };
        node.undisturbed = node.listed()?;
        ensure!(node.answers()?, "the Service does not answer");
        Ok(node)
    }

    /// The network namespace of the node.
    pub(crate) fn namespace(&self) -> Result<&Namespace> {
        self.topology.node(1)
    }

    /// Changes the kernel's rules as a person does.
    pub(crate) fn nft(&self, command: &str) -> Result<String> {
        self.namespace()?.nft(&[command])
    }

    /// Whether the kernel holds what it did before anybody disturbed it.
    pub(crate) fn is_as_before(&self) -> Result<bool> {
        Ok(self.listed()? == self.undisturbed)
    }

    /// Whether the Service answers, in both families.
    pub(crate) fn answers(&self) -> Result<bool> {
        for family in Family::ALL {
            let question = Probe {
                protocol: Protocol::Tcp,
                source: None,
                destination: SocketAddr::new(addresses::cluster_ip(10, family), 80),
                deadline: Duration::from_secs(2),
            };
            let outcomes = probe(self.topology.pod(1, ASKING)?, &question, 1)?;
            if !matches!(outcomes[..], [Outcome::Answered { .. }]) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Status and message of a condition.
    pub(crate) fn condition(&self, kind: &str) -> Result<(String, String)> {
        let found = self.agent.condition(kind)?;
        let found = found.with_context(|| format!("there is no condition {kind}"))?;
        Ok((found.status, found.message))
    }

    /// The rounds of late.
    pub(crate) fn rounds(&self) -> Result<String> {
        self.agent.get("/debug/rounds")
    }

    /// Everything in our tables, without the order in which the kernel keeps it.
    fn listed(&self) -> Result<Vec<String>> {
        let mut parts = Vec::new();
        for family in ["ip", "ip6"] {
            // A table that is not there is listed as nothing.
            let listed = self.nft(&format!("list table {family} signpost"));
            let listed = listed.unwrap_or_default();
            let pieces = listed.split(['\n', ',', '{', '}']).map(str::trim);
            parts.extend(pieces.map(|piece| format!("{family} {piece}")));
        }
        parts.sort();
        Ok(parts)
    }
}

fn wait_until_it_listens(agent: &LoneAgent) -> Result<()> {
    // Having joined, it looks once in each family for what it has not heard.
    agent.wait_for("the agent to listen", |agent| {
        let looked = agent.get("/debug/rounds").unwrap_or_default();
        let told = agent.condition(RULES_CONTESTED)?.is_some();
        Ok((told && looked.matches("(Drift)").count() == 2).then_some(()))
    })
}

/// The example with a long `syncPeriod`.
fn copy_example(folder: &Path) -> Result<PathBuf> {
    let copy = folder.join("manifests");
    fs::create_dir(&copy)?;
    for entry in fs::read_dir(EXAMPLE)? {
        let entry = entry?;
        let mut text = fs::read_to_string(entry.path())?;
        if entry.file_name() == "profile.yaml" {
            ensure!(text.contains("syncPeriod: 30s"), "the example has changed");
            text = text.replace("syncPeriod: 30s", "syncPeriod: 1h");
        }
        fs::write(copy.join(entry.file_name()), text)?;
    }
    Ok(copy)
}
