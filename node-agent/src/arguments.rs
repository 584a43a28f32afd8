//! What the program is told on its command line.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use crds::span::Span;
use runtime::LogOptions;
use serde::{Deserialize, Serialize};

/// The node's side of Signpost: programs this node's kernel so that traffic to Services reaches
/// their endpoints, and says what it has programmed.
#[derive(Debug, Parser)]
#[command(name = "signpost-agent", version)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) log: LogOptions,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Keep this node's kernel at what the cluster, or a directory of manifests, asks for.
    Run(Box<Run>),
    /// Print what would be programmed for a directory of manifests, and touch no kernel.
    Render(Render),
    /// Tell what is programmed for a Service or an address, from the Service to the elements or rules in
    /// the kernel and back, and where the kernel differs from what is wanted.
    Explain(Explain),
    /// Follow a packet through the rules in the kernel, and tell whether it goes where it should.
    Trace(Trace),
    /// Ask the agent that runs here to serve this node's Services in the place of kube-proxy, and to
    /// remove kube-proxy's rules. No connection is lost.
    Takeover(Handover),
    /// Ask the agent that runs here to leave this node's Services to a kube-proxy that runs again, and
    /// to remove our rules. No connection is lost.
    Handback(Handover),
    /// Remove everything of ours from this network namespace, and what the agent kept on disk.
    /// Connections to Services stop, those that are established too, unless another program's NAT
    /// rules are there to carry them on.
    Cleanup(Cleanup),
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The name of this node: which NodeProxy to follow, and which endpoints are local.
    #[arg(long, env = "SIGNPOST_NODE")]
    pub(crate) node: String,
    /// A kubeconfig file. Without it, and without --manifests, the Pod's own service account is used.
    #[arg(long, env = "SIGNPOST_KUBECONFIG", conflicts_with = "manifests")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// A directory of YAML files to follow in the place of an API server: Services, EndpointSlices,
    /// Nodes, ServiceCIDRs and ProxyProfiles.
    #[arg(long, env = "SIGNPOST_MANIFESTS")]
    pub(crate) manifests: Option<PathBuf>,
    /// A file to write this node's NodeProxy document to, whenever its status changes.
    #[arg(long, env = "SIGNPOST_STATUS")]
    pub(crate) status: Option<PathBuf>,
    /// The directory in which the last good configuration is kept for the next start.
    #[arg(long, env = "SIGNPOST_STATE", default_value = "/var/lib/signpost")]
    pub(crate) state: PathBuf,
    /// Where the kernel's settings for connections are written. In a container whose /proc/sys is
    /// read-only: where the host's is mounted.
    #[arg(long, env = "SIGNPOST_SYSCTLS", default_value = "/proc/sys")]
    pub(crate) sysctls: PathBuf,
    /// The lock that all who change the tables of legacy iptables take. In a container: where the
    /// host's is mounted.
    #[arg(
        long,
        env = "SIGNPOST_XTABLES_LOCK",
        default_value = "/run/xtables.lock"
    )]
    pub(crate) xtables_lock: PathBuf,
    /// Where /healthz and /livez answer for load balancers and monitors, until a profile names
    /// another address.
    #[arg(long, env = "SIGNPOST_HEALTH_ADDRESS", default_value = "0.0.0.0:10256")]
    pub(crate) health_address: SocketAddr,
    /// Where /metrics, /debug, /proxyMode and /configz answer, /livez and /readyz too, until a
    /// profile names another address.
    #[arg(
        long,
        env = "SIGNPOST_METRICS_ADDRESS",
        default_value = "127.0.0.1:10249"
    )]
    pub(crate) metrics_address: SocketAddr,
    /// Where /livez and /readyz answer for the probes of this process's own Pod, whatever a profile
    /// says.
    #[arg(
        long,
        env = "SIGNPOST_PROBE_ADDRESS",
        default_value = "127.0.0.1:10261"
    )]
    pub(crate) probe_address: SocketAddr,
    /// How long to wait at a start for somebody to say what this node does, before going on with
    /// the last good configuration, or the defaults.
    #[arg(long, env = "SIGNPOST_CONFIGURATION_DEADLINE", default_value = "10s", value_parser = span)]
    pub(crate) configuration_deadline: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Render {
    /// The directory of YAML files.
    #[arg(long, env = "SIGNPOST_MANIFESTS")]
    pub(crate) manifests: PathBuf,
    /// The name of the node to render for.
    #[arg(long, env = "SIGNPOST_NODE")]
    pub(crate) node: String,
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// A Service, as namespace/name or namespace/name:port; or an address, as 10.96.0.10:80/tcp,
    /// 10.96.0.10:80 or 10.96.0.10; or a node port, as node:30080/tcp.
    pub(crate) about: String,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, Args)]
pub(crate) struct Trace {
    /// The first packet of a connection, as '10.1.2.3 -> 10.96.0.10:80/tcp'. Who sends it can be
    /// said before: pod, remote-pod, node, loopback or outside; and through which interface it comes
    /// in: 'pod 10.1.2.3 via veth0 -> node:30080/udp'.
    pub(crate) packet: String,
    #[command(flatten)]
    pub(crate) target: Target,
}

/// Where to ask for a handover, and how far it is to go.
#[derive(Debug, Args)]
pub(crate) struct Handover {
    /// The directory that the running agent was given as --state.
    #[arg(long, env = "SIGNPOST_STATE", default_value = "/var/lib/signpost")]
    pub(crate) state: PathBuf,
    /// Tell what would be done and what speaks against it, and change nothing.
    #[arg(long, env = "SIGNPOST_DRY_RUN", conflicts_with = "force")]
    pub(crate) dry_run: bool,
    /// Do it against all warnings. Connections may be lost.
    #[arg(long, env = "SIGNPOST_FORCE")]
    pub(crate) force: bool,
}

/// What is removed besides rules.
#[derive(Debug, Args)]
pub(crate) struct Cleanup {
    /// The directory that the agent was given as --state: what it kept there goes, and the directory
    /// with it once it is empty.
    #[arg(long, env = "SIGNPOST_STATE", default_value = "/var/lib/signpost")]
    pub(crate) state: PathBuf,
    /// The lock that all who change the tables of legacy iptables take.
    #[arg(
        long,
        env = "SIGNPOST_XTABLES_LOCK",
        default_value = "/run/xtables.lock"
    )]
    pub(crate) xtables_lock: PathBuf,
}

/// Who answers a question, and how.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// A directory of YAML files to answer from, in the place of a running agent.
    // Not the variable that `run` reads: where that is set, an agent runs, and is to be asked.
    #[arg(long, env = "SIGNPOST_ANSWER_FROM", requires = "node")]
    pub(crate) manifests: Option<PathBuf>,
    /// The name of the node to answer for, with --manifests.
    #[arg(long, env = "SIGNPOST_NODE")]
    pub(crate) node: Option<String>,
    /// Where the running agent's /debug answers.
    #[arg(
        long,
        env = "SIGNPOST_METRICS_ADDRESS",
        default_value = "127.0.0.1:10249"
    )]
    pub(crate) metrics_address: SocketAddr,
    /// Text for people, or JSON for machines.
    #[arg(long, short, env = "SIGNPOST_OUTPUT", default_value = "text")]
    pub(crate) output: Output,
}

/// How an answer is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Output {
    /// For people.
    #[default]
    Text,
    /// For machines.
    Json,
}

// === impl Output ===

impl Output {
    /// `answer` as it is asked for, with the end of its last line.
    pub(crate) fn print(self, answer: &(impl fmt::Display + Serialize)) -> anyhow::Result<String> {
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
