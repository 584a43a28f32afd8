//! One node a profile decides for, and what it is to have.

use std::time::Duration;

use crds::{
    condition::{
        self, Finding, READY, Status,
        reason::{AGENT_SILENT, HANDED_BACK},
    },
    effective::hash::ConfigHash,
    node_proxy::{NodeProxySpec, NodeProxyStatus},
    profile::{handover::Handover, rollout::Rollout},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::{
    baseline::Baseline,
    fleet::{
        Action,
        heartbeats::Heartbeats,
        standing::{after, is_about_the_source},
    },
    records::{NodeProxyRecord, NodeRecord},
};

/// A node a profile decides for.
#[derive(Clone, Debug)]
pub(crate) struct Member<'a> {
    /// The node.
    pub(crate) node: &'a NodeRecord,
    /// What it was given and says, if anything.
    pub(crate) proxy: Option<&'a NodeProxyRecord>,
    /// What it had, and its agent goes on with, if its object was deleted.
    pub(crate) departed: Option<&'a NodeProxyRecord>,
    /// Which agents are heard of.
    pub(crate) heartbeats: &'a Heartbeats,
    /// What the profile would give it now: what it has, while something holds it.
    pub(crate) effective: NodeProxySpec,
}

/// What a node is to have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wanted {
    /// Its spec.
    pub(crate) spec: NodeProxySpec,
    /// What it can go back to.
    pub(crate) previous: Option<NodeProxySpec>,
    /// What it was like before.
    pub(crate) baseline: Option<Baseline>,
}

/// Agents report at least every five minutes. Three reports missed are no accident. Those that renew a Lease are found
/// silent sooner, by [`Heartbeats`].
const SILENCE: Duration = Duration::from_secs(15 * 60);

// === impl Wanted ===

