//! A small run of the benchmark: every row produces its figures, and each figure is really
//! measured.

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Zoned;
use libtest_mimic::{Arguments, Trial};
use tests::bench::{
    Arena, Contender, Effort, Figures, ListenerThread, Machine, Measure, Population, Report, Row,
    RuleReader, Run, measure_round,
};
use tests::binaries;
use tests::control_plane::build_programs;
use tests::deadline::wait_for;
use tests::differential::Mode;
use tests::ipvs_support::find_ipvs;
use tests::network::{Namespace, Network, enter_private_namespaces};
use tests::shared::Shared;
use tests::trial::trial;
use xtables::Variant;

/// The number of Services, of endpoints of each, and of Services to add.
const SIZE: [u32; 3] = [40, 2, 2];
/// What a restarted agent writes: in each family a table, two chains and a rule, which keep the hooks of
/// conntrack and NAT (decision 0080), and nothing else.
const HOOKS: f64 = 8.0;
/// How long the kernel may take to send a notification.
const TELLS_WITHIN: Duration = Duration::from_secs(10);

/// The environment shared by all measurements.
#[derive(Debug)]
struct Scene {
    arena: Arena,
    population: Population,
}

fn main() -> Result<()> {
    let programs = build_programs()?;
    enter_private_namespaces()?;
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let mut trials = vec![
        trial("the_ear_hears_what_it_waits_for_and_nothing_else", hear),
        trial("the_reader_is_not_content_with_less_than_everything", look),
    ];
    let scene = Shared::new("arena", Scene::start);
    if programs.join("kube-proxy").exists() {
        let all = Row::ALL.into_iter().filter(|row| *row != Row::Decoding);
        let all: BTreeSet<Row> = all.collect();
        trials.push(
            scene.trial("every_row_of_mode_nftables_has_figures", move |scene| {
                scene.measure(Mode::Nftables, all)
            }),
        );
        for variant in [Variant::NfTables, Variant::Legacy] {
            let mode = Mode::Iptables(variant);
            let rows = [Row::ColdStart, Row::ServiceAdded].into();
            if variant == Variant::Legacy && !Path::new("/proc/net/ip_tables_names").exists() {
                skip(&mut trials, "legacy_for_want_of_its_tables_in_this_kernel");
                continue;
            }
            trials.push(scene.trial(&format!("{mode}_has_figures"), move |scene| {
                scene.measure(mode, rows)
            }));
        }
        match find_ipvs(&["rr"])? {
            Some(why) => {
                println!("SKIPPED: mode ipvs: {why}");
                skip(&mut trials, "mode_ipvs_for_want_of_it_in_this_kernel");
            }
            None => {
                let rows = [Row::ColdStart, Row::ServiceAdded, Row::EndpointReplaced];
                trials.push(scene.trial("ipvs_has_figures", move |scene| {
                    scene.measure(Mode::Ipvs, rows.into())
                }));
            }
        }
    } else {
        let why = "all_measurements_for_want_of_kube-proxy_in_KUBEBUILDER_ASSETS";
        skip(&mut trials, why);
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    // `exit` drops nothing.
    drop(scene);
    conclusion.exit();
}

fn skip(trials: &mut Vec<Trial>, why: &str) {
    let name = format!("SKIPPED_{why}");
    trials.push(Trial::test(name, || Ok(())).with_ignored_flag(true));
}

// === impl Scene ===

impl Scene {
    fn start() -> Result<Scene> {
        let [services, endpoints, waiting] = SIZE;
        let population = Population::new(services, endpoints, waiting)?;
        let mut arena = Arena::start(Mode::Nftables, binaries::find("signpost-agent")?)?;
        arena.fill(&population)?;
        Ok(Scene { arena, population })
    }

    /// Measures one small round of both contenders and renders its page.
    fn measure(&mut self, mode: Mode, rows: BTreeSet<Row>) -> Result<()> {
        let Scene { arena, population } = self;
        arena.set_mode(mode)?;
        let effort = Effort {
            contenders: Contender::ALL.into(),
            rows,
            replacements: 2,
            churn_rate: 20,
            churn: Duration::from_secs(1),
            large: 1,
            idle: Duration::from_secs(2),
            packets: 50,
            connecting: Duration::from_millis(200),
            // Beside three busy programs, kube-proxy took 102 s to come to rest.
            start_patience: Duration::from_secs(300),
            change_patience: Duration::from_secs(60),
            // kube-proxy does not notice the damage.
            repair_patience: Duration::from_secs(2),
        };
        let mut figures = Figures::default();
        measure_round(arena, &effort, 0, population, &mut figures)?;
        let run = Run {
            mode,
            size: (population.services(), population.endpoints()),
            rounds: 1,
            command: "a test".to_owned(),
            began: Zoned::now(),
        };
        let report = Report {
            run: &run,
            machine: &Machine::observe(arena)?,
            figures: &figures,
            others: Vec::new(),
        };
        let folder = tempfile::tempdir()?;
        let page = fs::read_to_string(report.write(folder.path())?)?;
        ensure!(
            fs::read_dir(folder.path())?.count() == 2,
            "a table and a chart were written"
        );
        for measure in expected(&effort.rows) {
            for contender in Contender::ALL {
                let missing = || format!("{measure:?} of {contender} has no figure");
                figures.median(measure, contender).with_context(missing)?;
            }
            ensure!(page.contains(measure.title()), "{measure:?} is on no page");
        }
        let written = figures.median(Measure::RestartObjects, Contender::Signpost);
        ensure!(
            written.is_none_or(|written| written <= HOOKS),
            "a restart with nothing changed wrote {written:?} objects"
        );
        Ok(())
    }
}

/// Returns the figures required for these rows, at least one for each.
fn expected(rows: &BTreeSet<Row>) -> Vec<Measure> {
    let of = |row: &Row| match row {
        Row::ColdStart => Measure::ColdStart,
        Row::Packets => Measure::Connections,
        Row::ServiceAdded => Measure::AddedP99,
        Row::EndpointReplaced => Measure::ReplacedP99,
        Row::Churn => Measure::ChurnP99,
        Row::LargeObjects => Measure::BesideLargeMost,
        Row::Idle => Measure::IdleProcesses,
        Row::Restart => Measure::RestartObjects,
        Row::Repair => Measure::Repair,
        Row::Neighbour => Measure::NeighbourMost,
        Row::Decoding => Measure::DecodeRate,
    };
    let always = [Measure::MemoryPeak, Measure::MemoryAtRest];
    rows.iter().map(of).chain(always).collect()
}

/// Checks an address in an element, one in a rule, and one that is not expected.
fn hear() -> Result<()> {
    let mut network = Network::new()?;
    let [node] = network.add_namespaces(["listener"])?;
    let listener = ListenerThread::open(&node, Contender::Signpost, Mode::Nftables)?;
    let [element, rule, other] = [1, 2, 3].map(|last| Ipv4Addr::new(10, 128, 0, last));
    listener.expect(element);
    listener.expect(rule);
    node.nft(&["add table ip t; add set ip t s { type ipv4_addr . inet_service; }"])?;
    node.nft(&[&format!("add element ip t s {{ {element} . 80 }}")])?;
    let received = |address| {
        wait_for("the listener", TELLS_WITHIN, || {
            Ok(listener.received(address))
        })
    };
    let first = received(element)?;
    ensure!(listener.received(rule).is_none(), "there is no rule yet");
    node.nft(&[&format!(
        "add chain ip t c; add rule ip t c ip daddr {rule} drop; add rule ip t c ip daddr {other} drop"
    )])?;
    ensure!(received(rule)? > first, "the rule came after the element");
    ensure!(
        listener.received(other).is_none(),
        "{other} was not listened for"
    );
    Ok(())
}

/// Checks all Services without one endpoint, and then with it.
fn look() -> Result<()> {
    let mut network = Network::new()?;
    let [node] = network.add_namespaces(["reader"])?;
    let population = Population::new(2, 2, 0)?;
    let mut reader = RuleReader::open(&node, Contender::Signpost, Mode::Nftables)?;
    node.nft(&[
        "add table ip signpost; add set ip signpost services { type ipv4_addr; }; \
                add set ip signpost endpoints { type ipv4_addr; }; \
                add element ip signpost services { 10.96.1.0, 10.96.1.1 }; \
                add element ip signpost endpoints { 10.128.0.0, 10.128.0.1, 10.128.0.2 }",
    ])?;
    let short = Duration::from_millis(300);
    let seen = reader.wait_for_all(&population, short, || Ok(()))?;
    ensure!(seen.is_none(), "an endpoint is missing");
    node.nft(&["add element ip signpost endpoints { 10.128.0.3 }"])?;
    let seen = reader.wait_for_all(&population, TELLS_WITHIN, || Ok(()))?;
    let seen = seen.context("everything is there")?;
    ensure!(
        seen.at.elapsed() >= Duration::from_millis(100),
        "what counts is the change, not the look some time after it"
    );
    look_beside_a_writer(&node, &population)
}

/// Checks beside a program that changes its own table at least every tenth of a second, as in the
/// row `Neighbour`.
fn look_beside_a_writer(node: &Namespace, population: &Population) -> Result<()> {
    node.nft(&["add table ip other; add set ip other s { type ipv4_addr; }"])?;
    let mut reader = RuleReader::open(node, Contender::Signpost, Mode::Nftables)?;
    let is_over = AtomicBool::new(false);
    let seen = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                node.nft(&["add element ip other s { 10.0.0.1 }"])?;
                node.nft(&["delete element ip other s { 10.0.0.1 }"])?;
            }
            anyhow::Ok(())
        });
        let seen = reader.wait_for_all(population, TELLS_WITHIN, || Ok(()));
        is_over.store(true, Ordering::Relaxed);
        let wrote = writer.join();
        wrote.map_err(|_| anyhow::anyhow!("the writer panicked"))??;
        seen
    })?;
    ensure!(seen.is_some(), "everything was there all along");
    Ok(())
}
