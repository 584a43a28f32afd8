//! How long a change waits while the mode of a node with 10,000 Services changes, in parts and in
//! one sync: `cargo bench --package tests --bench switch`.
//!
//! Each row has a separate network namespace, with Services of five endpoints. Before every sync of
//! the switch an endpoint of another Service is replaced. A change waits for the sync that runs when
//! it arrives and for its own: at most for two syncs in a row. In iptables, the variant is nf_tables.
//!
//! A second table shows what stays one sync: an agent starts over the rules of an earlier one, and
//! one endpoint of every Service differs.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use backend::{AnyBackend, erase};
use backend_iptables::Lock;
use dataplane::{Dataplane, Mode, PartSize};
use reconciler::{FamilyReconciler, FamilySync, Outcome, Reason, SystemClock};
use testkit::{CallOutcome, Faulty};
use tests::network::{Namespace, Network, enter_private_namespaces};
use tests::ordinary_service::{config, service};
use xtables::Variant;

const SERVICES: u16 = 10_000;
/// A part that contains everything.
const EVERYTHING: PartSize = PartSize::new(usize::MAX / 1_000);

/// How a switch proceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    InParts,
    InOneSync,
}

/// What one switch took.
struct Switch {
    parts: usize,
    total: Duration,
    /// The longest time that two successive syncs took together.
    longest_wait: Duration,
}

fn main() -> Result<()> {
    enter_private_namespaces()?;
    println!("| switch | manner | parts | whole switch | longest wait of a change | ratio |");
    println!("|---|---|---|---|---|---|");
    let modes = [Mode::Nftables, Mode::Iptables];
    for (from, to) in [(modes[0], modes[1]), (modes[1], modes[0])] {
        let whole = measure(from, to, Manner::InOneSync)?;
        let parts = measure(from, to, Manner::InParts)?;
        for (manner, switch) in [("one sync", &whole), ("parts", &parts)] {
            let ratio = switch.longest_wait.as_secs_f64() / whole.longest_wait.as_secs_f64();
            println!(
                "| {from} to {to} | {manner} | {} | {:.0?} | {:.0?} | {ratio:.3} |",
                switch.parts, switch.total, switch.longest_wait
            );
        }
    }
    println!(
        "\n| start over other rules | whole start | of it reading | rendering | in the kernel |"
    );
    println!("|---|---|---|---|---|");
    for mode in modes {
        let sync = measure_start(mode)?;
        let phases = sync.phases;
        println!(
            "| {mode} | {:.0?} | {:.0?} | {:.0?} | {:.0?} |",
            sync.took, phases.observe, phases.render, phases.commit
        );
    }
    Ok(())
}

/// Measures a start over rules in which one endpoint of every Service differs.
fn measure_start(mode: Mode) -> Result<Arc<FamilySync>> {
    let mut network = Network::new()?;
    let [namespace] = network.add_namespaces(["bench"])?;
    let folder = tempfile::tempdir_in("/run")?;
    let start = |first| -> Result<Arc<FamilySync>> {
        let lock = folder.path().join("lock");
        let mut family = open(&namespace, &lock, Manner::InOneSync)?;
        let mut dataplane = Dataplane::default();
        set_mode(&mut dataplane, mode)?;
        for number in 0..SERVICES {
            dataplane.set(service(&dataplane, number, first));
        }
        let sync = family.sync(&dataplane, Reason::Startup, &SystemClock);
        ensure!(sync.succeeded(), "{sync}");
        Ok(sync)
    };
    start(0)?;
    start(1)
}

/// Measures one switch.
fn measure(from: Mode, to: Mode, manner: Manner) -> Result<Switch> {
    let mut network = Network::new()?;
    let [namespace] = network.add_namespaces(["bench"])?;
    let folder = tempfile::tempdir_in("/run")?;
    let mut family = open(&namespace, &folder.path().join("lock"), manner)?;
    let mut dataplane = Dataplane::default();
    set_mode(&mut dataplane, from)?;
    for number in 0..SERVICES {
        dataplane.set(service(&dataplane, number, 0));
    }
    let mut sync = family.sync(&dataplane, Reason::Startup, &SystemClock);
    while sync.outcome == Outcome::Partial {
        sync = family.sync(&dataplane, Reason::Continued, &SystemClock);
    }
    ensure!(sync.succeeded(), "{sync}");

    set_mode(&mut dataplane, to)?;
    let (began, mut reason, mut syncs) = (Instant::now(), Reason::Changed, Vec::new());
    loop {
        let number = u16::try_from(syncs.len() % usize::from(SERVICES))?;
        dataplane.set(service(&dataplane, number, 1));
        let sync: Arc<FamilySync> = family.sync(&dataplane, reason, &SystemClock);
        reason = Reason::Continued;
        syncs.push(sync.took);
        match sync.outcome {
            Outcome::Partial => {}
            _ if sync.succeeded() => break,
            _ => anyhow::bail!("{sync}"),
        }
    }
    let total = began.elapsed();
    ensure!(family.active_mode() == Some(to));
    let waits = syncs.iter().zip(syncs.iter().skip(1)).map(|(a, b)| *a + *b);
    Ok(Switch {
        parts: syncs.len(),
        total,
        longest_wait: waits
            .chain(syncs.first().copied())
            .max()
            .unwrap_or_default(),
    })
}

fn open(
    namespace: &Namespace,
    lock: &Path,
    manner: Manner,
) -> Result<FamilyReconciler<Faulty<AnyBackend>>> {
    let lock = Lock {
        path: lock.to_owned(),
        patience: Duration::ZERO,
    };
    let [nftables, _] = namespace.enter(backend_nftables::open)??;
    let [iptables, _] = namespace.enter(|| backend_iptables::open(Variant::NfTables, &lock))??;
    let in_manner = |backend: AnyBackend| {
        let backend = Faulty::new(backend, |_| CallOutcome::Pass);
        match manner {
            Manner::InParts => backend,
            Manner::InOneSync => backend.with_part_size(EVERYTHING),
        }
    };
    Ok(FamilyReconciler::with_modes(
        (Mode::Nftables, in_manner(erase(nftables))),
        vec![(Mode::Iptables, in_manner(erase(iptables)))],
    ))
}

fn set_mode(dataplane: &mut Dataplane, mode: Mode) -> Result<()> {
    let node = Arc::clone(dataplane.node());
    dataplane.set_node(node, Arc::new(config(mode)?));
    Ok(())
}
