//! The two programs, started as their users start them.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
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

/// The address of the metrics of both, each in its own network namespace.
const METRICS: &str = "http://127.0.0.1:10249/metrics";
/// The timeout of a request. A program that is reading a large list answers late.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// The device that has the addresses of kube-proxy's virtual servers.
const KUBE_PROXY_DEVICE: &str = "kube-ipvs0";
/// How long the kernel keeps removed destinations in a list that every addition walks
/// (`IP_VS_DEST_TRASH_PERIOD`), and a moment more. It does not show the list.
const KEPT_BY_KERNEL: Duration = Duration::from_secs(125);
/// The number of removed destinations that additions walk without a difference that shows.
const SOON_WALKED: usize = 1_000;
/// The tables that any program in the benchmark writes.
const LEGACY_TABLES: [&str; 3] = ["nat", "filter", "mangle"];
/// The total duration of syncs that write rules, for both families together.
const ROUNDS_TOOK: &str = "kubeproxy_sync_proxy_rules_duration_seconds_sum";
/// The time of the last successful sync; 0 before the first.
const LAST_ROUND: &str = "kubeproxy_sync_proxy_rules_last_timestamp_seconds";

/// A program that programs the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Contender {
    /// kube-proxy.
    KubeProxy,
    /// Signpost.
    Signpost,
}

/// How to start a contender, the same for each start.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(super) contender: Contender,
    pub(super) mode: Mode,
    /// The name of the Node.
    pub(crate) name: &'static str,
    /// The node to program.
    pub(crate) node: Namespace,
    /// The path of the program.
    pub(super) program: PathBuf,
    /// Its credentials for the API server.
    pub(super) kubeconfig: PathBuf,
    /// The folder of its log and its files.
    pub(crate) folder: PathBuf,
}

/// A running contender. Killed on drop.
#[derive(Debug)]
pub(crate) struct Running {
    program: Program,
    node: Namespace,
    /// When it was started.
    pub(crate) started: Instant,
}

// === impl Contender ===

impl Contender {
    /// Both contenders.
    pub const ALL: [Contender; 2] = [Contender::KubeProxy, Contender::Signpost];

    /// Returns the name of its own nftables table.
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

/// Returns the settings of the C library's allocator in Signpost's images: every
/// `ENV MALLOC_NAME=VALUE` of the Dockerfile.
fn allocator_settings() -> Result<Vec<(String, String)>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Dockerfile");
    let text =
        fs::read_to_string(&file).with_context(|| format!("failed to read {}", file.display()))?;
    let variables = text.lines().filter_map(|line| {
        let (name, value) = line.strip_prefix("ENV ")?.split_once('=')?;
        let is_setting = name.starts_with("MALLOC_");
        is_setting.then(|| (name.to_owned(), value.to_owned()))
    });
    let variables: Vec<(String, String)> = variables.collect();
    ensure!(
        !variables.is_empty(),
        "{} tells the allocator nothing",
        file.display()
    );
    Ok(variables)
}

/// Returns the spec of the ProxyProfile. Everything but the mode and the detection of local traffic
/// has its default.
pub(crate) fn profile(mode: Mode) -> Value {
    json!({
        "mode": mode.word(),
        "detectLocal": {"mode": "ClusterCIDR", "clusterCIDRs": [cluster_cidr()]},
    })
}

/// Returns the equivalent configuration of kube-proxy. It leaves the conntrack sysctls alone, which
/// belong to the machine.
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
    /// Starts the contender. Nothing is programmed yet when this returns.
    pub(crate) fn start(&self) -> Result<Running> {
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
                command.args(["run", "--node", self.name, "--kubeconfig"]);
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

    /// Returns the version that the program reports.
    pub(super) fn describe_version(&self) -> Result<String> {
        let output = Command::new(&self.program).arg("--version").output()?;
        ensure!(output.status.success(), "{} has no version", self.contender);
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Resets the kernel of its node to the state before any proxy has run, including the chains
    /// that a kubelet creates: proxies use them to detect the active variant of iptables.
    pub(super) fn clean_node(&self) -> Result<()> {
        self.node.nft(&["flush", "ruleset"])?;
        if self.mode == Mode::Ipvs {
            return self.clean_virtual_servers();
        }
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

    /// Damages its rules as a program would that does not know them.
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
            Mode::Ipvs => self.run("ipvsadm", &["--clear"]),
        }
    }

    /// Removes what either has in mode ipvs besides nf_tables. Signpost's routing rule stays, one in
    /// each family.
    fn clean_virtual_servers(&self) -> Result<()> {
        // Missing while IPVS is not loaded.
        let list = || fs::read_to_string("/proc/thread-self/net/ip_vs").unwrap_or_default();
        let removed = self.node.enter(list)?.matches("Masq").count();
        self.run("ipvsadm", &["--clear"])?;
        if removed > SOON_WALKED {
            thread::sleep(KEPT_BY_KERNEL);
        }
        self.run("ipset", &["destroy"])?;
        let links = self
            .node
            .command("ip")
            .args(["-oneline", "link"])
            .output()?;
        if String::from_utf8_lossy(&links.stdout).contains(KUBE_PROXY_DEVICE) {
            self.run("ip", &["link", "delete", KUBE_PROXY_DEVICE])?;
        }
        Ok(())
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
    /// Returns the process tree of the contender.
    pub(crate) fn tree(&self) -> ProcessTree {
        ProcessTree::of(self.program.id())
    }

    /// Fails if the contender has ended.
    pub(crate) fn ensure_runs(&mut self) -> Result<()> {
        self.program.ensure_runs()
    }

    /// Returns the total duration of its syncs so far, from its metrics.
    pub(super) fn observe_rounds(&self) -> Result<Duration> {
        let seconds = self.metric(ROUNDS_TOOK)?;
        Duration::try_from_secs_f64(seconds).context("a duration is not negative")
    }

    /// Whether its metrics report a successful sync.
    pub(crate) fn says_programmed(&self) -> bool {
        // The request fails until the contender listens.
        self.metric(LAST_ROUND).is_ok_and(|time| time > 0.0)
    }

    /// Whether its metrics report a successful sync of IPv4.
    pub(super) fn says_ipv4_programmed(&self) -> bool {
        let is_ipv4 = |series: &str| !series.contains("IPv6");
        self.metric_of(LAST_ROUND, is_ipv4)
            .is_ok_and(|time| time > 0.0)
    }

    /// Returns the sum of a metric over all its labels; 0 if the metric does not exist.
    fn metric(&self, name: &str) -> Result<f64> {
        self.metric_of(name, |_| true)
    }

    /// Like [`Running::metric`], for the series that `is_one` accepts.
    fn metric_of(&self, name: &str, is_one: impl Fn(&str) -> bool) -> Result<f64> {
        let text = self.node.get(METRICS, ANSWERS_WITHIN)?.into_body();
        let values = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' '))
            .filter(|(series, _)| series.split('{').next() == Some(name) && is_one(series));
        values.map(|(_, value)| Ok(value.parse::<f64>()?)).sum()
    }
}
