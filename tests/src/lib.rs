//! Harnesses for tests that need more than one crate: real networks, scenarios.

pub mod bench;
pub mod binaries;
pub mod build_script;
pub mod cluster;
pub mod conformance;
pub mod control_link;
pub mod control_plane;
pub mod deadline;
pub mod demo;
pub mod differential;
pub mod kernel_rig;
pub mod lone_agent;
pub mod network;
pub mod programmed;
pub mod real_cluster;
pub mod scenario;
pub mod shared;
pub mod stamped;
pub mod system_clock;
pub mod trial;
