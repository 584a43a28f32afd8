//! A node with the real agent and a directory of manifests, a serving pod, a client pod, and an
//! outside client.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use dataplane::Family;
use serde_json::Value;
use tempfile::TempDir;
use testkit::address_plan as addresses;
use tests::lone_agent::{LoneAgent, Source, Sysctls, Workplace};
use tests::network::{Namespace, Plan, PlannedNode, Server, Topology, start_server};
use xtables::{BuiltIn, Rule, TableChange, TableName, Tables, Target, Variant};

use crate::manifests;
use crate::scrape::Scrape;

/// The serving pod, with servers on [`SERVED`], and the client pod.
pub(crate) const SERVING: u8 = 5;
pub(crate) const ASKING: u8 = 9;
/// The port of TCP and UDP servers: every server answers both on each of its ports.
pub(crate) const SERVED: u16 = 8080;
/// The number of the outside client.
const OUTSIDER: u8 = 2;
/// The deadline of waits for the agent.
pub(crate) const PROMPTLY: Duration = Duration::from_secs(20);
/// The timeout of an answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);
/// The default address of the agent's metrics.
pub(crate) const METRICS: &str = "127.0.0.1:10249";

/// The environment of a test. It ends on drop, the agent first.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) agent: LoneAgent,
    /// Listeners that occupy ports.
    pub(crate) taken: Vec<TcpListener>,
    #[expect(dead_code, reason = "held for the sake of their end")]
    servers: Vec<Server>,
    folder: TempDir,
    topology: Topology,
}

/// A response.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The weight for load balancers, if the response has one.
    pub(crate) weight: Option<String>,
    pub(crate) body: String,
}

// === impl Stage ===

impl Stage {
    /// Starts everything and waits until the agent is ready.
    pub(crate) fn start() -> Result<Stage> {
        let topology = Topology::build(&Plan {
            nodes: vec![PlannedNode {
                number: 1,
                pods: [SERVING, ASKING].into(),
            }],
            clients: [OUTSIDER].into(),
            others: Vec::new(),
        })?;
        let listening = Family::ALL
            .map(|family| SocketAddr::new(addresses::pod_address(1, SERVING, family), SERVED));
        let server = start_server(topology.pod(1, SERVING)?, "web", &listening)?;
        let folder = TempDir::new()?;
        fs::create_dir(folder.path().join("manifests"))?;
        for (name, manifest) in manifests::initial() {
            commit(folder.path(), name, &manifest)?;
        }
        let source = Source::Manifests(folder.path().join("manifests"));
        let agent = start_agent(topology.node(1)?, folder.path(), source)?;
        agent.wait_until_ready()?;
        Ok(Stage {
            agent,
            taken: Vec::new(),
            servers: vec![server],
            folder,
            topology,
        })
    }

    /// Writes or replaces the manifest of this name.
    pub(crate) fn apply(&self, name: &str, manifest: &Value) -> Result<()> {
        commit(self.folder.path(), name, manifest)
    }

    /// Returns the directory of the manifests and another, initially missing one.
    pub(crate) fn directories(&self) -> [PathBuf; 2] {
        ["manifests", "elsewhere"].map(|name| self.folder.path().join(name))
    }

    /// Returns the network namespace of the node.
    pub(crate) fn node(&self) -> Result<&Namespace> {
        self.topology.node(1)
    }

    /// Returns the network namespace of the client pod.
    pub(crate) fn client(&self) -> Result<&Namespace> {
        self.topology.pod(1, ASKING)
    }

    /// Returns the network namespace of the outside client.
    pub(crate) fn outside(&self) -> Result<&Namespace> {
        self.topology.outside()
    }

    /// Changes the kernel's rules with `nft`.
    pub(crate) fn nft(&self, command: &str) -> Result<()> {
        self.node()?.nft(&[command]).map(drop)
    }

