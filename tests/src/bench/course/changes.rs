//! Changes of objects, measured from the answer of the API server to the kernel's notification.

use std::time::{Duration, Instant};

use anyhow::Result;
use xtables::Variant;

use super::Course;
use crate::bench::contender::Running;
use crate::bench::large::LargeObjects;
use crate::bench::listener_thread::{LEGACY_READ, ListenerThread};
use crate::bench::population::{Replacement, cluster_ip};
use crate::bench::writer::Written;
use crate::bench::{Figures, Measure, Population, Reading};
use crate::differential::Mode;

/// The step from one changed Service to the next: a prime, so that every Service is changed once
/// before any is changed twice.
const STRIDE: u32 = 7919;
/// The interval between two changes beside large objects: short enough that changes coincide with
/// each part of the writes.
const BESIDE_LARGE: Duration = Duration::from_millis(50);

impl Course<'_> {
    /// Adds the waiting Services one by one and removes them again.
    pub(super) fn add_services(
        &self,
        running: &mut Running,
        listener: &ListenerThread,
        population: &Population,
        figures: &mut Figures,
    ) -> Result<()> {
        let measures = [(Measure::AddedP50, 50), (Measure::AddedP99, 99)];
        let mut times = Vec::new();
        for number in population.waiting() {
            listener.expect(cluster_ip(number));
            let written = self.arena.writer.add_service(number)?;
            times.push(self.wait_for(running, listener, written)?);
            self.settle(running, listener)?;
        }
        self.push_latencies(figures, &measures, times);
        self.arena.writer.remove_services(population.waiting())?;
        self.settle(running, listener)
    }

    /// Replaces endpoints one by one.
    pub(super) fn replace_endpoints(
        &self,
        running: &mut Running,
        listener: &ListenerThread,
        population: &mut Population,
        figures: &mut Figures,
    ) -> Result<()> {
        let measures = [(Measure::ReplacedP50, 50), (Measure::ReplacedP99, 99)];
        let mut times = Vec::new();
        for number in 0..self.effort.replacements {
            let service = number.wrapping_mul(STRIDE) % population.services();
            let replacement = population.replace_endpoint(service);
            listener.expect(replacement.fresh);
            let written = self.arena.writer.replace_endpoint(replacement)?;
            times.push(self.wait_for(running, listener, written)?);
            self.settle(running, listener)?;
        }
        self.push_latencies(figures, &measures, times);
        if self.arena.mode == Mode::Iptables(Variant::Legacy) {
            figures.note(format!(
                "An endpoint in the place of another does not change the length of a legacy table, \
                 which is then read every {LEGACY_READ:?}: replacements and steady changes are \
                 that coarse."
            ));
        }
        Ok(())
    }

    /// Replaces endpoints at a steady rate, without waiting for the kernel.
    pub(super) fn change_steadily(
        &self,
        running: &mut Running,
        listener: &ListenerThread,
        population: &mut Population,
        figures: &mut Figures,
    ) -> Result<()> {
        let every = Duration::from_secs(1) / self.effort.churn_rate;
        let count = u32::try_from(self.effort.churn.as_nanos() / every.as_nanos())?;
        let services = (0..count).map(|turn| turn.wrapping_mul(STRIDE) % population.services());
        let services: Vec<u32> = services.collect();
        let changes = services
            .iter()
            .map(|service| population.replace_endpoint(*service));
        let changes: Vec<_> = changes.collect();
        changes
            .iter()
            .for_each(|change| listener.expect(change.fresh));

        let (before, started) = (running.tree().observe_processor_time()?, Instant::now());
        let written = self.arena.writer.replace_steadily(changes, every)?;
        self.settle(running, listener)?;
        let time = running
            .tree()
            .observe_processor_time()?
            .saturating_sub(before);
        let percent = time.as_secs_f64() / started.elapsed().as_secs_f64() * 100.0;
        self.push(figures, Measure::ChurnProcessor, Reading::number(percent));

        let mut times = latencies(listener, &written);
        let unseen = written.len() - times.len();
        let unseen = Reading::count(u64::try_from(unseen)?).per(f64::from(count) / 100.0);
        self.push(figures, Measure::ChurnUnseen, unseen);
        let measures = [(Measure::ChurnP50, 50), (Measure::ChurnP99, 99)];
        figures.push_percentiles(self.contender, &measures, &mut times);
        Ok(())
    }

    /// Replaces endpoints at a steady rate while the largest objects are written, starting half a
    /// second after the beginning, and then while some of their endpoints change.
    pub(super) fn change_beside_large(
        &self,
        running: &mut Running,
        listener: &ListenerThread,
        population: &mut Population,
        figures: &mut Figures,
    ) -> Result<()> {
        let changes = self.changes_of_others(listener, population)?;
        let count = changes.len();
        let large = LargeObjects::new(self.effort.large)?;
        let (written, began) = self
            .arena
            .writer
            .replace_beside(changes, BESIDE_LARGE, &large)?;
        self.settle(running, listener)?;
        let ended = listener.quiet_since(began);
        let took = Reading::time(
            Measure::LargeWritten,
            ended.saturating_duration_since(began),
        );
        self.push(figures, Measure::LargeWritten, took);
        let mut times = latencies(listener, &written);
        let unseen = written.len() - times.len();
        let share = f64::from(u32::try_from(count)?) / 100.0;
        let unseen = Reading::count(u64::try_from(unseen)?).per(share);
        self.push(figures, Measure::BesideLargeUnseen, unseen);
        let measures = [
            (Measure::BesideLargeP50, 50),
            (Measure::BesideLargeP99, 99),
            (Measure::BesideLargeMost, 100),
        ];
        figures.push_percentiles(self.contender, &measures, &mut times);

        let changes = self.changes_of_others(listener, population)?;
        let flipped = large.flipped();
        let written = self
            .arena
            .writer
            .replace_beside_flips(changes, BESIDE_LARGE, &flipped)?;
        self.settle(running, listener)?;
        let measures = [
            (Measure::BesideFlipsP50, 50),
            (Measure::BesideFlipsP99, 99),
            (Measure::BesideFlipsMost, 100),
        ];
        figures.push_percentiles(
            self.contender,
            &measures,
            &mut latencies(listener, &written),
        );
        self.arena.writer.remove_large(&large)?;
        self.settle(running, listener)
    }

    /// Returns changes of ordinary Services beside large objects, all of them expected.
    fn changes_of_others(
        &self,
        listener: &ListenerThread,
        population: &mut Population,
    ) -> Result<Vec<Replacement>> {
        let count = u32::try_from(self.effort.churn.as_millis() / BESIDE_LARGE.as_millis())?;
        let services = population.services();
        let changes: Vec<Replacement> = (0..count)
            .map(|turn| population.replace_endpoint(turn.wrapping_mul(STRIDE) % services))
            .collect();
        changes
            .iter()
            .for_each(|change| listener.expect(change.fresh));
        Ok(changes)
    }

    /// Returns how long one change took; `None` at a timeout.
    fn wait_for(
        &self,
        running: &mut Running,
        listener: &ListenerThread,
        written: Written,
    ) -> Result<Option<Duration>> {
        let received = listener.wait_for(written.address, self.effort.change_patience)?;
        running.ensure_runs()?;
        Ok(received.and_then(|_| latency(listener, written)))
    }

    fn push_latencies(
        &self,
        figures: &mut Figures,
        measures: &[(Measure, usize)],
        times: Vec<Option<Duration>>,
    ) {
        let patience = self.effort.change_patience;
        let late = times.iter().filter(|time| time.is_none()).count();
        if late > 0 {
            figures.note(format!(
                "{late} changes were not in the kernel of {} within {patience:?}: they count as \
                 that long.",
                self.contender
            ));
        }
        let mut times: Vec<Duration> = times
            .into_iter()
            .map(|time| time.unwrap_or(patience))
            .collect();
        figures.push_percentiles(self.contender, measures, &mut times);
    }
}

/// Returns the latencies of the changes that the kernel reported.
fn latencies(listener: &ListenerThread, written: &[Written]) -> Vec<Duration> {
    let received = written
        .iter()
        .filter_map(|written| latency(listener, *written));
    received.collect()
}

/// Returns the time from the API server's answer to the kernel's notification. The API server
/// notifies watchers before it answers, so the kernel may be faster: that counts as zero.
fn latency(listener: &ListenerThread, written: Written) -> Option<Duration> {
    let received = listener.received(written.address)?;
    Some(received.saturating_duration_since(written.answered))
}
