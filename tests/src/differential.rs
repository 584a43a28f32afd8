//! The real kube-proxy and Signpost side by side: compares how they handle the same packets.
//!
//! ```text
//!                       control: etcd, API server
//!                       |                       |
//!   clients -- world -- node-1, kube-proxy      node-1, signpost-agent -- world -- clients
//!               |        `- pods                        pods -'             |
//!              node-2 -- pods                                   pods -- node-2
//! ```
//!
//! Both nodes have the same name, addresses and pods but are isolated from each other. Both
//! programs run in the same [`Mode`], on nodes where no other mode has run. The test writes a
//! [`Population`] of Services to the API server, and a canary Service last, which shows when both
//! proxies have programmed everything. Then it tries every [`Case`] in both worlds. Clients must
//! observe the same in both, except for [`EXPECTED_DIFFERENCES`].

mod answer;
mod case;
mod comparison;
mod configuration;
mod expected;
mod ground;
mod manifests;
mod mode;
mod population;
pub mod programs;
mod sight;
mod world;
mod writer;

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use dataplane::Family;
use netlink::ipvs::AddressedServerSocket;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::address_plan as addresses;

pub use answer::Answer;
pub use case::{Case, Front, Origin};
pub use comparison::{Comparison, Difference};
pub use configuration::{Configuration, Detection, Masquerade, NodePorts};
pub use expected::{EXPECTED_DIFFERENCES, ExpectedDifference};
pub use mode::Mode;
pub use population::{Population, Service};
pub use sight::{Seen, Sight, Source};
pub use writer::NodeFate;

use crate::binaries;
use crate::cluster::Program;
use crate::control_link::API_SERVER;
use crate::control_plane::{ADMINISTRATOR, ControlPlane, KUBE_PROXY, Objects, Options, User};
use crate::deadline::{patience, wait_for};
use crate::network::{Namespace, Network};
use comparison::look;
use ground::Ground;
use manifests::Canary;
use world::{CLIENTS, Effort, World};
use writer::Writer;

/// What agents report in.
const NODE_PROXIES: Objects<'_> = Objects {
    api_version: "signpost.dev/v1alpha1",
    kind: "NodeProxy",
    namespace: None,
};
/// How long both may take to program a round. They take a second or two.
const SETTLES_WITHIN: Duration = Duration::from_secs(60);
/// The number of concurrent cases: most of their time is waiting.
const AT_A_TIME: usize = 12;
/// The number of clients in a case with session affinity. With four endpoints, all of 12 clients
/// miss a given one by chance once in 30 times, and all of 36 once in 30,000.
const CROWDS: [u8; 2] = [12, 36];

/// The proxy of node 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rival {
    /// kube-proxy.
    KubeProxy,
    /// Signpost.
    Signpost,
}

/// The two worlds and their common API server.
#[derive(Debug)]
pub struct BothProxies {
    // Fields are dropped in this order: users before what they use.
    programs: Option<[Program; 2]>,
    ground: Ground,
    control_plane: ControlPlane,
    control: Namespace,
    network: Network,
    files: TempDir,
    round: u16,
    next_client: u8,
    zone: Zone,
}

/// Whether kube-proxy knows the zone of its node. kube-proxy 1.36 receives it once and drops it if
/// no consumer is registered yet: NodeTopologyConfig adds its handler to a running informer, and
/// registers the proxier afterwards (cmd/kube-proxy/app/server.go). It then ignores hints for
/// zones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Zone {
    PerhapsMissed,
    Notified,
}

// === impl BothProxies ===

impl BothProxies {
    /// Starts the control plane and builds both worlds. No proxy programs the nodes yet.
    pub fn start() -> Result<BothProxies> {
        binaries::find("signpost-agent")?;
        let mut network = Network::new()?;
        let [control] = network.add_namespaces(["control"])?;
        control.configure(&format!("addr add {API_SERVER}/32 dev lo\n"))?;
        let ground = Ground::build(&network, &control)?;
        let control_plane = ControlPlane::start(Options {
            bind: API_SERVER,
            network: Some(control.clone()),
            users: vec![User::named(KUBE_PROXY)],
            ..Options::default()
        })?;
        let files = tempfile::Builder::new().prefix("signpost-both-").tempdir();
        let proxies = BothProxies {
            programs: None,
            ground,
            control_plane,
            control,
            network,
            files: files.context("failed to make a folder for logs")?,
            round: 0,
            zone: Zone::PerhapsMissed,
            next_client: *CLIENTS.start(),
        };
        proxies.install()?;
        Ok(proxies)
    }

