//! What a scrape is told beside what every program of ours tells: kube-proxy's names where the
//! meaning is kube-proxy's, `signpost_` where it is ours.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Labelled;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use reconciler::{Latency, Outcome, Round};
use runtime::Metrics;

use crate::board::Board;

/// kube-proxy's buckets for the duration of a sync: 1 ms to 16.4 s, doubling.
const SYNC_BUCKETS: (f64, f64, u16) = (0.001, 2.0, 15);
/// Our phases are faster than kube-proxy's first bucket: 10 µs to 5.2 s, doubling.
const PHASE_BUCKETS: (f64, f64, u16) = (0.000_01, 2.0, 20);

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

/// Everything that moves when a change passes.
#[derive(Debug, Clone)]
pub(crate) struct AgentMetrics {
    sync: Labelled<OfFamily, Histogram, fn() -> Histogram>,
    network_programming: Labelled<OfFamily, Histogram, fn() -> Histogram>,
    last_sync: Labelled<OfFamily, Gauge<f64, std::sync::atomic::AtomicU64>>,
    phases: Labelled<OfPhase, Histogram, fn() -> Histogram>,
    rounds: Labelled<OfOutcome, Counter>,
    elements_written: Labelled<OfFamily, Counter>,
}

// === impl AgentMetrics ===

impl AgentMetrics {
    pub(crate) fn register(metrics: &Metrics, board: Arc<Board>) -> AgentMetrics {
        let own = AgentMetrics {
            sync: Labelled::new_with_constructor(sync_histogram as fn() -> Histogram),
            network_programming: Labelled::new_with_constructor(
                network_programming_histogram as fn() -> Histogram,
            ),
            last_sync: Labelled::default(),
            phases: Labelled::new_with_constructor(phase_histogram as fn() -> Histogram),
            rounds: Labelled::default(),
            elements_written: Labelled::default(),
        };
        let registered = own.clone();
        metrics.register_with(move |registry| {
            registry.register(
                "kubeproxy_sync_proxy_rules_duration_seconds",
                "How long a round took that made the kernel hold what is wanted",
                registered.sync,
            );
            registry.register(
                "kubeproxy_network_programming_duration_seconds",
                "From the trigger time of an EndpointSlice to the kernel's acknowledgement",
                registered.network_programming,
            );
            registry.register(
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
                "When a round last succeeded",
                registered.last_sync,
            );
            registry.register(
                "signpost_phase_duration_seconds",
                "How long each phase of programming a change took",
                registered.phases,
            );
            registry.register(
                "signpost_rounds",
                "Rounds by how they ended",
                registered.rounds,
            );
            registry.register(
                "signpost_elements_written",
                "Elements added to and removed from the kernel",
                registered.elements_written,
            );
            registry.register_collector(Box::new(Standing(board)));
        });
        own
    }

    /// A desired state was compiled.
    pub(crate) fn compiled(&self, took: Duration) {
        self.phase("compile", took);
    }

    /// A round ended.
    pub(crate) fn finished(&self, round: &Round) {
        let family = of_family(round.family);
        let outcome = match round.outcome {
            Outcome::Unchanged => "unchanged",
            Outcome::Committed => "committed",
            Outcome::Failed(_) => "failed",
        };
        let of_outcome = OfOutcome {
            ip_family: family.ip_family.clone(),
            outcome,
        };
        self.rounds.get_or_create(&of_outcome).inc();
        let written = u64::try_from(round.size.elements).unwrap_or(u64::MAX);
        self.elements_written.get_or_create(&family).inc_by(written);
        self.phase("observe", round.phases.observe);
        self.phase("render", round.phases.render);
        self.phase("diff", round.phases.diff);
        self.phase("commit", round.phases.commit);
        if !matches!(round.outcome, Outcome::Failed(_)) {
            let sync = self.sync.get_or_create(&family);
            sync.observe(round.took.as_secs_f64());
            let ended = (round.started + round.took).duration_since(UNIX_EPOCH);
            let ended = ended.unwrap_or_default().as_secs_f64();
            self.last_sync.get_or_create(&family).set(ended);
        }
    }

    /// A change was acknowledged by the kernel.
    pub(crate) fn arrived(&self, latency: &Latency) {
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

/// What is read off at a scrape.
#[derive(Debug)]
struct Standing(Arc<Board>);

impl Collector for Standing {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let board = &self.0;
        let view = board.view().borrow().clone();
        let wanted = view.as_ref().and_then(|view| view.wanted.as_ref());
        let stale = view.as_ref().and_then(|view| view.source.stale.as_ref());
        let stale_for = stale.map_or(0.0, |(since, _)| {
            let stale = SystemTime::now().duration_since(*since);
            stale.unwrap_or_default().as_secs_f64()
        });
        let gauges = [
            (
                "signpost_services",
                "Services that are wanted in the kernel",
                float(wanted.map_or(0, |dataplane| dataplane.services().len())),
            ),
            (
                "signpost_elements",
                "Elements the kernel is believed to hold",
                float(board.elements()),
            ),
            (
                "signpost_rejections",
                "Objects or parts of them that are not honoured",
                float(view.as_ref().map_or(0, |view| view.rejections.len())),
            ),
            (
                "signpost_source_stale_seconds",
                "For how long nothing has been heard of the source; 0 while it answers",
                stale_for,
            ),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(value);
            let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        Ok(())
    }
}

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

/// kube-proxy's buckets: 0, 0.25, 0.5, then seconds to a minute, five to two, thirty to five.
fn network_programming_histogram() -> Histogram {
    let seconds = (1..60)
        .chain((60..120).step_by(5))
        .chain((120..=300).step_by(30));
    Histogram::new([0.0, 0.25, 0.5].into_iter().chain(seconds.map(f64::from)))
}
