//! One node of a profile, and its desired configuration.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crds::{
    condition::{
        self, Finding, READY, Status,
        reason::{AGENT_SILENT, HANDED_BACK},
    },
    effective::hash::ConfigHash,
    node_proxy::NodeProxySpec,
    profile::{handover::Handover, rollout::Rollout},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::{
    agent_daemon_set::{AgentDaemonSet, Pods},
    baseline::Baseline,
    fleet::{
        Action,
        heartbeats::Heartbeats,
        node_progress::{NodeProgress, after, is_about_the_api_server},
        observations::Observations,
        preflight::KubeProxyRestart,
    },
    records::{NodeProxyRecord, NodeRecord, Report},
};

/// A node that the profile decides for.
#[derive(Clone, Debug)]
pub(crate) struct Member<'a> {
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
    /// Why the node must not take Services over yet, if its profile asks for that.
    pub(crate) takeover_block: Option<KubeProxyRestart>,
}

/// The desired `NodeProxy` of a node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DesiredNodeProxy {
    /// Its spec.
    pub(crate) spec: Arc<NodeProxySpec>,
    /// The spec to return to if the change fails.
    pub(crate) previous: Option<Arc<NodeProxySpec>>,
    /// The state of the node before the change.
    pub(crate) baseline: Option<Baseline>,
}

/// Whether the last change of a node is still judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// It is, or the node is healthy.
    UnderWay,
    /// It is not, and the node is not healthy.
    Over,
}

/// Agents report at least every five minutes, so this is three missed reports. Agents that renew a
/// Lease are detected sooner, by [`Heartbeats`].
const SILENCE: Duration = Duration::from_secs(15 * 60);

// === impl DesiredNodeProxy ===

impl DesiredNodeProxy {
    /// For a node that has no configuration yet.
    pub(crate) fn first(spec: &Arc<NodeProxySpec>) -> Self {
        Self {
            spec: Arc::clone(spec),
            previous: None,
            baseline: None,
        }
    }
}

// === impl Member ===

