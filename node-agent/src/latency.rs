//! How long changes take, over the last while.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crds::node_proxy::latency::{Microseconds, Quantiles, SyncLatency};
use crds::span::Span;
use reconciler::{Report, Round};

/// What the figures in a status are about.
const WINDOW: Span = Span::minutes(5);
/// How many changes of that time are remembered: at a hundred a second, the last two minutes.
const REMEMBERED: usize = 12_000;

/// The durations of one phase.
#[derive(Debug, Default)]
struct Phase(VecDeque<(Instant, Duration)>);

/// The durations of every phase.
#[derive(Debug, Default)]
pub(crate) struct Latencies {
    decode: Phase,
    compile: Phase,
    commit: Phase,
    total: Phase,
    network_programming: Phase,
}

// === impl Latencies ===

impl Latencies {
    /// Takes in what `report` says, at `now`.
    pub(crate) fn record(&mut self, report: &Report, now: Instant) {
        for latency in &report.latencies {
            self.compile.push(now, latency.compile);
            self.total.push(now, latency.received_to_commit);
            for trigger in &latency.trigger_to_commit {
                self.network_programming.push(now, *trigger);
            }
            let of_family = |round: &&std::sync::Arc<Round>| round.family == latency.family;
            if let Some(round) = report.finished.iter().rfind(of_family) {
                self.commit.push(now, round.took);
                // What is neither compiling nor the round itself is the way from the source to the
                // loop, and the wait of minSyncPeriod.
                let known = latency.compile + round.took;
                self.decode
                    .push(now, latency.received_to_commit.saturating_sub(known));
            }
        }
    }

    /// The figures of the last while; `None` when nothing changed in it.
    pub(crate) fn summary(&mut self, now: Instant) -> Option<SyncLatency> {
        let total = self.total.quantiles(now)?;
        let rest = |phase: &mut Phase| phase.quantiles(now).unwrap_or_default();
        Some(SyncLatency {
            window: WINDOW,
            decode: rest(&mut self.decode),
            compile: rest(&mut self.compile),
            commit: rest(&mut self.commit),
            total,
            network_programming: self.network_programming.quantiles(now),
            p99: total.p99_microseconds.to_string(),
        })
    }
}

// === impl Phase ===

impl Phase {
    fn push(&mut self, now: Instant, duration: Duration) {
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back((now, duration));
    }

    fn quantiles(&mut self, now: Instant) -> Option<Quantiles> {
        while let Some((at, _)) = self.0.front()
            && now.saturating_duration_since(*at) > WINDOW.duration()
        {
            self.0.pop_front();
        }
        let mut sorted: Vec<Duration> = self.0.iter().map(|(_, duration)| *duration).collect();
        sorted.sort();
        // The nearest rank: the smallest value that so many percent do not exceed.
        let rank = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100).max(1);
            sorted.get(rank - 1).copied().map(Microseconds::from)
        };
        Some(Quantiles {
            p50_microseconds: rank(50)?,
            p99_microseconds: rank(99)?,
            max_microseconds: rank(100)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use super::*;
    use backend::Size;
    use dataplane::Family;
    use reconciler::{Activity, Latency, Outcome, Phases, Reason};

    #[test]
    fn the_phases_of_a_change_add_up_to_all_of_it() {
        let milliseconds = Duration::from_millis;
        let round = Round {
            family: Family::Ipv4,
            number: 2,
            reason: Reason::Changed,
            started: SystemTime::UNIX_EPOCH,
            took: milliseconds(4),
            ended: Instant::now(),
            phases: Phases::default(),
            size: Size::default(),
            transactions: 1,
            damage: None,
            outcome: Outcome::Committed,
            quarantined: Vec::new(),
            shortcomings: Arc::new([]),
        };
        let latency = Latency {
            family: Family::Ipv4,
            received_to_commit: milliseconds(15),
            compile: milliseconds(1),
            trigger_to_commit: vec![milliseconds(900)],
        };
        let report = Report {
            activity: Activity::Waiting,
            families: Vec::new(),
            contest: None,
            finished: vec![Arc::new(round)],
            latencies: vec![latency],
        };
        let mut latencies = Latencies::default();
        latencies.record(&report, Instant::now());
        let summary = latencies.summary(Instant::now()).expect("a change");
        let p50 = |quantiles: Quantiles| quantiles.p50_microseconds.count();
        let phases = [summary.decode, summary.compile, summary.commit].map(p50);
        assert_eq!(phases, [10_000, 1_000, 4_000]);
        assert_eq!(p50(summary.total), 15_000);
        assert_eq!(summary.network_programming.map(p50), Some(900_000));
        assert_eq!(summary.p99, "15ms");
    }

    #[test]
    fn quantiles_are_of_the_last_while_only() {
        let start = Instant::now();
        let mut phase = Phase::default();
        phase.push(start, Duration::from_secs(60));
        let later = start + WINDOW.duration();
        for milliseconds in 1..=100 {
            phase.push(later, Duration::from_millis(milliseconds));
        }
        let now = later + Duration::from_secs(1);
        let quantiles = phase.quantiles(now).expect("a hundred durations");
        assert_eq!(quantiles.p50_microseconds.count(), 50_000);
        assert_eq!(quantiles.p99_microseconds.count(), 99_000);
        assert_eq!(quantiles.max_microseconds.count(), 100_000);
        assert_eq!(phase.quantiles(now + WINDOW.duration()), None);
    }
}
