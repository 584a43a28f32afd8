//! What there is to count in mode iptables alone.

use std::fmt;

use dataplane::{Family, Mechanism};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Labelled;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use reconciler::Round;
use runtime::Metrics;
use xtables::TableName;

use super::{Extent, OfFamily, extent, of_family, standing::float};
use crate::board::Board;
use crate::mechanism::VariantRules;

/// From what nobody notices to longer than anybody waits: 1 ms to 16.4 s, doubling.
const WAIT_BUCKETS: (f64, f64, u16) = (0.001, 2.0, 15);

/// kube-proxy's counts of restores that failed: what is a restore there is a round here.
#[derive(Debug, Clone, Default)]
pub(super) struct Failures {
    all: Labelled<OfFamily, Counter>,
    partial: Labelled<OfFamily, Counter>,
}

/// How many rules there are in what table.
type Count = (Family, TableName, usize);

/// How long changes waited for the lock of iptables.
pub(crate) fn register_lock_waits(metrics: &Metrics) -> Histogram {
    metrics.register(
        "signpost_xtables_lock_wait_seconds",
        "How long a change waited for the lock that all who change legacy iptables take",
        lock_waits(),
    )
}

/// The same, for whoever tells nobody.
pub(crate) fn lock_waits() -> Histogram {
    let (start, factor, length) = WAIT_BUCKETS;
    Histogram::new(exponential_buckets(start, factor, length))
}

// === impl Failures ===

impl Failures {
    pub(super) fn register(metrics: &Metrics) -> Failures {
        Failures {
            all: metrics.register(
                "kubeproxy_sync_proxy_rules_iptables_restore_failures",
                "Rounds that failed in mode iptables",
                Labelled::default(),
            ),
            partial: metrics.register(
                "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures",
                "Rounds that failed in mode iptables and were about what had changed",
                Labelled::default(),
            ),
        }
    }

    /// A round failed.
    pub(super) fn count(&self, round: &Round) {
        let family = of_family(round.family);
        self.all.get_or_create(&family).inc();
        if extent(round.reason) == Extent::Partial {
            self.partial.get_or_create(&family).inc();
        }
    }
}

/// How many rules there are of ours, and how many of them the last change has written, in families
/// that are carried out by iptables.
pub(super) fn encode_rules(
    board: &Board,
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    let mut held: Vec<Count> = Vec::new();
    let mut written: Vec<Count> = Vec::new();
    for (family, carried) in board.carried() {
        if carried.carrier != Some(Mechanism::Iptables) {
            continue;
        }
        let ours = board.held(family).unwrap_or_default();
        let rules = ours.of(Mechanism::Iptables).typed::<VariantRules>().used;
        held.extend(TableName::ALL.map(|table| (family, table, rules.count(table))));
        let last = carried.written.into_iter();
        written.extend(last.map(|(table, count)| (family, table, count)));
    }
    encode(
        encoder,
        "kubeproxy_sync_proxy_rules_iptables_total",
        "Rules of iptables the kernel is believed to hold of ours",
        &held,
    )?;
    encode(
        encoder,
        "kubeproxy_sync_proxy_rules_iptables_last",
        "Rules of iptables that the last change has written",
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
