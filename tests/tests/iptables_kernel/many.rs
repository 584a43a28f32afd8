//! Ten thousand Services, and the cost of one more.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use backend::{Backend, Change as _, Rendered};
use backend_iptables::{Change, PREFIX, Rules};
use dataplane::{Dataplane, Family, ServiceRules};
use tests::network::Namespace;
use tests::programmed::program;
use xtables::{TableName, Tables, Variant};

use crate::ground::Ground;

const SERVICES: u32 = 10_000;
/// The maximum that one more Service may write: a leaf of the address tree and one of cluster IPs,
/// at most sixteen rules each, the rules to a leaf that was split, and its own chain.
const RULES_OF_ONE: usize = 60;
const CHAINS_OF_ONE: usize = 12;
/// The maximum of one step: other programs must wait for the kernel's lock meanwhile.
const RULES_AT_ONCE: usize = 5_000;
const CHAINS_REMOVED_AT_ONCE: usize = 2_000;

fn service(dataplane: &Dataplane, number: u32) -> Arc<ServiceRules> {
    service_at(dataplane, number, 128)
}

/// Returns a Service whose first endpoint is in network `first`.
fn service_at(dataplane: &Dataplane, number: u32, first: u8) -> Arc<ServiceRules> {
    let address = Ipv4Addr::from(0x0a60_0000 | number).to_string();
    let [_, _, high, low] = number.to_be_bytes();
    let mut endpoints = testkit::mk_endpoints().tcp("http");
    for (network, node) in [
        (first, "node-1"),
        (129, "node-2"),
        (130, "node-2"),
        (131, "node-2"),
        (132, "node-2"),
    ] {
        endpoints = endpoints.ready(&format!("10.{network}.{high}.{low}:8080"), node);
    }
    let service = testkit::mk_service(&format!("many/service-{number}"))
        .cluster_ip(&address)
        .port("http", 80)
        .build();
    let endpoints = endpoints.build();
    dataplane::compile(&service, &endpoints, dataplane.node(), dataplane.config()).into()
}

pub(crate) fn ten_thousand_services(ground: &Ground) -> Result<()> {
    let variant = ground.variant;
    let mut dataplane = Dataplane::default();
    for number in 0..SERVICES {
        dataplane.set(service(&dataplane, number));
    }
    let [mut backend, _] = ground.open()?;
    let started = Instant::now();
    let rules = backend.render(&dataplane, &Rendered::default());
    let rendered = started.elapsed();
    let cold = backend.diff(&Rules::default(), &rules);
    expect_bounded(&cold)?;
    let (steps, elsewhere) = while_others_write(ground, || commit(ground, &cold))?;
    println!(
        "{variant}: {SERVICES} Services x 5: {} rules rendered in {rendered:.1?}, {}; an element of others took at most {elsewhere:.0?}",
        TableName::ALL
            .iter()
            .map(|table| rules.count(*table))
            .sum::<usize>(),
        summary(&steps),
    );

    // A new process reads the rules and has nothing to write.
    let started = Instant::now();
    let observed = Rendered {
        dataplane: Dataplane::default(),
        rules: backend.observe()?,
    };
    let read = started.elapsed();
    let expected = backend.render(&dataplane, &observed);
    let change = backend.diff(&observed.rules, &expected);
    ensure!(
        change.size().is_empty(),
        "a restart would write {:?}",
        change.size()
    );
    println!("{variant}: read back in {read:.1?}, nothing to write");

    let programmed = Rendered {
        dataplane: dataplane.clone(),
        rules: expected,
    };
    dataplane.set(service(&dataplane, SERVICES));
    let started = Instant::now();
    let expected = backend.render(&dataplane, &programmed);
    let change = backend.diff(&programmed.rules, &expected);
    let (decided, size) = (started.elapsed(), change.size());
    let _ = backend.commit(change)?;
    let took = started.elapsed();
    ensure!(
        size.elements <= RULES_OF_ONE && size.objects <= CHAINS_OF_ONE,
        "one more Service writes {size:?}"
    );
    println!(
        "{variant}: one more Service: {} rules in {} chains, {took:.1?}, of which {decided:.1?} without the kernel",
        size.elements, size.objects
    );
    ensure!(backend.observe()? == expected, "something else is held");

    let removal = backend.diff(&expected, &Rules::default());
    expect_bounded(&removal)?;
    let (steps, elsewhere) = while_others_write(ground, || commit(ground, &removal))?;
    println!(
        "{variant}: removed, {}; an element of others took at most {elsewhere:.0?}",
        summary(&steps)
    );
    let saved = ground.save(Family::Ipv4)?;
    let left = saved.lines().find(|line| line.contains(PREFIX));
    ensure!(left.is_none(), "left is {left:?}");
    Ok(())
}

