//! Client-side measurements: how long the first packet of a connection takes, how many connections
//! are possible, and what a packet of an established flow costs.
//!
//! The client and the servers each run on a separate processor if there are two.

use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dataplane::Protocol;
use rustix::thread::CpuSet;
use socket2::{Domain, Socket, Type};
use testkit::Seeded;

use super::arena::ContenderNode;
use super::echo::Servers;
use super::machine::observe_busy_time;
use super::population::{Population, frontend, protocol};

/// The timeout of an answer. A missing answer is an error: there is no loss between namespaces.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// The number of warm-up connections, which fill caches and resolve the path to the servers.
const WARMING_UP: usize = 50;

/// The results of the clients.
#[derive(Debug)]
pub(super) struct Noticed {
    /// From SYN to SYN-ACK, as `connect` sees it.
    pub(super) tcp: Vec<Duration>,
    /// From the first datagram to its answer.
    pub(super) udp: Vec<Duration>,
    /// New TCP connections per second.
    pub(super) connections: f64,
    /// A flow of UDP to a Service.
    pub(super) through_service: Flow,
    /// A flow of UDP to an endpoint's own address.
    pub(super) direct: Flow,
}

/// A client that sends datagrams from one port and waits for the answer to each.
#[derive(Debug)]
pub(super) struct Flow {
    /// From each datagram to its answer.
    pub(super) round_trips: Vec<Duration>,
    /// The processor time of the whole machine for each packet, client and server included.
    pub(super) processor: Duration,
}

/// Makes `count` connections of each protocol to random Services, then TCP connections for
/// `connecting`.
pub(super) fn connect_from_pod(
    stand: &ContenderNode,
    population: &Population,
    count: usize,
    connecting: Duration,
) -> Result<Noticed> {
    let processors = thread::available_parallelism()?.get();
    let servers = Servers::start(&stand.servers, only(processors - 1))?;
    let mut services = Seeded::new(u64::from(population.services()));
    let mut next = |expected: Protocol| {
        let count = usize::try_from(population.services()).unwrap_or(usize::MAX);
        loop {
            let service = u32::try_from(services.below(count)).unwrap_or(0);
            if protocol(service) == expected || count == 1 {
                return frontend(service);
            }
        }
    };
    let noticed = stand.client.enter(|| {
        rustix::thread::sched_setaffinity(None, &only(0))?;
        let mut of = |protocol, one: fn(SocketAddr) -> Result<Duration>| {
            for _ in 0..WARMING_UP {
                one(next(protocol))?;
            }
            let times = (0..count).map(|_| one(next(protocol)));
            times.collect::<Result<Vec<Duration>>>()
        };
        let tcp = of(Protocol::Tcp, connect)?;
        let udp = of(Protocol::Udp, ask)?;
        let (mut made, started) = (0u32, Instant::now());
        while started.elapsed() < connecting {
            complete(next(Protocol::Tcp))?;
            made += 1;
        }
        let connections = f64::from(made) / started.elapsed().as_secs_f64();
        let to = next(Protocol::Udp);
        anyhow::Ok(Noticed {
            tcp,
            udp,
            connections,
            through_service: follow(to, connecting)?,
            direct: follow(population.endpoint_of(to), connecting)?,
        })
    })??;
    servers.stop()?;
    Ok(noticed)
}

fn only(processor: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(processor);
    set
}

/// Returns the time to connect: the server's kernel answers, independently of the server process.
fn connect(to: SocketAddr) -> Result<Duration> {
    let (_, took) = open(to)?;
    Ok(took)
}

/// Connects and waits until the server has accepted and closed the connection.
fn complete(to: SocketAddr) -> Result<()> {
    let (mut socket, _) = open(to)?;
    let length = socket.read(&mut [0; 8])?;
    ensure!(length == 0, "{to} sends something");
    Ok(())
}

fn open(to: SocketAddr) -> Result<(Socket, Duration)> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    // The write timeout also limits a blocking connect (socket(7)).
    socket.set_write_timeout(Some(ANSWERS_WITHIN))?;
    socket.set_read_timeout(Some(ANSWERS_WITHIN))?;
    // Close with RST, so that no port stays in TIME_WAIT.
    socket.set_linger(Some(Duration::ZERO))?;
    let started = Instant::now();
    let connected = socket.connect(&to.into());
    let took = started.elapsed();
    connected.with_context(|| format!("no server takes connections at {to}"))?;
    Ok((socket, took))
}

fn ask(at: SocketAddr) -> Result<Duration> {
    ask_from(&client_of(at)?, at)
}

/// Asks from one port until `period` is over.
fn follow(at: SocketAddr, period: Duration) -> Result<Flow> {
    let client = client_of(at)?;
    for _ in 0..WARMING_UP {
        ask_from(&client, at)?;
    }
    let (busy, started) = (observe_busy_time()?, Instant::now());
    let mut round_trips = Vec::new();
    while started.elapsed() < period {
        round_trips.push(ask_from(&client, at)?);
    }
    let packets = u32::try_from(2 * round_trips.len())?;
    let processor = observe_busy_time()?.saturating_sub(busy) / packets.max(1);
    Ok(Flow {
        round_trips,
        processor,
    })
}

fn client_of(at: SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_read_timeout(Some(ANSWERS_WITHIN))?;
    socket.connect(at)?;
    Ok(socket)
}

fn ask_from(socket: &UdpSocket, at: SocketAddr) -> Result<Duration> {
    let started = Instant::now();
    socket.send(b"?")?;
    let answered = socket.recv(&mut [0; 8]);
    let took = started.elapsed();
    let length = answered.with_context(|| format!("no server answers at {at}"))?;
    ensure!(length == 1, "{at} answers something else");
    Ok(took)
}
