//! Repairs are made at once, unless somebody keeps undoing them.

use std::time::{Duration, Instant};

use backend::Culprit;

use crate::Damage;

/// How many repairs in a row are made at once. A firewall that reloads itself flushes and writes in
/// a few transactions.
const AT_ONCE: u32 = 5;
/// How long the first repair after these waits; each further one waits twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// The longest wait. While one lasts, nothing is served of what was taken away; but reading and
/// writing a large table takes some tenths of a second of a processor each time.
const LONGEST_WAIT: Duration = Duration::from_secs(4);
/// How long nothing may have had to be repaired for everything to be as if nothing ever had.
const QUIET: Duration = Duration::from_secs(10);
/// How many times as long as a look that found nothing there is none: somebody who keeps writing
/// what is there already, or more than can be heard, costs a quarter of a processor at most.
const REST: u32 = 3;

/// What keeps the next look at the kernel waiting.
#[derive(Debug, Clone, Default)]
pub(super) struct Restraint {
    /// The repairs of late.
    streak: Option<Streak>,
    /// Until when there is no look, after one that found nothing.
    rests_until: Option<Instant>,
}

/// Repairs without quiet between any two of them.
#[derive(Debug, Clone)]
pub(crate) struct Streak {
    /// How many.
    pub(crate) repairs: u32,
    /// When the first of them began.
    pub(crate) began: Instant,
    /// Who was last found to have made one necessary.
    pub(crate) culprit: Option<Culprit>,
    /// When the last of them ended.
    last: Instant,
}

// === impl Restraint ===

impl Restraint {
    /// When something that was noticed at `since` may be looked at.
    pub(super) fn earliest(&self, since: Instant) -> Instant {
        let rested = self.rests_until.map_or(since, |until| since.max(until));
        let Some(streak) = &self.streak else {
            return rested;
        };
        match streak.repairs.checked_sub(AT_ONCE) {
            Some(excess) if since < streak.last + QUIET => rested.max(streak.last + wait(excess)),
            _ => rested,
        }
    }

    /// Notes that a round has repaired something.
    pub(super) fn repaired(&mut self, damages: &[&Damage], began: Instant, ended: Instant) {
        let streak = self.streak.get_or_insert(Streak {
            repairs: 0,
            began,
            culprit: None,
            last: ended,
        });
        streak.repairs = streak.repairs.saturating_add(1);
        streak.last = ended;
        let culprit = damages.iter().rev().find_map(|d| d.culprit.clone());
        streak.culprit = culprit.or(streak.culprit.take());
    }

    /// Notes that a round has looked in vain.
    pub(super) fn found_nothing(&mut self, began: Instant, ended: Instant) {
        let took = ended.saturating_duration_since(began);
        self.rests_until = Some(ended + took.saturating_mul(REST).min(LONGEST_WAIT));
    }

    /// Forgets everything if it has been quiet for long enough.
    pub(super) fn forgive(&mut self, now: Instant) {
        self.streak.take_if(|streak| now >= streak.last + QUIET);
    }

    /// The repairs of late when they are more than are made at once, and when they are forgiven if
    /// nothing happens until then.
    pub(super) fn held_back(&self) -> Option<(&Streak, Instant)> {
        let streak = self.streak.as_ref()?;
        (streak.repairs > AT_ONCE).then_some((streak, streak.last + QUIET))
    }
}

/// Doubles with every repair beyond those that are made at once.
fn wait(excess: u32) -> Duration {
    2u32.checked_pow(excess)
        .and_then(|factor| FIRST_WAIT.checked_mul(factor))
        .map_or(LONGEST_WAIT, |wait| wait.min(LONGEST_WAIT))
}
