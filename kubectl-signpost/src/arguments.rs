//! The command line.

mod format;
mod migrate;
mod program;
pub mod reference;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use crds::Span;

pub use format::Format;
use format::without_wide;
pub use migrate::{HandoverOptions, MigrateStep, PlanOptions};
pub use program::{Completer, CompletionOptions, ManOptions, VersionOptions};

/// Shows the state of Signpost's profiles and nodes, and controls rollouts, with the permissions of your kubeconfig.
///
/// Exit codes: 0 the command worked and found no problem; 1 the command failed; 2 the command line is wrong; 3 the command worked
/// and found a problem.
#[derive(Debug, Parser)]
#[command(name = "kubectl-signpost", bin_name = "kubectl signpost", version)]
pub struct Arguments {
    /// The cluster, and how to print.
    #[command(flatten)]
    pub access: Access,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The cluster, and how to print.
#[derive(Debug, Args)]
pub struct Access {
    /// The kubeconfig file. Without it: $KUBECONFIG, then ~/.kube/config, then the Pod's own service account.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig file; its current one by default.
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// The namespace of Services and Pods that are named; that of the context by default. For config import, that of the
    /// cluster's ConfigMap; kube-system by default.
    #[arg(long, short, global = true, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// When to use colours. With auto, NO_COLOR, if set and not empty, means never.
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: Color,
}

/// When to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check whether the installation is complete; with --pre, whether Signpost can be installed in this cluster. Exits
    /// with 3 if anything is missing.
    Check(CheckOptions),
    /// Show what every profile asks for, how far its nodes have come, and what to do where something is wrong.
    Status(StatusOptions),
    /// List nodes: profile, mode, readiness, latency, and what to do where something is wrong.
    Nodes(NodesOptions),
    /// Watch, pause, resume, abort or retry the rollout of a profile, list its earlier configurations, and return to one of
    /// them.
    #[command(subcommand)]
    Rollout(RolloutStep),
    /// Show what the agent of a node knows about a Service or an address, from its fields to the kernel and back. Exits with 3
    /// where the kernel differs from the desired state.
    Explain(ExplainOptions),
    /// Follow a packet through the rules of a node. Exits with 3 if it does not go where it should, is rejected or dropped, or is
    /// for a port that no Service has.
    Trace(TraceOptions),
    /// Convert kube-proxy's configuration to a profile, show a node's configuration, and show what a profile would change.
    #[command(subcommand)]
    Config(ConfigStep),
    /// Move nodes from kube-proxy to Signpost, and back.
    #[command(subcommand)]
    Migrate(MigrateStep),
    /// Serve a page on this machine's loopback address that shows profiles, nodes, rejections, drift, Services and paths of
    /// packets, live, until Ctrl-C. The printed address contains a token, without which nothing is shown.
    Dashboard(DashboardOptions),
    /// Write one archive for a problem report: objects, Events, logs, and the state of the agents of chosen nodes. Secrets,
    /// ConfigMaps, environment variables and tokens are left out. Exits with 3 if a part could not be read.
    Sysdump(SysdumpOptions),
    /// Print the versions of this program, and of the operators and agents in the cluster. Exits with 3 if they do not go together.
    Version(VersionOptions),
    /// Print a script that completes commands and flags in a shell.
    ///
    /// For this session of bash: source <(kubectl-signpost completion bash). It completes the command kubectl-signpost. For kubectl
    /// signpost, write the output of kubectl-signpost completion kubectl to kubectl_complete-signpost in a directory of PATH, and make it
    /// executable.
    Completion(CompletionOptions),
    /// Write manual pages of this program and of each of its commands into a directory.
    ///
    /// kubectl-signpost man ~/.local/share/man/man1, and then man kubectl-signpost-rollout-undo.
    Man(ManOptions),
}

/// What is checked.
#[derive(Debug, Args)]
pub struct CheckOptions {
    /// Check the prerequisites of an installation, before there is one.
    #[arg(long)]
    pub pre: bool,
}

/// Whose status, and how it is printed.
#[derive(Debug, Args)]
pub struct StatusOptions {
    /// The profile; all profiles by default.
    pub profile: Option<String>,
    /// Wait until every profile is healthy, at most --timeout.
    #[arg(long)]
    pub wait: bool,
    /// The longest wait.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    pub timeout: Duration,
    /// The format: text, wide (text with nodes), json or yaml.
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    pub output: Format,
}

/// Which nodes, and how they are printed.
#[derive(Debug, Args)]
pub struct NodesOptions {
    /// Only nodes that are not ready, or degraded.
    #[arg(long)]
    pub not_ready: bool,
    /// Only nodes with this profile.
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// The format: text, wide (with hash, versions and rejections), json or yaml.
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    pub output: Format,
}

