//! One node of a profile.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crds::{
    condition::{
        self, Finding, READY, Status,
        reason::{AGENT_SILENT, HANDED_BACK},
    },
    effective::hash::ConfigHash,
    node_proxy::NodeProxySpec,
    profile::handover::Handover,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::{
    agent_daemon_set::{AgentDaemonSet, Pods},
    fleet::{
        Action,
        heartbeats::Heartbeats,
        node_progress::{after, is_about_the_api_server},
        preflight::KubeProxyRestart,
    },
    records::{NodeProxyRecord, NodeRecord, Report},
};

/// A node that the profile decides for.
#[derive(Clone, Debug)]
pub(crate) struct ProfileNode<'a> {
    /// The Node object.
    pub(crate) node: &'a NodeRecord,
    /// Its `NodeProxy`, if it exists.
    pub(crate) proxy: Option<&'a NodeProxyRecord>,
    /// The deleted `NodeProxy` of the node, if any. The agent keeps its configuration.
    pub(crate) deleted_proxy: Option<&'a NodeProxyRecord>,
    /// The heartbeats of all agents.
    pub(crate) heartbeats: &'a Heartbeats,
    /// The spec that the profile would assign now; the current spec while an invalid profile keeps it.
    pub(crate) effective: Arc<NodeProxySpec>,
    /// For how long nodes could not be watched since it got its spec.
    pub(crate) unwatched: Duration,
    /// Why the node must not take Services over yet, if its profile asks for that.
    pub(crate) takeover_block: Option<KubeProxyRestart>,
}

/// Agents report at least every five minutes, so this is three missed reports. Agents that renew a
/// Lease are detected sooner, by [`Heartbeats`].
const SILENCE: Duration = Duration::from_secs(15 * 60);

// === impl ProfileNode ===

