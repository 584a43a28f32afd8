//! What a long day came to, as a table.

use std::fmt;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::Settings;
use super::changes::Followed;
use super::clients::Tally;
use super::node::Objects;
use crate::bench::process_tree::Bytes;

/// The number of rows that can be compared by quarters.
const LEAST_ROWS: usize = 8;

/// The whole run.
#[derive(Debug)]
pub struct Figures {
    pub(super) settings: Settings,
    pub(super) intervals: Vec<Interval>,
    /// The objects of each node's kernel, before and after.
    pub(super) before: [Objects; 2],
    pub(super) after: [Objects; 2],
}

/// A row of the table.
#[derive(Debug, Default)]
pub struct Interval {
    pub(super) took: Duration,
    pub(super) flushes: u32,
    pub(super) kills: u32,
    pub(super) outages: u32,
    pub(super) longest_repair: Option<Duration>,
    pub(super) longest_start: Option<Duration>,
    pub(super) followed: Followed,
    pub(super) tally: Tally,
    /// The agents' memory: of that which runs all the time, and of the other.
    pub(super) memory: [Bytes; 2],
    /// The processor time of the agent that runs all the time.
    pub(super) processor: Duration,
    /// Connections in the kernel's table of the node whose agent runs all the time.
    pub(super) connections: u64,
    pub(super) objects: Objects,
    /// The kernel's own memory, of the whole machine.
    pub(super) kernel_memory: Bytes,
}

// === impl Figures ===

impl Figures {
    /// Fails if anything was lost, if the kernel holds other objects than before, or if a kind of
    /// fault never happened.
    pub fn ensure_nothing_lost(&self) -> Result<()> {
        let sum = |of: fn(&Interval) -> u64| self.intervals.iter().map(of).sum::<u64>();
        let lost = sum(|interval| interval.tally.lost);
        let descriptions = self.intervals.iter().flat_map(|i| &i.tally.descriptions);
        let descriptions: Vec<&str> = descriptions.map(String::as_str).collect();
        ensure!(
            lost == 0,
            "{lost} connections were lost:\n{}",
            descriptions.join("\n")
        );
        let changes = sum(|interval| interval.followed.lost);
        ensure!(changes == 0, "{changes} changes did not reach both nodes");
        let (before, after) = (self.before, self.after);
        ensure!(before == after, "{before:?} before, {after:?} after");
        for (what, count) in [
            ("flush", sum(|interval| interval.flushes.into())),
            ("kill", sum(|interval| interval.kills.into())),
            ("outage", sum(|interval| interval.outages.into())),
            ("connection over TCP", sum(|interval| interval.tally.tcp)),
            ("question over UDP", sum(|interval| interval.tally.udp)),
            ("kept connection", sum(|interval| interval.tally.kept)),
            (
                "change that reached both nodes",
                sum(|interval| u64::from(!interval.followed.delays[0].is_empty())),
            ),
            (
                "repair",
                sum(|interval| interval.longest_repair.is_some().into()),
            ),
            (
                "start after a kill",
                sum(|interval| interval.longest_start.is_some().into()),
            ),
        ] {
            ensure!(count > 0, "there was no {what}");
        }
        Ok(())
    }

    /// Returns the table with what is above and below it.
    pub fn page(&self) -> String {
        let Settings {
            size: (services, endpoints),
            changes,
            connections,
            kept,
            flush_every,
            kill_every,
            outage_every,
            outage,
            ..
        } = self.settings;
        let mut page = format!(
            "{services} Services of {endpoints} endpoints on two nodes, {changes} endpoints replaced a second. On each node \
             {connections} new connections a second, half of them UDP, and {kept} TCP connections that stay open. \
             Every {flush_every:?} both nodes lose all rules of the table, or all tables, by turns; every {kill_every:?} \
             one agent is killed; every {outage_every:?} the API server is away for {outage:?}.\n\n{}\n",
            Interval::HEADINGS
        );
        for interval in &self.intervals {
            page += &format!("{interval}\n");
        }
        if self.intervals.len() > LEAST_ROWS {
            page += &format!(
                "\nThe last quarter to the first, medians: {}.\n",
                self.growth()
            );
        }
        page
    }

    /// The last quarter's figures as ratios to the first quarter's. The last row is short.
    fn growth(&self) -> String {
        let rows = &self.intervals[..self.intervals.len().saturating_sub(1)];
        let quarter = rows.len().div_ceil(4);
        let ratio = |of: &dyn Fn(&Interval) -> f64| {
            let first = median(rows.iter().take(quarter).map(of));
            let last = median(rows.iter().rev().take(quarter).map(of));
            last / first
        };
        format!(
            "memory {:.2}, latency p50 {:.2}, p99 {:.2}, processor {:.2}, connections tracked {:.2}, kernel memory {:.2}",
            ratio(&|interval| megabytes(interval.memory[0])),
            ratio(&|interval| milliseconds(interval.delay(0, 50))),
            ratio(&|interval| milliseconds(interval.delay(0, 99))),
            ratio(&|interval| interval.percent_of_processor()),
            ratio(&|interval| f64::from(u32::try_from(interval.connections).unwrap_or(u32::MAX))),
            ratio(&|interval| megabytes(interval.kernel_memory)),
        )
    }
}

// === impl Interval ===

impl Interval {
    /// The headings of the table.
    pub(super) const HEADINGS: &'static str = "\
| seconds | flushes, kills, outages | changes | p50 / p99 / longest | the same, agent killed | repaired within | started within \
| new TCP | UDP | kept | longest | lost | memory, MB | processor | objects | tracked | kernel, MB |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|";

    /// Returns a percentile of the delays of a node.
    fn delay(&self, node: usize, percent: usize) -> Duration {
        let mut delays = self.followed.delays[node].clone();
        delays.sort_unstable();
        let last = delays.len().saturating_sub(1);
        delays
            .get(last * percent / 100)
            .copied()
            .unwrap_or_default()
    }

    fn delays(&self, node: usize) -> String {
        let [p50, p99, longest] =
            [50, 99, 100].map(|percent| milliseconds(self.delay(node, percent)));
        format!("{p50:.2} / {p99:.1} / {longest:.0} ms")
    }

    fn percent_of_processor(&self) -> f64 {
        100.0 * self.processor.as_secs_f64() / self.took.as_secs_f64()
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let longest = |took: Option<Duration>| match took {
            Some(took) => format!("{:.2} s", took.as_secs_f64()),
            None => "-".to_owned(),
        };
        let Interval { tally, objects, .. } = self;
        let [steady, restless] = self.memory.map(megabytes);
        write!(
            f,
            "| {:.0} | {}, {}, {} | {} | {} | {} | {} | {} | {} | {} | {} | {:.1} s | {} | {steady:.1}, {restless:.1} | {:.1} % \
             | {} + {} + {} | {} | {:.0} |",
            self.took.as_secs_f64(),
            self.flushes,
            self.kills,
            self.outages,
            self.followed.delays[0].len(),
            self.delays(0),
            self.delays(1),
            longest(self.longest_repair),
            longest(self.longest_start),
            tally.tcp,
            tally.udp,
            tally.kept,
            tally.longest.as_secs_f64(),
            tally.lost,
            self.percent_of_processor(),
            objects.lines,
            objects.services,
            objects.endpoints,
            self.connections,
            megabytes(self.kernel_memory),
        )
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[expect(clippy::cast_precision_loss, reason = "a page shows three digits")]
fn megabytes(bytes: Bytes) -> f64 {
    bytes.0 as f64 / 1e6
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
