//! The metrics of the operator and its fleet.

use std::{collections::BTreeMap, sync::atomic::AtomicU64, time::Duration};

use crds::profile::{ProxyProfile, progress::RolloutStatus};
use jiff::Timestamp;
use kube::ResourceExt;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};
use runtime::Metrics;

use crate::fleet::{Action, NodeCounts};

/// The metrics of this operator. Clones are cheap and share their values.
#[derive(Clone, Debug)]
pub(crate) struct OperatorMetrics {
    leader: Gauge,
    nodes: Family<ProfileState, Gauge>,
    max_unavailable: Family<ProfileLabels, Gauge>,
    syncs: Counter,
    sync_seconds: Histogram,
    last_sync: Gauge<f64, AtomicU64>,
    oldest_heartbeat: Gauge<f64, AtomicU64>,
    failing_watches: Family<KindLabels, Gauge<f64, AtomicU64>>,
    writes: Family<WriteLabels, Counter>,
    conditions: Family<ConditionLabels, Gauge>,
    transitions: Family<TransitionLabels, Gauge<f64, AtomicU64>>,
    rollout_phases: Family<RolloutLabels, Gauge>,
    rollouts_since: Family<ProfileLabels, Gauge<f64, AtomicU64>>,
    min_ready: Family<ProfileLabels, Gauge<f64, AtomicU64>>,
}

/// The label of a kind of objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

/// The labels of a condition of a profile with its present status.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConditionLabels {
    profile: String,
    r#type: String,
    status: String,
    reason: String,
}

/// The labels of a condition of a profile, independent of its status.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TransitionLabels {
    profile: String,
    r#type: String,
}

/// The labels of a profile with the phase of its rollout.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RolloutLabels {
    profile: String,
    phase: String,
}

/// The label of a profile.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProfileLabels {
    profile: String,
}

/// The labels for the nodes of a profile in one state.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProfileState {
    profile: String,
    state: NodeState,
}

/// A state of nodes. States overlap: a node may be ready and degraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(
    non_camel_case_types,
    reason = "the label's values, which are lower case by convention"
)]
enum NodeState {
    matched,
    assigned,
    updated,
    ready,
    degraded,
    silent,
    /// Selected, but no agent can run there: in no other state.
    excluded,
}

/// The labels of a write: which one, and its result.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    action: &'static str,
    result: WriteResult,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(
    non_camel_case_types,
    reason = "the label's values, which are lower case by convention"
)]
pub(crate) enum WriteResult {
    success,
    /// A status was written without the fields that the API server's definition does not have.
    partial,
    /// Nothing was written, because the object has changed since the plan.
    conflict,
    failure,
}

// === impl OperatorMetrics ===

impl OperatorMetrics {
    /// Registers the metrics in `metrics`.
    pub(crate) fn register(metrics: &Metrics) -> Self {
        // A sync over ten nodes takes microseconds and writes nothing; one that assigns thousands
        // of nodes takes seconds.
        let buckets = [
            0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
        ];
        let own = Self {
            leader: metrics.register(
                "signpost_operator_leader",
                "Whether this operator holds the lease",
                Gauge::default(),
            ),
            nodes: metrics.register(
                "signpost_profile_nodes",
                "Nodes that a profile applies to, by state; the states overlap",
                Family::default(),
            ),
            max_unavailable: metrics.register(
                "signpost_profile_max_unavailable",
                "How many nodes of a profile may be unavailable at once: rollout.maxUnavailable of those that are matched or excluded",
                Family::default(),
            ),
            syncs: metrics.register(
                "signpost_operator_syncs",
                "Syncs of the whole fleet",
                Counter::default(),
            ),
            sync_seconds: metrics.register(
                "signpost_operator_sync_duration_seconds",
                "How long a sync of the whole fleet took, its writes included",
                Histogram::new(buckets),
            ),
            last_sync: metrics.register(
                "signpost_operator_last_sync_timestamp_seconds",
                "When the last sync of the whole fleet ended",
                Gauge::default(),
            ),
            oldest_heartbeat: metrics.register(
                "signpost_operator_oldest_heartbeat_seconds",
                "Age of the oldest Lease of an agent, as of the last list of Leases",
                Gauge::default(),
            ),
            failing_watches: metrics.register(
                "signpost_operator_watch_failing_seconds",
                "For how long the operator has failed to list or watch objects, by kind; 0 once it has not failed for three minutes",
                Family::default(),
            ),
            writes: metrics.register(
                "signpost_operator_writes",
                "Objects written, by action and result",
                Family::default(),
            ),
            conditions: metrics.register(
                "signpost_profile_condition",
                "The conditions of a profile, each with its status and reason as labels; always 1. The reason of Progressing is the phase of the rollout",
                Family::default(),
            ),
            transitions: metrics.register(
                "signpost_profile_condition_transition_timestamp_seconds",
                "When the status of a profile's condition last changed",
                Family::default(),
            ),
            rollout_phases: metrics.register(
                "signpost_profile_rollout_phase",
                "Phase of the rollout of a profile's configuration, as status.rollout.phase; always 1",
                Family::default(),
            ),
            rollouts_since: metrics.register(
                "signpost_profile_rollout_since_timestamp_seconds",
                "When the phase of a profile's rollout began, or the wave in progress if that is later",
                Family::default(),
            ),
            min_ready: metrics.register(
                "signpost_profile_min_ready_seconds",
                "How long a node has to stay ready with a change before others get it: rollout.minReady of a profile",
                Family::default(),
            ),
        };
        for kind in ["ProxyProfile", "Node", "NodeProxy", "DaemonSet", "Lease"] {
            drop(own.failing_watches.get_or_create(&KindLabels { kind }));
        }
        // `increase()` does not count the first event of a counter that starts with it.
        for action in ["update_status", "assign", "mark_unknown", "delete"] {
            for result in [
                WriteResult::success,
                WriteResult::partial,
                WriteResult::conflict,
                WriteResult::failure,
            ] {
                drop(own.writes.get_or_create(&WriteLabels { action, result }));
            }
        }
        own
    }

