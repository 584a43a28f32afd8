//! One node a profile decides for, and how it stands towards a configuration.

use std::time::Duration;

use crds::{
    condition::{self, DEGRADED, READY, Status, reason::HANDED_BACK},
    effective::hash::ConfigHash,
    node_proxy::{NodeProxySpec, NodeProxyStatus},
    profile::rollout::Rollout,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::records::{NodeProxyRecord, NodeRecord, Reach};

/// A node a profile decides for.
#[derive(Clone, Debug)]
pub(crate) struct Member<'a> {
    /// The node.
    pub(crate) node: &'a NodeRecord,
    /// What it was given and says, if anything.
    pub(crate) proxy: Option<&'a NodeProxyRecord>,
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
}

/// How a node stands towards the configuration its profile asks for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Standing {
    /// It was never given anything: it serves nobody by our doing, so there is nothing to be careful with.
    Bare,
    /// It has another configuration.
    Behind(Health),
    /// It was given the configuration and has until then to be ready with it.
    Pending(Timestamp),
    /// It is ready with it.
    Done,
    /// It was ready with what it had before and is not with this.
    Failing(Failure),
    /// It is not ready, and was not before either, or cannot be heard: it proves nothing.
    Excused,
}

/// How a node fails with a configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    /// What its agent says, or that it says nothing; for people.
    pub(crate) why: String,
    /// Since when.
    pub(crate) onset: Onset,
}

/// Since when a node fails, which tells what it says about the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Onset {
    /// Since before its time to be ready was over: the next node that is given the same may well do the same.
    WithTheChange,
    /// It had been given long enough ago: something else happened to the node.
    Afterwards,
}

/// How a node does with what it has, best first: the first to change are those whose answer can be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Health {
    /// Ready with it.
    Ready,
    /// Not ready, or nothing heard from its agent yet.
    Unready,
    /// Its kubelet is not heard from.
    Unreachable,
}

