//! What the rules of each mode cost a packet: `cargo bench --package tests --bench packet_cost`. Without
//! IPVS or legacy iptables in the kernel, these have no figures; `tests/kernel-rig/run` has kernels with
//! both.
//!
//! A client floods UDP through the node. `send` returns once the kernel has carried the packet through
//! the node to the socket of the server, so its time is that of all hooks. Each row has a separate
//! network, and rows alternate. The first row is a table with empty chains of type nat, so that conntrack
//! and NAT are at work, and one rule that redirects packets to the Service. The least of all rounds
//! counts, because other programs only add to it. Only ratios and differences within one run count.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use backend::{Backend, Rendered};
use backend_iptables::Lock;
use dataplane::{Dataplane, Family, Mode};
use tests::forwarding_node::connect;
use tests::ipvs_support::find_ipvs;
use tests::network::{Namespace, Network, enter_private_namespaces};
use tests::ordinary_service::{config, service};
use tests::programmed::program;
use xtables::Variant;

/// The number of Services beside the one that is asked.
const OTHERS: u16 = 1_000;
const ROUNDS: usize = 40;
/// The number of packets of a round, all of one flow.
const OF_A_FLOW: u32 = 10_000;
/// The number of packets of a round, each the first of its flow: all rounds leave room in conntrack.
const OF_THEIR_OWN: u32 = 500;
/// Far longer than an answer takes.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 97, 0, 1);
const NODE: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 168, 2, 2);
/// The same server, which is no endpoint at this address: IPVS takes an answer of an endpoint to a port of the
/// client for one of the Service, if the port was used for that before.
const DIRECT: Ipv4Addr = Ipv4Addr::new(192, 168, 2, 3);
const PORT: u16 = 53;

/// The packets of a column.
#[derive(Debug, Clone, Copy)]
enum Packets {
    /// Of one flow that was answered.
    Established(Ipv4Addr),
    /// Each of a new flow.
    First(Ipv4Addr),
}

const COLUMNS: [(&str, Packets); 5] = [
    ("passes, established", Packets::Established(DIRECT)),
    ("passes, first", Packets::First(DIRECT)),
    ("to the node, established", Packets::Established(NODE)),
    ("of a Service, established", Packets::Established(SERVICE)),
    ("of a Service, first", Packets::First(SERVICE)),
];

/// A node whose rules are programmed, and its client.
struct Row {
    name: String,
    client: Namespace,
    /// The least time of a packet, for each column.
    least: [Option<Duration>; COLUMNS.len()],
    _network: Network,
    /// Those that packets to each address reach. They answer nothing after the first packets of flows; what they
    /// do not read is dropped.
    sockets: [(Ipv4Addr, UdpSocket); 3],
}

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let files = tempfile::tempdir().context("failed to make a folder for the lock")?;
    let lock = Lock {
        path: files.path().join("xtables.lock"),
        patience: ANSWERS_WITHIN,
    };
    let mut rows = vec![
        Row::new("one rule", |node| {
            node.nft(&[&one_rule()])?;
            Ok(())
        })?,
        Row::programmed("nftables", Mode::Nftables, backend_nftables::open)?,
        Row::programmed("iptables, nf_tables", Mode::Iptables, || {
            backend_iptables::open(Variant::NfTables, &lock)
        })?,
    ];
    let mut skipped = Vec::new();
    match Path::new("/proc/net/ip_tables_names").exists() {
        true => rows.push(Row::programmed("iptables, legacy", Mode::Iptables, || {
            backend_iptables::open(Variant::Legacy, &lock)
        })?),
        false => skipped.push("variant legacy of mode iptables: this kernel has none".to_owned()),
    }
    match find_ipvs(&["rr"])? {
        None => rows.push(Row::programmed("ipvs", Mode::Ipvs, || {
            backend_ipvs::open(Path::new("/proc/sys"))
        })?),
        Some(why) => skipped.push(format!("mode ipvs: {why}")),
    }
    for _ in 0..ROUNDS {
        for (column, (_, packets)) in COLUMNS.iter().enumerate() {
            for row in &mut rows {
                let took = row.flood(*packets);
                let took = took.with_context(|| format!("{}, {packets:?}", row.name))?;
                let least = &mut row.least[column];
                *least = Some(least.map_or(took, |least| least.min(took)));
            }
        }
    }
    print(&rows);
    for what in skipped {
        println!("\nSKIPPED: {what}");
    }
    Ok(())
}

fn print(rows: &[Row]) {
    let names = COLUMNS.map(|(name, _)| name).join(" | ");
    println!("| rules, ns for a packet | {names} |");
    println!("|---|{}", "---|".repeat(COLUMNS.len()));
    for row in rows {
        let times = row.least.iter().flatten();
        let times = times.map(|least| format!("{} |", least.as_nanos()));
        println!("| {} | {}", row.name, times.collect::<Vec<_>>().join(" "));
    }
}