impl Member<'_> {
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
    fn is_of_a_former_profile(&self, spec: &NodeProxySpec) -> bool {
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
            return is_silent || proxy.is_called_silent();
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
        if !self.is_silent(now) || proxy.is_called_silent() {
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

    /// Returns the desired configuration at `now` that keeps the current one, or restores the one
    /// of a deleted object.
    pub(crate) fn keep_current(
        &self,
        rollout: &Rollout,
        now: Timestamp,
    ) -> Option<DesiredNodeProxy> {
        if let Some((proxy, spec)) = self.proxy.zip(self.current()) {
            return Some(DesiredNodeProxy {
                spec: spec.clone(),
                previous: proxy.previous.clone(),
                baseline: proxy.baseline.clone(),
            });
        }
        let deleted_proxy = self.deleted_proxy?;
        let before = Self {
            proxy: self.deleted_proxy,
            deleted_proxy: None,
            ..self.clone()
        };
        let mut spec = deleted_proxy.whole_spec()?.clone();
        if self.is_of_a_former_profile(&spec) {
            // Later generations of the new profile will be greater.
            Arc::make_mut(&mut spec).profile_generation = 0;
        }
        Some(DesiredNodeProxy {
            spec,
            previous: deleted_proxy.previous.clone(),
            baseline: before.next_baseline(deleted_proxy.baseline.clone(), rollout, now),
        })
    }

    /// Whether the node's spec requests the same as the profile but with other fields written
    /// explicitly. The agent then reports on other fields.
    pub(crate) fn has_other_written_fields(&self) -> bool {
        self.current().is_some_and(|current| {
            requests_the_same(current, &self.effective)
                && current.written_fields != self.effective.written_fields
        })
    }

    /// Whether the node was ready with its current spec, by its own report or by its baseline. For
    /// an agent marked as silent, only that it had applied this spec is known.
    fn was_ready(&self, current: &NodeProxySpec) -> bool {
        let is_called_silent = self.proxy.is_some_and(NodeProxyRecord::is_called_silent);
        if is_called_silent && self.has_applied(&current.config_hash) {
            return true;
        }
        let baseline = self.proxy.and_then(|proxy| proxy.baseline.as_ref());
        let is_restored = |baseline: &Baseline| {
            baseline.config_hash == current.config_hash && baseline.is_healthy()
        };
        self.is_ready_with_spec() || baseline.is_some_and(is_restored)
    }

    /// Returns the desired configuration at `now` that applies `spec`. The spec to return to is the
    /// current one if the node is ready with it, otherwise the previous one.
    pub(crate) fn assign(
        &self,
        spec: &Arc<NodeProxySpec>,
        judgement: Judgement,
        rollout: &Rollout,
        now: Timestamp,
    ) -> DesiredNodeProxy {
        let is_kept = |current: &NodeProxySpec| {
            requests_the_same(current, spec) && current.written_fields == spec.written_fields
        };
        let is_over = |current: &NodeProxySpec| match current.profile_name == spec.profile_name {
            true => judgement == Judgement::Over && !is_kept(current),
            false => !self.is_being_changed(current, rollout, now),
        };
        let written = self.proxy.and_then(|proxy| proxy.baseline.clone());
        let (previous, baseline) = match self.current() {
            Some(current) if current.config_hash != spec.config_hash => {
                let baseline = self.next_baseline(written, rollout, now);
                let whole = self.proxy.and_then(NodeProxyRecord::whole_spec);
                let previous = whole.filter(|current| self.was_ready(current)).cloned();
                (previous, baseline)
            }
            // What the node was like before a change that is over is no measure for what follows. To write
            // the same configuration otherwise begins the time anew for which that would be kept.
            Some(current) if is_over(current) => (
                None,
                written.and_then(|it| self.next_baseline(Some(it), rollout, now)),
            ),
            _ => (None, written),
        };
        let previous = previous.or_else(|| self.proxy.and_then(|proxy| proxy.previous.clone()));
        // A new generation of the same configuration does not justify a write for every node and a
        // report from every agent.
        let spec = match self.current() {
            Some(current) if is_kept(current) => current.clone(),
            Some(current) if current.config_hash == spec.config_hash => {
                let is_being_changed = self.is_being_changed(current, rollout, now);
                Arc::new(self.with_kept_generation(current, spec, is_being_changed))
            }
            _ => spec.clone(),
        };
        DesiredNodeProxy {
            previous: previous.filter(|previous| previous.config_hash != spec.config_hash),
            spec,
            baseline,
        }
    }

    /// Returns `spec` for a node that has its configuration already. The generation stays the one that
    /// gave the node the configuration, so that a rollout that changed nothing there takes nothing
    /// back; generations of another profile come before all of this one. A change of another profile
    /// that is still under way there is this profile's from now on: no other judges it any more.
    fn with_kept_generation(
        &self,
        current: &NodeProxySpec,
        spec: &NodeProxySpec,
        is_being_changed: bool,
    ) -> NodeProxySpec {
        let is_of_this_profile =
            current.profile_name == spec.profile_name && !self.is_of_a_former_profile(current);
        NodeProxySpec {
            profile_generation: match (is_of_this_profile, is_being_changed) {
                (true, _) => current.profile_generation,
                (false, true) => spec.profile_generation,
                (false, false) => 0,
            },
            ..spec.clone()
        }
    }

    /// Whether the node was given its configuration in place of another one, so recently that it has
    /// not shown to work there.
    fn is_being_changed(&self, current: &NodeProxySpec, rollout: &Rollout, now: Timestamp) -> bool {
        let baseline = self.proxy.and_then(|proxy| proxy.baseline.as_ref());
        let is_proven = self.is_ready_with_spec()
            && !self.was_assigned_within(rollout.min_ready.duration(), now);
        baseline.is_some_and(|baseline| baseline.config_hash != current.config_hash)
            && self.was_assigned_within(rollout.progress_deadline.duration(), now)
            && !is_proven
    }

    /// Whether the node's configuration was last written less than `span` ago.
    fn was_assigned_within(&self, span: Duration, now: Timestamp) -> bool {
        let assigned = self.proxy.and_then(|proxy| Some(proxy.assigned_at?.own()));
        assigned.is_some_and(|assigned| now < after(assigned, span))
    }

    /// Returns the baseline for the next change: the present state of the node. Before the deadline
    /// of the last change, a fault may be caused by that change, so its baseline is kept.
    fn next_baseline(
        &self,
        written: Option<Baseline>,
        rollout: &Rollout,
        now: Timestamp,
    ) -> Option<Baseline> {
        let present = self.current_baseline(now);
        let is_healthy = present.as_ref().is_some_and(Baseline::is_healthy);
        match written {
            Some(written)
                if !is_healthy
                    && self.was_assigned_within(rollout.progress_deadline.duration(), now) =>
            {
                Some(written)
            }
            _ => present,
        }
    }

    /// Returns the state of a node that was rolled back from the configuration of hash `from`, and
    /// its state before; `None` for other nodes. Going back is a change like any other.
    pub(crate) fn rollback_progress(
        &self,
        from: &ConfigHash,
        rollout: &Rollout,
        observations: &mut Observations,
        now: Timestamp,
    ) -> Option<(NodeProgress, &Baseline)> {
        let current = &self.current()?.config_hash;
        let baseline = self.proxy?.baseline.as_ref()?;
        self.was_rolled_back_from(from)
            .then(|| (self.progress(current, rollout, observations, now), baseline))
    }

    /// Whether the node was rolled back from the configuration of hash `from`.
    pub(crate) fn was_rolled_back_from(&self, from: &ConfigHash) -> bool {
        let Some((proxy, current)) = self.proxy.zip(self.current()) else {
            return false;
        };
        let baseline = proxy.baseline.as_ref();
        // A node that an earlier rollout changed from it could be rolled back to it.
        let previous = proxy.previous.as_ref();
        let came_forward = previous.is_some_and(|previous| previous.config_hash == *from);
        current.config_hash != *from
            && baseline.is_some_and(|baseline| baseline.config_hash == *from)
            && !came_forward
    }

    /// Whether `spec` is of the node's profile, or what the node had before the change: other profiles
    /// may be for other nodes.
    pub(crate) fn may_roll_back_to(&self, spec: &NodeProxySpec) -> bool {
        let baseline = self.proxy.and_then(|proxy| proxy.baseline.as_ref());
        spec.profile_name == self.effective.profile_name
            || baseline.is_some_and(|baseline| baseline.config_hash == spec.config_hash)
    }

    /// Returns the desired configuration that gives the node `spec` for want of one to return to.
    pub(crate) fn assign_fallback(
        &self,
        spec: &Arc<NodeProxySpec>,
        now: Timestamp,
    ) -> DesiredNodeProxy {
        DesiredNodeProxy {
            baseline: self.current_baseline(now),
            ..DesiredNodeProxy::first(spec)
        }
    }

    /// Returns the desired configuration that restores the previous spec.
    pub(crate) fn roll_back(&self, now: Timestamp) -> Option<DesiredNodeProxy> {
        let spec = self.proxy?.previous.clone()?;
        Some(DesiredNodeProxy {
            spec,
            previous: None,
            baseline: self.current_baseline(now),
        })
    }
}

/// Whether the two specs request the same from the node. They may differ in the generation of the
/// profile and in which fields were written with their default value.
fn requests_the_same(current: &NodeProxySpec, desired: &NodeProxySpec) -> bool {
    let same = NodeProxySpec {
        profile_generation: desired.profile_generation,
        written_fields: desired.written_fields.clone(),
        ..current.clone()
    };
    same == *desired
}
