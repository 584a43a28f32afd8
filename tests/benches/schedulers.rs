//! What each scheduler costs in each mode: the first packet of a connection, and memory of the kernel
//! for a Service: `cargo bench --package tests --bench schedulers`. Without IPVS or
//! legacy iptables in the kernel, these have no figures; `tests/kernel-rig/run` has kernels with both.
//!
//! Each row has a separate network: a client, the node, and a host that has the addresses of all
//! endpoints. Each Service has five endpoints. Only ratios within one run count.

use std::fmt::Display;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use backend::{Backend, Rendered};
use backend_iptables::Lock;
use dataplane::{Config, Dataplane, Family, Mode, Scheduler};
use socket2::{Domain, Socket, Type};
use testkit::Seeded;
use tests::forwarding_node::connect;
use tests::ipvs_support::find_ipvs;
use tests::network::{Network, enter_private_namespaces};
use tests::ordinary_service::{config, service};
use tests::programmed::program;
use xtables::Variant;

const SERVICES: u16 = 1_000;
/// The number of measured connections, and of those before.
const CONNECTIONS: usize = 2_000;
const WARMING_UP: usize = 200;
/// The queue of a socket has 128 connections, far more than are made in this time.
const ACCEPTED_EVERY: Duration = Duration::from_millis(2);
/// Far longer than a connection takes.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// The kernel frees memory after a while. It has done so once this much does not change in a second.
const STEADY: u64 = 64 << 10;

const OF_NFTABLES: [Scheduler; 4] = [
    Scheduler::Random,
    Scheduler::RoundRobin,
    Scheduler::SourceHash,
    Scheduler::Maglev,
];
const OF_IPTABLES: [Scheduler; 2] = [Scheduler::Random, Scheduler::RoundRobin];
const OF_IPVS: [Scheduler; 13] = [
    Scheduler::RoundRobin,
    Scheduler::WeightedRoundRobin,
    Scheduler::LeastConnection,
    Scheduler::WeightedLeastConnection,
    Scheduler::ShortestExpectedDelay,
    Scheduler::NeverQueue,
    Scheduler::LocalityLeastConnection,
    Scheduler::LocalityLeastConnectionReplicated,
    Scheduler::DestinationHash,
    Scheduler::SourceHash,
    Scheduler::Maglev,
    Scheduler::Failover,
    Scheduler::Overflow,
];
/// Kernels of Debian lack it.
const TWOS: Scheduler = Scheduler::PowerOfTwo;

/// What one scheduler costs.
struct Cost {
    /// From SYN to SYN-ACK: the tenth percentile, because other programs disturb larger ones.
    first_packet: Duration,
    /// Bytes of the kernel for a Service.
    memory: u64,
}

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let missing = find_ipvs(&["rr"])?;
    println!("| mode | scheduler | first packet, p10 | ratio | memory for a Service |");
    println!("|---|---|---|---|---|");
    // The first connections of a machine are slower than all others.
    measure(Mode::Nftables, OF_NFTABLES[0], backend_nftables::open)?;
    let mut first = None;
    let mut skipped = Vec::new();
    for scheduler in OF_NFTABLES {
        let cost = measure(Mode::Nftables, scheduler, backend_nftables::open)?;
        print(Mode::Nftables, scheduler, &cost, &mut first);
    }
    let files = tempfile::tempdir().context("failed to make a folder for the lock")?;
    let lock = Lock {
        path: files.path().join("xtables.lock"),
        patience: ANSWERS_WITHIN,
    };
    for variant in [Variant::NfTables, Variant::Legacy] {
        if variant == Variant::Legacy && !Path::new("/proc/net/ip_tables_names").exists() {
            skipped.push("variant legacy of mode iptables: this kernel has none".to_owned());
            continue;
        }
        for scheduler in OF_IPTABLES {
            let open = || backend_iptables::open(variant, &lock);
            let cost = measure(Mode::Iptables, scheduler, open)?;
            print(
                format_args!("iptables, {variant}"),
                scheduler,
                &cost,
                &mut first,
            );
        }
    }
    match missing {
        Some(why) => skipped.push(format!("mode ipvs: {why}")),
        None => {
            let without_twos = find_ipvs(&["twos"])?;
            let twos = without_twos.is_none().then_some(TWOS);
            skipped.extend(without_twos.map(|why| format!("twos: {why}")));
            for scheduler in OF_IPVS.into_iter().chain(twos) {
                let open = || backend_ipvs::open(Path::new("/proc/sys"));
                let cost = measure(Mode::Ipvs, scheduler, open)?;
                print(Mode::Ipvs, scheduler, &cost, &mut first);
            }
        }
    }
    for what in skipped {
        println!("\nSKIPPED: {what}");
    }
    Ok(())
}

