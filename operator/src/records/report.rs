//! What the operator uses of the status that an agent writes.

use crds::{
    condition::{
        API_SERVICE_REACHABLE, CONNTRACK_PRESSURE, DEGRADED, FEATURES_HONOURED,
        FOREIGN_PROXY_DETECTED, READY, RULES_CONTESTED,
    },
    effective::hash::ConfigHash,
    node_proxy::{Heartbeat, NodeProxyStatus, latency::Microseconds},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// The report of one agent. A whole status has a hundred figures and texts that lead to no decision;
/// with thousands of agents they would be most of the operator's memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Report {
    /// The generation of the NodeProxy that it describes.
    pub(crate) observed_generation: Option<i64>,
    /// The hash of the configuration in force.
    pub(crate) applied_hash: Option<ConfigHash>,
    /// The time of the last sync, on the node's clock.
    pub(crate) last_sync_time: Option<Timestamp>,
    /// How long changes took to reach the kernel; absent before the first.
    pub(crate) latency: Option<Latency>,
    /// How the agent shows that it is alive.
    pub(crate) heartbeat: Option<Heartbeat>,
    /// The version of the agent.
    pub(crate) agent_version: Option<String>,
    /// Whether other programs have changed its rules.
    pub(crate) has_drift: bool,
    /// The conditions that the operator uses.
    pub(crate) conditions: Vec<Condition>,
}

/// The latencies of one node, rounded up by [`coarse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Latency {
    /// The median.
    pub(crate) p50: Microseconds,
    /// The 99th percentile.
    pub(crate) p99: Microseconds,
}

/// The conditions that the operator uses.
const CONDITIONS: [&str; 7] = [
    API_SERVICE_REACHABLE,
    READY,
    DEGRADED,
    FEATURES_HONOURED,
    FOREIGN_PROXY_DETECTED,
    RULES_CONTESTED,
    CONNTRACK_PRESSURE,
];

// === impl Report ===

impl From<NodeProxyStatus> for Report {
    fn from(status: NodeProxyStatus) -> Self {
        let total = status.sync_latency.map(|latency| latency.total);
        let mut conditions = status.conditions;
        // A connection that succeeds ends the wait for one. That it does so again leads to no decision.
        conditions.retain(|condition| {
            let kind = condition.type_.as_str();
            CONDITIONS.contains(&kind)
                && (kind != API_SERVICE_REACHABLE || condition.status != "True")
        });
        conditions.shrink_to_fit();
        Self {
            observed_generation: status.observed_generation,
            applied_hash: status.applied_hash,
            last_sync_time: status.last_sync_time.map(|time| time.0),
            latency: total.map(|total| Latency {
                p50: coarse(total.p50_microseconds),
                p99: coarse(total.p99_microseconds),
            }),
            heartbeat: status.heartbeat,
            agent_version: status.agent_version,
            has_drift: !status.drift.is_empty(),
            conditions,
        }
    }
}

/// Rounds `exact` up to 1, 2 or 5 times a power of ten. Under churn the exact value changes with
/// every report, and each change would plan all nodes and write the profile. The metrics have the
/// exact values.
fn coarse(exact: Microseconds) -> Microseconds {
    let exact = exact.count();
    let steps = (0..19).flat_map(|power| [1, 2, 5].map(|step| step * 10_u64.pow(power)));
    let mut steps = [0].into_iter().chain(steps);
    Microseconds::new(steps.find(|step| exact <= *step).unwrap_or(exact))
}