    /// Adds a rule of another program in the legacy variant of iptables.
    pub(crate) fn use_legacy_iptables(&self) -> Result<()> {
        let lock = self.xtables_lock()?;
        let (family, prefix) = (xtables::Family::Ipv4, "OTHER-");
        let open = || Tables::open(Variant::Legacy, family, prefix, &lock, PROMPTLY);
        let mut tables = self.node()?.enter(open)??;
        let chain: Arc<str> = format!("{prefix}RULES").into();
        let mut change = TableChange::new(TableName::Filter);
        change.chains.push((Arc::clone(&chain), [].into()));
        let jump = Rule::always(Target::Jump(chain));
        change.entries.push((BuiltIn::Input, vec![jump]));
        tables.commit(&[change])?;
        Ok(())
    }

    /// Returns the agent's lock for the legacy variant of iptables.
    pub(crate) fn xtables_lock(&self) -> Result<PathBuf> {
        let manifests = Source::Manifests(PathBuf::new());
        Ok(workplace(self.node()?, self.folder.path(), manifests).xtables_lock())
    }

    /// Kills the agent and starts one with an API server that does not exist.
    pub(crate) fn follow_missing_api_server(&mut self) -> Result<()> {
        let kubeconfig = self.folder.path().join("kubeconfig");
        fs::write(&kubeconfig, manifests::kubeconfig().to_string())?;
        // The replaced agent is killed on drop, and its ports are free at once or soon.
        let node = self.topology.node(1)?;
        self.agent = start_agent(node, self.folder.path(), Source::Kubeconfig(kubeconfig))?;
        Ok(())
    }

    /// Scrapes the agent's metrics.
    pub(crate) fn scrape(&self) -> Result<Scrape> {
        Scrape::parse(&self.scrape_text()?)
    }

    /// Returns the scrape as text.
    pub(crate) fn scrape_text(&self) -> Result<String> {
        Ok(self.ask(&format!("{METRICS}/metrics"))?.body)
    }

    /// Makes a request from the node to `place`: address, port and path.
    pub(crate) fn ask(&self, place: &str) -> Result<Answer> {
        ask(self.node()?, place)
    }

    /// Makes a request from outside to `port` of `address`.
    pub(crate) fn ask_from_outside(
        &self,
        address: IpAddr,
        port: u16,
        path: &str,
    ) -> Result<Answer> {
        let address = SocketAddr::new(address, port);
        ask(self.outside()?, &format!("{address}{path}"))
    }

    /// Waits until `look` returns true; the error includes the agent's log.
    pub(crate) fn wait_until(
        &self,
        what: &str,
        mut look: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        self.agent.wait_for(what, |_| Ok(look()?.then_some(())))
    }
}

fn start_agent(node: &Namespace, folder: &Path, source: Source) -> Result<LoneAgent> {
    LoneAgent::start(&workplace(node, folder, source))
}

fn workplace(node: &Namespace, folder: &Path, source: Source) -> Workplace {
    Workplace {
        node: node.clone(),
        source,
        folder: folder.to_owned(),
        sysctls: Sysctls::Writable,
        deadline: PROMPTLY,
    }
}

/// Replaces a manifest atomically.
fn commit(folder: &Path, name: &str, manifest: &Value) -> Result<()> {
    let new = folder.join("new.yaml");
    let documents: Vec<String> = match manifest {
        Value::Array(documents) => documents.iter().map(Value::to_string).collect(),
        document => vec![document.to_string()],
    };
    fs::write(&new, documents.join("\n---\n"))?;
    let file = folder.join("manifests").join(format!("{name}.yaml"));
    fs::rename(new, file).with_context(|| format!("failed to write {name}"))
}

fn ask(inside: &Namespace, place: &str) -> Result<Answer> {
    let answer = inside.get(&format!("http://{place}"), ANSWERS_WITHIN)?;
    let weight = answer.headers().get("x-load-balancing-endpoint-weight");
    Ok(Answer {
        status: answer.status().as_u16(),
        weight: weight.and_then(|weight| Some(weight.to_str().ok()?.to_owned())),
        body: answer.into_body(),
    })
}
