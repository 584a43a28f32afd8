//! A long day on two nodes, with everything that goes wrong in one: `make soak`. See
//! `bench/README.md`.
//!
//! ```text
//!           control: etcd, API server <-- changes of endpoints
//!                |                   |
//!  clients -- node, agent          node, agent -- clients
//!               `-- servers          servers --'
//! ```
//!
//! Both agents serve the same Services. Rules are flushed on both nodes, the API server goes away for
//! both, and one of the agents is killed again and again; the other runs from beginning to end.

mod changes;
mod clients;
mod course;
mod figures;
mod node;
mod servers;

use std::time::Duration;

use anyhow::{Result, ensure};

pub use course::measure;
pub use figures::{Figures, Interval};

/// How long a change or a connection may take. What takes longer counts as lost.
const PATIENCE: Duration = Duration::from_secs(40);

/// What happens, how often and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// The number of Services, and of endpoints of each.
    pub size: (u32, u32),
    /// Endpoints that are replaced per second.
    pub changes: u32,
    /// New connections per second on each node, half of them TCP.
    pub connections: u32,
    /// TCP connections on each node that stay open all the time.
    pub kept: u32,
    /// The whole duration.
    pub duration: Duration,
    /// The duration of a row of the table.
    pub interval: Duration,
    /// The time from one flush of rules to the next.
    pub flush_every: Duration,
    /// The time from one kill of the agent to the next.
    pub kill_every: Duration,
    /// The time from one absence of the API server to the next.
    pub outage_every: Duration,
    /// How long the API server is away.
    pub outage: Duration,
}

// === impl Settings ===

impl Settings {
    /// Fails if a Service would change again while an earlier change of it may still be under way:
    /// a lost change could not be distinguished from one that was overtaken.
    fn ensure_separate_changes(&self) -> Result<()> {
        let (services, _) = self.size;
        let least = u64::from(self.changes) * PATIENCE.as_secs();
        ensure!(
            u64::from(services) > least,
            "{} changes a second take more than {least} Services",
            self.changes
        );
        Ok(())
    }
}
