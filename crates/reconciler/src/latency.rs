//! How long changes take to arrive in the kernel.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use dataplane::Family;

use crate::{Outcome, Round};

/// How many trigger times are kept for one family while its kernel takes nothing.
const TRIGGERS_KEPT: usize = 1024;

/// When the changes in a desired state came about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamps {
    /// When the oldest of them was received.
    pub received_at: Instant,
    /// How long it took to compile them, together.
    pub compile: Duration,
    /// What the sources say of when their causes happened, by clocks of other machines. Leave out
    /// those of objects that were there before this process: they say how long it was not running.
    pub triggers: Vec<SystemTime>,
}

/// How long the changes that one round programmed have taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Latency {
    /// In which family.
    pub family: Family,
    /// From the receipt of the oldest to the kernel's acknowledgement.
    pub received_to_commit: Duration,
    /// The part of it spent compiling.
    pub compile: Duration,
    /// From each trigger to the kernel's acknowledgement. Zero for a trigger in the future: clocks
    /// of other machines can be ahead.
    pub trigger_to_commit: Vec<Duration>,
}

/// The stamps of changes that have not arrived in the kernel, per family. They stay through
/// failures, so that a change that took three attempts counts with all three.
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

    /// Takes out what `round` has programmed. Nothing is said of a round that wrote nothing: its
    /// changes were not about this family.
    pub(crate) fn settle(&mut self, round: &Round) -> Option<Latency> {
        if !round.succeeded() {
            return None;
        }
        let stamps = self.0.remove(&round.family)?;
        let wall_time = round.started + round.took;
        (round.outcome == Outcome::Committed).then(|| Latency {
            family: round.family,
            received_to_commit: round.ended.saturating_duration_since(stamps.received_at),
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
    /// Makes them the stamps of both.
    pub fn merge(&mut self, other: &Stamps) {
        self.received_at = self.received_at.min(other.received_at);
        self.compile += other.compile;
        let room = TRIGGERS_KEPT.saturating_sub(self.triggers.len());
        self.triggers.extend(other.triggers.iter().take(room));
    }
}
