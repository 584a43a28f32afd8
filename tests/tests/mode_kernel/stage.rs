//! A node with the real agent and a directory of manifests, serving pods, and clients in a pod,
//! outside and on the node.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::profile::mode::Mode;
use dataplane::{Family, Protocol};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::Value;
use tempfile::TempDir;
use testkit::address_plan as addresses;
use tests::deadline::wait_for;
use tests::lone_agent::{LoneAgent, Source, Sysctls, Workplace};
use tests::network::{Namespace, Plan, PlannedNode, Server, Topology, Way, start_server};
use tests::xtables_lock::xtables_lock_folder;
use xtables::{BuiltIn, Found, OwnChains, Rule, TableChange, TableName, Tables, Target, Variant};

use crate::manifests::{self, NODE_PORT};

/// The serving pods, the client pod, and the port of the servers.
pub(crate) const SERVING: [u8; 2] = [5, 6];
pub(crate) const ASKING: u8 = 9;
pub(crate) const SERVED: u16 = 8080;
/// Another node, and its serving pod.
pub(crate) const ELSEWHERE: u8 = 2;
pub(crate) const SERVING_ELSEWHERE: u8 = 7;
/// The number of the outside client.
const OUTSIDER: u8 = 2;
/// The deadline of waits for the agent.
pub(crate) const PROMPTLY: Duration = Duration::from_secs(60);
/// The longest time for which a kept connection may be without an answer, whatever the agent does.
pub(crate) const SILENCE: Duration = Duration::from_secs(1);
/// The prefix of Signpost's chains.
const OWN_PREFIX: &str = "SIGNPOST-";
/// The prefix of another program's chains.
const OTHER_PREFIX: &str = "OTHER-";

/// The environment of a test. It ends on drop, the agent first.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) agent: Option<LoneAgent>,
    #[expect(dead_code, reason = "held for the sake of their end")]
    servers: Vec<Server>,
    folder: TempDir,
    pub(crate) topology: Topology,
    /// The access of future agents to `/proc/sys`.
    pub(crate) sysctls: Sysctls,
}

/// A place of Signpost's rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// Signpost's own tables.
    Nftables,
    /// Chains in tables of iptables.
    Iptables(Variant),
    /// A table, virtual servers and a routing rule.
    Ipvs,
    /// The objects for connections that IPVS still handles after a switch to another mode.
    IpvsEnding,
}

// === impl Place ===

impl Place {
    /// The only one in `mode`, where other programs use `variant`.
    pub(crate) fn of(mode: Mode, variant: Variant) -> Place {
        match mode {
            Mode::Nftables => Place::Nftables,
            Mode::Iptables => Place::Iptables(variant),
            Mode::Ipvs => Place::Ipvs,
        }
    }
}

// === impl Stage ===

impl Stage {
    /// Builds a node on which other programs use `variant` of iptables. No agent runs yet.
    pub(crate) fn build(variant: Variant) -> Result<Stage> {
        Stage::build_with(variant, manifests::OTHERS)
    }

    /// The same with this many Services besides `shop/web`.
    pub(crate) fn build_with(variant: Variant, others: u8) -> Result<Stage> {
        let topology = Topology::build(&Plan {
            nodes: vec![
                PlannedNode {
                    number: 1,
                    pods: SERVING.into_iter().chain([ASKING]).collect(),
                },
                PlannedNode {
                    number: ELSEWHERE,
                    pods: [SERVING_ELSEWHERE].into(),
                },
            ],
            clients: [OUTSIDER].into(),
            others: Vec::new(),
        })?;
        let mut servers = Vec::new();
        let here = SERVING.map(|pod| (1, pod));
        for (node, pod) in here.into_iter().chain([(ELSEWHERE, SERVING_ELSEWHERE)]) {
            let listening = Family::ALL
                .map(|family| SocketAddr::new(addresses::pod_address(node, pod, family), SERVED));
            let name = server(pod);
            servers.push(start_server(topology.pod(node, pod)?, &name, &listening)?);
        }
        let folder = xtables_lock_folder()?;
        fs::create_dir(folder.path().join("manifests"))?;
        let stage = Stage {
            agent: None,
            servers,
            folder,
            topology,
            sysctls: Sysctls::Writable,
        };
        for (name, manifest) in manifests::initial(others) {
            stage.apply(&name, &manifest)?;
        }
        stage.set_others(variant, true)?;
        Ok(stage)
    }

    /// The same with an agent in `mode`.
    pub(crate) fn start(variant: Variant, mode: Mode) -> Result<Stage> {
        Stage::build(variant)?.serve(mode)
    }

    /// Starts an agent in `mode`.
    pub(crate) fn serve(mut self, mode: Mode) -> Result<Stage> {
        self.set_mode(mode)?;
        self.start_agent()?;
        self.expect_mode(mode)?;
        Ok(self)
    }

    /// Returns the network namespace of the node.
    pub(crate) fn node(&self) -> Result<&Namespace> {
        self.topology.node(1)
    }

