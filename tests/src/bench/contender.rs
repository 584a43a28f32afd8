//! The two programs, each as its users start it.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use dataplane::Family;
use serde_json::{Value, json};
use testkit::address_plan as addresses;
use xtables::Variant;

use super::process_tree::ProcessTree;
use crate::cluster::Program;
use crate::differential::Mode;
use crate::differential::programs::Programs;
use crate::network::Namespace;

/// Where both serve their metrics, in their own network namespace.
const METRICS: &str = "http://127.0.0.1:10249/metrics";
/// How long an answer may take. A program that reads a large list answers late.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// Those that anybody here writes to.
const LEGACY_TABLES: [&str; 3] = ["nat", "filter", "mangle"];
/// How long rounds that write rules took, of both families together.
const ROUNDS_TOOK: &str = "kubeproxy_sync_proxy_rules_duration_seconds_sum";
/// When the last of them ended well; 0 before the first.
const LAST_ROUND: &str = "kubeproxy_sync_proxy_rules_last_timestamp_seconds";

/// Who programs the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Contender {
    /// kube-proxy.
    KubeProxy,
    /// Ours.
    Signpost,
}

/// What a contender is started with, the same at each start.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) contender: Contender,
    pub(super) mode: Mode,
    /// The node that it programs.
    pub(super) node: Namespace,
    /// The program.
    pub(super) program: PathBuf,
    /// Who it is to the API server.
    pub(super) kubeconfig: PathBuf,
    /// Its log and its files are in here.
    pub(super) folder: PathBuf,
}

/// A contender that runs. Killed when this is dropped.
#[derive(Debug)]
pub(super) struct Running {
    program: Program,
    node: Namespace,
    /// When it was started.
    pub(super) started: Instant,
}

// === impl Contender ===

impl Contender {
    /// Both.
    pub const ALL: [Contender; 2] = [Contender::KubeProxy, Contender::Signpost];

    /// The table of nf_tables that it has for itself.
    pub(super) fn table(self) -> &'static str {
        match self {
            Contender::KubeProxy => "kube-proxy",
            Contender::Signpost => "signpost",
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Contender::KubeProxy => "kube-proxy",
            Contender::Signpost => "signpost-agent",
        })
    }
}

/// What our images tell the C library's allocator: every `ENV MALLOC_NAME=VALUE` of the Dockerfile.
fn allocator_settings() -> Result<Vec<(String, String)>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Dockerfile");
    let text =
        fs::read_to_string(&file).with_context(|| format!("failed to read {}", file.display()))?;
    let variables = text.lines().filter_map(|line| {
        let (name, value) = line.strip_prefix("ENV ")?.split_once('=')?;
        let ours = name.starts_with("MALLOC_");
        ours.then(|| (name.to_owned(), value.to_owned()))
    });
    let variables: Vec<(String, String)> = variables.collect();
    ensure!(
        !variables.is_empty(),
        "{} tells the allocator nothing",
        file.display()
    );
    Ok(variables)
}

/// The spec of the ProxyProfile: all but the mode, and how local traffic is told, is by default.
pub(super) fn profile(mode: Mode) -> Value {
    json!({
        "mode": mode.word(),
        "detectLocal": {"mode": "ClusterCIDR", "clusterCIDRs": [cluster_cidr()]},
    })
}

/// The same for kube-proxy. It leaves the sysctls of conntrack alone, which are the machine's.
fn kube_proxy_configuration(mode: Mode, kubeconfig: &Path) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": mode.word(),
        "hostnameOverride": addresses::NODE,
        "clientConnection": {"kubeconfig": kubeconfig},
        "detectLocalMode": "ClusterCIDR",
        "clusterCIDR": cluster_cidr(),
        "oomScoreAdj": 0,
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    })
}

fn cluster_cidr() -> String {
    addresses::cluster_cidr(Family::Ipv4).to_string()
}

// === impl Entry ===

