//! Servers and clients inside namespaces.

use std::env;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dataplane::Protocol;

use super::{Namespace, Outcome, Process, Tally};
use crate::deadline::patience;

/// How long a server may take to listen, a client to connect for the first time, and either to end.
const PROMPTLY: Duration = Duration::from_secs(10);

/// The ephemeral ports of Linux (`ip_local_port_range`). No Service has a node port in this range.
pub const CLIENT_PORTS: RangeInclusive<u16> = 32768..=60999;
/// The number of ports reserved for a long-running client before its range overlaps with others.
const PORTS_OF_TRAFFIC: u16 = 4096;

/// The time limit of a TCP handshake in a long-running client: less than the second after which
/// Linux retransmits a lost SYN (RFC 6298), so that a connection that succeeded only by
/// retransmission counts as lost. Kernels complete handshakes without their processes, however busy
/// the machine is.
const HANDSHAKE: Duration = Duration::from_millis(900);

/// A server that answers TCP connections and UDP datagrams. It stops on drop.
#[derive(Debug)]
pub struct Server {
    #[expect(dead_code, reason = "held for the sake of its end")]
    process: Process,
}

/// The parameters of a client.
#[derive(Debug, Clone, Copy)]
pub struct Probe {
    /// TCP, UDP, or SCTP if the kernel supports it.
    pub protocol: Protocol,
    /// The source address; `None` lets the kernel choose.
    pub source: Option<IpAddr>,
    /// The destination.
    pub destination: SocketAddr,
    /// The timeout of an answer.
    pub deadline: Duration,
}

/// A client that makes consecutive connections, or requests over a kept one, until
/// [`Traffic::stop`].
#[derive(Debug)]
pub struct Traffic {
    process: Process,
}

/// Starts a server called `name` on `addresses` with each protocol. Returns once it listens.
pub fn start_server(inside: &Namespace, name: &str, addresses: &[SocketAddr]) -> Result<Server> {
    let mut command = inside.command(own_program("echo-server")?);
    command.arg(name);
    command.args(addresses.iter().map(SocketAddr::to_string));
    let mut process = Process::start(&format!("the server {name}"), command)?;
    process.wait_for_line("listening", PROMPTLY)?;
    Ok(Server { process })
}

/// Makes `count` consecutive connections; returns their outcomes.
pub fn probe(inside: &Namespace, probe: &Probe, count: u32) -> Result<Vec<Outcome>> {
    let mut command = inside.command(own_program("probe")?);
    command.arg("once").arg("--count").arg(count.to_string());
    let ports = u16::try_from(count).context("too many connections")?;
    add_arguments(&mut command, probe, ports);
    let process = Process::start("a client", command)?;
    let lines = process.finish(probe.deadline * count + PROMPTLY)?;
    let outcomes: Vec<Outcome> = lines.iter().map(|l| l.parse()).collect::<Result<_>>()?;
    ensure!(
        u32::try_from(outcomes.len()) == Ok(count),
        "a client made {} connections instead of {count}",
        outcomes.len()
    );
    Ok(outcomes)
}

/// Starts a client that makes a new connection every `interval`. Returns after the first answer.
pub fn start_traffic(inside: &Namespace, probe: &Probe, interval: Duration) -> Result<Traffic> {
    let handshake = patience(HANDSHAKE.min(probe.deadline)).as_millis();
    let mode = ["watch", "--handshake-ms", &handshake.to_string()];
    start(&mode, inside, probe, interval)
}

/// Starts a client that makes a request every `interval` over one connection, which is replaced
/// only after a failure. Returns after the first answer.
pub fn keep_connection(inside: &Namespace, probe: &Probe, interval: Duration) -> Result<Traffic> {
    start(&["keep"], inside, probe, interval)
}

fn start(mode: &[&str], inside: &Namespace, probe: &Probe, interval: Duration) -> Result<Traffic> {
    let mut command = inside.command(own_program("probe")?);
    let interval = interval.as_millis().to_string();
    command.args(mode).args(["--every-ms", &interval]);
    add_arguments(&mut command, probe, PORTS_OF_TRAFFIC);
    let mut process = Process::start("a client", command)?;
    process.wait_for_line("running", PROMPTLY)?;
    Ok(Traffic { process })
}

// === impl Traffic ===

impl Traffic {
    /// Stops the client; returns the outcomes of its connections or requests.
    pub fn stop(self) -> Result<Tally> {
        let lines = self.process.finish(PROMPTLY)?;
        let line = lines.last().context("a client counted nothing")?;
        serde_json::from_str(line).with_context(|| format!("a client ended with {line:?}"))
    }
}

fn add_arguments(command: &mut std::process::Command, probe: &Probe, ports: u16) {
    command.args(["--first-port", &reserve_ports(ports).to_string()]);
    let deadline = patience(probe.deadline).as_millis().to_string();
    command.args(["--deadline-ms", &deadline]);
    if let Some(source) = probe.source {
        command.args(["--from", &source.to_string()]);
    }
    command.arg(probe.protocol.to_string());
    command.arg(probe.destination.to_string());
}

/// Reserves `count` source ports and returns the first. No other client of this process receives
/// them until all of [`CLIENT_PORTS`] have been used: over UDP, conntrack treats a port reused
/// within two minutes as the same flow and keeps its old destination.
fn reserve_ports(count: u16) -> u16 {
    static FREE: AtomicU16 = AtomicU16::new(*CLIENT_PORTS.start());
    let (first, last) = CLIENT_PORTS.into_inner();
    let reserve = |free: u16| {
        let next = free.checked_add(count).filter(|next| *next <= last);
        Some(next.unwrap_or(first))
    };
    match FREE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve) {
        Ok(free) | Err(free) => free,
    }
}

/// Returns the path of a program of this package. Cargo builds it before the tests, in one of their
/// parent folders.
fn own_program(name: &str) -> Result<PathBuf> {
    let test = env::current_exe().context("failed to find this program")?;
    let mut folders = test.ancestors().skip(1).map(|folder| folder.join(name));
    folders
        .find(|program| program.is_file())
        .with_context(|| format!("{name} is not built: cargo build -p demo --bins"))
}
