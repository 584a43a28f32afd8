//! Real networks for tests: namespaces, links between them, servers and clients inside them.
//!
//! ```text
//!  outside (203.0.113.x)                     pods of node 1 (10.0.1.x)
//!          |                                    | veth5   | veth9
//!        world ------------ eth0 of node-1 ---- node-1 ---'
//!          |  `------------ eth0 of node-2 ---- node-2 ---- pods of node 2 (10.0.2.x)
//!       others
//! ```
//!
//! Every host has an address of each family from [`address_plan`]. `world` routes between nodes,
//! clients and others, and routes Service addresses to the first node. Nothing here changes the
//! network of the machine: links are created inside namespaces. Namespaces are named
//! `sp-PID-N-NAME`. They are removed when their [`Network`] is dropped, also by a panic; if their
//! process was killed, the next test removes them.
//!
//! Creating namespaces requires root or unprivileged user namespaces: a test target calls
//! [`enter_private_namespaces`] at the start of its `main`.

mod busy_writer;
mod connection;
mod connections;
mod http;
mod isolation;
mod namespace;
mod outcome;
mod process;
mod sctp;
mod standstill;
mod tally;
mod topology;
mod traffic;

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};

pub use busy_writer::BusyWriter;
pub use connection::{Connection, Kept, SourcePorts, Transport};
pub use connections::{Connections, Kind, Way};
pub use isolation::enter_private_namespaces;
pub use namespace::Namespace;
pub use outcome::Outcome;
pub use process::Process;
pub use sctp::sctp_socket;
use standstill::StandstillWatch;
pub use tally::Tally;
pub use topology::{Outsider, Plan, PlannedNode, Topology};
pub use traffic::{
    CLIENT_PORTS, Probe, Server, Traffic, keep_connection, probe, start_server, start_traffic,
};

/// The folder in which iproute2 keeps the names of namespaces.
const NAMES: &str = "/run/netns";
/// The prefix of the names of test namespaces.
const PREFIX: &str = "sp-";

/// Namespaces that are removed on drop.
#[derive(Debug)]
pub struct Network {
    number: u32,
    namespaces: Vec<Namespace>,
}

/// A veth pair with both ends down.
#[derive(Debug, Clone, Copy)]
pub struct Link<'a> {
    /// The namespace of one end and the name of its interface.
    pub from: (&'a Namespace, &'a str),
    /// The namespace of the other end and the name of its interface.
    pub to: (&'a Namespace, &'a str),
}

// === impl Network ===

impl Network {
    /// Creates a network without namespaces. Removes the leftovers of processes that no longer run.
    pub fn new() -> Result<Network> {
        // Networks of one process are numbered.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        sweep_stale()?;
        Ok(Network {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            namespaces: Vec::new(),
        })
    }

    /// Creates namespaces with these short names, with loopback up and without duplicate address
    /// detection: addresses are usable at once.
    pub fn add_namespaces<const N: usize>(&mut self, names: [&str; N]) -> Result<[Namespace; N]> {
        let namespaces = names.map(|name| {
            let process = std::process::id();
            Namespace::named(&format!("{PREFIX}{process}-{}-{name}", self.number))
        });
        let mut batch = String::new();
        for namespace in &namespaces {
            writeln!(batch, "netns add {}", namespace.name())?;
        }
        // Recorded before they are created, so that those created before a failure are removed.
        self.namespaces.extend(namespaces.iter().cloned());
        namespace::run_ip(&["-batch", "-"], &batch).context(
            "unable to make network namespaces (they take root or unprivileged user namespaces)",
        )?;
        for namespace in &namespaces {
            // Absent if the kernel was booted without IPv6.
            if Path::new("/proc/sys/net/ipv6").exists() {
                namespace.set_sysctls(&[
                    ("net/ipv6/conf/all/accept_dad", "0"),
                    ("net/ipv6/conf/default/accept_dad", "0"),
                ])?;
            }
            namespace.configure("link set lo up")?;
        }
        Ok(namespaces)
    }

    /// Removes a namespace before the others. Processes in it keep it alive without its name.
    pub fn remove_namespace(&mut self, namespace: &Namespace) -> Result<()> {
        self.namespaces
            .retain(|kept| kept.name() != namespace.name());
        delete(namespace.name())
    }

    /// Creates links between namespaces.
    pub fn add_links(&self, links: &[Link<'_>]) -> Result<()> {
        let mut batch = String::new();
        for Link { from, to } in links {
            let ((from, from_name), (to, to_name)) = (from, to);
            writeln!(
                batch,
                "link add name {from_name} netns {} type veth peer name {to_name} netns {}",
                from.name(),
                to.name()
            )?;
        }
        namespace::run_ip(&["-batch", "-"], &batch)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in &self.namespaces {
            if Path::new(NAMES).join(namespace.name()).exists()
                && let Err(error) = delete(namespace.name())
            {
                eprintln!("{error:#}");
            }
        }
    }
}

/// Returns the names of the existing test namespaces of process `pid`.
pub fn namespaces_of(pid: u32) -> Result<Vec<String>> {
    let own = format!("{PREFIX}{pid}-");
    Ok(observe_names()?
        .into_iter()
        .filter(|name| name.starts_with(&own))
        .collect())
}

fn sweep_stale() -> Result<()> {
    for name in observe_names()? {
        let Some(pid) = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split('-').next())
        else {
            continue;
        };
        let runs = Path::new("/proc").join(pid).exists();
        // A concurrent process may remove it first, which is fine.
        if !runs && delete(&name).is_err() {
            ensure!(
                !Path::new(NAMES).join(&name).exists(),
                "failed to remove the network namespace {name} of a process that no longer runs"
            );
        }
    }
    Ok(())
}

fn observe_names() -> Result<Vec<String>> {
    let entries = match std::fs::read_dir(NAMES) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).context("failed to list network namespaces"),
    };
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect()
}

fn delete(name: &str) -> Result<()> {
    let output = Command::new("ip")
        .args(["netns", "delete", name])
        .output()?;
    ensure!(
        output.status.success(),
        "failed to remove the network namespace {name}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
