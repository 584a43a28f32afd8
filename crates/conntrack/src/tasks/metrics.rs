//! The metrics of the conntrack table.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family as Labelled;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use runtime::Metrics;

use super::{observe_fill, statistics};
use crate::{Outcome, Pass};

/// kube-proxy's buckets: 1 ms to 16.4 s, doubling.
const BUCKETS: (f64, f64, u16) = (0.001, 2.0, 15);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfFamily {
    ip_family: String,
}

/// The metrics that every pass of the worker updates.
#[derive(Debug, Clone)]
pub(super) struct ConntrackMetrics {
    duration: Labelled<OfFamily, Histogram, fn() -> Histogram>,
    deleted: Labelled<OfFamily, Counter>,
}

// === impl ConntrackMetrics ===

impl ConntrackMetrics {
    pub(super) fn register(metrics: &Metrics) -> ConntrackMetrics {
        let own = ConntrackMetrics {
            duration: Labelled::new_with_constructor(histogram as fn() -> Histogram),
            deleted: Labelled::default(),
        };
        // Created at 0: a counter that first appears with its first event hides that event from
        // `increase()`.
        for family in dataplane::Family::ALL {
            let family = OfFamily {
                ip_family: family.to_string(),
            };
            drop(own.duration.get_or_create(&family));
            drop(own.deleted.get_or_create(&family));
        }
        let registered = own.clone();
        metrics.register_with(move |registry| {
            registry.register(
                "kubeproxy_conntrack_reconciler_sync_duration_seconds",
                "Duration of a search for stale connections and their removal",
                registered.duration,
            );
            registry.register(
                "kubeproxy_conntrack_reconciler_deleted_entries",
                "Stale connections that were removed",
                registered.deleted,
            );
            registry.register_collector(Box::new(Fill));
            registry.register_collector(Box::new(DropCounters));
        });
        own
    }

    /// Counts a finished pass.
    pub(super) fn finished(&self, pass: &Pass) {
        let family = OfFamily {
            ip_family: pass.family.to_string(),
        };
        self.deleted.get_or_create(&family).inc_by(pass.deleted);
        if matches!(pass.outcome, Outcome::Complete | Outcome::BudgetSpent) {
            let duration = self.duration.get_or_create(&family);
            duration.observe(pass.took.as_secs_f64());
        }
    }
}

fn histogram() -> Histogram {
    let (start, factor, length) = BUCKETS;
    Histogram::new(exponential_buckets(start, factor, length))
}

/// The fill of the table, read from the kernel at each scrape.
#[derive(Debug)]
struct Fill;

impl Collector for Fill {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Some(fill) = observe_fill() else {
            return Ok(());
        };
        let gauges = [
            (
                "signpost_conntrack_entries",
                "Entries of the connection tracking table of the node's network namespace",
                fill.entries,
            ),
            (
                "signpost_conntrack_limit",
                "Limit of the connection tracking table, above which the kernel drops new connections",
                fill.max,
            ),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(f64::from(value));
            let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        Ok(())
    }
}

/// The kernel's counters, read at each scrape.
#[derive(Debug)]
struct DropCounters;

impl Collector for DropCounters {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Some(statistics) = statistics::observe() else {
            return Ok(());
        };
        let counters = [
            (
                "signpost_conntrack_insert_failed",
                "New connections lost because another one was in their place in the connection tracking table",
                statistics.insert_failed,
            ),
            (
                "signpost_conntrack_drop",
                "Packets dropped because the connection tracking table was full, or memory was short",
                statistics.dropped,
            ),
            (
                "signpost_conntrack_early_drop",
                "Connections removed from the full connection tracking table to make room for new ones",
                statistics.early_dropped,
            ),
        ];
        for (name, help, value) in counters {
            let counter = ConstCounter::new(value);
            let metric = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
            counter.encode(metric)?;
        }
        Ok(())
    }
}
