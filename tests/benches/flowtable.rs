//! What a flowtable saves: `cargo bench --package tests --bench flowtable`. A kernel without flowtables has
//! no figures; `tests/kernel-rig/run` has one with them.
//!
//! A client and a server exchange over one established TCP connection to a Service, through a node whose
//! rules are those of mode nftables. Rounds without and with the flowtable take turns, in the same network,
//! over the same connection. The least of all rounds counts, because other programs only add to it. Only
//! ratios within one run count.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use backend::{Backend, Rendered};
use backend_nftables::{Nftables, Table};
use dataplane::{Family, Mode, Node};
use tests::forwarding_node::connect;
use tests::network::{Namespace, Network, enter_private_namespaces};
use tests::ordinary_service::{config, service};
use tests::programmed::program;

/// The number of Services beside the one that is asked.
const OTHERS: u16 = 1_000;
const ROUNDS: usize = 40;
/// The number of questions of a round, each with an answer.
const QUESTIONS: u32 = 2_000;
/// The bytes of a round, in segments of at most the MTU.
const BULK: usize = 8 << 20;

const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 97, 0, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 168, 2, 2);
const PORT: u16 = 80;

/// A node whose rules are programmed.
struct ProgrammedNode {
    namespace: Namespace,
    backend: Nftables,
    held: Rendered<Table>,
}

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let mut network = Network::new()?;
    let [client, namespace, server] = network.add_namespaces(["client", "node", "server"])?;
    connect(
        &network,
        [&client, &namespace, &server],
        "10.200.0",
        ["", ""],
    )?;
    let probe = "add table ip asked; add flowtable ip asked f { hook ingress priority 0; }; delete table ip asked";
    if namespace.nft(&[probe]).is_err() {
        println!("SKIPPED: this kernel has no flowtables");
        return Ok(());
    }
    let listener = server.enter(|| TcpListener::bind((SERVER, PORT)))??;
    let families = namespace.enter(backend_nftables::open)??;
    let mut families = families.into_iter();
    let ipv4 = families.find(|backend| backend.family() == Family::Ipv4);
    let mut node = ProgrammedNode {
        namespace,
        backend: ipv4.context("there are both families")?,
        held: Rendered::default(),
    };
    node.program(None)?;
    let asked = SocketAddr::from((SERVICE, PORT));
    let mut asking = client.enter(|| TcpStream::connect(asked))??;
    let (mut answering, _) = listener.accept()?;
    for stream in [&asking, &answering] {
        stream.set_nodelay(true)?;
    }
    let mut least: [[Option<Duration>; 2]; 2] = Default::default();
    for _ in 0..ROUNDS {
        for (column, interfaces) in [None, Some(["client", "server"])].into_iter().enumerate() {
            node.program(interfaces.as_ref().map(|names| &names[..]))?;
            // The first packets take the connection there, or back.
            ask(&mut asking, &mut answering, 10)?;
            let began = Instant::now();
            ask(&mut asking, &mut answering, QUESTIONS)?;
            let questions = began.elapsed() / QUESTIONS;
            let began = Instant::now();
            carry(&mut asking, &mut answering)?;
            for (row, took) in [questions, began.elapsed()].into_iter().enumerate() {
                let least = &mut least[row][column];
                *least = Some(least.map_or(took, |least| least.min(took)));
            }
        }
    }
    println!("| | without | with the flowtable | |\n|---|---|---|---|");
    for (name, row) in ["a question and its answer", "8 MiB in one direction"]
        .iter()
        .zip(least)
    {
        let [Some(without), Some(with)] = row else {
            continue;
        };
        let ratio = without.as_secs_f64() / with.as_secs_f64();
        println!("| {name} | {without:.1?} | {with:.1?} | {ratio:.2} x |");
    }
    Ok(())
}

fn ask(asking: &mut TcpStream, answering: &mut TcpStream, times: u32) -> Result<()> {
    let mut buffer = [0; 1];
    for _ in 0..times {
        asking.write_all(b"?")?;
        answering.read_exact(&mut buffer)?;
        answering.write_all(b"!")?;
        asking.read_exact(&mut buffer)?;
    }
    ensure!(&buffer == b"!", "another answer");
    Ok(())
}

fn carry(from: &mut TcpStream, to: &mut TcpStream) -> Result<()> {
    let sent = vec![7; BULK];
    let mut received = vec![0; BULK];
    std::thread::scope(|scope| -> Result<()> {
        let writer = scope.spawn(|| from.write_all(&sent));
        to.read_exact(&mut received)?;
        Ok(writer.join().expect("it does not panic")?)
    })
}

// === impl ProgrammedNode ===

impl ProgrammedNode {
    /// Programs the Services, with these interfaces in the flowtable.
    fn program(&mut self, interfaces: Option<&[&str]>) -> Result<()> {
        let names = |names: &[&str]| -> BTreeSet<Arc<str>> {
            names.iter().map(|name| Arc::from(*name)).collect()
        };
        let mut dataplane = self.held.dataplane.clone();
        let is_first = dataplane.services().is_empty();
        let node = Node {
            name: "node-1".into(),
            flowtable_interfaces: interfaces.map(names),
            ..Node::default()
        };
        let config = match is_first {
            true => config(Mode::Nftables)?.into(),
            false => Arc::clone(dataplane.config()),
        };
        dataplane.set_node(Arc::new(node), config);
        if is_first {
            for number in 0..OTHERS {
                dataplane.set(service(&dataplane, number, 0));
            }
            let asked = testkit::mk_service("bench/asked").cluster_ip(&SERVICE.to_string());
            let asked = asked.port("http", PORT).build();
            let endpoints = testkit::mk_endpoints().tcp("http");
            let endpoints = endpoints
                .ready(&format!("{SERVER}:{PORT}"), "node-2")
                .build();
            let (node, config) = (dataplane.node(), dataplane.config());
            let asked = dataplane::compile(&asked, &endpoints, node, config);
            dataplane.set(asked.into());
        }
        let (backend, held) = (&mut self.backend, &self.held);
        let programmed = self
            .namespace
            .enter(|| program(backend, &dataplane, held))??;
        self.held = programmed;
        Ok(())
    }
}
