//! The kernel's time by size of the cluster: `cargo bench --package tests --bench nftables`.
//!
//! Everything is measured in one run, in a separate network namespace, IPv4 only, with five
//! endpoints per Service. The last column matters most: how a figure grows with the cluster.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use backend::{Backend, Change as _, Rendered};
use backend_nftables::{Nftables, Table};
use dataplane::{Dataplane, ServiceRules};
use tests::network::{Namespace, Network, enter_private_namespaces};

/// The numbers of Services, in ascending order; the others are compared with the first.
const SIZES: [u32; 3] = [1_000, 10_000, 50_000];
/// The number of measured single changes at each size.
const CHANGES: u32 = 500;

struct Figures {
    cold: Duration,
    replaced: Quantiles,
    counted: Quantiles,
    restart: Duration,
}

#[derive(Clone, Copy)]
struct Quantiles {
    p50: Duration,
    p99: Duration,
}

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let mut first: Option<Figures> = None;
    println!(
        "| Services x 5 | cold, total | one endpoint replaced p50 / p99 | count changed p50 / p99 | restart, nothing written | replaced p50 against {} |",
        SIZES[0]
    );
    println!("|---|---|---|---|---|---|");
    for size in SIZES {
        let mut network = Network::new()?;
        let [namespace] = network.add_namespaces(["bench"])?;
        let figures = measure(&namespace, size)?;
        let first = first.get_or_insert(Figures { ..figures });
        let ratio = figures.replaced.p50.as_secs_f64() / first.replaced.p50.as_secs_f64();
        println!(
            "| {size} | {:.1?} | {:.0?} / {:.0?} | {:.0?} / {:.0?} | {:.1?} | {ratio:.2} |",
            figures.cold,
            figures.replaced.p50,
            figures.replaced.p99,
            figures.counted.p50,
            figures.counted.p99,
            figures.restart,
        );
    }
    Ok(())
}

fn measure(namespace: &Namespace, size: u32) -> Result<Figures> {
    let mut dataplane = Dataplane::default();
    for number in 0..size {
        dataplane.set(service(&dataplane, number, 5, 0));
    }
    let mut backend = open(namespace)?;
    let start = Instant::now();
    let mut programmed = step(&mut backend, &dataplane, &Rendered::default())?;
    let cold = start.elapsed();
    let mut change = |endpoints: fn(u32) -> (u8, u8)| -> Result<Quantiles> {
        let mut took = Vec::new();
        for round in 0..CHANGES {
            let (count, generation) = endpoints(round);
            let number = round * 7919 % size;
            let start = Instant::now();
            dataplane.set(service(&dataplane, number, count, generation));
            programmed = step(&mut backend, &dataplane, &programmed)?;
            took.push(start.elapsed());
        }
        took.sort();
        let rank = |percent: usize| took[(took.len() * percent).div_ceil(100) - 1];
        Ok(Quantiles {
            p50: rank(50),
            p99: rank(99),
        })
    };
    let replaced = change(|_| (5, 1))?;
    let counted = change(|round| (if round % 2 == 0 { 6 } else { 4 }, 2))?;
    let mut backend = open(namespace)?;
    let start = Instant::now();
    let observed = Rendered {
        dataplane: Dataplane::default(),
        rules: backend.observe()?,
    };
    let expected = backend.render(&dataplane, &observed);
    let change = backend.diff(&observed.rules, &expected);
    let restart = start.elapsed();
    anyhow::ensure!(change.size().is_empty(), "a restart would write:\n{change}");
    Ok(Figures {
        cold,
        replaced,
        counted,
        restart,
    })
}

fn open(namespace: &Namespace) -> Result<Nftables> {
    let backends = namespace.enter(backend_nftables::open)??;
    backends.into_iter().next().context("a backend for IPv4")
}

/// Renders, diffs and commits: everything from a compiled Service to the kernel's answer.
fn step(
    backend: &mut Nftables,
    dataplane: &Dataplane,
    from: &Rendered<Table>,
) -> Result<Rendered<Table>> {
    let rules = backend.render(dataplane, from);
    let change = backend.diff(&from.rules, &rules);
    let _ = backend.commit(change)?;
    Ok(Rendered {
        dataplane: dataplane.clone(),
        rules,
    })
}

/// Returns a Service whose first endpoint differs in each generation.
fn service(dataplane: &Dataplane, number: u32, count: u8, generation: u8) -> Arc<ServiceRules> {
    let [_, a, b, c] = number.to_be_bytes();
    let mut endpoints = testkit::mk_endpoints().tcp("http");
    for endpoint in 0..count {
        let generation = if endpoint == 0 { generation } else { 0 };
        let (x, y) = (10 + endpoint + 20 * generation, a);
        endpoints = endpoints.ready(&format!("{x}.{y}.{b}.{c}:8080"), "node-2");
    }
    let service = testkit::mk_service(&format!("bench/service-{number}"))
        .cluster_ip(&format!("100.{a}.{b}.{c}"))
        .port("http", 80)
        .build();
    let endpoints = endpoints.build();
    dataplane::compile(&service, &endpoints, dataplane.node(), dataplane.config()).into()
}
