//! kube-proxy and Signpost, measured side by side: `make bench`.
//!
//! ```text
//!                     control: etcd, API server <-- Writer
//!                    |                           |
//!  clients -- node-1, kube-proxy    |    node-1, signpost-agent -- clients
//!                 `-- servers       |          servers --'
//! ```
//!
//! Each contender has a node of its own in an [`Arena`], with the same name and addresses, and only
//! one runs at a time. What one of them goes through in one round starts with an empty kernel and
//! ends with one ([`measure_round`]). What is in the kernel is asked of the kernel: an [`Eye`] lists
//! what is programmed, an [`Ear`] hears of each change. What comes out of a round is a [`Reading`]
//! for each [`Row`]; all rounds together are the [`Figures`], which become a table and a chart.

mod arena;
mod chart;
mod contender;
mod course;
mod decode;
mod ear;
mod echo;
mod eye;
mod figures;
mod large;
mod machine;
mod neighbour;
mod netlink_dump;
mod packets;
mod population;
pub(crate) mod process_tree;
mod report;
mod row;
mod saved_rules;
mod store;
mod writer;

pub use arena::Arena;
pub use contender::Contender;
pub use course::{Effort, measure_round};
pub use decode::{Decoded, measure_decoding};
pub use ear::Ear;
pub use eye::{Eye, Sighting};
pub use figures::{Figures, Reading};
pub use machine::Machine;
pub use population::Population;
pub use report::{Other, Report, Run};
pub use row::{Measure, Row};
