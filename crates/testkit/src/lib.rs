//! Test support for all crates: an address plan, builders for objects of the model, generators of
//! whole clusters, hostile tenants, histories, packets and damage, a backend over a simulated kernel,
//! faults for any backend, the laws that every backend obeys, and damaged input for parsers.
//!
//! ```
//! use testkit::{mk_endpoints, mk_service};
//!
//! let service = mk_service("shop/web")
//!     .cluster_ip("10.96.0.10")
//!     .port("http", 80)
//!     .node_port(30080)
//!     .build();
//! let endpoints = mk_endpoints()
//!     .tcp("http")
//!     .ready("10.0.1.5:8080", "node-1")
//!     .draining("10.0.2.7:8080", "node-2")
//!     .build();
//! assert_eq!(service.ports.len(), endpoints.by_port.len());
//! ```
//!
//! Builders take text as in a manifest and panic on text that is not an address or a port, since
//! then the test is wrong.

pub use address_plan;
mod build_endpoints;
mod build_node;
mod build_service;
mod damage;
mod damage_json;
mod fake_backend;
mod fake_inspect;
mod fake_rules;
mod faulty_backend;
mod generate_cluster;
mod generate_endpoints;
mod generate_history;
mod generate_packet;
mod generate_shared_addresses;
mod generate_table_damage;
mod generate_tenant;
mod in_memory_backend;
pub mod laws;
mod seeded;

pub use build_endpoints::{EndpointsBuilder, mk_endpoints};
pub use build_node::{ConfigBuilder, NodeBuilder, mk_config, mk_node};
pub use build_service::{ServiceBuilder, mk_service};
pub use damage::{Input, corpus, damaged, try_many};
pub use damage_json::damaged_json;
pub use fake_backend::{FakeBackend, FakeKernel};
pub use fake_rules::{FakeBase, FakeChange, FakeOperation, FakeRules};
pub use faulty_backend::{Call, CallOutcome, Faulty};
pub use generate_cluster::{Cluster, clusters};
pub use generate_history::{changes, histories};
pub use generate_packet::{packets, questions};
pub use generate_shared_addresses::services_at_shared_addresses;
pub use generate_table_damage::{TableDamage, table_damages};
pub use generate_tenant::{clusters_with_tenants, questions_beside_tenants};
pub use in_memory_backend::{InMemoryBackend, Replay};
pub use seeded::Seeded;

use dataplane::Port;

/// The port with this number.
///
/// # Panics
///
/// For port 0.
#[track_caller]
pub fn port(number: u16) -> Port {
    Port::new(number).expect("a test names a port from 1 to 65535")
}

/// Parses text that a test contains.
#[track_caller]
fn parse<T: std::str::FromStr>(text: &str, what: &str) -> T {
    let Ok(value) = text.parse() else {
        panic!("{text:?} is not {what}");
    };
    value
}

/// The number of cases of a property: `PROPTEST_CASES`, which a fixed number in the code would
/// override, or `few`.
pub fn cases(few: u32) -> u32 {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => proptest::test_runner::Config::default().cases,
        None => few,
    }
}
