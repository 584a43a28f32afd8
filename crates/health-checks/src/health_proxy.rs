//! Whether this node's kernel keeps up with the desired state, by kube-proxy's rule for load
//! balancers (pkg/proxy/healthcheck/proxy_health.go): a queued update is programmed within twice
//! the sync period.
//!
//! Two differences are intentional. A family that has never been programmed is not healthy:
//! kube-proxy answers 200 before it has written anything (kubernetes#83263). And the liveness probe
//! passes while a sync is in progress: a restart does not help a slow one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use dataplane::Family;
use reconciler::{Activity, FamilySync, Report, Support, support};

/// The queued and programmed updates of each family. Cheap to clone; clones share the same state.
#[derive(Debug, Clone, Default)]
pub struct ProxyHealth(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    families: BTreeMap<Family, Updates>,
    /// Whether a sync is in progress.
    work: Work,
}

/// The updates of one family.
#[derive(Debug, Clone, Copy, Default)]
struct Updates {
    /// When the oldest update was queued that is not programmed.
    oldest_pending: Option<Instant>,
    /// When the last update was queued.
    last_queued: Option<Instant>,
    /// When the kernel last held the desired state.
    last_answered: Option<SystemTime>,
    support: Support,
}

/// The health of a node at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeHealth {
    /// The health of each family.
    pub families: BTreeMap<Family, FamilyHealth>,
    work: Work,
}

/// The health of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FamilyHealth {
    /// When the kernel last held the desired state.
    pub last_updated: Option<SystemTime>,
    /// Whether the kernel keeps up.
    pub update_state: UpdateState,
}

/// Whether the kernel keeps up with the desired state in one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateState {
    /// This process has never programmed it.
    Never,
    /// The kernel does not support it.
    Unsupported,
    /// Every update is programmed, or not late yet.
    KeepsUp,
    /// An update has waited for too long.
    Late,
}

/// Whether a sync is in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Work {
    InProgress,
    #[default]
    None,
}

// === impl ProxyHealth ===

impl ProxyHealth {
    /// Records that the desired state of every family changed at `now`.
    pub fn queued(&self, now: Instant) {
        let mut state = self.state();
        for family in Family::ALL {
            let updates = state.families.entry(family).or_default();
            updates.oldest_pending.get_or_insert(now);
            updates.last_queued = Some(now);
        }
    }

    /// Records the start of a sync.
    pub fn began(&self) {
        self.state().work = Work::InProgress;
    }

    /// Records the reconciler's report.
    pub fn reported(&self, report: &Report) {
        let mut state = self.state();
        state.work = Work::None;
        for sync in &report.finished {
            let updates = state.families.entry(sync.family).or_default();
            updates.answer(sync);
        }
        for status in &report.families {
            let updates = state.families.entry(status.family).or_default();
            updates.support = support(status);
            if matches!(report.activity, Activity::Paused | Activity::Withdrawn) {
                // The profile is paused, or the node was handed back: no update is due.
                updates.oldest_pending = None;
            }
        }
    }

    /// Returns the health of the node at `now`. An update is late after `patience`.
    pub fn node_health(&self, patience: Duration, now: Instant) -> NodeHealth {
        let state = self.state();
        let families = Family::ALL.map(|family| {
            let updates = state.families.get(&family).copied().unwrap_or_default();
            let health = FamilyHealth {
                last_updated: updates.last_answered,
                update_state: updates.update_state(patience, now),
            };
            (family, health)
        });
        NodeHealth {
            families: families.into(),
            work: state.work,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The value is consistent between any two statements that change it, so a poisoned lock is
        // harmless.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Updates ===

impl Updates {
    fn answer(&mut self, sync: &FamilySync) {
        let began = sync.ended.checked_sub(sync.took).unwrap_or(sync.ended);
        if sync.succeeded() {
            // Updates that were queued during the sync are programmed by the next one.
            let later = self.last_queued.is_some_and(|queued| queued > began);
            self.oldest_pending = later.then_some(began);
            self.last_answered = Some(sync.started + sync.took);
        } else {
            // Any failed sync leaves the kernel without the desired state.
            self.oldest_pending.get_or_insert(began);
        }
    }

    fn update_state(&self, patience: Duration, now: Instant) -> UpdateState {
        let late = self
            .oldest_pending
            .is_some_and(|since| now.saturating_duration_since(since) >= patience);
        match (self.support, self.last_answered) {
            (Support::Lacking, _) => UpdateState::Unsupported,
            (Support::Assumed, _) if late => UpdateState::Late,
            (Support::Assumed, None) => UpdateState::Never,
            (Support::Assumed, Some(_)) => UpdateState::KeepsUp,
        }
    }
}

// === impl NodeHealth ===

impl NodeHealth {
    /// Returns whether this node should receive traffic.
    pub fn is_healthy(&self) -> bool {
        let counted = || {
            self.update_states()
                .filter(|state| *state != UpdateState::Unsupported)
        };
        counted().all(|state| state == UpdateState::KeepsUp) && counted().next().is_some()
    }

    /// Returns whether there is no reason to restart this process: no update is late, or a sync is
    /// in progress.
    pub fn is_alive(&self) -> bool {
        self.work == Work::InProgress
            || self.update_states().all(|state| state != UpdateState::Late)
    }

    /// Returns when the kernel last held the desired state in any family.
    pub fn last_updated(&self) -> Option<SystemTime> {
        let families = self.families.values();
        families.filter_map(|family| family.last_updated).max()
    }

    fn update_states(&self) -> impl Iterator<Item = UpdateState> {
        self.families.values().map(|family| family.update_state)
    }
}

// === impl FamilyHealth ===

impl FamilyHealth {
    /// Returns whether the kernel keeps up.
    pub fn is_healthy(&self) -> bool {
        self.update_state == UpdateState::KeepsUp
    }
}

#[cfg(test)]
mod tests;
