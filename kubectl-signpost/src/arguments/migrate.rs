//! The command line of `migrate`.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::{Format, duration};

/// In which direction nodes move.
#[derive(Debug, Subcommand)]
pub enum MigrateStep {
    /// Show which proxy serves each node, its next step, what stops it, and what a profile does not carry over from
    /// kube-proxy's configuration. Changes nothing. Exits with 3 if anything stops a node, such as a kube-proxy that runs.
    Plan(PlanOptions),
    /// Move nodes from kube-proxy to Signpost: one node first, then the others, eight at once, until one fails. Refuses
    /// nodes on which a Pod of kube-proxy runs. Exits with 3 unless Signpost serves all of them in the end.
    Takeover(HandoverOptions),
    /// Return nodes to a kube-proxy that runs again: one node first, then the others, eight at once, until one fails. Exits
    /// with 3 unless kube-proxy serves all of them in the end.
    Handback(HandoverOptions),
}

/// Which nodes, and how they are printed.
#[derive(Debug, Args)]
pub struct PlanOptions {
    /// A node; may be given more than once. All nodes by default.
    #[arg(long = "node", value_name = "NODE")]
    pub nodes: Vec<String>,
    /// The format: text, wide (with what each agent says of kube-proxy), json or yaml.
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    pub output: Format,
}

/// Which nodes, and how far to go.
#[derive(Debug, Args)]
pub struct HandoverOptions {
    /// A node; may be given more than once. All nodes by default.
    #[arg(long = "node", value_name = "NODE")]
    pub nodes: Vec<String>,
    /// Print what the agents of all these nodes find, and change nothing.
    #[arg(long, conflicts_with = "force")]
    pub dry_run: bool,
    /// Continue in spite of the agents' warnings. Connections may be lost.
    #[arg(long)]
    pub force: bool,
    /// How long a node may take until its NodeProxy says which proxy serves it.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub timeout: Duration,
}
