//! Harnesses for tests that need more than one crate: real networks, scenarios.

pub mod agent_tracer;
pub mod bench;
pub mod browser;
pub mod build_script;
pub mod cluster;
pub mod conformance;
pub mod control_link;
pub mod control_plane;
pub mod differential;
pub mod extent;
pub mod flag_reference;
pub mod fleet;
pub mod forwarding_node;
pub mod iptables_program;
pub mod ipvs_support;
pub mod kernel_rig;
pub mod kernels;
pub mod load_balancer;
pub mod metric_reference;
pub mod ordinary_service;
pub mod other_rules;
pub mod pool;
pub mod programmed;
pub mod questions;
pub mod real_cluster;
pub mod scenario;
pub mod shared;
pub mod soak;
pub mod stamped;
pub mod sysdump;
pub mod table_owner;
pub mod tcp_connections;
pub mod test_run;
pub mod trial;
pub mod xtables_lock;

// The demo uses these modules too and is built without the rest.
pub use demo::{binaries, deadline, lone_agent, network};
