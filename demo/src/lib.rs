//! Signpost on one machine without a cluster: real networks in namespaces, servers and clients in
//! them, a real agent, and what `make demo` shows with these. Tests build on the same.

pub mod binaries;
pub mod deadline;
pub mod lone_agent;
pub mod network;
mod show;

pub use show::{
    Interrupted, Interruption, Removal, Restart, Screen, Spread, Style, Summary, perform,
};
