//! Scenarios: readable test scripts that run against the oracle, a simulator and a kernel.
//!
//! ```text
//! # A Service with one endpoint on each of two nodes.
//!
//! apply   service slice
//! packet  pod 10.0.1.9 -> 10.96.0.10:80/tcp = 10.0.1.5:8080, 10.0.2.7:8080
//! expect  dataplane
//! restart
//! expect  no change
//!
//! -- service --
//! …Kubernetes YAML, as many documents as it takes…
//! -- slice --
//! …
//! -- dataplane --
//! …what the dataplane prints; UPDATE=1 writes it…
//! ```
//!
//! # Steps
//!
//! | step | does |
//! |---|---|
//! | `apply SECTION…` | creates or replaces the objects of these sections, all before anything is programmed |
//! | `delete SECTION…` | deletes them |
//! | `configure WORD…` | programs with the default configuration changed by these words, all of them in [`Setting`] |
//! | `restart` | discards all state but the objects, as a new process does, and programs again |
//! | `packet ORIGIN SOURCE -> DESTINATION:PORT/PROTOCOL = VERDICT` | checks where a packet goes |
//! | `keeps ORIGIN SOURCE -> DESTINATION:PORT/PROTOCOL = VERDICT` | a client connects again and again: always to one of these endpoints, and to that of its last `keeps` while it is among them |
//! | `expect no change` | the last step before that programs (one of the four above) wrote nothing |
//! | `expect DUMP [LABEL]` | what is programmed prints as the section `DUMP [LABEL]`: `dataplane`, `nftables`, `iptables` or `ipvs` at depths that have it, or `rejections` |
//!
//! A verdict is written as [`dataplane::Verdict`] prints it: endpoints, `masqueraded` behind those
//! whose packets leave with this node's address, or `reject`, `drop`, `untouched`.
//!
//! # Origins and addresses
//!
//! The node under test is `node-1`. Addresses are those of [`testkit::address_plan`]; `node` stands
//! for the node's own address of the source's family.
//!
//! | origin | IPv4 | IPv6 | comes in by |
//! |---|---|---|---|
//! | `pod` on this node | 10.0.1.N | fd00:10:0:1::N | `vethN` |
//! | `remote-pod` on node 2, routed as a client of its own | 10.0.2.N | fd00:10:0:2::N | `eth0` |
//! | `node` itself | 192.168.0.1, 172.20.0.1 | fd00:192:168::1, fd00:172:20::1 | |
//! | `loopback`, the node from that address | 127.0.0.1 | ::1 | |
//! | `outside` | 203.0.113.N | 2001:db8:113::N | `eth0` |
//!
//! | what | IPv4 | IPv6 |
//! |---|---|---|
//! | cluster IPs | 10.96.0.0/16 | fd00:10:96::/112 |
//! | of these, on a device of `node-1`, too | 10.96.0.200 | fd00:10:96::200 |
//! | link-local, of `node-1` | 169.254.20.1 | |
//! | load-balancer IPs | 192.0.2.0/24 | 2001:db8:2::/64 |
//! | external IPs | 198.51.100.0/24 | 2001:db8:51::/64 |
//!
//! # Depths
//!
//! The same file runs at every [`Depth`]: the [`Oracle`] (the verdict of the dataplane), a
//! [`Simulated`] backend (its rules, evaluated in this process) and a [`RealKernel`] (its rules in
//! a namespace, with real servers and connections).

mod affinity;
mod cluster;
mod depth;
mod golden;
mod iptables;
mod ipvs;
mod kernel;
mod nftables;
mod oracle;
mod packet_line;
mod real_kernels;
mod runner;
mod script;
mod setting;
mod simulated;

pub use affinity::Kept;
pub use cluster::Cluster;
pub use depth::{Depth, Judgement};
pub use golden::{Goldens, Update};
pub use iptables::iptables_form;
pub use ipvs::ipvs_form;
pub use kernel::RealKernel;
pub use nftables::nftables_form;
pub use oracle::Oracle;
pub use real_kernels::{believe_no_lie, remember_for_a_second, skipped_for_want_of_sctp};
pub use runner::{run, scenario_files, trials, trials_named};
pub use script::{Action, Dump, Expectation, ParseError, Script, Step};
pub use setting::Setting;
pub use simulated::{Form, Simulated, Walk};
