//! The cost of the operator in a cluster of many nodes: `make fleet`. See `bench/README.md`.
//!
//! ```text
//!   operator (the real program) --watches, writes--> kube-apiserver, etcd (real)
//!                                                          ^
//!   nodes, and the agents of all nodes, in this process ---'
//! ```
//!
//! The agents are simulated: one connection watches all NodeProxies, and a task for each node writes
//! the status that its agent would write, as often as an agent does. Agents' own watches, of Services
//! for instance, are not simulated.

mod agent;
mod agent_status;
mod agents;
mod api_server;
mod course;
mod delays;
mod figures;
mod handover;
mod node;
mod operator;

use std::time::Duration;

pub use agent_status::{paths_of, simulated_status};
pub use api_server::Requests;
pub use course::measure;
pub use delays::Delays;
pub use figures::{Edit, Figures, Load};
pub use handover::{HandoverFigures, Handovers, RefusedTakeover};

/// The number of concurrent requests of one kind. More are no faster on two processors, and an API
/// server that must queue them answers 429.
const AT_A_TIME: usize = 16;

/// What to measure.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// The number of nodes.
    pub nodes: usize,
    /// The length of each observed period.
    pub watched: Duration,
    /// The number of nodes whose report, that they are not ready and that they are ready again, is
    /// followed to the profile's status, at rest and under churn.
    pub tries: u32,
}