impl Wanted {
    /// For a node that has nothing yet.
    pub(crate) fn first(spec: &NodeProxySpec) -> Self {
        Self {
            spec: spec.clone(),
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

    /// What the node has.
    pub(crate) fn current(&self) -> Option<&NodeProxySpec> {
        self.proxy?.spec.as_ref()
    }

    /// What the node's agent says.
    pub(crate) fn status(&self) -> Option<&NodeProxyStatus> {
        self.proxy?.status.as_ref()
    }

    /// A condition the node's agent reports.
    pub(crate) fn condition(&self, kind: &str) -> Option<&Condition> {
        self.proxy?.condition(kind)
    }

    /// Whether the agent says so.
    pub(crate) fn says(&self, kind: &str) -> Status {
        self.status().map_or(Status::Unknown, |status| {
            condition::status_of(&status.conditions, kind)
        })
    }

    /// Whether the agent has applied the configuration of this hash.
    pub(crate) fn has_applied(&self, hash: &ConfigHash) -> bool {
        self.status()
            .and_then(|status| status.applied_hash.as_ref())
            == Some(hash)
    }

    /// Whether the agent has applied what it was given and is ready with it, by a report on this very spec. It may have
    /// lost the API server since: the kernel holds what was asked for all the same.
    pub(crate) fn is_done(&self) -> bool {
        let Some((proxy, spec)) = self.proxy.zip(self.current()) else {
            return false;
        };
        let observed = |generation: Option<i64>| generation == Some(proxy.generation);
        self.has_applied(&spec.config_hash)
            && observed(self.status().and_then(|status| status.observed_generation))
            && self
                .condition(READY)
                .is_some_and(|ready| ready.status == "True" || is_about_the_source(ready))
    }

    /// The time from which an agent that renews no Lease counts as silent; absent while it has not reported a sync. It
    /// renews its report at least every five minutes, but only compares with the kernel every syncPeriod. One that has
    /// left its node to another proxy compares nothing.
    pub(crate) fn silent_from(&self) -> Option<Timestamp> {
        if self.is_handed_back() || self.proxy?.has_promised_lease() {
            return None;
        }
        let last = self.status()?.last_sync_time.as_ref()?.0;
        let period = self
            .current()
            .map_or(Duration::ZERO, |spec| spec.config.sync_period.duration());
        Some(after(last, SILENCE + period * 2))
    }

    /// Whether the agent has been silent for too long at `now`.
    pub(crate) fn is_silent(&self, now: Timestamp) -> bool {
        let Some(proxy) = self.proxy else {
            return false;
        };
        if proxy.has_promised_lease() {
            let is_silent = self.heartbeats.is_silent(self.name()) && !self.is_handed_back();
            return is_silent || proxy.is_called_silent();
        }
        self.silent_from().is_some_and(|from| from <= now)
    }

    /// What to write when the agent does not renew its Lease any more and its own word still stands.
    pub(crate) fn silence(&self, now: Timestamp) -> Option<Action> {
        let proxy = self.proxy.filter(|proxy| proxy.has_promised_lease())?;
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
        Some(Action::Silence {
            node: self.name().to_owned(),
            ready: Box::new(ready.pop()?),
            version: proxy.resource_version(),
        })
    }

    /// Whether its Services were left to another proxy on request.
    pub(crate) fn is_handed_back(&self) -> bool {
        self.condition(READY)
            .is_some_and(|ready| ready.reason == HANDED_BACK.name)
    }

    /// Whether another proxy serves it, and its configuration does not ask for a takeover: that its agent programs nothing
    /// says nothing about the configuration.
    pub(crate) fn is_left_to_another_proxy(&self) -> bool {
        let takes_over = |spec: &NodeProxySpec| spec.config.handover == Handover::Takeover;
        self.is_handed_back() && !self.current().is_some_and(takes_over)
    }

    /// The condition Ready, when it says that the node is not.
    pub(crate) fn unready(&self) -> Option<&Condition> {
        self.condition(READY).filter(|ready| ready.status != "True")
    }

    /// What the node is to have at `now`, to keep what it has, or get back what it had when its object was deleted.
    pub(crate) fn keep(&self, rollout: &Rollout, now: Timestamp) -> Option<Wanted> {
        if let Some((proxy, spec)) = self.proxy.zip(self.current()) {
            return Some(Wanted {
                spec: spec.clone(),
                previous: proxy.previous.clone(),
                baseline: proxy.baseline.clone(),
            });
        }
        let departed = self.departed?;
        let before = Self {
            proxy: self.departed,
            departed: None,
            ..self.clone()
        };
        Some(Wanted {
            spec: departed.spec.clone()?,
            previous: departed.previous.clone(),
            baseline: before.baseline(departed.baseline.clone(), rollout, now),
        })
    }

    /// Whether the profile asks for what the node has, but in other words: its agent then reports on other fields.
    pub(crate) fn is_outdated(&self) -> bool {
        self.current().is_some_and(|current| {
            asks_the_same(current, &self.effective)
                && current.written_fields != self.effective.written_fields
        })
    }

    /// Whether it was ready with what it has, by its own report or by what it was like when it got it back. What the report
    /// of a silent agent said is not known any more, but that it had applied this.
    fn was_ready(&self, current: &NodeProxySpec) -> bool {
        let is_called_silent = self.proxy.is_some_and(NodeProxyRecord::is_called_silent);
        if is_called_silent && self.has_applied(&current.config_hash) {
            return true;
        }
        let baseline = self.proxy.and_then(|proxy| proxy.baseline.as_ref());
        let is_restored =
            |baseline: &Baseline| baseline.config_hash == current.config_hash && baseline.is_well();
        self.is_done() || baseline.is_some_and(is_restored)
    }

    /// What the node is to have at `now`, to take on `spec`. What it goes back to is what it is ready with now, or else
    /// what it already had to go back to.
    pub(crate) fn take(&self, spec: &NodeProxySpec, rollout: &Rollout, now: Timestamp) -> Wanted {
        let written = self.proxy.and_then(|proxy| proxy.baseline.clone());
        let (previous, baseline) = match self.current() {
            Some(current) if current.config_hash != spec.config_hash => {
                let baseline = self.baseline(written, rollout, now);
                let previous = self.was_ready(current).then(|| current.clone());
                (previous, baseline)
            }
            _ => (None, written),
        };
        let previous = previous.or_else(|| self.proxy.and_then(|proxy| proxy.previous.clone()));
        // Another generation of the same configuration is not worth a write on every node, and a report from every agent.
        let spec = match self.current() {
            Some(current)
                if asks_the_same(current, spec)
                    && current.written_fields == spec.written_fields =>
            {
                current.clone()
            }
            _ => spec.clone(),
        };
        Wanted {
            previous: previous.filter(|previous| previous.config_hash != spec.config_hash),
            spec,
            baseline,
        }
    }

    /// What the next change is judged by: what the node is like now. While the time to be ready with the last change is
    /// not over, what is wrong may be that change's doing, and the baseline of that one holds.
    fn baseline(
        &self,
        written: Option<Baseline>,
        rollout: &Rollout,
        now: Timestamp,
    ) -> Option<Baseline> {
        let present = self.present(now);
        let is_well = present.as_ref().is_some_and(Baseline::is_well);
        let is_under_way = self
            .deadline(rollout)
            .is_some_and(|deadline| now < deadline);
        match written {
            Some(written) if !is_well && is_under_way => Some(written),
            _ => present,
        }
    }

    /// Whether it was well with the configuration of this hash, went back from it, and has time left to be ready again.
    pub(crate) fn is_returning(
        &self,
        from: &ConfigHash,
        rollout: &Rollout,
        now: Timestamp,
    ) -> bool {
        let went_back = self
            .proxy
            .and_then(|proxy| proxy.baseline.as_ref())
            .is_some_and(|baseline| baseline.config_hash == *from && baseline.is_well());
        let is_ready = self.is_done() || self.is_left_to_another_proxy();
        went_back
            && !is_ready
            && self
                .current()
                .is_some_and(|current| current.config_hash != *from)
            && self
                .deadline(rollout)
                .is_some_and(|deadline| now < deadline)
    }

    /// What the node is to have, to go back to what it had before.
    pub(crate) fn go_back(&self, now: Timestamp) -> Option<Wanted> {
        let spec = self.proxy?.previous.clone()?;
        Some(Wanted {
            spec,
            previous: None,
            baseline: self.present(now),
        })
    }
}

/// Whether the two differ in nothing a node carries out: in the generation of the profile, or in which of its fields
/// were written although they say the default.
fn asks_the_same(current: &NodeProxySpec, wanted: &NodeProxySpec) -> bool {
    let same = NodeProxySpec {
        profile_generation: wanted.profile_generation,
        written_fields: wanted.written_fields.clone(),
        ..current.clone()
    };
    same == *wanted
}
