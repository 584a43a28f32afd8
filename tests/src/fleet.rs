//! What the operator costs a cluster of many nodes: `make fleet`. See `bench/README.md`.
//!
//! ```text
//!   operator (the real program) --watches, writes--> kube-apiserver, etcd (real)
//!                                                          ^
//!   nodes, and the agents of all nodes, in this process ---'
//! ```
//!
//! The agents are simulated: one connection watches all NodeProxies, and writes for each node the status that
//! its agent would write, as often as an agent does. Agents' own watches, of Services for instance, are not
//! simulated.

mod agents;
mod api_server;
mod course;
mod operator;

use std::fmt;
use std::time::Duration;

use crate::bench::process_tree::Bytes;

pub use course::measure;

/// Requests under way at a time. More make two processors no faster, and an API server that has to
/// queue them answers 429.
const AT_A_TIME: usize = 16;

/// What one size of cluster came to.
#[derive(Debug, Clone)]
pub struct Figures {
    /// Nodes.
    pub nodes: usize,
    /// From the first Node that is created until the profile's status says that all are ready.
    pub join: Duration,
    /// While nothing changes.
    pub rest: Load,
    /// While the endpoints of a Service change on every node.
    pub churn: Load,
    /// The profile is edited, and nothing else changes.
    pub edit: Edit,
    /// The profile is edited under churn.
    pub edit_under_churn: Edit,
}

/// What one period costs.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Writes of agents a second.
    pub agents: f64,
    /// Writes of the operator a second: NodeProxies, statuses of profiles, Events, its lease.
    pub operator: f64,
    /// Processor time of the operator, in percent of one processor.
    pub processor: f64,
    /// The same of the API server.
    pub api_server: f64,
    /// Resident memory of the operator at the end.
    memory: Bytes,
}

/// How an edited profile reaches the nodes.
#[derive(Debug, Clone, Copy)]
pub struct Edit {
    /// Until the status of the profile is about the edit.
    pub status: Duration,
    /// Until the first node has its new configuration.
    pub first: Duration,
    /// Until the status says that all nodes have it and are ready.
    pub all: Duration,
    /// What the same writes take in waves of the same sizes without an operator.
    pub least: Duration,
}

// === impl Figures ===

impl Figures {
    /// The rows of a table, one column for each of `sizes`.
    pub fn table(sizes: &[Figures]) -> String {
        type Row = (&'static str, fn(&Figures) -> String);
        let rows: [Row; 12] = [
            ("nodes", |f| f.nodes.to_string()),
            ("all nodes join, until the status says so", |f| {
                seconds(f.join)
            }),
            ("at rest: writes a second, agents + operator", |f| {
                f.rest.writes()
            }),
            ("at rest: processor, operator + API server", |f| {
                f.rest.processors()
            }),
            ("at rest: memory of the operator", |f| f.rest.megabytes()),
            ("churn: writes a second, agents + operator", |f| {
                f.churn.writes()
            }),
            ("churn: processor, operator + API server", |f| {
                f.churn.processors()
            }),
            ("churn: memory of the operator", |f| f.churn.megabytes()),
            ("edit: until the status is about it; first node", |f| {
                f.edit.beginning()
            }),
            ("edit: all nodes; ratio to the least time", |f| f.edit.end()),
            (
                "edit under churn: until the status is about it; first node",
                |f| f.edit_under_churn.beginning(),
            ),
            (
                "edit under churn: all nodes; ratio to the least time",
                |f| f.edit_under_churn.end(),
            ),
        ];
        let mut lines = Vec::new();
        for (number, (name, figure)) in rows.iter().enumerate() {
            let cells: Vec<String> = sizes.iter().map(figure).collect();
            lines.push(format!("| {name} | {} |", cells.join(" | ")));
            if number == 0 {
                lines.push(format!("|{}", "---|".repeat(sizes.len() + 1)));
            }
        }
        lines.join("\n")
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} writes/s, {}, {}",
            self.writes(),
            self.processors(),
            self.megabytes()
        )
    }
}

// === impl Load ===

impl Load {
    fn writes(&self) -> String {
        format!("{:.1} + {:.1}", self.agents, self.operator)
    }

    fn processors(&self) -> String {
        format!("{:.1} % + {:.1} %", self.processor, self.api_server)
    }

    fn megabytes(&self) -> String {
        format!("{} MB", self.memory.0 / 1_000_000)
    }
}

// === impl Edit ===

impl Edit {
    fn beginning(&self) -> String {
        format!("{}; {}", seconds(self.status), seconds(self.first))
    }

    fn end(&self) -> String {
        let ratio = self.all.as_secs_f64() / self.least.as_secs_f64();
        format!("{}; {ratio:.1}", seconds(self.all))
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
