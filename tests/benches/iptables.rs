//! The cost of a transaction in mode iptables, variant nf_tables, by the number of rules it writes:
//! `cargo bench --package tests --bench iptables`.
//!
//! Times are processor time of the thread, in user space and in the kernel: other activity on the
//! machine does not count. In a separate network namespace whose table already has 20,000
//! frontends, as many again are added and removed, in steps of different lengths. For each
//! transaction that writes a rule, the kernel walks through the whole table, and blocks all other
//! changes of nf_tables in the namespace meanwhile: the last column is the longest time that a
//! program needed to add one element to its own table.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use backend::{Backend, Change as _, Rendered};
use backend_iptables::{Iptables, Lock, PREFIX, Rules};
use dataplane::{Dataplane, compile};
use tests::network::{Namespace, Network, enter_private_namespaces};
use xtables::{TableChange, Tables, Variant};

/// One object: this many Services with this many ports and two endpoints each.
const SERVICES: u8 = 100;
const PORTS: u16 = 200;
/// The number of rules per transaction.
const RULES: [usize; 6] = [500, 1_000, 2_000, 5_000, 10_000, 20_000];
/// The pause between two transactions, in which other programs can write.
const PAUSE: Duration = Duration::from_millis(20);
/// The number of measured single changes.
const CHANGES: u16 = 50;

struct Ground {
    namespace: Namespace,
    tables: Tables,
    backend: Iptables,
}

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let mut network = Network::new()?;
    let [namespace] = network.add_namespaces(["bench"])?;
    let lock = Lock {
        path: PathBuf::from("/run/xtables.lock"),
        patience: Duration::ZERO,
    };
    let [tables, _] = namespace
        .enter(|| Tables::open_families(Variant::NfTables, PREFIX, &lock.path, lock.patience))??;
    let open = || backend_iptables::open(Variant::NfTables, &lock);
    let [backend, _] = namespace.enter(open)??;
    let mut ground = Ground {
        namespace,
        tables,
        backend,
    };
    let one = with_object(&Dataplane::default(), 1);
    let two = with_object(&one, 2);
    let nothing = Rendered::default();
    let render =
        |ground: &Ground, dataplane: &Dataplane| ground.backend.render(dataplane, &nothing);
    let (one_rules, two_rules) = (render(&ground, &one), render(&ground, &two));
    let started = on_processor()?;
    let change = ground.backend.diff(&Rules::default(), &one_rules);
    let size = change.size();
    let steps = change.steps().len();
    let _ = ground.backend.commit(change)?;
    println!(
        "from nothing: {} rules in {} chains, {steps} transactions, {:.1?}\n",
        size.elements,
        size.objects,
        on_processor()? - started
    );
    single_changes(&mut ground, &one, &one_rules)?;
    if std::env::args().any(|argument| argument == "single") {
        return Ok(());
    }
    println!(
        "\n| rules in one at most | come: transactions | in all | each, p50 / most | go: transactions | in all | others wait at most |"
    );
    println!("|---|---|---|---|---|---|---|");
    let as_it_is = [None].into_iter();
    for at_once in as_it_is.chain(RULES.map(Some)) {
        let changes = [(&one_rules, &two_rules), (&two_rules, &one_rules)];
        let ways = changes.map(|(from, to)| ground.backend.diff(from, to));
        let ways = ways.map(|change| match at_once {
            None => change.steps().to_vec(),
            Some(at_once) => rearranged(change.steps(), at_once),
        });
        let (took, waited) = while_others_write(&mut ground, |ground| {
            let [come, go] = &ways;
            Ok([commit(ground, come)?, commit(ground, go)?])
        })?;
        let [come, go] = took;
        let name = at_once.map_or("as diff arranges them".to_owned(), |rules| {
            rules.to_string()
        });
        println!(
            "| {name} | {} | {:.2?} | {:.0?} / {:.0?} | {} | {:.2?} | {waited:.0?} |",
            come.len(),
            come.iter().sum::<Duration>(),
            middle(&come),
            come.iter().max().copied().unwrap_or_default(),
            go.len(),
            go.iter().sum::<Duration>(),
        );
    }
    Ok(())
}

/// Returns `dataplane` with one more object.
fn with_object(dataplane: &Dataplane, object: u8) -> Dataplane {
    let mut dataplane = dataplane.clone();
    for number in 0..SERVICES {
        let mut service = testkit::mk_service(&format!("bench/object-{object}-{number}"))
            .cluster_ip(&format!("10.96.{object}.{number}"));
        let mut endpoints = testkit::mk_endpoints();
        for port in 1..=PORTS {
            let name = format!("p{port}");
            service = service.port(&name, port);
            endpoints = endpoints.tcp(&name);
            for pod in [1, 2] {
                let address = format!("10.{}.{number}.{pod}:{port}", 128 + object);
                endpoints = endpoints.ready(&address, "node-2");
            }
        }
        let (service, endpoints) = (service.build(), endpoints.build());
        let rules = compile(&service, &endpoints, dataplane.node(), dataplane.config());
        dataplane.set(rules.into());
    }
    dataplane
}

