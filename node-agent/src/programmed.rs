//! What the reconciler reports: its thread posts it, and every other task reads it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use agent_metrics::Latencies;
use crds::node_proxy::latency::SyncLatency;
use dataplane::Family;
use modes::{ModeState, RulesByMode};
use reconciler::{Report, RunningSync};
use tokio::sync::watch;

/// The last report, and the state of the kernel as of that.
#[derive(Debug)]
pub(crate) struct Programmed {
    report: watch::Sender<Option<Arc<Report>>>,
    running_sync: Mutex<Option<RunningSync>>,
    latencies: Mutex<Latencies>,
    families: Mutex<BTreeMap<Family, FamilyState>>,
}

/// How one family is programmed.
#[derive(Debug, Clone)]
pub(crate) struct FamilyState {
    /// The observed rules of the family; `None` if they are not known.
    pub(crate) held: Option<RulesByMode>,
    /// The modes that program it.
    pub(crate) mode: ModeState,
}

// === impl Programmed ===

impl Programmed {
    pub(crate) fn new() -> Programmed {
        Programmed {
            report: watch::Sender::new(None),
            running_sync: Mutex::default(),
            latencies: Mutex::default(),
            families: Mutex::default(),
        }
    }

    /// The reconciler's last report.
    pub(crate) fn report(&self) -> watch::Receiver<Option<Arc<Report>>> {
        self.report.subscribe()
    }

    /// The same, without waiting for the next.
    pub(crate) fn last_report(&self) -> Option<Arc<Report>> {
        self.report.borrow().clone()
    }

    /// The sync in progress, if there is one. Its start does not wake readers.
    pub(crate) fn running_sync(&self) -> Option<RunningSync> {
        *lock(&self.running_sync)
    }

    pub(crate) fn post_running_sync(&self, running_sync: RunningSync) {
        *lock(&self.running_sync) = Some(running_sync);
    }

    /// Posts a report, and the new state of the families that may have changed.
    pub(crate) fn post_report(
        &self,
        report: Report,
        families: impl IntoIterator<Item = (Family, FamilyState)>,
        now: Instant,
    ) {
        lock(&self.latencies).record(&report, now);
        for (family, state) in families {
            // Dropped after the lock is released: this may be the last reference.
            let before = lock(&self.families).insert(family, state);
            drop(before);
        }
        *lock(&self.running_sync) = None;
        self.report.send_replace(Some(Arc::new(report)));
    }

    /// The latency of recent changes.
    pub(crate) fn latency(&self, now: Instant) -> Option<SyncLatency> {
        lock(&self.latencies).summary(now)
    }

    /// The observed rules of one family.
    pub(crate) fn held(&self, family: Family) -> Option<RulesByMode> {
        lock(&self.families).get(&family)?.held.clone()
    }

    /// The number of elements and rules in the kernel, as observed.
    pub(crate) fn elements(&self) -> usize {
        let families = lock(&self.families);
        let held = families.values().filter_map(|family| family.held.as_ref());
        held.map(RulesByMode::elements).sum()
    }

    /// How each family is programmed.
    pub(crate) fn modes(&self) -> BTreeMap<Family, ModeState> {
        let families = lock(&self.families);
        let modes = families.iter();
        modes
            .map(|(family, state)| (*family, state.mode.clone()))
            .collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The value is consistent between any two statements that change it, so a poisoned lock is
    // harmless.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
