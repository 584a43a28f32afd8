//! The cost of the operator in a cluster of many nodes: `make fleet`. See `bench/README.md`.
//!
//! ```text
//!   operator (the real program) --watches, writes--> kube-apiserver, etcd (real)
//!                                                          ^
//!   nodes, and the agents of all nodes, in this process ---'
//! ```
//!
//! The agents are simulated: one connection watches all NodeProxies, and writes for each node the
//! status that its agent would write, as often as an agent does. Agents' own watches, of Services
//! for instance, are not simulated.

mod agents;
mod api_server;
mod course;
mod operator;

use std::fmt;
use std::time::Duration;

use crate::bench::process_tree::Bytes;

pub use course::measure;

/// The number of concurrent requests. More are no faster on two processors, and an API server that
/// must queue them answers 429.
const AT_A_TIME: usize = 16;

/// The results for one size of cluster.
#[derive(Debug, Clone)]
pub struct Figures {
    /// The number of nodes.
    pub nodes: usize,
    /// The time from the creation of the first Node until the profile's status reports all nodes
    /// ready.
    pub join: Duration,
    /// The load while nothing changes.
    pub rest: Load,
    /// The load while the endpoints of a Service change on every node.
    pub churn: Load,
    /// An edit of the profile while nothing else changes.
    pub edit: Edit,
    /// An edit of the profile under churn.
    pub edit_under_churn: Edit,
}

/// The load during one period.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// The agents' writes per second.
    pub agents: f64,
    /// The operator's writes per second: NodeProxies, statuses of profiles, Events, its lease.
    pub operator: f64,
    /// The processor time of the operator, in percent of one processor.
    pub processor: f64,
    /// The processor time of the API server, in percent of one processor.
    pub api_server: f64,
    /// The resident memory of the operator at the end.
    memory: Bytes,
}

/// How fast an edited profile reaches the nodes.
#[derive(Debug, Clone, Copy)]
pub struct Edit {
    /// The time until the profile's status is about the edit.
    pub status: Duration,
    /// The time until the first node has its new configuration.
    pub first: Duration,
    /// The time until the status reports that all nodes have it and are ready.
    pub all: Duration,
    /// The time of the same writes in waves of the same sizes without an operator.
    pub least: Duration,
}

// === impl Figures ===

impl Figures {
    /// Renders a table with one column for each of `sizes`.
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
