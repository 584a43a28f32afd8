//! What the program is told on its command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use crds::span::Span;
use runtime::LogOptions;

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
    /// Tell what is programmed for a Service, from its ports to the elements in the kernel.
    Explain(Explain),
    /// Remove everything of ours from this network namespace. Connections to Services stop, those
    /// that are established too, unless another program's NAT rules are there to carry them on.
    Cleanup,
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
    /// Where /livez and /readyz answer for the node's load balancers and probes.
    #[arg(long, env = "SIGNPOST_HEALTH_ADDRESS", default_value = "0.0.0.0:10256")]
    pub(crate) health_address: SocketAddr,
    /// Where /metrics and /debug answer, /livez and /readyz too.
    #[arg(
        long,
        env = "SIGNPOST_METRICS_ADDRESS",
        default_value = "127.0.0.1:10249"
    )]
    pub(crate) metrics_address: SocketAddr,
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
    /// The Service, as namespace/name or namespace/name:port.
    pub(crate) service: String,
    /// A directory of YAML files to explain from, in the place of a running agent.
    #[arg(long, env = "SIGNPOST_MANIFESTS", requires = "node")]
    pub(crate) manifests: Option<PathBuf>,
    /// The name of the node to explain for, with --manifests.
    #[arg(long, env = "SIGNPOST_NODE")]
    pub(crate) node: Option<String>,
    /// Where the running agent's /debug answers.
    #[arg(
        long,
        env = "SIGNPOST_METRICS_ADDRESS",
        default_value = "127.0.0.1:10249"
    )]
    pub(crate) metrics_address: SocketAddr,
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
