//! What an agent measures: its own metrics, in addition to those of every Signpost process, and the
//! recent latency of changes, for its status. Metrics have kube-proxy's names if they mean the same, and
//! the prefix `signpost_` otherwise.
//!
//! Counters and histograms are updated where the work is done ([`AgentMetrics`], [`ChangeCounts`]).
//! Gauges are read at each scrape: from the kernel, or from the agent as [`Snapshot`].

mod changes;
mod connections;
mod iptables;
mod ipvs_statistics;
mod latency;
mod monotonic_count;
mod node;
mod packets;
mod snapshot;
mod state;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dataplane::Mode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Labelled;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use reconciler::{FamilySync, Latency, Outcome, Reason};
use runtime::Metrics;

pub use changes::ChangeCounts;
pub use iptables::{lock_waits, register_lock_waits};
pub use latency::Latencies;
use node::OfNode;
use packets::PacketMetrics;
pub use snapshot::Snapshot;
use state::StateMetrics;

/// kube-proxy's buckets for the duration of a sync: 1 ms to 16.4 s, doubling.
const SYNC_BUCKETS: (f64, f64, u16) = (0.001, 2.0, 15);
/// Signpost's phases are faster than kube-proxy's first bucket: 10 µs to 5.2 s, doubling.
const PHASE_BUCKETS: (f64, f64, u16) = (0.000_01, 2.0, 20);

