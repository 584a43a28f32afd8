//! Repairs are made at once, unless somebody keeps undoing them.

use std::time::{Duration, Instant};

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

/// How many repairs there were of late.
#[derive(Debug, Clone, Default)]
pub(super) struct Restraint(Option<Streak>);

/// Repairs without quiet between any two of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Streak {
    /// How many.
    pub(crate) repairs: u32,
    /// When the first of them began.
    pub(crate) began: Instant,
    /// When the last of them ended, or began if it has not.
    last: Instant,
}

// === impl Restraint ===

impl Restraint {
    /// When something that was noticed at `since` may be repaired.
    pub(super) fn earliest(&self, since: Instant) -> Instant {
        let Some(streak) = &self.0 else {
            return since;
        };
        match streak.repairs.checked_sub(AT_ONCE) {
            Some(excess) if since < streak.last + QUIET => since.max(streak.last + wait(excess)),
            _ => since,
        }
    }

    /// Notes that a repair begins.
    pub(super) fn start(&mut self, now: Instant) {
        self.forgive(now);
        let streak = self.0.get_or_insert(Streak {
            repairs: 0,
            began: now,
            last: now,
        });
        streak.repairs = streak.repairs.saturating_add(1);
        streak.last = now;
    }

    /// Notes that it has ended.
    pub(super) fn finish(&mut self, now: Instant) {
        if let Some(streak) = &mut self.0 {
            streak.last = now;
        }
    }

    /// Forgets everything if it has been quiet for long enough.
    pub(super) fn forgive(&mut self, now: Instant) {
        if self.0.is_some_and(|streak| now >= streak.last + QUIET) {
            self.0 = None;
        }
    }

    /// The repairs of late when they are more than are made at once, and when they are forgiven if
    /// nothing happens until then.
    pub(super) fn held_back(&self) -> Option<(Streak, Instant)> {
        let streak = self.0.filter(|streak| streak.repairs > AT_ONCE)?;
        Some((streak, streak.last + QUIET))
    }
}

/// Doubles with every repair beyond those that are made at once.
fn wait(excess: u32) -> Duration {
    2u32.checked_pow(excess)
        .and_then(|factor| FIRST_WAIT.checked_mul(factor))
        .map_or(LONGEST_WAIT, |wait| wait.min(LONGEST_WAIT))
}
