//! The command line.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Parser, Subcommand};
use runtime::LogOptions;

/// The operator of Signpost: assigns every node its configuration and summarizes what the nodes report.
#[derive(Debug, Parser)]
#[command(name = "signpost-operator", version)]
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
    /// Run the operator. Of several operators, only the one that holds the lease is active; the others stand by.
    Run(RunArguments),
}

/// How to run.
#[derive(Debug, Args)]
pub struct RunArguments {
    /// A kubeconfig file. Its certificates are read once, at the start. Without it, the Pod's own service account is used.
    #[arg(long, env = "SIGNPOST_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// The namespace of the lease, and of the Leases that agents renew.
    #[arg(
        long,
        env = "SIGNPOST_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "signpost-system"
    )]
    pub namespace: String,

    /// The name of the lease that decides which of several operators is active.
    #[arg(
        long,
        env = "SIGNPOST_LEASE_NAME",
        value_name = "NAME",
        default_value = "signpost-operator"
    )]
    pub lease_name: String,

    /// The identity of this operator in the lease, unique among operators. Without it: the host's name and a number.
    #[arg(long, env = "SIGNPOST_IDENTITY", value_name = "NAME")]
    pub identity: Option<String>,

    /// Where /metrics, /livez and /readyz are served.
    #[arg(
        long,
        env = "SIGNPOST_METRICS_ADDRESS",
        value_name = "IP:PORT",
        default_value = "0.0.0.0:10262"
    )]
    pub metrics_address: SocketAddr,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_flag_has_a_variable_and_a_sentence() {
        let command = Arguments::command();
        command.clone().debug_assert();
        let run = command.find_subcommand("run").expect("the command exists");
        let flags = run.get_arguments().chain(command.get_arguments());
        for flag in flags.filter(|flag| !matches!(flag.get_id().as_str(), "help" | "version")) {
            assert!(
                flag.get_env().is_some(),
                "{} has no variable",
                flag.get_id()
            );
            let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.len() > 10, "{} says {help:?}", flag.get_id());
        }
    }
}
