//! How a node stands towards a configuration: what a wave waits for, and what fails it.
//!
//! Only what became worse counts, and only when it lasts. What the node was like before is written down with every change
//! ([`Baseline`]); which configuration a report is about is told by generations and hashes; how long something lasts is
//! measured by the operator itself ([`Sightings`]). Trouble on the way to the API server fails no node: one failing API
//! server of several cuts off a healthy fleet.

use std::{borrow::Cow, time::Duration};

use crds::{
    condition::reason::{AGENT_SILENT, LISTS_PENDING, SOURCE_STALE},
    effective::hash::ConfigHash,
    profile::rollout::Rollout,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::{
    baseline::{Baseline, Readiness},
    fleet::{
        member::Member,
        sightings::{Shape, Sighting, Sightings, Since},
    },
    records::{NodeProxyRecord, Reach},
};

/// How a node stands towards the configuration its profile asks for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Standing {
    /// It was never given anything: it serves nobody by our doing, so there is nothing to be careful with.
    Bare,
    /// It has another configuration.
    Behind(Health),
    /// It was given the configuration and has until then to be ready with it.
    Pending(Timestamp),
    /// It is ready with it, and available if it stays so until then.
    Proving(Timestamp),
    /// It is worse than before, and fails if it is so until then.
    Ailing(Timestamp),
    /// It has lost the API server, which says nothing about the configuration: it keeps its place until it can report.
    CutOff,
    /// It has been ready with it for long enough.
    Done,
    /// It is ready with it and had nothing before: it serves nobody yet whose loss would be noticed, and proves nothing.
    Joined,
    /// It is worse than it was before, and has been for long enough.
    Failing(Failure),
    /// It is not ready, and was not before either: it proves nothing.
    Excused,
}

/// How a node fails with a configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    /// Why, in one word.
    pub(crate) reason: String,
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
    /// The operator found it so when it started, long after the change.
    Unknown,
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

/// How long a node may be worse than before without failing: agents restart, kubelets miss heartbeats and Services are
/// refused for a moment on a healthy fleet. Never longer than the time the node has to be ready.
const GRACE: Duration = Duration::from_secs(120);

/// What is wrong with a node: in one word, and in a sentence.
struct Fault {
    reason: String,
    why: String,
}

// === impl Fault ===

impl Fault {
    fn new(reason: &str, why: impl Into<String>) -> Self {
        Self {
            reason: reason.to_owned(),
            why: why.into(),
        }
    }
}

// === impl Standing ===

impl Standing {
    /// When it becomes another one although nothing is heard.
    pub(crate) const fn ends(&self) -> Option<Timestamp> {
        match self {
            Self::Pending(time) | Self::Proving(time) | Self::Ailing(time) => Some(*time),
            _ => None,
        }
    }
}

// === impl Member ===

