//! Signpost on one machine without a cluster: real networks in namespaces with servers and clients,
//! a real agent, and `make demo`, which uses them. The tests use them too.

pub mod binaries;
pub mod deadline;
pub mod lone_agent;
pub mod network;
mod show;

pub use show::{
    Interrupted, Interruption, Removal, Restart, Screen, Spread, Style, Summary, perform,
};
