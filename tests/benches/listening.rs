//! The cost of a listener for the programs that write:
//! `cargo bench --package tests --bench listening`.
//!
//! IPv4 only, with five endpoints per Service, in separate network namespaces. While a process
//! listens, the kernel sends a message for each committed element.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use backend::{Backend, Change as _, ForeignChange, Rendered};
use backend_nftables::{Nftables, NotificationListener, Table, open_with_listener};
use dataplane::Dataplane;
use tests::network::{Network, enter_private_namespaces};

/// The number of Services: 50,000 endpoint elements, and one element per Service.
const SERVICES: u32 = 10_000;
/// The number of runs; the median counts.
const RUNS: usize = 9;
/// The number of measured single changes in each run.
const CHANGES: u32 = 300;

/// Whether a process listens for changes.
#[derive(Debug, Clone, Copy)]
enum Audience {
    NoListener,
    Listener,
}

/// The results of one run.
struct Figures {
    elements: usize,
    load: Duration,
    change: Duration,
    removal: Duration,
}

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let dataplane = cluster();
    println!("| heard by | elements | load | one endpoint replaced, p50 | removal of all |");
    println!("|---|---|---|---|---|");
    for audience in [Audience::NoListener, Audience::Listener] {
        let mut runs = (0..RUNS)
            .map(|_| measure(&dataplane, audience))
            .collect::<Result<Vec<_>>>()?;
        let elements = runs[0].elements;
        let mut middle = |part: fn(&Figures) -> Duration| {
            runs.sort_by_key(part);
            part(&runs[RUNS / 2])
        };
        let load = middle(|figures| figures.load);
        let change = middle(|figures| figures.change);
        let removal = middle(|figures| figures.removal);
        println!("| {audience:?} | {elements} | {load:.1?} | {change:.1?} | {removal:.1?} |");
    }
    Ok(())
}

fn measure(dataplane: &Dataplane, audience: Audience) -> Result<Figures> {
    let mut network = Network::new()?;
    let [namespace] = network.add_namespaces(["bench"])?;
    let ([mut backend, _], mut notification_listener) = namespace.enter(open_with_listener)??;
    if let Audience::Listener = audience {
        notification_listener.join()?;
    }
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let listener = scope.spawn(|| listen(notification_listener, &ended));
        let figures = commit(&mut backend, dataplane);
        ended.store(true, Ordering::Relaxed);
        let heard = listener.join().ok().context("the listener panicked")?;
        anyhow::ensure!(
            heard? == 0,
            "own commits were taken for those of another program"
        );
        figures
    })
}

/// Reads all notifications until the end; returns the number of disturbances.
fn listen(mut notification_listener: NotificationListener, ended: &AtomicBool) -> Result<usize> {
    let mut heard = 0;
    while !ended.load(Ordering::Relaxed) {
        let overheard = notification_listener.receive(Some(Duration::from_millis(20)))?;
        heard += usize::from(overheard != ForeignChange::None);
    }
    Ok(heard)
}

fn commit(backend: &mut Nftables, dataplane: &Dataplane) -> Result<Figures> {
    let rules = backend.render(dataplane, &Rendered::default());
    let change = backend.diff(&Table::default(), &rules);
    let elements = change.size().elements;
    let start = Instant::now();
    let _ = backend.commit(change)?;
    let load = start.elapsed();

    let mut observed = Rendered {
        dataplane: dataplane.clone(),
        rules,
    };
    let mut changes = Vec::new();
    for number in 0..CHANGES {
        let mut expected = observed.dataplane.clone();
        add_service(&mut expected, number * 7919 % SERVICES, 1);
        let rules = backend.render(&expected, &observed);
        let change = backend.diff(&observed.rules, &rules);
        let start = Instant::now();
        let _ = backend.commit(change)?;
        changes.push(start.elapsed());
        observed = Rendered {
            dataplane: expected,
            rules,
        };
    }
    changes.sort();

    let start = Instant::now();
    let _ = backend.commit_removal()?;
    Ok(Figures {
        elements,
        load,
        change: changes[changes.len() / 2],
        removal: start.elapsed(),
    })
}

fn cluster() -> Dataplane {
    let mut dataplane = Dataplane::default();
    for number in 0..SERVICES {
        add_service(&mut dataplane, number, 0);
    }
    dataplane
}

/// Adds a Service whose first endpoint differs in each generation.
fn add_service(dataplane: &mut Dataplane, number: u32, generation: u8) {
    let [_, a, b, c] = number.to_be_bytes();
    let mut endpoints = testkit::mk_endpoints().tcp("http");
    for endpoint in 0..5 {
        let generation = if endpoint == 0 { generation } else { 0 };
        let address = format!("{}.{a}.{b}.{c}:8080", 10 + endpoint + 20 * generation);
        endpoints = endpoints.ready(&address, "node-2");
    }
    let service = testkit::mk_service(&format!("bench/service-{number}"))
        .cluster_ip(&format!("100.{a}.{b}.{c}"))
        .port("http", 80)
        .build();
    let (node, config) = (dataplane.node(), dataplane.config());
    let rules = dataplane::compile(&service, &endpoints.build(), node, config);
    dataplane.set(Arc::new(rules));
}