/// What happens to a rollout.
#[derive(Debug, Subcommand)]
pub enum RolloutStep {
    /// Follow a rollout until it has ended. Exits with 0 once every node has the change, with 3 if it failed, is paused
    /// or has not ended within --timeout.
    Status(RolloutStatusOptions),
    /// Set spec.paused: nodes keep their configuration, and no change of the profile reaches them.
    Pause(ProfileName),
    /// Clear spec.paused: changes of the profile reach nodes again.
    Resume(ProfileName),
    /// Abort the rollout in progress: no further node gets the configuration, and nodes that have it go back. Sets
    /// spec.rollout.abort. Exits with 3 if no rollout is in progress.
    Abort(ProfileName),
    /// Begin another attempt after a rollout has failed or was aborted, or of a configuration that spec.rollout.undo has taken
    /// back. Adds 1 to spec.rollout.attempt, or removes spec.rollout.undo. Exits with 3 if there is nothing to retry.
    Retry(ProfileName),
    /// List the configurations of the profile, the newest first, and which fields each changed.
    History(ProfileName),
    /// Return the profile's fields to those of an earlier configuration, which is rolled out like any change. nodeSelector,
    /// priority, paused and rollout stay; spec.rollout.undo is removed. Exits with 3 if the history has no such configuration.
    Undo(UndoOptions),
}

/// Which rollout is followed, and for how long.
#[derive(Debug, Args)]
pub struct RolloutStatusOptions {
    /// The profile whose rollout it is.
    #[command(flatten)]
    pub profile: ProfileName,
    /// Print the current state and end, instead of following it.
    #[arg(long)]
    pub once: bool,
    /// The longest wait.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration)]
    pub timeout: Duration,
}

/// Which configuration to return to.
#[derive(Debug, Args)]
pub struct UndoOptions {
    /// The profile whose rollout it is.
    #[command(flatten)]
    pub profile: ProfileName,
    /// The generation to return to, as `rollout history` lists it; by default the newest earlier one that all nodes had.
    #[arg(long, value_name = "GENERATION")]
    pub to: Option<i64>,
}

/// A profile.
#[derive(Debug, Args)]
pub struct ProfileName {
    /// The ProxyProfile.
    #[arg(value_name = "PROFILE")]
    pub name: String,
}

/// What is explained, by which agent.
#[derive(Debug, Args)]
pub struct ExplainOptions {
    /// A Service, as svc/NAME or svc/NAME:PORT; or an address, as 10.96.0.10:80/tcp or 10.96.0.10; or a node port, as
    /// node:30080/tcp; or a virtual server of mode ipvs by its mark, as 'FWM 1396703233' or 0x53400001.
    #[arg(value_name = "SUBJECT", value_parser = reference::subject)]
    pub about: String,
    /// The node whose agent is asked; the first by name by default.
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    /// Ask the agents of all nodes, and print only differences from the desired state.
    #[arg(long, conflicts_with_all = ["node", "output"])]
    pub all_nodes: bool,
    /// The format: text or json.
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    pub output: AgentOutput,
}

/// Which packet is followed, and where.
#[derive(Debug, Args)]
pub struct TraceOptions {
    /// The sender: pod/NAME, node/NAME, an address, or an origin with an address, as 'outside 203.0.113.9'.
    #[arg(value_name = "FROM", value_parser = reference::sender)]
    pub from: String,
    /// The destination: svc/NAME:PORT, pod/NAME:PORT, node/NAME:PORT or ADDRESS:PORT[/PROTOCOL].
    #[arg(value_name = "TO", value_parser = reference::destination)]
    pub to: String,
    /// The namespace of Pods and Services; that of [`Access`] by default.
    #[arg(skip)]
    pub namespace: Option<String>,
    /// The node whose rules the packet is followed through; by default the one of a destination node/NAME:PORT, otherwise that
    /// of the sender.
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    /// The format: text or json.
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    pub output: AgentOutput,
}

/// Where the page is served.
#[derive(Debug, Args)]
pub struct DashboardOptions {
    /// The port on 127.0.0.1; 0 is any free one.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,
}

/// What goes into the archive.
#[derive(Debug, Args)]
pub struct SysdumpOptions {
    /// A node whose agent is asked; may be given more than once. By default five nodes: those that are not as they should
    /// be first, then by name.
    #[arg(long = "node", value_name = "NODE")]
    pub nodes: Vec<String>,
    /// Ask the agents of all nodes.
    #[arg(long, conflicts_with = "nodes")]
    pub all_nodes: bool,
    /// A Service that each agent explains, as NAMESPACE/NAME; may be given more than once. Rejected Services are explained
    /// anyway.
    #[arg(long = "service", value_name = "SERVICE", value_parser = service_name)]
    pub services: Vec<String>,
    /// The most lines of each log, its newest.
    #[arg(long, value_name = "NUMBER", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub log_lines: u32,
    /// The archive to write, which must not exist yet; signpost-sysdump-TIME.tar.gz by default.
    #[arg(long, short, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// The format of an agent's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AgentOutput {
    /// Plain text.
    Text,
    /// JSON.
    Json,
}

