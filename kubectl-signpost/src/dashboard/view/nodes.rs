//! The grid of nodes.

use crds::NodeProxy;
use crds::node_proxy::latency::Microseconds;
use serde::Serialize;

use crate::nodes::NodeReport;

/// One node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::dashboard) struct NodeRow {
    #[serde(flatten)]
    pub(in crate::dashboard) report: NodeReport,
    /// The health, in the same words as `status`.
    state: &'static str,
    latency: Latency,
}

/// The order of magnitude of a node's 99th percentile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Latency {
    /// Not measured.
    Unknown,
    /// At most a millisecond.
    Millisecond,
    /// At most ten milliseconds.
    TenMilliseconds,
    /// At most a hundred milliseconds.
    HundredMilliseconds,
    /// More than a hundred milliseconds.
    Longer,
}

// === impl NodeRow ===

impl NodeRow {
    pub(in crate::dashboard) fn of(proxy: &NodeProxy) -> NodeRow {
        let latency = proxy.status.as_ref().and_then(|status| {
            let latency = status.sync_latency.as_ref()?;
            Some(latency.total.p99_microseconds)
        });
        NodeRow::new(NodeReport::of(proxy), latency)
    }

    pub(in crate::dashboard) fn without_configuration(name: String) -> NodeRow {
        NodeRow::new(NodeReport::without_configuration(name), None)
    }

    fn new(report: NodeReport, p99: Option<Microseconds>) -> NodeRow {
        let state = match report.profile.is_empty() {
            true => "without a configuration",
            false => report.health.describe(),
        };
        NodeRow {
            state,
            latency: Latency::of(p99),
            report,
        }
    }
}

// === impl Latency ===

impl Latency {
    fn of(p99: Option<Microseconds>) -> Latency {
        match p99.map(Microseconds::count) {
            None => Latency::Unknown,
            Some(..=1_000) => Latency::Millisecond,
            Some(..=10_000) => Latency::TenMilliseconds,
            Some(..=100_000) => Latency::HundredMilliseconds,
            Some(_) => Latency::Longer,
        }
    }
}