/// The outcomes of a sync, as in the label.
const OUTCOMES: [&str; 4] = ["unchanged", "committed", "partial", "failed"];
/// The phases of programming a change, as in the label.
const PHASES: [&str; 6] = ["compile", "observe", "render", "diff", "commit", "total"];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfFamily {
    ip_family: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPhase {
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfOutcome {
    ip_family: String,
    outcome: &'static str,
}

/// Seconds since the epoch.
type Timestamp = Gauge<f64, std::sync::atomic::AtomicU64>;

type Histograms<L> = Labelled<L, Histogram, fn() -> Histogram>;

/// kube-proxy's two kinds of sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SyncKind {
    /// A sync that checks everything.
    Full,
    /// A sync for what has changed.
    Partial,
}

/// The metrics that syncs and changes update.
#[derive(Debug, Clone)]
pub struct AgentMetrics {
    iptables_failures: iptables::Failures,
    sync: Histograms<OfFamily>,
    full_sync: Histograms<OfFamily>,
    partial_sync: Histograms<OfFamily>,
    sync_failures: Labelled<OfFamily, Counter>,
    network_programming: Histograms<OfFamily>,
    last_sync: Labelled<OfFamily, Timestamp>,
    last_queued: Labelled<OfFamily, Timestamp>,
    last_comparison: Labelled<OfFamily, Timestamp>,
    kernel_agrees: Labelled<OfFamily, Gauge>,
    phases: Histograms<OfPhase>,
    syncs: Labelled<OfOutcome, Counter>,
    failed_syncs: Labelled<OfFamily, Gauge>,
    elements_written: Labelled<OfFamily, Counter>,
    drift: Labelled<OfFamily, Counter>,
    drift_repair: Histograms<OfFamily>,
}

// === impl AgentMetrics ===

impl AgentMetrics {
    /// Registers all metrics, with every series at 0. Gauges are read from `agent` at each scrape.
    pub fn register(metrics: &Metrics, agent: Arc<dyn Snapshot>) -> AgentMetrics {
        let own = AgentMetrics {
            iptables_failures: iptables::Failures::register(metrics),
            sync: metrics.register(
                "kubeproxy_sync_proxy_rules_duration_seconds",
                "Duration of a sync",
                Histograms::new_with_constructor(sync_histogram),
            ),
            full_sync: metrics.register(
                "kubeproxy_sync_full_proxy_rules_duration_seconds",
                "Duration of a sync that read the kernel",
                Histograms::new_with_constructor(sync_histogram),
            ),
            partial_sync: metrics.register(
                "kubeproxy_sync_partial_proxy_rules_duration_seconds",
                "Duration of a sync that wrote only changes",
                Histograms::new_with_constructor(sync_histogram),
            ),
            sync_failures: metrics.register(
                "kubeproxy_sync_proxy_rules_nftables_sync_failures",
                "Failed syncs in mode nftables",
                Labelled::default(),
            ),
            network_programming: metrics.register(
                "kubeproxy_network_programming_duration_seconds",
                "From the trigger time of an EndpointSlice to the kernel's acknowledgement",
                Histograms::new_with_constructor(network_programming_histogram),
            ),
            last_sync: metrics.register(
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
                "When a sync last succeeded",
                Labelled::default(),
            ),
            last_queued: metrics.register(
                "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
                "When the desired state last changed",
                Labelled::default(),
            ),
            last_comparison: metrics.register(
                "signpost_kernel_compared_timestamp_seconds",
                "When the kernel was last compared with the recorded state",
                Labelled::default(),
            ),
            kernel_agrees: metrics.register(
                "signpost_kernel_agrees",
                "Whether the last comparison of the kernel with the recorded state found no difference: 1 or 0",
                Labelled::default(),
            ),
            phases: metrics.register(
                "signpost_phase_duration_seconds",
                "How long each phase of programming a change took",
                Histograms::new_with_constructor(phase_histogram),
            ),
            syncs: metrics.register("signpost_syncs", "Syncs by outcome", Labelled::default()),
            failed_syncs: metrics.register(
                "signpost_failed_syncs",
                "Syncs that have failed since the last one that succeeded",
                Labelled::default(),
            ),
            elements_written: metrics.register(
                "signpost_elements_written",
                "Elements added to and removed from the kernel",
                Labelled::default(),
            ),
            drift: metrics.register(
                "signpost_drift",
                "Repairs of external changes",
                Labelled::default(),
            ),
            drift_repair: metrics.register(
                "signpost_drift_repair_seconds",
                "From the notification of an external change, or the start of a check, to its \
                 repair",
                Histograms::new_with_constructor(sync_histogram),
            ),
        };
        metrics.register_with(move |registry| {
            registry.register_collector(Box::new(OfNode(Arc::clone(&agent))));
            registry.register_collector(Box::new(StateMetrics(agent)));
            registry.register_collector(Box::new(PacketMetrics::begin()));
        });
        own.begin();
        own
    }

    /// Creates every series at 0. A series that first appears with its first event hides that event
    /// from `increase()`, and an alert misses the first failure.
    fn begin(&self) {
        for family in dataplane::Family::ALL {
            let family = of_family(family);
            for histogram in [
                &self.sync,
                &self.full_sync,
                &self.partial_sync,
                &self.network_programming,
                &self.drift_repair,
            ] {
                drop(histogram.get_or_create(&family));
            }
            for counter in [&self.sync_failures, &self.elements_written, &self.drift] {
                drop(counter.get_or_create(&family));
            }
            drop(self.failed_syncs.get_or_create(&family));
            self.iptables_failures.begin(&family);
            for outcome in OUTCOMES {
                drop(self.syncs.get_or_create(&OfOutcome {
                    ip_family: family.ip_family.clone(),
                    outcome,
                }));
            }
        }
        for phase in PHASES {
            drop(self.phases.get_or_create(&OfPhase { phase }));
        }
    }

    /// Records a compilation of the desired state.
    pub fn compiled(&self, took: Duration) {
        self.phase("compile", took);
    }

    /// Records a finished sync with `mode` as the desired mode.
    pub fn finished(&self, sync: &FamilySync, mode: Mode) {
        let family = of_family(sync.family);
        let outcome = match sync.outcome {
            Outcome::Unchanged => "unchanged",
            Outcome::Committed => "committed",
            Outcome::Partial => "partial",
            Outcome::Failed(_) => "failed",
        };
        let of_outcome = OfOutcome {
            ip_family: family.ip_family.clone(),
            outcome,
        };
        self.syncs.get_or_create(&of_outcome).inc();
        let written = u64::try_from(sync.size.elements).unwrap_or(u64::MAX);
        self.elements_written.get_or_create(&family).inc_by(written);
        self.phase("observe", sync.phases.observe);
        self.phase("render", sync.phases.render);
        self.phase("diff", sync.phases.diff);
        self.phase("commit", sync.phases.commit);
        if let Some(repaired_drift) = &sync.repaired_drift {
            self.drift.get_or_create(&family).inc();
            let repair = self.drift_repair.get_or_create(&family);
            repair.observe(repaired_drift.repaired_after.as_secs_f64());
        }
        let took = sync.took.as_secs_f64();
        self.sync.get_or_create(&family).observe(took);
        let by_kind = match sync_kind(sync.reason) {
            SyncKind::Full => &self.full_sync,
            SyncKind::Partial => &self.partial_sync,
        };
        by_kind.get_or_create(&family).observe(took);
        match sync.outcome {
            Outcome::Unchanged | Outcome::Committed => {
                self.failed_syncs.get_or_create(&family).set(0);
            }
            // More parts follow.
            Outcome::Partial => {}
            Outcome::Failed(_) => {
                self.failed_syncs.get_or_create(&family).inc();
            }
        }
        let ended = since_epoch(sync.started + sync.took);
        match mode {
            _ if sync.outcome == Outcome::Partial => {}
            _ if sync.succeeded() => drop(self.last_sync.get_or_create(&family).set(ended)),
            // kube-proxy has separate counters for mode iptables.
            Mode::Iptables => self.iptables_failures.count(sync),
            _ => drop(self.sync_failures.get_or_create(&family).inc()),
        }
        if let Some(agrees) = comparison(sync) {
            self.last_comparison.get_or_create(&family).set(ended);
            let gauge = self.kernel_agrees.get_or_create(&family);
            gauge.set(i64::from(agrees));
        }
    }

    /// Records that the desired state of every family changed at `now`.
    pub fn queued(&self, now: SystemTime) {
        for family in dataplane::Family::ALL {
            let gauge = self.last_queued.get_or_create(&of_family(family));
            gauge.set(since_epoch(now));
        }
    }

    /// Records a change that the kernel acknowledged.
    pub fn arrived(&self, latency: &Latency) {
        self.phase("total", latency.received_to_commit);
        let histogram = self
            .network_programming
            .get_or_create(&of_family(latency.family));
        for trigger in &latency.trigger_to_commit {
            histogram.observe(trigger.as_secs_f64());
        }
    }

    fn phase(&self, phase: &'static str, took: Duration) {
        let histogram = self.phases.get_or_create(&OfPhase { phase });
        histogram.observe(took.as_secs_f64());
    }
}

/// kube-proxy's full syncs are the first, those after a failure and the hourly one. Signpost's are
/// the first, those after a failure and the periodic ones, which check the kernel for changes.
fn sync_kind(reason: Reason) -> SyncKind {
    match reason {
        Reason::Changed | Reason::Continued => SyncKind::Partial,
        Reason::Retry | Reason::Drift | Reason::Timer | Reason::Requested | Reason::Startup => {
            SyncKind::Full
        }
    }
}

/// Returns whether the kernel held the recorded state, if the sync compared them or is the last
/// part of a repair.
fn comparison(sync: &FamilySync) -> Option<bool> {
    let compared = matches!(
        sync.reason,
        Reason::Drift | Reason::Timer | Reason::Requested
    );
    let is_reported = compared || sync.repaired_drift.is_some();
    (is_reported && sync.succeeded()).then_some(sync.repaired_drift.is_none())
}

fn since_epoch(time: SystemTime) -> f64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

/// Returns `number` as the value of a gauge.
fn float(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

fn of_family(family: dataplane::Family) -> OfFamily {
    OfFamily {
        ip_family: family.to_string(),
    }
}

fn sync_histogram() -> Histogram {
    let (start, factor, length) = SYNC_BUCKETS;
    Histogram::new(exponential_buckets(start, factor, length))
}

fn phase_histogram() -> Histogram {
    let (start, factor, length) = PHASE_BUCKETS;
    Histogram::new(exponential_buckets(start, factor, length))
}

/// 18 of kube-proxy's 84 buckets, with the same bounds, so that alert rules that name one of them
/// keep their meaning. A trigger time has whole seconds only, so smaller bounds would be
/// meaningless.
fn network_programming_histogram() -> Histogram {
    Histogram::new([
        0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0,
        240.0, 300.0,
    ])
}