    /// Sets the conditions and the rollout of every profile. Removes profiles that are not among them.
    pub(crate) fn set_statuses<'a>(&self, profiles: impl Iterator<Item = &'a ProxyProfile>) {
        self.conditions.clear();
        self.transitions.clear();
        self.rollout_phases.clear();
        self.rollouts_since.clear();
        self.min_ready.clear();
        for profile in profiles {
            let min_ready = profile.spec.rollout.complete().min_ready.duration();
            let labels = ProfileLabels {
                profile: profile.name_any(),
            };
            let gauge = self.min_ready.get_or_create(&labels);
            gauge.set(min_ready.as_secs_f64());
            let status = profile.status.as_ref();
            if let Some(rollout) = status.and_then(|status| status.rollout.as_ref()) {
                self.set_rollout(profile.name_any(), rollout);
            }
            let conditions = profile.status.iter().flat_map(|status| &status.conditions);
            for condition in conditions {
                let labels = ConditionLabels {
                    profile: profile.name_any(),
                    r#type: condition.type_.clone(),
                    status: condition.status.clone(),
                    reason: condition.reason.clone(),
                };
                self.conditions.get_or_create(&labels).set(1);
                let labels = TransitionLabels {
                    profile: profile.name_any(),
                    r#type: condition.type_.clone(),
                };
                let since = seconds(condition.last_transition_time.0);
                self.transitions.get_or_create(&labels).set(since);
            }
        }
    }

    fn set_rollout(&self, profile: String, rollout: &RolloutStatus) {
        let labels = RolloutLabels {
            profile: profile.clone(),
            phase: format!("{:?}", rollout.phase),
        };
        self.rollout_phases.get_or_create(&labels).set(1);
        let labels = ProfileLabels { profile };
        let since = seconds(rollout.since.0);
        self.rollouts_since.get_or_create(&labels).set(since);
    }

    /// Records that this operator holds the lease.
    pub(crate) fn set_leader(&self) {
        self.leader.set(1);
    }

    /// Records a sync over `counts` that ended at `at`, in seconds since 1970, and took `took`.
    /// Removes profiles that are not in `counts`.
    pub(crate) fn record_sync(
        &self,
        counts: &BTreeMap<String, NodeCounts>,
        at: f64,
        took: Duration,
    ) {
        self.syncs.inc();
        self.sync_seconds.observe(took.as_secs_f64());
        self.last_sync.set(at);
        self.nodes.clear();
        self.max_unavailable.clear();
        for (profile, counts) in counts {
            let labels = ProfileLabels {
                profile: profile.clone(),
            };
            let most = counts.max_unavailable.into();
            self.max_unavailable.get_or_create(&labels).set(most);
            for (state, count) in [
                (NodeState::matched, counts.matched),
                (NodeState::assigned, counts.assigned),
                (NodeState::updated, counts.updated),
                (NodeState::ready, counts.ready),
                (NodeState::degraded, counts.degraded),
                (NodeState::silent, counts.silent),
                (NodeState::excluded, counts.excluded),
            ] {
                let labels = ProfileState {
                    profile: profile.clone(),
                    state,
                };
                self.nodes.get_or_create(&labels).set(count.into());
            }
        }
    }

    /// Sets for how long watches have been failing.
    pub(crate) fn set_failing_watches(
        &self,
        failing: impl Iterator<Item = (&'static str, Duration)>,
    ) {
        for (kind, span) in failing {
            let gauge = self.failing_watches.get_or_create(&KindLabels { kind });
            gauge.set(span.as_secs_f64());
        }
    }

    /// Sets the age of the oldest heartbeat.
    pub(crate) fn set_oldest_heartbeat(&self, oldest: Duration) {
        self.oldest_heartbeat.set(oldest.as_secs_f64());
    }

    /// Counts a write.
    pub(crate) fn count_write(&self, action: &Action, result: WriteResult) {
        let action = match action {
            Action::UpdateStatus { .. } => "update_status",
            Action::Assign { .. } => "assign",
            Action::MarkUnknown { .. } => "mark_unknown",
            Action::Delete { .. } => "delete",
        };
        self.writes
            .get_or_create(&WriteLabels { action, result })
            .inc();
    }
}