    /// Returns the running agent.
    pub(crate) fn agent(&self) -> Result<&LoneAgent> {
        self.agent.as_ref().context("an agent was started")
    }

    /// Starts an agent. Nothing is programmed yet when this returns.
    pub(crate) fn start_agent(&mut self) -> Result<()> {
        self.begin_agent(LoneAgent::start)
    }

    /// The same with an agent that stops before it does anything, until it gets SIGCONT.
    pub(crate) fn start_stopped_agent(&mut self) -> Result<()> {
        self.begin_agent(LoneAgent::start_stopped)
    }

    fn begin_agent(&mut self, begin: fn(&Workplace) -> Result<LoneAgent>) -> Result<()> {
        // Remove the report of an earlier agent.
        let status = self.folder.path().join("status.yaml");
        if status.exists() {
            fs::remove_file(status)?;
        }
        self.agent = Some(begin(&self.workplace()?)?);
        Ok(())
    }

    /// Kills the agent with SIGKILL.
    pub(crate) fn kill_agent(&mut self) -> Result<()> {
        self.agent.take().context("an agent was started")?.kill()
    }

    /// Returns a file beside those of the agent.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the agent's lock.
    pub(crate) fn lock(&self) -> Result<PathBuf> {
        Ok(self.workplace()?.xtables_lock())
    }

    /// Writes or replaces the manifest of this name.
    pub(crate) fn apply(&self, name: &str, manifest: &Value) -> Result<()> {
        let new = self.folder.path().join("new.yaml");
        let documents: Vec<String> = match manifest {
            Value::Array(documents) => documents.iter().map(Value::to_string).collect(),
            document => vec![document.to_string()],
        };
        fs::write(&new, documents.join("\n---\n"))?;
        let file = self.folder.path().join(format!("manifests/{name}.yaml"));
        fs::rename(new, file).with_context(|| format!("failed to write {name}"))
    }