/// Adds a Service with one port, replaces its endpoint, and removes it.
fn single_changes(ground: &mut Ground, dataplane: &Dataplane, rules: &Rules) -> Result<()> {
    let mut dataplane = dataplane.clone();
    let mut observed = Rendered {
        rules: rules.clone(),
        dataplane: dataplane.clone(),
    };
    let mut took: [(Vec<Duration>, Vec<Duration>, usize); 3] = Default::default();
    for number in 1..=CHANGES {
        for (at, took) in took.iter_mut().enumerate() {
            let service = testkit::mk_service("bench/single").cluster_ip("10.96.200.1");
            let service = service.port("http", number).build();
            let endpoints = testkit::mk_endpoints().tcp("http");
            let endpoints = endpoints.ready(&format!("10.200.0.{}:8080", at + 1), "node-2");
            let endpoints = endpoints.build();
            let compiled = compile(&service, &endpoints, dataplane.node(), dataplane.config());
            match at {
                2 => drop(dataplane.remove(&service.key)),
                _ => drop(dataplane.set(compiled.into())),
            }
            let started = on_processor()?;
            let expected = ground.backend.render(&dataplane, &observed);
            let change = ground.backend.diff(&observed.rules, &expected);
            let decided = on_processor()? - started;
            took.2 = change.steps().len();
            let _ = ground.backend.commit(change)?;
            took.0.push(on_processor()? - started - decided);
            took.1.push(decided);
            observed = Rendered {
                rules: expected,
                dataplane: dataplane.clone(),
            };
        }
    }
    for (what, (committed, decided, steps)) in
        ["comes", "gets another endpoint", "goes"].iter().zip(took)
    {
        println!(
            "one Service {what}: {steps} transactions, {:.1?}, and {:.1?} to decide",
            middle(&committed),
            middle(&decided)
        );
    }
    Ok(())
}

/// Regroups the steps with this many rules in each.
fn rearranged(steps: &[TableChange], at_once: usize) -> Vec<TableChange> {
    let mut all: Vec<TableChange> = Vec::new();
    for step in steps {
        let fits = |last: &TableChange| {
            let gone = last.removed.is_empty() || step.chains.is_empty();
            last.table == step.table && gone && last.rules() + step.rules() <= at_once
        };
        let mut last = all
            .pop_if(|last| fits(last))
            .unwrap_or(TableChange::new(step.table));
        for chain in &step.chains {
            if last.rules() + chain.1.len() > at_once && !last.is_empty() {
                all.push(std::mem::replace(&mut last, TableChange::new(step.table)));
            }
            last.chains.push(chain.clone());
        }
        last.entries.extend(step.entries.iter().cloned());
        last.removed.extend(step.removed.iter().cloned());
        all.push(last);
    }
    all
}

fn commit(ground: &mut Ground, steps: &[TableChange]) -> Result<Vec<Duration>> {
    let mut took = Vec::new();
    for step in steps {
        // As between the steps of one change.
        thread::sleep(PAUSE);
        let started = on_processor()?;
        ground.tables.commit(std::slice::from_ref(step))?;
        took.push(on_processor()? - started);
    }
    Ok(took)
}

/// Returns the processor time of this thread so far (`/proc/PID/schedstat`).
fn on_processor() -> Result<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds = text.split(' ').next().context("a number")?;
    Ok(Duration::from_nanos(nanoseconds.parse()?))
}

fn middle(took: &[Duration]) -> Duration {
    let mut took = took.to_vec();
    took.sort();
    took.get(took.len() / 2).copied().unwrap_or_default()
}

/// Runs `work` while another program adds elements to its own table one by one; returns also the
/// longest time that one took.
fn while_others_write<T>(
    ground: &mut Ground,
    work: impl FnOnce(&mut Ground) -> Result<T>,
) -> Result<(T, Duration)> {
    let namespace = ground.namespace.clone();
    namespace.nft(&["add table inet theirs"])?;
    namespace.nft(&["add set inet theirs s { type ipv4_addr; }"])?;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let writing = scope.spawn(|| -> Result<Duration> {
            let mut longest = Duration::ZERO;
            while !done.load(Ordering::Relaxed) {
                let started = Instant::now();
                namespace.nft(&["add element inet theirs s { 11.0.0.1 }"])?;
                longest = longest.max(started.elapsed());
            }
            Ok(longest)
        });
        let worked = work(ground);
        done.store(true, Ordering::Relaxed);
        let waited = writing.join().ok().context("the other panicked")?;
        Ok((worked?, waited?))
    })
}
