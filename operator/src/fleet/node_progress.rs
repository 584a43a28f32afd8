//! The state of a node with regard to a configuration: what a wave waits for.
//!
//! Only a change for the worse counts, and only if it lasts. Every change records the node's
//! previous state ([`Baseline`]); generations and hashes identify the configuration that a report
//! is about; the operator measures durations itself ([`Observations`]). Loss of the API server does
//! not fail a node: one failing API server of several cuts off a healthy fleet.

use std::{borrow::Cow, time::Duration};

use crds::{
    condition::{
        API_SERVICE_REACHABLE, DEGRADED, READY,
        reason::{LISTS_PENDING, SOURCE_STALE},
    },
    effective::hash::ConfigHash,
    profile::rollout::Rollout,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::{
    baseline::{Baseline, Connections, Reachability, Readiness},
    clock_offset::ServerTime,
    fleet::{
        node_failure::{NodeFailure, NodeFault, failure_start},
        observations::{HealthSinceAssigned, Observation, Observations, Since},
        profile_node::ProfileNode,
    },
    records::{KubeletHeartbeat, NodeProxyRecord},
};

/// The state of a node with regard to the configuration that its profile requests.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NodeProgress {
    /// It was never assigned a configuration. Signpost serves no traffic there, so caution is
    /// unnecessary.
    Unassigned,
    /// It has another configuration, its first one as far as is known, and has until this time to
    /// report: before that it could not show whether a change works.
    AwaitingFirstReport(Timestamp),
    /// It has another configuration.
    Outdated(Health),
    /// It was assigned the configuration and has until this time to become ready.
    Pending(Timestamp),
    /// It is ready with the configuration, and has to stay so until this time at least to count as
    /// available.
    AwaitingMinReady(Timestamp),
    /// It is worse than before, and fails if that lasts until this time.
    Worse(Timestamp),
    /// It has lost the API server, which says nothing about the configuration: it keeps its place
    /// in the rollout until it can report.
    ApiServerLost,
    /// It has been ready with the configuration for long enough.
    Available,
    /// It is ready with the configuration and had none before, or another proxy serves it. It serves
    /// no traffic whose loss would be noticed, so it proves nothing.
    ReadyUnproven,
    /// It has been worse than before for long enough.
    Failed(NodeFailure),
    /// It is not ready and was not ready before, so it proves nothing.
    Excused,
}

/// The health of a node with its current spec, best first. The nodes with the most reliable results
/// change first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Health {
    /// Ready with its current spec.
    Ready,
    /// Not ready, or the agent has not reported yet.
    Unready,
    /// Its kubelet does not report.
    Unreachable,
}

/// How long a node may be worse than before without failing. In a healthy fleet, agents restart,
/// kubelets miss heartbeats and Services are briefly refused. Never longer than the deadline of the
/// node to be ready.
pub(super) const GRACE: Duration = Duration::from_secs(120);

// === impl NodeProgress ===

impl NodeProgress {
    /// Returns when this state changes even if no event arrives.
    pub(crate) const fn ends(&self) -> Option<Timestamp> {
        match self {
            Self::AwaitingFirstReport(time)
            | Self::Pending(time)
            | Self::AwaitingMinReady(time)
            | Self::Worse(time) => Some(*time),
            _ => None,
        }
    }

    /// Whether the node is ready with the configuration and has been for long enough.
    pub(crate) const fn is_ready(&self) -> bool {
        matches!(self, Self::Available | Self::ReadyUnproven)
    }

    /// Whether a rollout no longer waits for the node.
    pub(crate) const fn is_finished(&self) -> bool {
        matches!(
            self,
            Self::Available | Self::ReadyUnproven | Self::Excused | Self::Failed(_)
        )
    }
}

// === impl ProfileNode ===