/// Returns `time` in seconds since 1970.
#[allow(
    clippy::cast_precision_loss,
    reason = "microseconds since 1970 are exact in a double until the year 2255"
)]
pub(crate) fn seconds(time: Timestamp) -> f64 {
    time.as_microsecond() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use runtime::BuildInfo;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_scrape_has_every_number_and_no_profile_that_is_gone() {
        let metrics = Metrics::new(&BuildInfo {
            program: "signpost-operator",
            version: "1",
        });
        let numbers = OperatorMetrics::register(&metrics);
        let counts = NodeCounts {
            matched: 5,
            assigned: 4,
            updated: 2,
            ready: 1,
            degraded: 1,
            silent: 3,
            excluded: 6,
            max_unavailable: 2,
        };
        let profile = |name: &str, phase: &str| {
            let rollout = json!({
                "configHash": "a", "generation": 1, "phase": phase, "wave": 2,
                "since": "1970-01-01T00:01:00Z",
            });
            let profile =
                json!({"metadata": {"name": name}, "spec": {}, "status": {"rollout": rollout}});
            serde_json::from_value::<ProxyProfile>(profile).expect("a profile")
        };
        numbers.set_leader();
        numbers.record_sync(
            &BTreeMap::from([("gone".to_owned(), counts)]),
            0.0,
            Duration::ZERO,
        );
        numbers.record_sync(
            &BTreeMap::from([("default".to_owned(), counts)]),
            7.5,
            Duration::from_millis(20),
        );
        let delete = Action::Delete {
            node: "n1".into(),
            uid: "1".into(),
            version: None,
        };
        numbers.count_write(&delete, WriteResult::failure);
        numbers.count_write(&delete, WriteResult::conflict);
        numbers.set_statuses([profile("default", "RollingOut"), profile("gone", "Settled")].iter());
        numbers.set_statuses([profile("default", "Halted")].iter());
        let scrape = metrics.scrape().expect("numbers can be written");
        for line in [
            "signpost_operator_leader 1",
            "signpost_profile_nodes{profile=\"default\",state=\"updated\"} 2",
            "signpost_profile_nodes{profile=\"default\",state=\"assigned\"} 4",
            "signpost_profile_nodes{profile=\"default\",state=\"silent\"} 3",
            "signpost_profile_nodes{profile=\"default\",state=\"excluded\"} 6",
            "signpost_profile_max_unavailable{profile=\"default\"} 2",
            "signpost_profile_rollout_phase{profile=\"default\",phase=\"Halted\"} 1",
            "signpost_profile_rollout_since_timestamp_seconds{profile=\"default\"} 60.0",
            "signpost_profile_min_ready_seconds{profile=\"default\"} 60.0",
            "signpost_operator_syncs_total 2",
            "signpost_operator_sync_duration_seconds_bucket{le=\"0.025\"} 2",
            "signpost_operator_last_sync_timestamp_seconds 7.5",
            "signpost_operator_writes_total{action=\"delete\",result=\"failure\"} 1",
            "signpost_operator_writes_total{action=\"delete\",result=\"conflict\"} 1",
        ] {
            assert!(
                scrape.lines().any(|have| have == line),
                "{line} is not in {scrape}"
            );
        }
        assert!(!scrape.contains("gone"), "{scrape}");
        assert!(!scrape.contains("RollingOut"), "{scrape}");
    }
}
