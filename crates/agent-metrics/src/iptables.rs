//! The metrics that only mode iptables has.

use std::fmt;

use dataplane::{Family, Mode};
use modes::VariantRules;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Labelled;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use reconciler::FamilySync;
use runtime::Metrics;
use xtables::TableName;

use super::{OfFamily, SyncKind, float, of_family, sync_kind};
use crate::Snapshot;

/// From unnoticeable to longer than any wait: 1 ms to 16.4 s, doubling.
const WAIT_BUCKETS: (f64, f64, u16) = (0.001, 2.0, 15);

/// kube-proxy's counts of failed restores. One restore in kube-proxy corresponds to one sync here.
#[derive(Debug, Clone, Default)]
pub(super) struct Failures {
    all: Labelled<OfFamily, Counter>,
    partial: Labelled<OfFamily, Counter>,
}

/// The number of rules in a table.
type Count = (Family, TableName, usize);

/// Registers the histogram of waits for the xtables lock.
pub fn register_lock_waits(metrics: &Metrics) -> Histogram {
    metrics.register(
        "signpost_xtables_lock_wait_seconds",
        "How long a change waited for the lock of legacy iptables",
        lock_waits(),
    )
}

/// Returns the same histogram, unregistered.
pub fn lock_waits() -> Histogram {
    let (start, factor, length) = WAIT_BUCKETS;
    Histogram::new(exponential_buckets(start, factor, length))
}

// === impl Failures ===

impl Failures {
    pub(super) fn register(metrics: &Metrics) -> Failures {
        Failures {
            all: metrics.register(
                "kubeproxy_sync_proxy_rules_iptables_restore_failures",
                "Failed syncs in mode iptables",
                Labelled::default(),
            ),
            partial: metrics.register(
                "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures",
                "Failed syncs in mode iptables that wrote only changes",
                Labelled::default(),
            ),
        }
    }

    /// Creates the series of `family` at 0.
    pub(super) fn begin(&self, family: &OfFamily) {
        drop(self.all.get_or_create(family));
        drop(self.partial.get_or_create(family));
    }

    /// Counts a failed sync.
    pub(super) fn count(&self, sync: &FamilySync) {
        let family = of_family(sync.family);
        self.all.get_or_create(&family).inc();
        if sync_kind(sync.reason) == SyncKind::Partial {
            self.partial.get_or_create(&family).inc();
        }
    }
}

/// Encodes how many iptables rules Signpost has, and how many of them the last change wrote, for
/// families in mode iptables.
pub(super) fn encode_rules(
    agent: &dyn Snapshot,
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    let mut counts: Vec<Count> = Vec::new();
    let mut written: Vec<Count> = Vec::new();
    for (family, mode) in agent.modes() {
        if mode.active_mode != Some(Mode::Iptables) {
            continue;
        }
        let held = agent.held(family).unwrap_or_default();
        let rules = held.of(Mode::Iptables).typed::<VariantRules>().used;
        counts.extend(TableName::ALL.map(|table| (family, table, rules.count(table))));
        let last = mode.written.into_iter();
        written.extend(last.map(|(table, count)| (family, table, count)));
    }
    encode(
        encoder,
        "kubeproxy_sync_proxy_rules_iptables_total",
        "iptables rules of Signpost in the kernel, as recorded",
        &counts,
    )?;
    encode(
        encoder,
        "kubeproxy_sync_proxy_rules_iptables_last",
        "iptables rules that the last change wrote",
        &written,
    )
}

fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    counts: &[Count],
) -> Result<(), fmt::Error> {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (family, table, count) in counts {
        let labels = [
            ("table", table.to_string()),
            ("ip_family", family.to_string()),
        ];
        ConstGauge::new(float(*count)).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}
