//! One round of one contender.

mod changes;

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use xtables::Variant;

use super::contender::{Entry, Running};
use super::listener_thread::ListenerThread;
use super::neighbour::Neighbour;
use super::packets::connect_from_pod;
use super::process_tree::{Bytes, MemoryWatch, observe_kernel_memory};
use super::rule_reader::{RuleReader, Sighting};
use crate::differential::Mode;

use super::{Arena, Contender, Figures, Measure, Population, Reading, Row};

/// How long no notification must arrive before the kernel counts as quiet: longer than both
/// contenders collect changes by default (minSyncPeriod, 1 s).
const QUIET: Duration = Duration::from_millis(1200);
/// The interval between two checks whether a program is done.
const ASKED_EVERY: Duration = Duration::from_millis(10);

/// The interval between two requests for a contender's report during a start.
const REPORT_ASKED_EVERY: Duration = Duration::from_millis(100);

/// The amount of work for each measurement.
#[derive(Debug, Clone)]
pub struct Effort {
    /// The contenders to measure.
    pub contenders: BTreeSet<Contender>,
    /// The rows to measure; others are skipped.
    pub rows: BTreeSet<Row>,
    /// The number of endpoints replaced one by one.
    pub replacements: u32,
    /// The number of steady changes per second.
    pub churn_rate: u32,
    /// How long the steady changes last.
    pub churn: Duration,
    /// The number of Services with 200 ports written during other changes, and a tenth of the
    /// number of endpoints of a Service with 100 ports.
    pub large: u32,
    /// The duration of the idle measurement.
    pub idle: Duration,
    /// The number of first packets of each protocol.
    pub packets: usize,
    /// How long connections are made to measure their rate.
    pub connecting: Duration,
    /// The timeout of a start.
    pub start_patience: Duration,
    /// The timeout of one change.
    pub change_patience: Duration,
    /// The timeout of a repair.
    pub repair_patience: Duration,
}

/// One contender on its node.
#[derive(Debug)]
struct Course<'a> {
    arena: &'a Arena,
    entry: Entry,
    contender: Contender,
    effort: &'a Effort,
}

/// The result of a start.
#[derive(Debug)]
enum Start {
    /// Everything is in the kernel. The memory has been watched since the start.
    Programmed(Box<Running>, MemoryWatch),
    /// Rules were still missing at the timeout.
    TooLate,
}

/// Measures one round of both contenders. The order alternates from round to round.
pub fn measure_round(
    arena: &Arena,
    effort: &Effort,
    round: u32,
    population: &mut Population,
    figures: &mut Figures,
) -> Result<()> {
    let mut order = Contender::ALL;
    if !round.is_multiple_of(2) {
        order.reverse();
    }
    let expected = |contender: &Contender| effort.contenders.contains(contender);
    for contender in order.into_iter().filter(expected) {
        let started = Instant::now();
        Course::new(arena, contender, effort)?
            .run(population, figures)
            .with_context(|| format!("round {round} of {contender}"))?;
        println!("round {round} of {contender}: {:.0?}", started.elapsed());
    }
    Ok(())
}

// === impl Course ===

/// Waits until the contender reports IPv4 to be programmed. Virtual servers are not all of mode
/// ipvs: kube-proxy fills its sets, without which nothing is masqueraded, after them.
fn wait_for_report(running: &mut Running, patience: Duration) -> Result<Option<Sighting>> {
    while running.started.elapsed() < patience {
        running.ensure_runs()?;
        let asked = Instant::now();
        if running.says_ipv4_programmed() {
            let at = Instant::now();
            let resolution = asked.elapsed() + REPORT_ASKED_EVERY;
            return Ok(Some(Sighting { at, resolution }));
        }
        thread::sleep(REPORT_ASKED_EVERY);
    }
    Ok(None)
}

