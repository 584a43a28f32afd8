//! The command line.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use crds::span::Span;
use runtime::LogOptions;
use serde::{Deserialize, Serialize};

/// The node agent of Signpost: programs this node's kernel so that traffic to Services reaches
/// their endpoints, and reports what it has programmed.
#[derive(Debug, Parser)]
#[command(name = "signpost-agent", version)]
pub struct Arguments {
    /// What is logged and how.
    #[command(flatten)]
    pub log: LogOptions,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Program this node's kernel from the cluster, or from a directory of manifests.
    Run(Box<Run>),
    /// Print the rules for a directory of manifests, without changing the kernel.
    Render(Render),
    /// Show what is programmed for a Service or an address, from the Service to the elements or rules in
    /// the kernel and back, and where the kernel differs from the desired state.
    Explain(Explain),
    /// Follow a packet through the rules in the kernel, and show whether it goes where it should.
    Trace(Trace),
    /// Print the running agent's rules, desired state, syncs, status or metrics.
    Show(Show),
    /// Make the agent on this node serve its Services instead of kube-proxy, and remove kube-proxy's
    /// rules. No connection is lost.
    Takeover(Handover),
    /// Make the agent on this node hand its Services back to a running kube-proxy, and remove Signpost's rules. No
    /// connection is lost.
    Handback(Handover),
    /// Remove all rules of Signpost from this network namespace, and the agent's files. Connections to Services break,
    /// including established ones, unless NAT rules of another program remain.
    Cleanup(Cleanup),
}

/// How to run.
#[derive(Debug, Args)]
pub struct Run {
    /// The name of this node: which NodeProxy to follow, and which endpoints are local.
    #[arg(long, env = "SIGNPOST_NODE")]
    pub node: String,
    /// A kubeconfig file. Its certificates are read once, at the start. Without it, and without --manifests, the
    /// Pod's own service account is used.
    #[arg(long, env = "SIGNPOST_KUBECONFIG", conflicts_with = "manifests")]
    pub kubeconfig: Option<PathBuf>,
    /// The namespace in which this node has its Lease, by which the operator sees that the agent is running.
    #[arg(long, env = "SIGNPOST_NAMESPACE", default_value = "signpost-system")]
    pub namespace: String,
    /// A directory of YAML files to follow instead of an API server: Services, EndpointSlices,
    /// Nodes, ServiceCIDRs and ProxyProfiles.
    #[arg(long, env = "SIGNPOST_MANIFESTS")]
    pub manifests: Option<PathBuf>,
    /// A file to write this node's NodeProxy document to, whenever its status changes.
    #[arg(long, env = "SIGNPOST_STATUS")]
    pub status: Option<PathBuf>,
    /// The directory in which the last good configuration is kept for the next start.
    #[arg(long, env = "SIGNPOST_STATE", default_value = "/var/lib/signpost")]
    pub state: PathBuf,
    /// The directory of sysctls: of connection tracking, and of IPVS in mode ipvs. In a container whose /proc/sys is
    /// read-only: where the host's is mounted.
    #[arg(long, env = "SIGNPOST_SYSCTLS", default_value = "/proc/sys")]
    pub sysctls: PathBuf,
    /// The lock file of legacy iptables. In a container: where the host's is mounted.
    #[arg(
        long,
        env = "SIGNPOST_XTABLES_LOCK",
        default_value = "/run/xtables.lock"
    )]
    pub xtables_lock: PathBuf,
    /// The address of /healthz and /livez for load balancers and monitors, until a profile names
    /// another address.
    #[arg(long, env = "SIGNPOST_HEALTH_ADDRESS", default_value = "0.0.0.0:10256")]
    pub health_address: SocketAddr,
    /// The address of /metrics, /debug, /proxyMode, /configz, /livez and /readyz, until a profile
    /// names another address. /debug and /configz answer peers on loopback only.
    #[arg(
        long,
        env = "SIGNPOST_METRICS_ADDRESS",
        default_value = "127.0.0.1:10249"
    )]
    pub metrics_address: SocketAddr,
    /// The address of /livez and /readyz for the probes of this process's own Pod. Profiles do not change it.
    #[arg(
        long,
        env = "SIGNPOST_PROBE_ADDRESS",
        default_value = "127.0.0.1:10261"
    )]
    pub probe_address: SocketAddr,
    /// An address for /metrics alone, for scrapers on other nodes. Profiles do not change it.
    #[arg(long, env = "SIGNPOST_SCRAPE_ADDRESS")]
    pub scrape_address: Option<SocketAddr>,
    /// How long the agent waits for the node's configuration at startup before it uses the last good configuration, or the
    /// defaults.
    #[arg(long, env = "SIGNPOST_CONFIGURATION_DEADLINE", default_value = "10s", value_parser = span)]
    pub configuration_deadline: Duration,
}

/// What is rendered.
#[derive(Debug, Args)]
pub struct Render {
    /// The directory of YAML files.
    #[arg(long, env = "SIGNPOST_MANIFESTS")]
    pub manifests: PathBuf,
    /// The name of the node to render for.
    #[arg(long, env = "SIGNPOST_NODE")]
    pub node: String,
}

/// What is explained.
#[derive(Debug, Args)]
pub struct Explain {
    /// A Service, as namespace/name or namespace/name:port; or an address, as 10.96.0.10:80/tcp,
    /// 10.96.0.10:80 or 10.96.0.10; or a node port, as node:30080/tcp; or a virtual server of mode
    /// ipvs by its mark, as 'FWM 1396703233' or 0x53400001.
    pub about: String,
    /// Where the answer comes from, and its format.
    #[command(flatten)]
    pub target: Target,
}