fn print(mode: impl Display, scheduler: Scheduler, cost: &Cost, first: &mut Option<Duration>) {
    let first = *first.get_or_insert(cost.first_packet);
    let ratio = cost.first_packet.as_secs_f64() / first.as_secs_f64();
    println!(
        "| {mode} | {scheduler} | {:.1?} | {ratio:.2} | {} bytes |",
        cost.first_packet, cost.memory
    );
}

fn measure<B: Backend + Send, E>(
    mode: Mode,
    scheduler: Scheduler,
    open: impl FnOnce() -> Result<[B; 2], E> + Send,
) -> Result<Cost>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let mut network = Network::new()?;
    let [client, node, server] = network.add_namespaces(["client", "node", "server"])?;
    let everywhere = [
        "route add local 10.128.0.0/9 dev lo\n",
        "route add 10.128.0.0/9 via 192.168.2.2\n",
    ];
    // The server has the addresses of all endpoints.
    connect(&network, [&client, &node, &server], "192.168.1", everywhere)?;
    let any = SocketAddr::from(([0; 4], 8080));
    let listener = server.enter(|| TcpListener::bind(any))??;
    listener.set_nonblocking(true)?;
    let config = Config {
        scheduler,
        ..config(mode)?
    };
    let mut dataplane = Dataplane::default();
    dataplane.set_node(Arc::clone(dataplane.node()), config.into());
    for number in 0..SERVICES {
        dataplane.set(service(&dataplane, number, 0));
    }
    let families = node.enter(open)??;
    let mut families = families.into_iter();
    let ipv4 = families.find(|backend| backend.family() == Family::Ipv4);
    let mut backend = ipv4.context("there are both families")?;
    let before = steady_memory()?;
    // Sysctls are those of the thread's namespace.
    let programmed = node.enter(|| program(&mut backend, &dataplane, &Rendered::default()))??;
    drop(programmed);
    let memory = steady_memory()?.saturating_sub(before) / u64::from(SERVICES);
    let is_over = AtomicBool::new(false);
    let times = thread::scope(|scope| {
        // The kernel answers by itself while the queue of connections has room.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                while listener.accept().is_ok() {}
                thread::sleep(ACCEPTED_EVERY);
            }
        });
        let times = client.enter(time_connections);
        is_over.store(true, Ordering::Relaxed);
        times
    });
    let mut times = times??;
    times.sort();
    Ok(Cost {
        first_packet: times[times.len() / 10],
        memory,
    })
}

/// Connects to random Services.
fn time_connections() -> Result<Vec<Duration>> {
    let mut numbers = Seeded::new(1);
    let mut one = || {
        let number = u16::try_from(numbers.below(SERVICES.into())).unwrap_or(0);
        let [high, low] = number.to_be_bytes();
        open_connection(SocketAddr::from((Ipv4Addr::new(10, 96, high, low), 80)))
    };
    for _ in 0..WARMING_UP {
        one()?;
    }
    (0..CONNECTIONS).map(|_| one()).collect()
}

/// Returns the time to connect. The connection ends with a reset, so that its port is free again.
fn open_connection(to: SocketAddr) -> Result<Duration> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_linger(Some(Duration::ZERO))?;
    let began = Instant::now();
    socket.connect_timeout(&to.into(), ANSWERS_WITHIN)?;
    Ok(began.elapsed())
}

/// Reads the memory of the kernel once it does not change any more.
fn steady_memory() -> Result<u64> {
    let mut last = memory()?;
    loop {
        thread::sleep(Duration::from_secs(1));
        let now = memory()?;
        if now.abs_diff(last) < STEADY {
            return Ok(now);
        }
        last = now;
    }
}

fn memory() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let fields = ["Slab:", "VmallocUsed:", "Percpu:"];
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let is_counted = words.next().is_some_and(|field| fields.contains(&field));
        is_counted
            .then(|| words.next()?.parse::<u64>().ok())
            .flatten()
    });
    Ok(lines.sum::<u64>() * 1024)
}
