//! kube-proxy and Signpost, measured side by side: `make bench`.
//!
//! ```text
//!                     control: etcd, API server <-- Writer
//!                    |                           |
//!  clients -- node-1, kube-proxy    |    node-1, signpost-agent -- clients
//!                 `-- servers       |          servers --'
//! ```
//!
//! Each contender has a separate node in an [`Arena`], with the same name and addresses, and only
//! one runs at a time. A round of one contender starts and ends with an empty kernel
//! ([`measure_round`]). The state of the kernel is read from the kernel: an [`RuleReader`] lists the
//! programmed rules, an [`ListenerThread`] receives a notification of each change. A round produces a
//! [`Reading`] for each [`Row`]; the readings of all rounds are the [`Figures`], which become a
//! table and a chart.

pub(crate) mod arena;
mod chart;
pub(crate) mod contender;
mod course;
mod decode;
pub(crate) mod echo;
mod figures;
mod large;
mod listener_thread;
mod machine;
mod neighbour;
pub(crate) mod netlink_dump;
mod packets;
pub(crate) mod population;
pub(crate) mod process_tree;
mod report;
mod row;
mod rule_reader;
mod saved_rules;
mod store;
mod virtual_server_table;
pub(crate) mod writer;

pub use arena::Arena;
pub use contender::Contender;
pub use course::{Effort, measure_round};
pub use decode::{Decoded, measure_decoding};
pub use figures::{Figures, Reading};
pub use listener_thread::ListenerThread;
pub use machine::Machine;
pub use population::Population;
pub use report::{Other, Report, Run};
pub use row::{Measure, Row};
pub use rule_reader::{RuleReader, Sighting};
