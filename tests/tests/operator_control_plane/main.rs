//! The operator as a process with the permissions of its manifests, against a real API server.
//!
//! The tests create the nodes and report in place of their agents, each with the token of its own
//! node.

mod agents;
mod archive;
mod cluster;
mod command_line;
mod faults;
mod leases;
mod migration;
mod objects;
mod operator;
mod profiles;
mod rights;
mod rollouts;
mod terminal;

use std::time::Duration;

/// Everything happens within a second or two; the rest is a reserve for busy machines.
const DEADLINE: Duration = Duration::from_secs(60);

const NAMESPACE: &str = "signpost-system";

const NODES: [&str; 3] = ["n1", "n2", "n3"];