/// The writes for one replaced endpoint must depend on the change, not on the size of the cluster.
pub(crate) fn one_replaced_endpoint(ground: &Ground) -> Result<()> {
    let small = replacement_among(ground, 100)?;
    let large = replacement_among(ground, 2_000)?;
    ensure!(
        small == large,
        "among 100 Services {small:?} is written, among 2,000 {large:?}"
    );
    Ok(())
}

/// Replaces one endpoint among this many Services; returns the writes and the number of
/// transactions.
fn replacement_among(ground: &Ground, services: u32) -> Result<(String, usize)> {
    const CHANGED: u32 = 42;
    let mut dataplane = Dataplane::default();
    for number in 0..services {
        dataplane.set(service(&dataplane, number));
    }
    let [mut backend, _] = ground.open_elsewhere()?;
    let observed = program(&mut backend, &dataplane, &Rendered::default())?;
    dataplane.set(service_at(&dataplane, CHANGED, 200));
    let expected = backend.render(&dataplane, &observed);
    let change = backend.diff(&observed.rules, &expected);
    let written = change.to_string();
    let receipt = backend.commit(change)?;
    ensure!(backend.observe()? == expected, "something else is held");
    Ok((written, receipt.transactions))
}

fn expect_bounded(change: &Change) -> Result<()> {
    let sizes = change
        .steps()
        .iter()
        .map(|step| (step.rules(), step.removed.len()));
    for (rules, removed) in sizes {
        ensure!(
            rules <= RULES_AT_ONCE && removed <= CHAINS_REMOVED_AT_ONCE,
            "a step writes {rules} rules and removes {removed} chains"
        );
    }
    Ok(())
}

/// Returns the duration of each transaction of `change`. The legacy variant replaces a table as a
/// whole, so all steps for one table are one.
fn commit(ground: &Ground, change: &Change) -> Result<Vec<Duration>> {
    let lock = ground.lock_file();
    let [mut tables, _] = ground.namespace.enter(|| {
        Tables::open_families(ground.variant, PREFIX, &lock, Duration::from_secs(10))
    })??;
    let mut took = Vec::new();
    let together = |one: &xtables::TableChange, next: &xtables::TableChange| {
        ground.variant == Variant::Legacy && one.table == next.table
    };
    for steps in change.steps().chunk_by(together) {
        let started = Instant::now();
        tables.commit(steps)?;
        took.push(started.elapsed());
    }
    Ok(took)
}

fn summary(took: &[Duration]) -> String {
    let total: Duration = took.iter().sum();
    let each: Vec<String> = took.iter().map(|took| format!("{took:.0?}")).collect();
    format!(
        "{} transactions in {total:.1?}: {}",
        took.len(),
        each.join(" ")
    )
}

/// Runs `work` while another program adds elements to another table of nf_tables one by one, each
/// in a new process; returns also the longest time that one took.
fn while_others_write<T>(
    ground: &Ground,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, Duration)> {
    let namespace = &ground.namespace;
    namespace.nft(&["add table inet theirs"])?;
    namespace.nft(&["add set inet theirs s { type ipv4_addr; }"])?;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let writing = scope.spawn(|| write_elements(namespace, &done));
        let worked = work();
        done.store(true, Ordering::Relaxed);
        let waited = writing.join().ok().context("the other panicked")?;
        Ok((worked?, waited?))
    })
}

fn write_elements(namespace: &Namespace, done: &AtomicBool) -> Result<Duration> {
    let mut longest = Duration::ZERO;
    for number in 0_u32.. {
        if done.load(Ordering::Relaxed) {
            break;
        }
        let address = Ipv4Addr::from(0x0b00_0000 | number);
        let started = Instant::now();
        namespace.nft(&[&format!("add element inet theirs s {{ {address} }}")])?;
        longest = longest.max(started.elapsed());
    }
    Ok(longest)
}