impl Member<'_> {
    /// How the node stands at `now` towards `target`, judged by what it was like before.
    pub(crate) fn standing(
        &self,
        target: &ConfigHash,
        rollout: &Rollout,
        sightings: &mut Sightings,
        now: Timestamp,
    ) -> Standing {
        let Some((proxy, spec)) = self.proxy.zip(self.current()) else {
            return Standing::Bare;
        };
        let baseline = assumed_baseline(proxy);
        let worse = baseline
            .as_deref()
            .and_then(|baseline| self.worse_than(baseline, now));
        let is_well = self.is_done() || self.is_left_to_another_proxy();
        let shape = match worse {
            Some(_) => Shape::Worse,
            None if is_well => Shape::Well,
            None => Shape::Unready,
        };
        let sighting = sightings.note(proxy, shape, now);
        if spec.config_hash != *target {
            return Standing::Behind(self.health());
        }
        let deadline = self.deadline(rollout).unwrap_or(now);
        let Some(baseline) = baseline else {
            return self.joined(is_well, deadline, now);
        };
        let grace = GRACE.min(rollout.progress_deadline.duration());
        let patience = after(sighting.since.time(), grace);
        let ail = |until: Timestamp, Fault { reason, why }: Fault| {
            if now < until {
                return Standing::Ailing(until);
            }
            let onset = onset(sighting.since, deadline);
            Standing::Failing(Failure { reason, why, onset })
        };
        if let Some(fault) = worse {
            return ail(patience, fault);
        }
        if is_well {
            let proven = proven_at(proxy, sighting.since, rollout);
            return if now < proven {
                Standing::Proving(proven)
            } else {
                Standing::Done
            };
        }
        if !baseline.is_well() {
            return self.unproven(deadline, now);
        }
        if self.unready().is_some_and(is_about_the_source) {
            return Standing::CutOff;
        }
        match sighting {
            // It could, and cannot any more.
            Sighting {
                was_well: true,
                since: Since::Changed(_),
                ..
            } => ail(patience, self.shortfall(rollout)),
            _ if now < deadline => Standing::Pending(deadline),
            _ => ail(patience.max(deadline), self.shortfall(rollout)),
        }
    }

    /// What the node is like at `now` with what it has; absent while it has nothing.
    pub(crate) fn present(&self, now: Timestamp) -> Option<Baseline> {
        let spec = self.current()?;
        Some(Baseline {
            config_hash: spec.config_hash.clone(),
            node: self.node.reach,
            // One that another proxy serves is as it should be, too: what becomes of it with a takeover counts.
            agent: if (self.is_done() || self.is_handed_back()) && !self.is_silent(now) {
                Readiness::Ready
            } else {
                Readiness::NotReady
            },
            degraded: self.degraded().map(|condition| condition.reason.clone()),
        })
    }

    /// Whether it was well when it was given what it has, so that it shows whether that works.
    pub(crate) fn was_well_before(&self) -> bool {
        self.proxy
            .and_then(assumed_baseline)
            .is_some_and(|baseline| baseline.is_well())
    }

    /// When its time to be ready with what it has is over.
    pub(crate) fn deadline(&self, rollout: &Rollout) -> Option<Timestamp> {
        let stamped = self.proxy?.stamped_at?;
        Some(after(stamped, rollout.progress_deadline.duration()))
    }

    /// In what the node is worse than `baseline`, if in anything but that it is not ready.
    fn worse_than(&self, baseline: &Baseline, now: Timestamp) -> Option<Fault> {
        if self.node.reach == Reach::Unreachable {
            let lost = "its Node is not Ready, or its kubelet has stopped reporting";
            return (baseline.node == Reach::Reachable).then(|| Fault::new("NodeNotReady", lost));
        }
        if baseline.is_well() && self.is_silent(now) {
            let silent = "its agent has stopped reporting";
            return Some(Fault::new(AGENT_SILENT.name, silent));
        }
        let degraded = self.degraded().filter(|_| baseline.is_well())?;
        (baseline.degraded.as_ref() != Some(&degraded.reason))
            .then(|| Fault::new(&degraded.reason, describe(degraded)))
    }

    /// The condition Degraded, when it is True, of what the node has now, and not about the way to the API server.
    fn degraded(&self) -> Option<&Condition> {
        let generation = self.proxy?.generation;
        self.condition(crds::condition::DEGRADED)
            .filter(|degraded| degraded.status == "True" && !is_about_the_source(degraded))
            .filter(|degraded| degraded.observed_generation == Some(generation))
    }

    /// Of a node that had nothing before.
    fn joined(&self, is_well: bool, deadline: Timestamp, now: Timestamp) -> Standing {
        if self.degraded().is_some() {
            Standing::Excused
        } else if is_well {
            Standing::Joined
        } else {
            self.unproven(deadline, now)
        }
    }

    /// Of a node that is not ready, and whose failure would prove nothing.
    fn unproven(&self, deadline: Timestamp, now: Timestamp) -> Standing {
        if self.node.reach == Reach::Reachable && now < deadline {
            Standing::Pending(deadline)
        } else {
            Standing::Excused
        }
    }

    fn health(&self) -> Health {
        match self.node.reach {
            Reach::Unreachable => Health::Unreachable,
            Reach::Reachable if self.is_done() || self.is_handed_back() => Health::Ready,
            Reach::Reachable => Health::Unready,
        }
    }

    fn shortfall(&self, rollout: &Rollout) -> Fault {
        let deadline = rollout.progress_deadline;
        match self.unready() {
            Some(ready) => {
                let why = format!("not ready after {deadline}: {}", describe(ready));
                Fault::new(&ready.reason, why)
            }
            None => {
                let why = format!("no report that it is ready after {deadline}");
                Fault::new("NoReport", why)
            }
        }
    }
}

fn describe(condition: &Condition) -> String {
    format!("{}: {}", condition.reason, condition.message)
}

/// Whether `condition` tells of the way to the API server.
pub(crate) fn is_about_the_source(condition: &Condition) -> bool {
    [SOURCE_STALE, LISTS_PENDING]
        .iter()
        .any(|reason| reason.name == condition.reason)
}

/// What the node was like before. An operator that wrote no baseline wrote down what the node goes back to only when it
/// was ready with it.
fn assumed_baseline(proxy: &NodeProxyRecord) -> Option<Cow<'_, Baseline>> {
    let written = proxy.baseline.as_ref().map(Cow::Borrowed);
    written.or_else(|| {
        let previous = proxy.previous.as_ref()?;
        Some(Cow::Owned(Baseline {
            config_hash: previous.config_hash.clone(),
            node: Reach::Reachable,
            agent: Readiness::Ready,
            degraded: None,
        }))
    })
}

/// When a node that is ready since then is available. Of one that was found ready by an operator that has just started
/// only the time of the change is known.
fn proven_at(proxy: &NodeProxyRecord, since: Since, rollout: &Rollout) -> Timestamp {
    let start = match (since, proxy.stamped_at) {
        (Since::Found(found), Some(stamped)) => found.min(stamped),
        _ => since.time(),
    };
    after(start, rollout.min_ready.duration())
}

fn onset(since: Since, deadline: Timestamp) -> Onset {
    match since {
        _ if since.time() < deadline => Onset::WithTheChange,
        Since::Changed(_) => Onset::Afterwards,
        Since::Found(_) => Onset::Unknown,
    }
}

/// The time this long after `start`, or the end of time.
pub(crate) fn after(start: Timestamp, span: Duration) -> Timestamp {
    SignedDuration::try_from(span)
        .ok()
        .and_then(|span| start.checked_add(span).ok())
        .unwrap_or(Timestamp::MAX)
}
