//! The cost of one replaced endpoint in mode iptables, by variant and size of the cluster, and the
//! kernel's share of it: `cargo bench --package tests --bench replaced_endpoint`.
//!
//! Each row has a separate network namespace, with Services of five endpoints; the last one of a
//! variant also has the objects that `bench --row large-objects` writes. In one Service after another an endpoint is replaced: rendered, compared and committed as by the reconciler.
//! Processor time is that of this thread; the kernel's share is the system time of the scheduler's
//! accounting, in ticks, which is meaningful only for all changes of a row together.

use std::fs;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use backend::{Backend, Change as _, Rendered};
use backend_iptables::{Lock, Rules};
use dataplane::{Dataplane, Mode, ServiceRules};
use tests::network::{Network, enter_private_namespaces};
use tests::ordinary_service::{config, service};
use xtables::{TableName, Variant};

/// The number of Services of each row, and what it has besides.
const ROWS: [(u16, Beside); 3] = [
    (1_000, Beside::Nothing),
    (10_000, Beside::Nothing),
    (2_000, Beside::LargeObjects),
];
/// The number of replaced endpoints.
const CHANGES: u16 = 40;

/// What a row has besides Services of five endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// 100 Services of 200 ports, and one of 100 ports with 1,000 endpoints at each.
    LargeObjects,
}

/// The processor time of this thread, in ticks.
#[derive(Debug, Clone, Copy)]
struct Ticks {
    user: u64,
    system: u64,
}

fn main() -> Result<()> {
    enter_private_namespaces()?;
    println!(
        "| variant | Services | rules | written by a change: rules, transactions | elapsed, p50 | processor, p50 | of it in the kernel |"
    );
    println!("|---|---|---|---|---|---|---|");
    for variant in [Variant::NfTables, Variant::Legacy] {
        for (services, beside) in ROWS {
            println!("{}", measure(variant, services, beside)?);
        }
    }
    Ok(())
}

/// Measures one row.
fn measure(variant: Variant, services: u16, beside: Beside) -> Result<String> {
    let mut network = Network::new()?;
    let [namespace] = network.add_namespaces(["bench"])?;
    let folder = tempfile::tempdir_in("/run")?;
    let lock = Lock {
        path: folder.path().join("lock"),
        patience: Duration::ZERO,
    };
    let [mut backend, _] = namespace.enter(|| backend_iptables::open(variant, &lock))??;
    let mut dataplane = Dataplane::default();
    dataplane.set_node(
        Arc::clone(dataplane.node()),
        Arc::new(config(Mode::Iptables)?),
    );
    for number in 0..services {
        dataplane.set(service(&dataplane, number, 0));
    }
    if beside == Beside::LargeObjects {
        for number in 0..=100 {
            dataplane.set(large_object(&dataplane, number));
        }
    }
    let mut observed = Rendered {
        rules: backend.render(&dataplane, &Rendered::default()),
        dataplane: dataplane.clone(),
    };
    let change = backend.diff(&Rules::default(), &observed.rules);
    let _ = backend.commit(change)?;
    let tables = TableName::ALL.iter();
    let rules: usize = tables.map(|table| observed.rules.count(*table)).sum();

    let (mut elapsed, mut processor) = (Vec::new(), Vec::new());
    let mut written = String::new();
    let before = ticks()?;
    for change in 1..=CHANGES {
        let number = services / CHANGES * (change - 1);
        dataplane.set(service(&dataplane, number, 1));
        let had = on_processor()?;
        let started = Instant::now();
        let expected = backend.render(&dataplane, &observed);
        let change = backend.diff(&observed.rules, &expected);
        let size = change.size();
        let receipt = backend.commit(change)?;
        elapsed.push(started.elapsed());
        processor.push(on_processor()? - had);
        written = format!("{}, {}", size.elements, receipt.transactions);
        observed = Rendered {
            rules: expected,
            dataplane: dataplane.clone(),
        };
    }
    let after = ticks()?;
    let system = after.system - before.system;
    let share = 100 * system / (system + after.user - before.user).max(1);
    let beside = match beside {
        Beside::Nothing => "",
        Beside::LargeObjects => ", large objects",
    };
    Ok(format!(
        "| {variant} | {services}{beside} | {rules} | {written} | {:.1?} | {:.1?} | {share} % |",
        middle(elapsed),
        middle(processor),
    ))
}

/// Returns a Service of 200 ports; number 0 has 100, and 1,000 endpoints at each.
fn large_object(dataplane: &Dataplane, number: u8) -> Arc<ServiceRules> {
    let (ports, pods) = match number {
        0 => (100, 1_000_u16),
        _ => (200, 1),
    };
    let address = Ipv4Addr::new(10, 97, 0, number).to_string();
    let mut service = testkit::mk_service(&format!("bench/large-{number}")).cluster_ip(&address);
    let mut endpoints = testkit::mk_endpoints();
    for port in 1_000..1_000 + ports {
        let name = format!("p{port}");
        service = service.port(&name, port);
        endpoints = endpoints.tcp(&name);
        for pod in 0..pods {
            let [high, low] = pod.to_be_bytes();
            let address = Ipv4Addr::new(10, 64 + number % 32, high, low);
            endpoints = endpoints.ready(&format!("{address}:{port}"), "node-2");
        }
    }
    let (service, endpoints) = (service.build(), endpoints.build());
    dataplane::compile(&service, &endpoints, dataplane.node(), dataplane.config()).into()
}

/// Returns the processor time of this thread so far. The kernel updates it when the thread yields.
fn on_processor() -> Result<Duration> {
    thread::yield_now();
    let text = fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds = text.split(' ').next().context("a time")?;
    Ok(Duration::from_nanos(nanoseconds.parse()?))
}

fn ticks() -> Result<Ticks> {
    let text = fs::read_to_string("/proc/thread-self/stat")?;
    // The name before, in parentheses, may contain spaces.
    let (_, fields) = text.rsplit_once(") ").context("a name")?;
    let mut fields = fields.split(' ').skip(11);
    let mut next = || -> Result<u64> { Ok(fields.next().context("a time")?.parse()?) };
    Ok(Ticks {
        user: next()?,
        system: next()?,
    })
}

fn middle(mut took: Vec<Duration>) -> Duration {
    took.sort();
    took.get(took.len() / 2).copied().unwrap_or_default()
}