impl<'a> Course<'a> {
    /// A course for `contender`.
    fn new(arena: &'a Arena, contender: Contender, effort: &'a Effort) -> Result<Course<'a>> {
        Ok(Course {
            arena,
            entry: arena.entry(contender)?,
            contender,
            effort,
        })
    }

    /// Measures one round. The kernel is empty before and after.
    fn run(&self, population: &mut Population, figures: &mut Figures) -> Result<()> {
        self.arena.writer.remove_services(population.waiting())?;
        self.entry.clean_node()?;
        let outcome = self.run_dirty(population, figures);
        let cleaned = self.entry.clean_node();
        outcome?;
        cleaned
    }

    fn run_dirty(&self, population: &mut Population, figures: &mut Figures) -> Result<()> {
        let apart = [Row::Neighbour, Row::Decoding];
        let others = Row::ALL.iter().filter(|row| !apart.contains(row));
        if others.copied().any(|row| self.wants(row)) {
            let before = observe_kernel_memory()?;
            match self.start_cold(population, figures)? {
                Start::TooLate => return Ok(()),
                Start::Programmed(running, memory) => {
                    self.run_started(*running, (memory, before), population, figures)?;
                }
            }
        }
        if self.wants(Row::Neighbour) {
            self.entry.clean_node()?;
            self.meet_neighbour(population, figures)?;
        }
        Ok(())
    }

    fn run_started(
        &self,
        mut running: Running,
        (memory, Bytes(before)): (MemoryWatch, Bytes),
        population: &mut Population,
        figures: &mut Figures,
    ) -> Result<()> {
        let listener = ListenerThread::open(&self.entry.node, self.contender, self.arena.mode)?;
        self.settle(&mut running, &listener)?;
        // Even without other activity the machine may use less kernel memory than before.
        let Bytes(after) = observe_kernel_memory()?;
        let kernel = Bytes(after.saturating_sub(before));
        self.push(figures, Measure::KernelMemory, Reading::memory(kernel));
        let rounds = running.observe_rounds()?;
        let rounds = Reading::time(Measure::ColdStartRounds, rounds);
        self.push(figures, Measure::ColdStartRounds, rounds);

        if self.wants(Row::Packets) {
            self.count_packets(population, figures)?;
        }
        if self.wants(Row::ServiceAdded) {
            self.add_services(&mut running, &listener, population, figures)?;
        }
        if self.wants(Row::EndpointReplaced) {
            self.replace_endpoints(&mut running, &listener, population, figures)?;
        }
        if self.wants(Row::Churn) {
            self.change_steadily(&mut running, &listener, population, figures)?;
        }
        if self.wants(Row::LargeObjects) {
            self.change_beside_large(&mut running, &listener, population, figures)?;
        }
        self.settle(&mut running, &listener)?;
        let peak = Reading::memory(memory.finish());
        self.push(figures, Measure::MemoryPeak, peak);
        if self.wants(Row::Idle) {
            self.do_nothing(&mut running, figures)?;
        }
        let rest = running.tree().observe_memory();
        self.push(figures, Measure::MemoryAtRest, Reading::memory(rest));
        if self.wants(Row::Restart) {
            running = self.restart(running, &listener, figures)?;
        }
        self.note_losses(&listener, figures);
        // A listener slows down a repair.
        drop(listener);
        if self.wants(Row::Repair) {
            self.repair(&mut running, population, figures)?;
        }
        Ok(())
    }

    /// Starts the contender with an empty kernel, and waits until the kernel has everything.
    fn start_cold(&self, population: &Population, figures: &mut Figures) -> Result<Start> {
        let mut reader = self.open_reader()?;
        let mut running = self.entry.start()?;
        let memory = running.tree().watch_memory();
        let patience = self.effort.start_patience;
        let mut seen = reader.wait_for_all(population, patience, || running.ensure_runs())?;
        let started = running.started;
        if self.arena.mode == Mode::Ipvs && seen.is_some() {
            seen = wait_for_report(&mut running, patience)?;
        }
        self.push_sighting(figures, Measure::ColdStart, seen, started, patience);
        Ok(match seen {
            Some(_) => Start::Programmed(Box::new(running), memory),
            None => {
                let peak = Reading::memory(memory.finish());
                self.push(figures, Measure::MemoryPeak, peak);
                Start::TooLate
            }
        })
    }

    /// Starts the contender again while another program writes to its own table.
    fn meet_neighbour(&self, population: &Population, figures: &mut Figures) -> Result<()> {
        let neighbour = Neighbour::start(&self.entry.node)?;
        let mut reader = self.open_reader()?;
        let mut running = self.entry.start()?;
        let patience = self.effort.start_patience;
        let _ = reader.wait_for_all(population, patience, || running.ensure_runs())?;
        drop(running);
        let [mut alone, mut beside] = neighbour.stop()?;
        let measures = [(Measure::NeighbourAlone, 100)];
        figures.push_percentiles(self.contender, &measures, &mut alone);
        let measures = [(Measure::NeighbourP50, 50), (Measure::NeighbourMost, 100)];
        figures.push_percentiles(self.contender, &measures, &mut beside);
        Ok(())
    }

    fn count_packets(&self, population: &Population, figures: &mut Figures) -> Result<()> {
        let Effort {
            packets,
            connecting,
            ..
        } = self.effort;
        let stand = self.arena.stand(self.contender);
        let mut noticed = connect_from_pod(stand, population, *packets, *connecting)?;
        let tcp = [
            (Measure::TcpP50, 50),
            (Measure::TcpP90, 90),
            (Measure::TcpP99, 99),
        ];
        let udp = [
            (Measure::UdpP50, 50),
            (Measure::UdpP90, 90),
            (Measure::UdpP99, 99),
        ];
        figures.push_percentiles(self.contender, &tcp, &mut noticed.tcp);
        figures.push_percentiles(self.contender, &udp, &mut noticed.udp);
        let connections = Reading::number(noticed.connections);
        self.push(figures, Measure::Connections, connections);
        let flows = [
            (
                Measure::EstablishedP50,
                Measure::EstablishedProcessor,
                noticed.through_service,
            ),
            (Measure::DirectP50, Measure::DirectProcessor, noticed.direct),
        ];
        for (round_trip, processor, mut flow) in flows {
            figures.push_percentiles(self.contender, &[(round_trip, 50)], &mut flow.round_trips);
            let reading = Reading::time(processor, flow.processor);
            self.push(figures, processor, reading);
        }
        Ok(())
    }

    fn do_nothing(&self, running: &mut Running, figures: &mut Figures) -> Result<()> {
        let tree = running.tree();
        let children = tree.watch_children();
        let started = Instant::now();
        let (time, wakeups) = (tree.observe_processor_time()?, tree.observe_wakeups()?);
        while started.elapsed() < self.effort.idle {
            running.ensure_runs()?;
            thread::sleep(ASKED_EVERY);
        }
        let took = started.elapsed().as_secs_f64();
        let time = tree.observe_processor_time()?.saturating_sub(time);
        let wakeups = tree.observe_wakeups()?.saturating_sub(wakeups);
        let children = children.finish();
        let percent = Reading::number(time.as_secs_f64() / took * 100.0);
        self.push(figures, Measure::IdleProcessor, percent);
        let wakeups = Reading::count(wakeups).per(took);
        self.push(figures, Measure::IdleWakeups, wakeups);
        let processes = Reading::count(children).per(took / 60.0);
        self.push(figures, Measure::IdleProcesses, processes);
        Ok(())
    }

    /// Kills and restarts the contender. A restart that writes nothing leaves no trace in the
    /// kernel, so the contender's own metrics tell when it is done.
    fn restart(
        &self,
        running: Running,
        listener: &ListenerThread,
        figures: &mut Figures,
    ) -> Result<Running> {
        drop(running);
        let before = listener.counts();
        let mut running = self.entry.start()?;
        let patience = self.effort.start_patience;
        let reading = loop {
            running.ensure_runs()?;
            let took = running.started.elapsed();
            if running.says_programmed() {
                break Reading::time(Measure::Restart, took);
            }
            if took > patience {
                break Reading::at_least(Measure::Restart, patience);
            }
            thread::sleep(ASKED_EVERY);
        };
        self.push(figures, Measure::Restart, reading);
        self.settle(&mut running, listener)?;
        if matches!(
            self.arena.mode,
            Mode::Iptables(Variant::Legacy) | Mode::Ipvs
        ) {
            let note = "The kernel sends no notifications in this mode: what a restart writes is \
                        not counted.";
            figures.note(note.to_owned());
            return Ok(running);
        }
        let after = listener.counts();
        let transactions = Reading::count(after.transactions - before.transactions);
        self.push(figures, Measure::RestartTransactions, transactions);
        let objects = Reading::count(after.objects - before.objects);
        self.push(figures, Measure::RestartObjects, objects);
        Ok(running)
    }

    fn repair(
        &self,
        running: &mut Running,
        population: &Population,
        figures: &mut Figures,
    ) -> Result<()> {
        let mut reader = self.open_reader()?;
        self.entry.damage()?;
        let damaged = Instant::now();
        let patience = self.effort.repair_patience;
        let seen = reader.wait_for_all(population, patience, || running.ensure_runs())?;
        self.push_sighting(figures, Measure::Repair, seen, damaged, patience);
        Ok(())
    }

    /// Waits until the contender has no more work.
    fn settle(&self, running: &mut Running, listener: &ListenerThread) -> Result<()> {
        let beginning = Instant::now();
        while listener.quiet_since(beginning).elapsed() < QUIET || running.tree().has_children() {
            running.ensure_runs()?;
            ensure!(
                beginning.elapsed() < self.effort.start_patience,
                "{} never comes to rest",
                self.contender
            );
            thread::sleep(ASKED_EVERY);
        }
        Ok(())
    }

    fn note_losses(&self, listener: &ListenerThread, figures: &mut Figures) {
        if listener.counts().missed > 0 {
            figures.note(format!(
                "Notifications about {} were lost: what it wrote is more than what is counted.",
                self.contender
            ));
        }
        if let Some(longest) = listener.longest_read() {
            figures.note(format!(
                "The kernel sends no notifications in this mode. The benchmark reads what it holds, and meanwhile \
                 {} cannot change it. Reading took up to {longest:.0?}: latencies are that coarse.",
                self.contender
            ));
        }
    }

    fn push_sighting(
        &self,
        figures: &mut Figures,
        measure: Measure,
        seen: Option<Sighting>,
        since: Instant,
        patience: Duration,
    ) {
        let reading = match seen {
            Some(Sighting { at, resolution }) => {
                figures.push_resolution(self.contender, resolution);
                Reading::time(measure, at.saturating_duration_since(since))
            }
            None => Reading::at_least(measure, patience),
        };
        self.push(figures, measure, reading);
    }

    fn push(&self, figures: &mut Figures, measure: Measure, reading: Reading) {
        figures.push(self.contender, measure, reading);
    }

    fn open_reader(&self) -> Result<RuleReader> {
        RuleReader::open(&self.entry.node, self.contender, self.arena.mode)
    }

    fn wants(&self, row: Row) -> bool {
        self.effort.rows.contains(&row)
    }
}