impl Entry {
    /// Starts it. Nothing is programmed yet when this returns.
    pub(super) fn start(&self) -> Result<Running> {
        let mut command = self.node.command(&self.program);
        match self.contender {
            Contender::KubeProxy => {
                let file = self.folder.join("kube-proxy.yaml");
                let configuration = kube_proxy_configuration(self.mode, &self.kubeconfig);
                fs::write(&file, configuration.to_string())
                    .context("failed to write the configuration of kube-proxy")?;
                command.arg("--config").arg(file);
            }
            Contender::Signpost => {
                command.envs(allocator_settings()?);
                command.args(["run", "--node", addresses::NODE, "--kubeconfig"]);
                command.arg(&self.kubeconfig);
                command.arg("--state").arg(self.folder.join("state"));
            }
        }
        self.set_up_iptables(&mut command)?;
        let started = Instant::now();
        Ok(Running {
            program: Program::start(&self.contender.to_string(), command, &self.log())?,
            node: self.node.clone(),
            started,
        })
    }

    /// What it calls itself.
    pub(super) fn describe_version(&self) -> Result<String> {
        let output = Command::new(&self.program).arg("--version").output()?;
        ensure!(output.status.success(), "{} has no version", self.contender);
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Makes the kernel of its node as it is before anybody programs Services, with what a kubelet
    /// leaves in it: that is how a proxy knows which variant of iptables is in use.
    pub(super) fn clean_node(&self) -> Result<()> {
        self.node.nft(&["flush", "ruleset"])?;
        let Some(variant) = self.mode.variant() else {
            return Ok(());
        };
        if variant == Variant::Legacy {
            for program in ["iptables-legacy", "ip6tables-legacy"] {
                for (table, order) in LEGACY_TABLES.iter().flat_map(|t| [(t, "-F"), (t, "-X")]) {
                    self.run(program, &["-w", "-t", table, order])?;
                }
            }
        }
        Programs::link(&self.folder, variant)?.hint(&self.node)
    }

    /// Does to its rules what somebody does who does not know them.
    pub(super) fn damage(&self) -> Result<()> {
        match self.mode {
            Mode::Nftables => {
                let table = self.contender.table();
                self.node.nft(&["delete", "table", "ip", table]).map(drop)
            }
            Mode::Iptables(variant) => {
                let program = match variant {
                    Variant::NfTables => "iptables-nft",
                    Variant::Legacy => "iptables-legacy",
                };
                self.run(program, &["-w", "-t", "nat", "-F"])
            }
        }
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<()> {
        let status = self.node.command(program).args(arguments).status()?;
        let said = arguments.join(" ");
        ensure!(status.success(), "{program} {said}: {status}");
        Ok(())
    }

    fn set_up_iptables(&self, command: &mut Command) -> Result<()> {
        let Some(variant) = self.mode.variant() else {
            return Ok(());
        };
        Programs::link(&self.folder, variant)?.show_to(command)
    }

    fn log(&self) -> PathBuf {
        self.folder.join(format!("{}.log", self.contender))
    }
}

// === impl Running ===

impl Running {
    /// What it and its children use.
    pub(super) fn tree(&self) -> ProcessTree {
        ProcessTree::of(self.program.id())
    }

    /// Fails when it has ended.
    pub(super) fn ensure_runs(&mut self) -> Result<()> {
        self.program.ensure_runs()
    }

    /// How long it says that its rounds took so far.
    pub(super) fn observe_rounds(&self) -> Result<Duration> {
        let seconds = self.metric(ROUNDS_TOOK)?;
        Duration::try_from_secs_f64(seconds).context("a duration is not negative")
    }

    /// Whether it says that it has programmed everything it knows.
    pub(super) fn says_programmed(&self) -> bool {
        // Until it listens, asking fails.
        self.metric(LAST_ROUND).is_ok_and(|time| time > 0.0)
    }

    /// The sum of a metric over all its labels; 0 while there is none.
    fn metric(&self, name: &str) -> Result<f64> {
        let text = self.node.get(METRICS, ANSWERS_WITHIN)?.into_body();
        let values = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' '))
            .filter(|(series, _)| series.split('{').next() == Some(name));
        values.map(|(_, value)| Ok(value.parse::<f64>()?)).sum()
    }
}
