//! How long changes take to reach the kernel.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use dataplane::Family;

use crate::{FamilySync, Outcome};

/// How many trigger times are kept for one family while its kernel accepts nothing.
const TRIGGERS_KEPT: usize = 1024;

/// When the changes in a desired state were made and received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamps {
    /// When the oldest change was received.
    pub received_at: Instant,
    /// The total time spent compiling them.
    pub compile: Duration,
    /// The trigger times from the sources, by the clocks of other machines. Omit those of objects
    /// that existed before this process started: they would measure how long the process was not
    /// running.
    pub triggers: Vec<SystemTime>,
}

/// The latencies of the changes that one sync programmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Latency {
    /// The address family.
    pub family: Family,
    /// From the receipt of the oldest change to the kernel's acknowledgement.
    pub received_to_commit: Duration,
    /// The part of it spent compiling.
    pub compile: Duration,
    /// From each trigger to the kernel's acknowledgement. Zero for a trigger in the future, because
    /// clocks of other machines can be ahead.
    pub trigger_to_commit: Vec<Duration>,
}

/// The stamps of changes that are not in the kernel yet, per family. Failures do not clear them, so
/// a change that took three attempts counts with all three.
#[derive(Debug, Default)]
pub(crate) struct Backlog(BTreeMap<Family, Stamps>);

// === impl Backlog ===

impl Backlog {
    pub(crate) fn add(&mut self, families: impl Iterator<Item = Family>, stamps: &Stamps) {
        for family in families {
            self.0
                .entry(family)
                .and_modify(|waiting| waiting.merge(stamps))
                .or_insert_with(|| stamps.clone());
        }
    }

    /// Removes the stamps of the changes that `sync` has programmed and returns their latency.
    /// Returns `None` for a sync that wrote nothing: its changes did not affect this family.
    pub(crate) fn settle(&mut self, sync: &FamilySync) -> Option<Latency> {
        if !sync.succeeded() {
            return None;
        }
        let stamps = self.0.remove(&sync.family)?;
        let wall_time = sync.started + sync.took;
        (sync.outcome == Outcome::Committed).then(|| Latency {
            family: sync.family,
            received_to_commit: sync.ended.saturating_duration_since(stamps.received_at),
            compile: stamps.compile,
            trigger_to_commit: stamps
                .triggers
                .into_iter()
                .map(|trigger| wall_time.duration_since(trigger).unwrap_or_default())
                .collect(),
        })
    }
}

// === impl Stamps ===

impl Stamps {
    /// Adds the stamps of `other`.
    pub fn merge(&mut self, other: &Stamps) {
        self.received_at = self.received_at.min(other.received_at);
        self.compile += other.compile;
        let room = TRIGGERS_KEPT.saturating_sub(self.triggers.len());
        self.triggers.extend(other.triggers.iter().take(room));
    }
}
