//! Whether this node's kernel keeps up with the desired state, by kube-proxy's rule for load balancers
//! (pkg/proxy/healthcheck/proxy_health.go): a queued update is programmed within twice the sync period.
//!
//! Two things differ on purpose. A family that has never been programmed is not healthy: kube-proxy
//! answers 200 before it has written anything (kubernetes#83263). And the liveness probe passes as long
//! as a round is under way: a restart does not help a slow one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use dataplane::Family;
use reconciler::{Activity, Report, Round};

use crate::support::{Support, support};

/// What was queued and what was answered, by family. Cheap to clone; clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProxyHealth(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    families: BTreeMap<Family, Updates>,
    /// Whether a round is under way.
    work: Work,
}

/// The updates of one family.
#[derive(Debug, Clone, Copy, Default)]
struct Updates {
    /// When the oldest of those was queued that are not answered.
    oldest_pending: Option<Instant>,
    /// When one was last queued.
    last_queued: Option<Instant>,
    /// When the kernel last held the desired state.
    last_answered: Option<SystemTime>,
    support: Support,
}

/// How a node stands at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Each family.
    pub(crate) families: BTreeMap<Family, FamilyVerdict>,
    work: Work,
}

/// How a family stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FamilyVerdict {
    /// When the kernel last held the desired state.
    pub(crate) last_updated: Option<SystemTime>,
    /// Whether it keeps up.
    pub(crate) pace: Pace,
}

/// Whether a family keeps up with the desired state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// It has never been programmed by this process.
    Never,
    /// The kernel lacks it.
    Unsupported,
    /// Every update is answered, or not yet late.
    KeepsUp,
    /// An update has waited for too long.
    Late,
}

/// Whether anything is being done about what waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Work {
    UnderWay,
    #[default]
    None,
}

// === impl ProxyHealth ===

impl ProxyHealth {
    /// The desired state of every family changed at `now`.
    pub(crate) fn queued(&self, now: Instant) {
        let mut state = self.state();
        for family in Family::ALL {
            let updates = state.families.entry(family).or_default();
            updates.oldest_pending.get_or_insert(now);
            updates.last_queued = Some(now);
        }
    }

    /// A round begins.
    pub(crate) fn began(&self) {
        self.state().work = Work::UnderWay;
    }

    /// Takes in what the loop has done.
    pub(crate) fn reported(&self, report: &Report) {
        let mut state = self.state();
        state.work = Work::None;
        for round in &report.finished {
            let updates = state.families.entry(round.family).or_default();
            updates.answer(round);
        }
        for status in &report.families {
            let updates = state.families.entry(status.family).or_default();
            updates.support = support(status);
            if matches!(report.activity, Activity::Paused | Activity::Withdrawn) {
                // The profile is paused, or the node was handed back.
                updates.oldest_pending = None;
            }
        }
    }

    /// How the node stands at `now`, where an update is late after `patience`.
    pub(crate) fn verdict(&self, patience: Duration, now: Instant) -> Verdict {
        let state = self.state();
        let families = Family::ALL.map(|family| {
            let updates = state.families.get(&family).copied().unwrap_or_default();
            let verdict = FamilyVerdict {
                last_updated: updates.last_answered,
                pace: updates.pace(patience, now),
            };
            (family, verdict)
        });
        Verdict {
            families: families.into(),
            work: state.work,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Whatever is behind it is whole between any two statements that change it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Updates ===

impl Updates {
    fn answer(&mut self, round: &Round) {
        let began = round.ended.checked_sub(round.took).unwrap_or(round.ended);
        if round.succeeded() {
            // What was queued while it ran is for the next one.
            let later = self.last_queued.is_some_and(|queued| queued > began);
            self.oldest_pending = later.then_some(began);
            self.last_answered = Some(round.started + round.took);
        } else {
            // A round that fails for any reason leaves the kernel without the desired state.
            self.oldest_pending.get_or_insert(began);
        }
    }

    fn pace(&self, patience: Duration, now: Instant) -> Pace {
        let late = self
            .oldest_pending
            .is_some_and(|since| now.saturating_duration_since(since) >= patience);
        match (self.support, self.last_answered) {
            (Support::Lacking, _) => Pace::Unsupported,
            (Support::Assumed, _) if late => Pace::Late,
            (Support::Assumed, None) => Pace::Never,
            (Support::Assumed, Some(_)) => Pace::KeepsUp,
        }
    }
}

// === impl Verdict ===

impl Verdict {
    /// Whether traffic should be sent to this node.
    pub(crate) fn is_healthy(&self) -> bool {
        let counted = || self.paces().filter(|pace| *pace != Pace::Unsupported);
        counted().all(|pace| pace == Pace::KeepsUp) && counted().next().is_some()
    }

    /// Whether nothing speaks for starting this process again: no update is late, or it is being
    /// worked at.
    pub(crate) fn is_alive(&self) -> bool {
        self.work == Work::UnderWay || self.paces().all(|pace| pace != Pace::Late)
    }

    /// When the kernel last held the desired state, in any family.
    pub(crate) fn last_updated(&self) -> Option<SystemTime> {
        let families = self.families.values();
        families.filter_map(|family| family.last_updated).max()
    }

    fn paces(&self) -> impl Iterator<Item = Pace> {
        self.families.values().map(|family| family.pace)
    }
}

// === impl FamilyVerdict ===

impl FamilyVerdict {
    /// Whether it keeps up.
    pub(crate) fn is_healthy(&self) -> bool {
        self.pace == Pace::KeepsUp
    }
}

#[cfg(test)]
mod tests;