impl ProfileNode<'_> {
    /// The node's name.
    pub(crate) fn name(&self) -> &str {
        &self.node.name
    }

    /// Returns the spec assigned to the node.
    pub(crate) fn current(&self) -> Option<&Arc<NodeProxySpec>> {
        self.proxy?.spec.as_ref()
    }

    /// Returns the status that the agent reported.
    pub(crate) fn status(&self) -> Option<&Report> {
        self.proxy?.status.as_ref()
    }

    /// Returns a condition that the agent reported.
    pub(crate) fn condition(&self, kind: &str) -> Option<&Condition> {
        self.proxy?.condition(kind)
    }

    /// Returns the status of a condition that the agent reported.
    pub(crate) fn condition_status(&self, kind: &str) -> Status {
        self.status().map_or(Status::Unknown, |status| {
            condition::status_of(&status.conditions, kind)
        })
    }

    /// Whether an earlier rollout than the one that began at this generation of the profile assigned
    /// the spec of the node. A failure of the node then says nothing about the present rollout.
    pub(crate) fn was_assigned_before(&self, start_generation: i64) -> bool {
        self.current().is_some_and(|spec| {
            spec.profile_generation < start_generation
                || spec.profile_name != self.effective.profile_name
                || self.is_of_a_former_profile(spec)
        })
    }

    /// Whether another profile assigned the spec that the node had before.
    pub(crate) fn came_from_another_profile(&self) -> bool {
        let previous = self.proxy.and_then(|proxy| proxy.previous.as_ref());
        let names = previous.zip(self.current());
        names.is_some_and(|(previous, current)| previous.profile_name != current.profile_name)
    }

    /// Whether a profile that was deleted since, and made again, assigned `spec`: the generations of
    /// the new one begin at 1.
    pub(super) fn is_of_a_former_profile(&self, spec: &NodeProxySpec) -> bool {
        spec.profile_generation > self.effective.profile_generation
    }

    /// Whether the agent has applied the configuration of this hash.
    pub(crate) fn has_applied(&self, hash: &ConfigHash) -> bool {
        self.status()
            .and_then(|status| status.applied_hash.as_ref())
            == Some(hash)
    }

    /// Whether the agent has applied the assigned spec and reports for its current generation that
    /// it is ready. An agent that has lost the API server since counts as ready: the kernel still
    /// holds the configuration.
    pub(crate) fn is_ready_with_spec(&self) -> bool {
        let Some((proxy, spec)) = self.proxy.zip(self.current()) else {
            return false;
        };
        let observed = |generation: Option<i64>| generation == Some(proxy.generation);
        self.has_applied(&spec.config_hash)
            && observed(self.status().and_then(|status| status.observed_generation))
            && self
                .condition(READY)
                .is_some_and(|ready| ready.status == "True" || is_about_the_api_server(ready))
    }

    /// The time from which an agent without a Lease counts as silent; absent if it has not reported
    /// a sync. It renews its report at least every five minutes, but compares with the kernel only
    /// every `syncPeriod`. An agent that handed its node over to another proxy does not compare.
    pub(crate) fn silent_from(&self) -> Option<Timestamp> {
        if self.is_handed_back() || self.proxy?.renews_lease() {
            return None;
        }
        let last = self.status()?.last_sync_time?;
        let period = self
            .current()
            .map_or(Duration::ZERO, |spec| spec.config.sync_period.duration());
        Some(after(last, SILENCE + period * 2))
    }

    /// Whether the agent counts as silent at `now`.
    pub(crate) fn is_silent(&self, now: Timestamp) -> bool {
        let Some(proxy) = self.proxy else {
            return false;
        };
        if proxy.renews_lease() {
            let is_silent = self.heartbeats.is_silent(self.name()) && !self.is_handed_back();
            return is_silent || proxy.is_marked_silent();
        }
        self.silent_from().is_some_and(|from| from <= now)
    }

    /// Returns why no DaemonSet of agents runs a Pod on the node; `None` if one may, if there is no
    /// such DaemonSet, or as long as the node's agent reports.
    pub(crate) fn exclusion(
        &self,
        agent_daemon_sets: &BTreeMap<String, AgentDaemonSet>,
        now: Timestamp,
    ) -> Option<String> {
        // A NodeProxy that was deleted and created again has no report yet.
        let had_agent = |proxy: &NodeProxyRecord| proxy.has_status || proxy.baseline.is_some();
        let pods = match self.proxy {
            Some(proxy) if proxy.has_status && !self.is_silent(now) => return None,
            proxy if proxy.or(self.deleted_proxy).is_some_and(had_agent) => Pods::Running,
            _ => Pods::All,
        };
        let exclusions = agent_daemon_sets
            .values()
            .map(|daemon_set| daemon_set.exclusion(self.node, pods));
        let exclusions: Vec<String> = exclusions.collect::<Option<_>>()?;
        (!exclusions.is_empty()).then(|| exclusions.join("; "))
    }

    /// Returns the write that marks the agent as silent, if it has stopped renewing its Lease and
    /// its own report still stands.
    pub(crate) fn mark_unknown(&self, now: Timestamp) -> Option<Action> {
        let proxy = self.proxy.filter(|proxy| proxy.renews_lease())?;
        if !self.is_silent(now) || proxy.is_marked_silent() {
            return None;
        }
        let mut ready = self.condition(READY).cloned().into_iter().collect();
        let silent = Finding {
            kind: READY,
            status: Status::Unknown,
            reason: AGENT_SILENT,
            message: "the agent has stopped renewing its Lease".to_owned(),
            generation: self.status().and_then(|status| status.observed_generation),
        };
        condition::set_condition(&mut ready, silent, now);
        Some(Action::MarkUnknown {
            node: self.name().to_owned(),
            ready: Box::new(ready.pop()?),
            version: proxy.resource_version(),
        })
    }

    /// Whether the node's Services were handed back to another proxy on request.
    pub(crate) fn is_handed_back(&self) -> bool {
        self.condition(READY)
            .is_some_and(|ready| ready.reason == HANDED_BACK.name)
    }

    /// Whether another proxy serves the node and the configuration does not ask for a takeover.
    /// That the agent programs nothing is then no failure of the configuration.
    pub(crate) fn is_left_to_another_proxy(&self) -> bool {
        let handover = self.current().map(|spec| spec.config.handover);
        self.is_handed_back() && handover != Some(Handover::Takeover)
    }

    /// Returns the condition Ready if it is not True.
    pub(crate) fn unready(&self) -> Option<&Condition> {
        self.condition(READY).filter(|ready| ready.status != "True")
    }
}