    /// Installs Signpost's CustomResourceDefinition and the objects of every round.
    fn install(&self) -> Result<()> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds/generated/nodeproxies.yaml");
        let definition = fs::read_to_string(&file)
            .with_context(|| format!("failed to read {}", file.display()))?;
        self.control_plane
            .apply_as_manager(&[serde_saphyr::from_str(&definition)?])?;
        wait_for("NodeProxies to be served", SETTLES_WITHIN, || {
            Ok(self.control_plane.serves(NODE_PROXIES)?.then_some(()))
        })?;
        self.writer().apply_setting(NodeFate::Stays)
    }

    /// Starts both proxies with this configuration in place of the running ones. Their rules
    /// remain, unless they were in another mode: then the worlds are rebuilt.
    pub fn configure(&mut self, configuration: Configuration) -> Result<()> {
        self.programs = None;
        if !self.ground.suits(configuration.mode) {
            self.ground.rebuild(&self.network, &self.control)?;
        }
        self.ground.prepare(configuration.mode, self.files.path())?;
        let (_, iptables) = self.ground.setting()?;
        self.writer()
            .apply_objects(&[configuration.of_signpost()?])?;
        let [by_kube_proxy, by_signpost] = &self.ground.worlds;

        let file = self.files.path().join("kube-proxy.yaml");
        let kubeconfig = self.control_plane.kubeconfig(KUBE_PROXY)?;
        fs::write(&file, configuration.of_kube_proxy(&kubeconfig).to_string())
            .context("failed to write the configuration of kube-proxy")?;
        let program = self.control_plane.programs().join("kube-proxy");
        let mut kube_proxy = by_kube_proxy.node()?.command(program);
        kube_proxy.arg("--config").arg(&file);
        if let Some(programs) = iptables {
            programs.show_to(&mut kube_proxy)?;
        }
        let kube_proxy = Program::start("kube-proxy", kube_proxy, &self.log(Rival::KubeProxy))?;

        let mut agent = by_signpost
            .node()?
            .command(binaries::find("signpost-agent")?);
        agent.args(["run", "--node", addresses::NODE, "--kubeconfig"]);
        agent.arg(self.control_plane.kubeconfig(ADMINISTRATOR)?);
        agent.arg("--state").arg(self.files.path().join("state"));
        let agent = Program::start("signpost-agent", agent, &self.log(Rival::Signpost))?;
        self.programs = Some([kube_proxy, agent]);
        self.zone = Zone::PerhapsMissed;
        Ok(())
    }

    /// Writes `population`; returns when both have programmed it.
    pub fn settle(&mut self, population: &Population) -> Result<()> {
        self.settle_once(population)?;
        if self.zone == Zone::PerhapsMissed {
            self.ensure_mode()?;
            self.repeat_zone()?;
            self.zone = Zone::Notified;
            self.settle_once(population)?;
        }
        Ok(())
    }

    fn settle_once(&mut self, population: &Population) -> Result<()> {
        let canary = self.write(population)?;
        self.wait_for(Rival::Signpost, canary)?;
        self.wait_for(Rival::KubeProxy, canary)
    }

    /// Fails unless both have programmed the configured mode: a proxy may fall back to another one.
    fn ensure_mode(&self) -> Result<()> {
        let (mode, programs) = self.ground.setting()?;
        let expected = json!({
            "mode": mode.word(),
            "variant": mode.variant().map(|variant| variant.to_string()),
        });
        let mut last = Value::Null;
        let reported = wait_for("the agent to report its mode", SETTLES_WITHIN, || {
            let object = self.control_plane.read(NODE_PROXIES, addresses::NODE)?;
            let status = &object["status"];
            last = json!({"mode": status["mode"], "variant": status["iptables"]["variant"]});
            Ok((last == expected).then_some(()))
        });
        reported.with_context(|| format!("it reports {last} and not {expected}"))?;
        if mode == Mode::Ipvs {
            let node = self.world(Rival::KubeProxy).node()?;
            let servers =
                node.enter(|| anyhow::Ok(AddressedServerSocket::open()?.observe()?))??;
            ensure!(!servers.is_empty(), "kube-proxy has no virtual servers");
        }
        let Some(programs) = programs else {
            return Ok(());
        };
        for (rival, chain) in [
            (Rival::KubeProxy, "KUBE-SERVICES"),
            (Rival::Signpost, "SIGNPOST-SERVICES"),
        ] {
            let found = programs.ensure_chain(self.world(rival).node()?, chain);
            found.with_context(|| format!("{rival} has not programmed {mode}"))?;
        }
        Ok(())
    }

    /// Moves the node to another zone and back, now that kube-proxy is watching.
    fn repeat_zone(&self) -> Result<()> {
        for zone in ["elsewhere", manifests::zone_of(1)] {
            self.writer().apply_node(NodeFate::Stays, zone)?;
        }
        Ok(())
    }

    /// Kills Signpost's agent, writes `population`, and returns when kube-proxy has programmed it.
    pub fn settle_without_signpost(&mut self, population: &Population) -> Result<()> {
        if let Some([kube_proxy, agent]) = self.programs.take() {
            agent.kill()?;
            let canary = self.write(population)?;
            self.wait_for(Rival::KubeProxy, canary)?;
            kube_proxy.kill()?;
        }
        Ok(())
    }

    /// Deletes every test Service, and stops both proxies after they have processed that.
    pub fn clear(&mut self) -> Result<()> {
        self.writer().clear()?;
        if self.programs.is_some() {
            self.settle(&Population::empty())?;
            self.programs = None;
        }
        self.writer().clear()
    }

    /// Tries every case in both worlds.
    pub fn compare(&mut self, cases: &[Case]) -> Result<Comparison> {
        let quick = Effort {
            patience: patience(Duration::from_millis(400)),
            each: 6,
            crowd: self.take_clients(CROWDS[0]),
        };
        let patient = Effort {
            patience: patience(Duration::from_secs(3)),
            each: 24,
            crowd: self.take_clients(CROWDS[1]),
        };
        let next = AtomicUsize::new(0);
        let comparison = Mutex::new(Ok(Comparison::default()));
        let worlds = &self.ground.worlds;
        std::thread::scope(|scope| {
            for _ in 0..AT_A_TIME {
                scope.spawn(|| {
                    while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let looked = look(worlds, case, &[&quick, &patient]);
                        let Ok(mut comparison) = comparison.lock() else {
                            return;
                        };
                        match (looked, comparison.as_mut()) {
                            (Ok((sort, difference)), Ok(comparison)) => {
                                *comparison.sorts.entry(sort).or_default() += 1;
                                comparison.differences.extend(difference);
                            }
                            (Err(error), _) => *comparison = Err(error.context(case.to_string())),
                            (Ok(_), Err(_)) => return,
                        }
                    }
                });
            }
        });
        self.ensure_both_run()?;
        let compared = comparison.into_inner();
        compared.map_err(|_| anyhow!("a thread that asks has panicked"))?
    }

    /// Marks node 1 as the cluster's autoscaler would.
    pub fn announce(&self, fate: NodeFate) -> Result<()> {
        self.writer().apply_setting(fate)
    }

    /// Returns the answer of `rival` to an HTTP request from its own node.
    pub fn ask(&self, rival: Rival, url: &str) -> Result<Answer> {
        self.world(rival).node()?.enter(|| Answer::get(url))?
    }

    /// Returns the ends of both logs, for an error message.
    pub fn describe_logs(&self) -> String {
        let logs = [Rival::KubeProxy, Rival::Signpost].map(|rival| {
            let text = fs::read(self.log(rival)).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().collect();
            let end = lines[lines.len().saturating_sub(15)..].join("\n");
            format!("--- the end of the log of {rival}:\n{end}")
        });
        logs.join("\n")
    }

    fn write(&mut self, population: &Population) -> Result<Canary> {
        self.round += 1;
        let canary = Canary { round: self.round };
        self.writer().apply(population, canary)?;
        Ok(canary)
    }

    fn wait_for(&mut self, rival: Rival, canary: Canary) -> Result<()> {
        for family in Family::ALL {
            let what = format!("{rival} to program round {} of {family:?}", canary.round);
            let waited = wait_for(&what, SETTLES_WITHIN, || {
                self.ensure_both_run()?;
                let address = canary.address(family);
                let sent = self.world(rival).is_sent_to(address, canary.place())?;
                Ok(sent.then_some(()))
            });
            waited.with_context(|| self.describe_logs())?;
        }
        Ok(())
    }

    fn ensure_both_run(&mut self) -> Result<()> {
        let mut programs = self.programs.iter_mut().flatten();
        programs.try_for_each(Program::ensure_runs)
    }

    fn take_clients(&mut self, count: u8) -> Vec<u8> {
        let mut clients = Vec::new();
        for _ in 0..count {
            clients.push(self.next_client);
            self.next_client = match self.next_client == *CLIENTS.end() {
                true => *CLIENTS.start(),
                false => self.next_client + 1,
            };
        }
        clients
    }

    fn world(&self, rival: Rival) -> &World {
        let [by_kube_proxy, by_signpost] = &self.ground.worlds;
        match rival {
            Rival::KubeProxy => by_kube_proxy,
            Rival::Signpost => by_signpost,
        }
    }

    fn log(&self, rival: Rival) -> std::path::PathBuf {
        self.files.path().join(format!("{rival}.log"))
    }

    fn writer(&self) -> Writer<'_> {
        Writer {
            control_plane: &self.control_plane,
        }
    }
}

impl fmt::Display for Rival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rival::KubeProxy => "kube-proxy",
            Rival::Signpost => "signpost-agent",
        })
    }
}