impl ProfileNode<'_> {
    /// Returns the state of the node at `now` with regard to `target`, judged against its baseline.
    pub(crate) fn progress(
        &self,
        target: &ConfigHash,
        rollout: &Rollout,
        observations: &mut Observations,
        now: Timestamp,
    ) -> NodeProgress {
        let Some((proxy, spec)) = self.proxy.zip(self.current()) else {
            return NodeProgress::Unassigned;
        };
        let baseline = assumed_baseline(proxy);
        let was_healthy = observations.was_healthy(proxy);
        let worse = baseline
            .as_deref()
            .and_then(|baseline| self.worse_than(baseline, was_healthy, now));
        let is_healthy = self.is_ready_with_spec() || self.is_left_to_another_proxy();
        let health = match worse {
            Some(_) => HealthSinceAssigned::Worse,
            None if is_healthy => HealthSinceAssigned::Healthy,
            None => HealthSinceAssigned::Unready,
        };
        let observation = observations.note(proxy, health, now);
        if spec.config_hash != *target {
            let is_first = baseline.is_none() && !proxy.has_status;
            let until = after(observation.assigned.time(), grace(rollout));
            return if is_first && now < until {
                NodeProgress::AwaitingFirstReport(until)
            } else {
                NodeProgress::Outdated(self.health())
            };
        }
        let deadline = deadline(proxy, observation, rollout);
        let Some(baseline) = baseline else {
            return self.without_baseline(is_healthy, deadline, now);
        };
        let grace_end = after(observation.since.time(), grace(rollout));
        let fail_at = |until: Timestamp, NodeFault { reason, message }: NodeFault| {
            if now < until {
                return NodeProgress::Worse(until);
            }
            let start = failure_start(observation.since, deadline);
            NodeProgress::Failed(NodeFailure {
                reason,
                message,
                start,
            })
        };
        if let Some(fault) = worse {
            return fail_at(grace_end, fault);
        }
        if is_healthy {
            // The agent programs nothing, and the profile does not ask for it.
            if self.is_left_to_another_proxy() && spec.config.handover.is_manual() {
                return NodeProgress::ReadyUnproven;
            }
            return self
                .min_ready_until(observation, rollout, observations, now)
                .map_or(NodeProgress::Available, NodeProgress::AwaitingMinReady);
        }
        if !baseline.is_healthy() {
            return self.unproven(deadline, now);
        }
        if self.unready().is_some_and(is_about_the_api_server) {
            return NodeProgress::ApiServerLost;
        }
        match observation {
            // It was ready and no longer is.
            Observation {
                was_healthy: true,
                since: Since::Changed(_),
                ..
            } => fail_at(grace_end, self.not_ready_fault(rollout)),
            _ if now < deadline => NodeProgress::Pending(deadline),
            _ => fail_at(grace_end.max(deadline), self.not_ready_fault(rollout)),
        }
    }

    /// Returns the present state of the node at `now`; absent if the node has no spec.
    pub(crate) fn current_baseline(&self, now: Timestamp) -> Option<Baseline> {
        let spec = self.current()?;
        Some(Baseline {
            config_hash: spec.config_hash.clone(),
            node: self.node.reach,
            // A node served by another proxy counts as ready too, so that what a later takeover
            // does to it counts.
            agent: if (self.is_ready_with_spec() || self.is_handed_back()) && !self.is_silent(now) {
                Readiness::Ready
            } else {
                Readiness::NotReady
            },
            degraded: self.degraded().map(|condition| condition.reason.clone()),
            connections: match self.failed_connection() {
                Some(_) => Connections::Failing,
                None => Connections::NotFailing,
            },
        })
    }

    /// Whether the node was healthy when it was assigned its spec. Only then does it show whether
    /// the spec works.
    pub(crate) fn was_healthy_before(&self) -> bool {
        self.proxy
            .and_then(assumed_baseline)
            .is_some_and(|baseline| baseline.is_healthy())
    }

    /// Whether the node controller has lost the kubelet, or the operator the agent. That says nothing
    /// about why.
    pub(crate) fn is_lost(&self, now: Timestamp) -> bool {
        self.node.kubelet_heartbeat == KubeletHeartbeat::Lost || self.is_silent(now)
    }

    /// Returns when the node controller, or the operator for the agent, wrote down the loss of a node
    /// that is lost. The clock of an earlier operator may differ from that of this one.
    pub(crate) fn loss_written_at(&self) -> Option<Timestamp> {
        let proxy = self.proxy.filter(|proxy| proxy.is_marked_silent());
        let silent = proxy.and_then(|proxy| proxy.condition(READY));
        let silent = silent.map(|ready| ready.last_transition_time.0);
        let lost = self.node.lost_at.map(ServerTime::own);
        [lost, silent].into_iter().flatten().min()
    }

    /// Returns the condition Degraded if it is True for the current generation and not caused by
    /// the loss of the API server.
    pub(super) fn degraded(&self) -> Option<&Condition> {
        self.current_condition(DEGRADED, "True")
            .filter(|degraded| !is_about_the_api_server(degraded))
    }

    /// Returns the condition APIServiceReachable if it is False for the current generation.
    pub(super) fn failed_connection(&self) -> Option<&Condition> {
        self.current_condition(API_SERVICE_REACHABLE, "False")
    }

    /// Whether the agent reports that no new connection went through the rules of the current
    /// generation yet, and will try one.
    pub(crate) fn awaits_connection(&self) -> bool {
        !self.is_handed_back()
            && self
                .current_condition(API_SERVICE_REACHABLE, "Unknown")
                .is_some()
    }

    /// Returns a condition if it has this status for the current generation.
    fn current_condition(&self, kind: &str, status: &str) -> Option<&Condition> {
        let generation = self.proxy?.generation;
        self.condition(kind).filter(|condition| {
            condition.status == status && condition.observed_generation == Some(generation)
        })
    }

    /// The state of a node that had no configuration before.
    fn without_baseline(
        &self,
        is_healthy: bool,
        deadline: Timestamp,
        now: Timestamp,
    ) -> NodeProgress {
        if self.degraded().is_some() {
            NodeProgress::Excused
        } else if is_healthy {
            NodeProgress::ReadyUnproven
        } else {
            self.unproven(deadline, now)
        }
    }

    /// The state of a node that is not ready and whose failure would prove nothing.
    fn unproven(&self, deadline: Timestamp, now: Timestamp) -> NodeProgress {
        if now < deadline {
            NodeProgress::Pending(deadline)
        } else {
            NodeProgress::Excused
        }
    }

    fn health(&self) -> Health {
        match self.node.reach {
            Reachability::Unreachable => Health::Unreachable,
            Reachability::Reachable if self.is_ready_with_spec() || self.is_handed_back() => {
                Health::Ready
            }
            Reachability::Reachable => Health::Unready,
        }
    }
}

