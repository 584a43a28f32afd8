//! The recent latency of changes.

mod window;

use std::time::Instant;

use crds::node_proxy::latency::SyncLatency;
use crds::span::Span;
use reconciler::{FamilySync, Report};

use window::Window;

/// The time that the figures in a status cover, to within half a minute.
const WINDOW: Span = Span::minutes(5);

/// The durations of every phase, for all changes of the window.
#[derive(Debug)]
pub struct Latencies {
    decode: Window,
    compile: Window,
    commit: Window,
    total: Window,
    network_programming: Window,
}

// === impl Latencies ===

impl Latencies {
    /// Records the changes in `report`, at `now`.
    pub fn record(&mut self, report: &Report, now: Instant) {
        for latency in &report.latencies {
            self.compile.push(now, latency.compile);
            self.total.push(now, latency.received_to_commit);
            for trigger in &latency.trigger_to_commit {
                self.network_programming.push(now, *trigger);
            }
            let of_family = |sync: &&std::sync::Arc<FamilySync>| sync.family == latency.family;
            if let Some(sync) = report.finished.iter().rfind(of_family) {
                self.commit.push(now, sync.took);
                // The rest, apart from compiling and the sync itself, is the way from the source to
                // the reconciler, and the wait for minSyncPeriod.
                let known = latency.compile + sync.took;
                self.decode
                    .push(now, latency.received_to_commit.saturating_sub(known));
            }
        }
    }

    /// Returns the figures of the window; `None` if nothing changed in it. Takes microseconds.
    pub fn summary(&mut self, now: Instant) -> Option<SyncLatency> {
        let total = self.total.quantiles(now)?;
        let rest = |phase: &mut Window| phase.quantiles(now).unwrap_or_default();
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

impl Default for Latencies {
    fn default() -> Latencies {
        let window = || Window::new(WINDOW.duration());
        Latencies {
            decode: window(),
            compile: window(),
            commit: window(),
            total: window(),
            network_programming: window(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crds::node_proxy::latency::Quantiles;
    use dataplane::Family;
    use reconciler::{Activity, Latency, Outcome, Reason};

    #[test]
    fn the_phases_of_a_change_add_up_to_all_of_it() {
        let milliseconds = Duration::from_millis;
        let sync = FamilySync {
            took: milliseconds(4),
            ..FamilySync::new(Family::Ipv4, Reason::Changed, Outcome::Committed)
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
            repair_backoff: None,
            finished: vec![Arc::new(sync)],
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
}