/// What happens to a configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigStep {
    /// Convert a KubeProxyConfiguration (v1alpha1) to a ProxyProfile, and print it as YAML. Each field that has no meaning
    /// for Signpost is named on standard error, with the reason. Exits with 3 if a value is left out that the profile needs.
    Import(ImportOptions),
    /// Print the complete configuration of a node, and which profile it comes from. Exits with 3 if the node has not applied it.
    Effective(EffectiveOptions),
    /// Print which fields a profile would change on which nodes: with --file once it is applied, without --file once
    /// nothing holds it back. Exits with 3 if there are any.
    Diff(DiffOptions),
}

/// Where the configuration is, and what the profile is called.
#[derive(Debug, Args)]
pub struct ImportOptions {
    /// The file, or - for standard input: a KubeProxyConfiguration, a ConfigMap with one, or what kube-proxy prints at
    /// /configz. Without it, the cluster's ConfigMap is read.
    #[arg(long, short, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The name of the cluster's ConfigMap.
    #[arg(long, value_name = "NAME", default_value = "kube-proxy")]
    pub config_map: String,
    /// The name of the profile.
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = subdomain)]
    pub name: String,
}

/// Whose configuration, and how it is printed.
#[derive(Debug, Args)]
pub struct EffectiveOptions {
    /// The node, by its name.
    #[arg(value_name = "NODE")]
    pub node: String,
    /// The format: text (YAML with comments), json or yaml.
    #[arg(long, short, value_name = "FORMAT", default_value = "text", value_parser = without_wide())]
    pub output: Format,
}

/// The profile that is compared.
#[derive(Debug, Args)]
pub struct DiffOptions {
    /// The ProxyProfile; with --file, the one in the file.
    #[arg(value_name = "PROFILE", required_unless_present = "file")]
    pub profile: Option<String>,
    /// A file with the changed profile, or - for standard input.
    #[arg(long, short, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// `namespace/name`, both as the API server accepts them.
fn service_name(text: &str) -> Result<String, String> {
    match text.split_once('/') {
        Some((namespace, name)) if is_label(namespace) && is_label(name) => Ok(text.to_owned()),
        _ => Err("write NAMESPACE/NAME, such as shop/cart".to_owned()),
    }
}

/// An RFC 1123 subdomain: the name of a ProxyProfile. Only its whole length is limited, as in the API server.
fn subdomain(text: &str) -> Result<String, String> {
    match text.len() <= 253 && text.split('.').all(is_part) {
        true => Ok(text.to_owned()),
        false => Err("write at most 253 of a-z, 0-9, - and ., such as edge-nodes".to_owned()),
    }
}

/// Whether `text` is an RFC 1123 label, in lower case.
fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_part(text)
}

/// Whether `text` is a label of any length.
fn is_part(text: &str) -> bool {
    let outer = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let inner = |byte: u8| outer(byte) || byte == b'-';
    let ends = text.bytes().next().into_iter().chain(text.bytes().last());
    !text.is_empty() && ends.into_iter().all(outer) && text.bytes().all(inner)
}

fn duration(text: &str) -> Result<Duration, String> {
    let span: Result<Span, _> = text.parse();
    span.map(Duration::from).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn a_profile_has_a_name_that_the_api_server_accepts() {
        let import = |name: &str| {
            let words = ["kubectl-signpost", "config", "import", "--name", name];
            Arguments::try_parse_from(words).map(drop)
        };
        let long_part = "a".repeat(64);
        for name in ["default", "edge-1.example", "0", &long_part] {
            import(name).expect(name);
        }
        let long = "a".repeat(254);
        for name in ["Bad_Name", "-a", "a-", "a..b", "", "a/b", &long] {
            import(name).expect_err(name);
        }
    }

    #[test]
    fn t246_cluster_and_namespace_are_named_before_or_after_the_command() {
        for words in [
            "-n shop --context c --kubeconfig f explain svc/web",
            "explain -n shop svc/web --context c --kubeconfig f",
            "-n shop --context c --kubeconfig f status",
            "rollout --context c undo default -n shop --kubeconfig f",
            "--namespace=shop config --kubeconfig f import --context=c",
        ] {
            let words = format!("kubectl-signpost {words}");
            let parsed = Arguments::try_parse_from(words.split(' ')).expect(&words);
            let Access {
                kubeconfig,
                context,
                namespace,
                ..
            } = parsed.access;
            assert_eq!(kubeconfig, Some(PathBuf::from("f")), "{words}");
            assert_eq!(context.as_deref(), Some("c"), "{words}");
            assert_eq!(namespace.as_deref(), Some("shop"), "{words}");
        }
    }

    #[test]
    fn every_command_and_flag_is_described() {
        let command = Arguments::command();
        command.clone().debug_assert();
        let mut ahead = vec![command];
        while let Some(command) = ahead.pop() {
            let about = command.get_about().map(ToString::to_string);
            let name = command.get_name();
            assert!(about.is_some_and(|about| about.len() > 10), "{name}");
            for flag in command.get_arguments() {
                let id = flag.get_id();
                let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.len() > 10, "{name}: {id} says {help:?}");
            }
            ahead.extend(command.get_subcommands().cloned());
        }
    }
}