/// Which packet is followed.
#[derive(Debug, Args)]
pub struct Trace {
    /// The first packet of a connection, as '10.1.2.3 -> 10.96.0.10:80/tcp'. Its origin (pod,
    /// remote-pod, node, loopback or outside) and its incoming interface can be given, too:
    /// 'pod 10.1.2.3 via veth0 -> node:30080/udp'.
    pub packet: String,
    /// Where the answer comes from, and its format.
    #[command(flatten)]
    pub target: Target,
}

/// What is shown.
#[derive(Debug, Args)]
pub struct Show {
    /// What to print.
    #[arg(value_name = "PART")]
    pub part: Part,
    /// The --state directory of the running agent, where its socket is.
    #[arg(long, env = "SIGNPOST_STATE", default_value = "/var/lib/signpost")]
    pub state: PathBuf,
}

/// A part of what an agent has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Signpost's rules in the kernel.
    Rules,
    /// The complete desired state of the kernel.
    Dataplane,
    /// The last syncs of each family.
    Syncs,
    /// The status that the node reports.
    Status,
    /// The metrics, as a scrape gets them.
    Metrics,
}

/// How to reach the running agent, and how far the handover goes.
#[derive(Debug, Args)]
pub struct Handover {
    /// The --state directory of the running agent.
    #[arg(long, env = "SIGNPOST_STATE", default_value = "/var/lib/signpost")]
    pub state: PathBuf,
    /// Print the steps and any obstacles, and change nothing.
    #[arg(long, env = "SIGNPOST_DRY_RUN", conflicts_with = "force")]
    pub dry_run: bool,
    /// Continue despite warnings. Connections may be lost.
    #[arg(long, env = "SIGNPOST_FORCE")]
    pub force: bool,
}

/// What is removed besides rules.
#[derive(Debug, Args)]
pub struct Cleanup {
    /// The --state directory of the agent: its files there are removed, and the directory once it is
    /// empty.
    #[arg(long, env = "SIGNPOST_STATE", default_value = "/var/lib/signpost")]
    pub state: PathBuf,
    /// The lock file of legacy iptables.
    #[arg(
        long,
        env = "SIGNPOST_XTABLES_LOCK",
        default_value = "/run/xtables.lock"
    )]
    pub xtables_lock: PathBuf,
}

/// Where an answer comes from, and its format.
#[derive(Debug, Args)]
pub struct Target {
    /// A directory of YAML files to answer from, instead of a running agent.
    // Not the variable that `run` reads: if that one is set, an agent runs, which should answer.
    #[arg(long, env = "SIGNPOST_ANSWER_FROM", requires = "node")]
    pub manifests: Option<PathBuf>,
    /// The name of the node to answer for, with --manifests.
    #[arg(long, env = "SIGNPOST_NODE")]
    pub node: Option<String>,
    /// The --state directory of the running agent, where its socket is.
    #[arg(long, env = "SIGNPOST_STATE", default_value = "/var/lib/signpost")]
    pub state: PathBuf,
    /// The address of the running agent's /debug, for where its socket cannot be used.
    #[arg(
        long,
        env = "SIGNPOST_METRICS_ADDRESS",
        default_value = "127.0.0.1:10249"
    )]
    pub metrics_address: SocketAddr,
    /// The output format: text or JSON.
    #[arg(long, short, env = "SIGNPOST_OUTPUT", default_value = "text")]
    pub output: Output,
}

/// The format of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Output {
    /// Plain text.
    #[default]
    Text,
    /// JSON.
    Json,
}

// === impl Part ===

impl Part {
    /// Returns the agent's HTTP path for it.
    pub fn path(self) -> &'static str {
        match self {
            Part::Rules => "/debug/rules",
            Part::Dataplane => "/debug/dataplane",
            Part::Syncs => "/debug/syncs",
            Part::Status => "/debug/status",
            Part::Metrics => "/metrics",
        }
    }
}

// === impl Output ===

impl Output {
    /// Formats `answer`, with a final newline.
    pub fn print(self, answer: &(impl fmt::Display + Serialize)) -> anyhow::Result<String> {
        match self {
            Output::Text => Ok(answer.to_string()),
            Output::Json => Ok(serde_json::to_string_pretty(answer)? + "\n"),
        }
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Output::Text => "text",
            Output::Json => "json",
        })
    }
}

fn span(text: &str) -> Result<Duration, String> {
    let span: Result<Span, _> = text.parse();
    span.map(Duration::from).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_flag_has_a_variable_and_a_sentence() {
        let command = Arguments::command();
        command.clone().debug_assert();
        for subcommand in command.get_subcommands() {
            let about = subcommand.get_about().map(ToString::to_string);
            assert!(
                about.is_some_and(|about| about.len() > 10),
                "{}",
                subcommand.get_name()
            );
            let flags = subcommand.get_arguments().chain(command.get_arguments());
            for flag in flags.filter(|flag| !matches!(flag.get_id().as_str(), "help" | "version")) {
                let id = flag.get_id();
                assert!(
                    flag.get_env().is_some() || flag.is_positional(),
                    "{id} has no variable"
                );
                let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.len() > 10, "{id} says {help:?}");
            }
        }
    }
}