    /// Removes the manifest of this name.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        let file = self.folder.path().join(format!("manifests/{name}.yaml"));
        fs::remove_file(file).with_context(|| format!("failed to remove {name}"))
    }

    /// Requests a mode.
    pub(crate) fn set_mode(&self, mode: Mode) -> Result<()> {
        self.apply("profile", &manifests::profile(&mode.to_string()))
    }

    /// Waits until the agent reports that it is ready in this mode.
    pub(crate) fn expect_mode(&self, mode: Mode) -> Result<()> {
        let agent = self.agent()?;
        agent.wait_for(&format!("mode {mode}"), |_| {
            Ok(self.is_settled(mode)?.then_some(()))
        })?;
        agent.wait_until_ready()
    }

    /// Whether the agent reports that it is done in this mode.
    pub(crate) fn is_settled(&self, mode: Mode) -> Result<bool> {
        let status = self.agent()?.status()?.unwrap_or_default();
        let mut conditions = status.conditions.iter();
        let is_settled = conditions
            .any(|condition| condition.type_ == "Progressing" && condition.reason == "Settled");
        Ok(status.mode == Some(mode) && is_settled)
    }

    /// Waits for a condition with this status, and returns it.
    pub(crate) fn expect_condition(&self, kind: &str, status: &str) -> Result<Condition> {
        let mut last = None;
        self.agent()?
            .wait_for(&format!("{kind} to be {status}"), |agent| {
                last = agent.condition(kind)?;
                Ok(last.clone().filter(|condition| condition.status == status))
            })
            .with_context(|| format!("it was last {last:?}"))
    }

    /// Waits until the message of a condition is as `is_so` says.
    pub(crate) fn expect_message(&self, kind: &str, is_so: impl Fn(&str) -> bool) -> Result<()> {
        let mut last = None;
        self.agent()?
            .wait_for(&format!("the message of {kind} to change"), |agent| {
                last = agent.condition(kind)?;
                let said = last.as_ref().filter(|condition| is_so(&condition.message));
                Ok(said.map(|_| ()))
            })
            .with_context(|| format!("it was last {last:?}"))
    }

    /// Waits until Signpost has rules only in this place.
    pub(crate) fn expect_only(&self, place: Place) -> Result<()> {
        let mut last = BTreeSet::new();
        wait_for(
            &format!("Signpost's rules to be in {place:?} alone"),
            PROMPTLY,
            || {
                last = self.places()?;
                Ok((last == [place].into()).then_some(()))
            },
        )
        .with_context(|| format!("they are in {last:?}"))
    }

    /// Returns the places of Signpost's rules.
    pub(crate) fn places(&self) -> Result<BTreeSet<Place>> {
        let tables = self.node()?.nft(&["list", "tables"])?;
        let mut places = BTreeSet::new();
        if tables.lines().any(|line| line.ends_with(" signpost")) {
            places.insert(Place::Nftables);
        }
        let is_there = |name: &str| tables.lines().any(|line| line.ends_with(name));
        if is_there(" signpost-ipvs") {
            places.insert(Place::Ipvs);
        }
        if is_there(" signpost-ipvs-ending") {
            places.insert(Place::IpvsEnding);
        }
        let found: Found = self
            .node()?
            .enter(|| xtables::observe_variants(OWN_PREFIX))??;
        for variant in [Variant::NfTables, Variant::Legacy] {
            if found.of(variant).own_chains == OwnChains::Present {
                places.insert(Place::Iptables(variant));
            }
        }
        Ok(places)
    }

    /// Adds or removes a rule of another program in `variant`.
    pub(crate) fn set_others(&self, variant: Variant, there: bool) -> Result<()> {
        let lock = self.folder.path().join("their.lock");
        let mut tables = self.node()?.enter(|| {
            Tables::open(
                variant,
                xtables::Family::Ipv4,
                OTHER_PREFIX,
                &lock,
                PROMPTLY,
            )
        })??;
        let chain: Arc<str> = format!("{OTHER_PREFIX}RULES").into();
        let mut change = TableChange::new(TableName::Filter);
        let entries = match there {
            true => {
                let rules = [Rule::always(Target::Return)];
                change.chains.push((Arc::clone(&chain), rules.into()));
                vec![Rule::always(Target::Jump(chain))]
            }
            false => {
                change.removed.push(chain);
                Vec::new()
            }
        };
        change.entries.push((BuiltIn::Input, entries));
        tables.commit(&[change])?;
        Ok(())
    }

    /// Adds this many of Signpost's chains to nf_tables, like leftovers of deleted Services.
    pub(crate) fn leave_behind(&self, chains: u32) -> Result<()> {
        let (variant, family) = (Variant::NfTables, xtables::Family::Ipv4);
        let lock = self.lock()?;
        let mut tables = self
            .node()?
            .enter(|| Tables::open(variant, family, OWN_PREFIX, &lock, PROMPTLY))??;
        let rules: Arc<[Rule]> = [Rule::always(Target::Return)].into();
        let mut change = TableChange::new(TableName::Nat);
        let names = (0..chains).map(|number| format!("{OWN_PREFIX}LEFT-{number}").into());
        change.chains = names.map(|name| (name, Arc::clone(&rules))).collect();
        tables.commit(&[change])?;
        Ok(())
    }

    /// Returns the ways of all clients to `shop/web` over TCP.
    pub(crate) fn ways(&self) -> Result<Vec<Way>> {
        self.ways_by(Protocol::Tcp)
    }

    /// Returns these ways over `protocol`.
    pub(crate) fn ways_by(&self, protocol: Protocol) -> Result<Vec<Way>> {
        let places = [
            ("a pod", self.topology.pod(1, ASKING)?),
            ("the node", self.topology.node(1)?),
            ("a client outside", self.topology.outside()?),
        ];
        let mut ways = Vec::new();
        for (from, inside) in places {
            for family in Family::ALL {
                let cluster_ip = SocketAddr::new(addresses::cluster_ip(10, family), 80);
                let node_port = SocketAddr::new(addresses::node_address(1, family), NODE_PORT);
                let destination = match from {
                    "a client outside" => node_port,
                    _ => cluster_ip,
                };
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

    /// Returns ways to a serving pod's own address, which no rule of Signpost is about.
    pub(crate) fn ways_beside(&self) -> Result<Vec<Way>> {
        let places = [
            ("a pod", self.topology.pod(1, ASKING)?),
            ("the node", self.topology.node(1)?),
        ];
        let ways = places.into_iter().flat_map(|(from, inside)| {
            Family::ALL.map(|family| Way {
                from: from.to_owned(),
                inside: inside.clone(),
                protocol: Protocol::Tcp,
                destination: SocketAddr::new(addresses::pod_address(1, SERVING[0], family), SERVED),
            })
        });
        Ok(ways.collect())
    }

    /// Waits until all of these pods, and no others, answer on all ways.
    pub(crate) fn expect_answers(&self, pods: &[u8]) -> Result<()> {
        let servers = pods.iter().map(|pod| server(*pod)).collect();
        for way in self.ways()? {
            way.wait_for_servers(&servers, PROMPTLY)?;
        }
        Ok(())
    }

    /// Runs `signpost-agent cleanup` on the node.
    pub(crate) fn clean_up(&self) -> Result<()> {
        let lock = self.lock()?;
        let lock = lock.to_str().context("the lock has a name")?;
        self.run(&["cleanup", "--xtables-lock", lock])
    }

    /// Runs `signpost-agent` on the node.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<()> {
        let program = tests::binaries::find("signpost-agent")?;
        let mut command = self.node()?.command(program);
        let state = self.folder.path().join("state");
        let output = command.args(arguments).arg("--state").arg(state).output()?;
        ensure!(
            output.status.success(),
            "{arguments:?} failed: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    fn workplace(&self) -> Result<Workplace> {
        let folder: &Path = self.folder.path();
        Ok(Workplace {
            node: self.node()?.clone(),
            source: Source::Manifests(folder.join("manifests")),
            folder: folder.to_owned(),
            sysctls: self.sysctls,
            deadline: PROMPTLY,
        })
    }
}

/// Returns the name of the server in a pod.
pub(crate) fn server(pod: u8) -> String {
    format!("web-{pod}")
}