/// Returns a ruleset that redirects to the server and does nothing else.
fn one_rule() -> String {
    format!(
        "table ip bench {{
            chain prerouting {{
                type nat hook prerouting priority -100
                ip daddr {SERVICE} udp dport {PORT} dnat to {SERVER}:{PORT}
            }}
            chain postrouting {{ type nat hook postrouting priority 100; }}
        }}"
    )
}

// === impl Row ===

impl Row {
    /// A network whose node `program` gives its rules.
    fn new(name: &str, program: impl FnOnce(&Namespace) -> Result<()>) -> Result<Row> {
        let mut network = Network::new()?;
        let [client, node, server] = network.add_namespaces(["client", "node", "server"])?;
        connect(
            &network,
            [&client, &node, &server],
            "10.200.0",
            ["addr add 192.168.2.3/24 dev uplink\n", ""],
        )?;
        let bind = |namespace: &Namespace, address: Ipv4Addr| -> Result<UdpSocket> {
            Ok(namespace.enter(|| UdpSocket::bind((address, PORT)))??)
        };
        let sockets = [
            (NODE, bind(&node, NODE)?),
            (DIRECT, bind(&server, DIRECT)?),
            (SERVICE, bind(&server, SERVER)?),
        ];
        program(&node).with_context(|| format!("failed to program {name}"))?;
        Ok(Row {
            name: name.to_owned(),
            client,
            least: Default::default(),
            _network: network,
            sockets,
        })
    }

    /// A network whose node has the rules of a mode.
    fn programmed<B: Backend + Send, E>(
        name: &str,
        mode: Mode,
        open: impl FnOnce() -> Result<[B; 2], E> + Send,
    ) -> Result<Row>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        let mut dataplane = Dataplane::default();
        dataplane.set_node(Arc::clone(dataplane.node()), config(mode)?.into());
        for number in 0..OTHERS {
            dataplane.set(service(&dataplane, number, 0));
        }
        let asked = testkit::mk_service("bench/asked")
            .cluster_ip(&SERVICE.to_string())
            .udp("dns", PORT)
            .build();
        let endpoint = format!("{SERVER}:{PORT}");
        let endpoints = testkit::mk_endpoints().udp("dns");
        let endpoints = endpoints.ready(&endpoint, "node-2").build();
        let asked = dataplane::compile(&asked, &endpoints, dataplane.node(), dataplane.config());
        dataplane.set(asked.into());
        Row::new(name, |node| {
            let families = node.enter(open)??;
            let mut families = families.into_iter();
            let ipv4 = families.find(|backend| backend.family() == Family::Ipv4);
            let mut backend = ipv4.context("there are both families")?;
            // Sysctls are those of the thread's namespace.
            node.enter(|| program(&mut backend, &dataplane, &Rendered::default()))??;
            Ok(())
        })
    }

    /// Sends the packets of a round and returns the time of one.
    fn flood(&self, packets: Packets) -> Result<Duration> {
        match packets {
            Packets::Established(to) => self.flood_flow(to),
            Packets::First(to) => {
                let to = SocketAddr::from((to, PORT));
                self.client.enter(|| {
                    timed(OF_THEIR_OWN, || {
                        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
                        socket.send_to(b"packet", to).map(drop)
                    })
                })?
            }
        }
    }

    /// Sends the packets of one flow, after an answer to its first one.
    fn flood_flow(&self, to: Ipv4Addr) -> Result<Duration> {
        let mut sockets = self.sockets.iter();
        let (_, server) = sockets
            .find(|(address, _)| *address == to)
            .context("it has a server")?;
        drain(server)?;
        let bind = || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
        let client = self.client.enter(bind)??;
        client.connect((to, PORT))?;
        client.set_read_timeout(Some(ANSWERS_WITHIN))?;
        client.send(b"hello")?;
        let mut buffer = [0; 16];
        server.set_nonblocking(false)?;
        server.set_read_timeout(Some(ANSWERS_WITHIN))?;
        let (length, from) = server.recv_from(&mut buffer)?;
        ensure!(&buffer[..length] == b"hello", "a packet of before arrived");
        server.send_to(b"hello", from)?;
        client.recv(&mut buffer)?;
        timed(OF_A_FLOW, || client.send(b"packet").map(drop))
    }
}

/// Reads all that waits in the queue of `socket`.
fn drain(socket: &UdpSocket) -> Result<()> {
    socket.set_nonblocking(true)?;
    while socket.recv(&mut [0; 16]).is_ok() {}
    Ok(())
}

fn timed(count: u32, mut send: impl FnMut() -> std::io::Result<()>) -> Result<Duration> {
    let began = Instant::now();
    for _ in 0..count {
        send()?;
    }
    Ok(began.elapsed() / count)
}