fn grace(rollout: &Rollout) -> Duration {
    GRACE.min(rollout.progress_deadline.duration())
}

/// Whether `condition` is about the connection to the API server.
pub(crate) fn is_about_the_api_server(condition: &Condition) -> bool {
    [SOURCE_STALE, LISTS_PENDING]
        .iter()
        .any(|reason| reason.name == condition.reason)
}

/// Returns the state of the node before the change. Operators that wrote no baseline recorded the
/// spec to return to only when the node was ready with it.
pub(super) fn assumed_baseline(proxy: &NodeProxyRecord) -> Option<Cow<'_, Baseline>> {
    let written = proxy.baseline.as_ref().map(Cow::Borrowed);
    written.or_else(|| {
        let previous = proxy.previous.as_ref()?;
        Some(Cow::Owned(Baseline {
            config_hash: previous.config_hash.clone(),
            node: Reachability::Reachable,
            agent: Readiness::Ready,
            degraded: None,
            connections: Connections::NotFailing,
        }))
    })
}

/// Returns the deadline of a node to be ready with the spec that it was given. If the operator
/// started since, the time of the change counts, too, which the API server wrote down, so that
/// operators that follow one another do not put the deadline off.
fn deadline(proxy: &NodeProxyRecord, seen: Observation, rollout: &Rollout) -> Timestamp {
    let start = seen.start(seen.assigned, proxy.assigned_at);
    after(start, rollout.progress_deadline.duration())
}

/// Returns the time `span` after `start`, or the maximum timestamp.
pub(crate) fn after(start: Timestamp, span: Duration) -> Timestamp {
    SignedDuration::try_from(span)
        .ok()
        .and_then(|span| start.checked_add(span).ok())
        .unwrap_or(Timestamp::MAX)
}
