//! Changes by other programs to one family, from the notification to the repair.

use std::time::{Duration, Instant};

use backend::{Culprit, Size};

use super::progress::Progress;
use crate::Damage;

/// The changes by other programs to one family.
#[derive(Debug, Default)]
pub(super) struct Damages {
    heard: Option<Heard>,
    /// The size of a difference that made a commit fail and is already repaired, until it is known
    /// which program caused it.
    stumbled: Option<Size>,
    /// A difference that was found and is not known to be repaired.
    found: Option<Found>,
    repaired: u64,
    last: Option<Damage>,
}

/// A notification of a change by another program; no round has checked the kernel since.
#[derive(Debug)]
pub(super) struct Heard {
    since: Instant,
    culprit: Option<Culprit>,
}

#[derive(Debug)]
struct Found {
    since: Instant,
    damage: Damage,
}

// === impl Damages ===

impl Damages {
    /// Records a notification of a change by another program.
    pub(super) fn hear(&mut self, culprit: Option<&Culprit>, now: Instant) {
        let heard = self.heard.get_or_insert(Heard {
            since: now,
            culprit: None,
        });
        if culprit.is_some() {
            heard.culprit = culprit.cloned();
        }
    }

    /// Whether a notification arrived that no round has checked yet.
    pub(super) fn is_heard(&self) -> bool {
        self.heard.is_some()
    }

    /// Takes the pending notification, for a round that checks the kernel.
    pub(super) fn take_heard(&mut self) -> Option<Heard> {
        self.heard.take()
    }

    /// Puts the notification back: the round could not check the kernel.
    pub(super) fn hear_again(&mut self, heard: Option<Heard>) {
        self.heard = heard;
    }

    /// Drops the notification: there is no known state that the program could have changed.
    pub(super) fn forget_heard(&mut self) {
        self.heard = None;
    }

    /// Records that a commit failed because the kernel did not hold the expected rules.
    pub(super) fn stumble(&mut self, size: Size, heard: Option<Heard>, progress: &Progress<'_>) {
        self.stumbled = Some(size);
        self.accuse(heard, progress);
    }

    /// Attributes a failed commit to the program of the notification, if the kernel named one. A
    /// notification without a program is no evidence: it may only mean that notifications were
    /// lost.
    pub(super) fn accuse(&mut self, heard: Option<Heard>, progress: &Progress<'_>) {
        let culprit = heard.filter(|heard| heard.culprit.is_some());
        if culprit.is_some()
            && let Some(size) = self.stumbled.take()
        {
            self.find(size, culprit, progress);
        }
    }

    /// Records that the kernel holds the expected rules. Later notifications are not attributed to
    /// an earlier failed commit.
    pub(super) fn find_nothing(&mut self, heard: Option<Heard>, progress: &Progress<'_>) {
        self.accuse(heard, progress);
        self.stumbled = None;
    }

    /// Records that the kernel does not hold what it was left with. Several findings before a
    /// repair count as one.
    pub(super) fn find(&mut self, size: Size, heard: Option<Heard>, progress: &Progress<'_>) {
        let (since, culprit) = match heard {
            Some(heard) => (heard.since, heard.culprit),
            None => (progress.began, None),
        };
        self.stumbled = None;
        self.found.get_or_insert(Found {
            since,
            damage: Damage {
                found: progress.clock.wall_time(),
                culprit,
                size,
                repaired_after: Duration::ZERO,
            },
        });
    }

    /// Records that the kernel holds the desired state, so what was found is repaired.
    pub(super) fn repair(&mut self, ended: Instant) -> Option<Damage> {
        let found = self.found.take()?;
        let damage = Damage {
            repaired_after: ended.saturating_duration_since(found.since),
            ..found.damage
        };
        self.repaired += 1;
        self.last = Some(damage.clone());
        Some(damage)
    }

    /// The number of repaired changes.
    pub(super) fn repaired(&self) -> u64 {
        self.repaired
    }

    /// The change repaired last.
    pub(super) fn last(&self) -> Option<&Damage> {
        self.last.as_ref()
    }
}
