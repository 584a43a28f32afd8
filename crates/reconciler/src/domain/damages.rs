//! What others do to one family, from being heard to being repaired.

use std::time::{Duration, Instant};

use backend::{Culprit, Size};

use super::progress::Progress;
use crate::Damage;

/// The damages of one family.
#[derive(Debug, Default)]
pub(super) struct Damages {
    heard: Option<Heard>,
    /// What a commit stumbled over and has put right, until it is known whose doing that was.
    stumbled: Option<Size>,
    /// What was found and is not known to be repaired.
    found: Option<Found>,
    repaired: u64,
    last: Option<Damage>,
}

/// Somebody was heard changing something; no round has looked since.
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
    /// Notes that somebody was heard.
    pub(super) fn hear(&mut self, culprit: Option<&Culprit>, now: Instant) {
        let heard = self.heard.get_or_insert(Heard {
            since: now,
            culprit: None,
        });
        if culprit.is_some() {
            heard.culprit = culprit.cloned();
        }
    }

    /// Whether somebody was heard and no round has looked since.
    pub(super) fn is_heard(&self) -> bool {
        self.heard.is_some()
    }

    /// Takes out who was heard, for a round that looks.
    pub(super) fn take_heard(&mut self) -> Option<Heard> {
        self.heard.take()
    }

    /// Puts back who was heard: the round could not look.
    pub(super) fn hear_again(&mut self, heard: Option<Heard>) {
        self.heard = heard;
    }

    /// Forgets who was heard: it is not known what there was for them to change.
    pub(super) fn forget_heard(&mut self) {
        self.heard = None;
    }

    /// Notes that the kernel did not hold what a commit was made for.
    pub(super) fn stumble(&mut self, size: Size, heard: Option<Heard>, progress: &Progress<'_>) {
        self.stumbled = Some(size);
        self.accuse(heard, progress);
    }

    /// If a commit has stumbled and it is known who was heard, it was their doing. Where the kernel
    /// does not say who, it may only not be known that nobody was there.
    pub(super) fn accuse(&mut self, heard: Option<Heard>, progress: &Progress<'_>) {
        let culprit = heard.filter(|heard| heard.culprit.is_some());
        if culprit.is_some()
            && let Some(size) = self.stumbled.take()
        {
            self.find(size, culprit, progress);
        }
    }

    /// Nothing differs. Whoever is heard from now on has nothing to do with what a commit has
    /// stumbled over before.
    pub(super) fn find_nothing(&mut self, heard: Option<Heard>, progress: &Progress<'_>) {
        self.accuse(heard, progress);
        self.stumbled = None;
    }

    /// The kernel holds something else than it was left with. Several findings before a repair are
    /// repaired as one.
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

    /// The kernel holds what is wanted: what was found is repaired.
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

    /// How many were repaired.
    pub(super) fn repaired(&self) -> u64 {
        self.repaired
    }

    /// The one that was repaired last.
    pub(super) fn last(&self) -> Option<&Damage> {
        self.last.as_ref()
    }
}