/// Agents report at least every five minutes. Three reports missed are no accident.
const SILENCE: Duration = Duration::from_secs(15 * 60);

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
        self.status()?
            .conditions
            .iter()
            .find(|condition| condition.type_ == kind)
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

    /// Whether the agent has applied what it was given and is ready with it, by a report on this very spec.
    pub(crate) fn is_done(&self) -> bool {
        let Some((proxy, spec)) = self.proxy.zip(self.current()) else {
            return false;
        };
        let observed = |generation: Option<i64>| generation == Some(proxy.generation);
        self.has_applied(&spec.config_hash)
            && observed(self.status().and_then(|status| status.observed_generation))
            && self
                .condition(READY)
                .is_some_and(|ready| ready.status == "True")
    }

    /// The time from which the agent counts as silent; absent while it has not reported a sync. An agent renews its
    /// report at least every five minutes, but only compares with the kernel every syncPeriod. One that has left its node
    /// to another proxy compares nothing.
    pub(crate) fn silent_from(&self) -> Option<Timestamp> {
        if self.is_handed_back() {
            return None;
        }
        let last = self.status()?.last_sync_time.as_ref()?.0;
        let period = self
            .current()
            .map_or(Duration::ZERO, |spec| spec.config.sync_period.duration());
        after(last, SILENCE + period * 2)
    }

    /// How the node stands towards `target`.
    pub(crate) fn standing(
        &self,
        target: &ConfigHash,
        rollout: &Rollout,
        now: Timestamp,
    ) -> Standing {
        let Some((proxy, spec)) = self.proxy.zip(self.current()) else {
            return Standing::Bare;
        };
        if spec.config_hash != *target {
            return Standing::Behind(self.health());
        }
        let deadline = proxy
            .stamped_at
            .and_then(|stamped| after(stamped, rollout.progress_deadline.duration()));
        let failing = |why: String, condition: Option<&Condition>| {
            let began = condition.map(|condition| condition.last_transition_time.0);
            let onset = match began.zip(deadline) {
                Some((began, deadline)) if deadline <= began => Onset::Afterwards,
                _ => Onset::WithTheChange,
            };
            Standing::Failing(Failure { why, onset })
        };
        if let Some(degraded) = self.degraded_since_stamped(proxy) {
            let why = format!("{}: {}", degraded.reason, degraded.message);
            return if proxy.previous.is_some() {
                failing(why, Some(degraded))
            } else {
                Standing::Excused
            };
        }
        // On a node that was handed back there is nothing more to come: that it does not serve says
        // nothing about the change.
        if self.is_done() || self.is_handed_back() {
            return Standing::Done;
        }
        match deadline {
            _ if self.node.reach == Reach::Unreachable => Standing::Excused,
            Some(deadline) if now < deadline => Standing::Pending(deadline),
            _ if proxy.previous.is_none() => Standing::Excused,
            _ => failing(self.shortfall(rollout), self.unready()),
        }
    }

    /// Whether its Services were left to another proxy on request.
    fn is_handed_back(&self) -> bool {
        self.condition(READY)
            .is_some_and(|ready| ready.reason == HANDED_BACK.name)
    }

    /// The condition Degraded, when it became True after the node was given what it has. One from before says nothing
    /// about the change.
    fn degraded_since_stamped(&self, proxy: &NodeProxyRecord) -> Option<&Condition> {
        let degraded = self
            .condition(DEGRADED)
            .filter(|degraded| degraded.status == "True")?;
        let about_this = degraded.observed_generation == Some(proxy.generation);
        let after = proxy
            .stamped_at
            .is_some_and(|stamped| stamped <= degraded.last_transition_time.0);
        (about_this && after).then_some(degraded)
    }

    fn health(&self) -> Health {
        match self.node.reach {
            Reach::Unreachable => Health::Unreachable,
            Reach::Reachable if self.is_done() => Health::Ready,
            Reach::Reachable => Health::Unready,
        }
    }

    /// The condition Ready, when it says that the node is not.
    fn unready(&self) -> Option<&Condition> {
        self.condition(READY).filter(|ready| ready.status != "True")
    }

    fn shortfall(&self, rollout: &Rollout) -> String {
        let deadline = rollout.progress_deadline;
        match self.unready() {
            Some(ready) => {
                format!(
                    "not ready after {deadline}: {}: {}",
                    ready.reason, ready.message
                )
            }
            None => format!("no report that it is ready after {deadline}"),
        }
    }

    /// What the node is to have, to keep what it has.
    pub(crate) fn keep(&self) -> Option<Wanted> {
        let previous = self.proxy?.previous.clone();
        self.current().map(|spec| Wanted {
            spec: spec.clone(),
            previous,
        })
    }

    /// What the node is to have, to take on `spec`. What it goes back to is what it is ready with now, or else what it
    /// already had to go back to.
    pub(crate) fn take(&self, spec: &NodeProxySpec) -> Wanted {
        let unchanged = self
            .current()
            .is_some_and(|current| current.config_hash == spec.config_hash);
        let previous = match self.current() {
            Some(current) if !unchanged && self.is_done() => Some(current.clone()),
            _ => self.proxy.and_then(|proxy| proxy.previous.clone()),
        };
        // Another generation of the same configuration is not worth a write on every node, and a report from every agent.
        let spec = match self.current() {
            Some(current) if differs_in_generation_alone(current, spec) => current.clone(),
            _ => spec.clone(),
        };
        Wanted {
            previous: previous.filter(|previous| previous.config_hash != spec.config_hash),
            spec,
        }
    }

    /// What the node is to have, to go back to what it had before.
    pub(crate) fn go_back(&self) -> Option<Wanted> {
        let spec = self.proxy?.previous.clone()?;
        Some(Wanted {
            spec,
            previous: None,
        })
    }
}

fn differs_in_generation_alone(current: &NodeProxySpec, wanted: &NodeProxySpec) -> bool {
    let same = NodeProxySpec {
        profile_generation: wanted.profile_generation,
        ..current.clone()
    };
    same == *wanted
}

/// The time this long after `start`; absent past the end of time.
fn after(start: Timestamp, span: Duration) -> Option<Timestamp> {
    start.checked_add(SignedDuration::try_from(span).ok()?).ok()
}
