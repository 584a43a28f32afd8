//! Repairs run at once, unless another program keeps undoing them.

use std::time::{Duration, Instant};

use backend::Actor;

use crate::RepairedDrift;

/// How many repairs in a row run at once. A firewall that reloads itself flushes and writes in a
/// few transactions.
const AT_ONCE: u32 = 5;
/// How long the next repair waits; each further one waits twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// The maximum wait. During a wait the removed rules are not served, but reading and writing a
/// large table takes some tenths of a second of a processor each time.
const LONGEST_WAIT: Duration = Duration::from_secs(4);
/// After this long without a repair, all repairs are forgotten.
const QUIET: Duration = Duration::from_secs(10);
/// After a check that found nothing, the next check waits this many times as long as that check
/// took. So a program that keeps rewriting existing rules, or sends more notifications than can be
/// received, costs at most a quarter of a processor.
const REST: u32 = 3;

/// What delays the next check of the kernel.
#[derive(Debug, Clone, Default)]
pub(super) struct CheckBackoff {
    /// The recent repairs.
    series: Option<RepairSeries>,
    /// No check runs until then, after one that found nothing.
    rests_until: Option<Instant>,
}

/// Repairs without a quiet period between any two of them.
#[derive(Debug, Clone)]
pub(crate) struct RepairSeries {
    /// The number of repairs.
    pub(crate) repairs: u32,
    /// When the first of them began.
    pub(crate) began: Instant,
    /// The last program found to have made one necessary.
    pub(crate) actor: Option<Actor>,
    /// When the last of them ended.
    last: Instant,
}

// === impl CheckBackoff ===

impl CheckBackoff {
    /// The earliest time of a check for a change that was noticed at `since`.
    pub(super) fn earliest(&self, since: Instant) -> Instant {
        let rested = self.rests_until.map_or(since, |until| since.max(until));
        let Some(series) = &self.series else {
            return rested;
        };
        match series.repairs.checked_sub(AT_ONCE) {
            Some(excess) if since < series.last + QUIET => rested.max(series.last + wait(excess)),
            _ => rested,
        }
    }

    /// Records that a sync has repaired something.
    pub(super) fn repaired(
        &mut self,
        repaired_drifts: &[&RepairedDrift],
        began: Instant,
        ended: Instant,
    ) {
        let series = self.series.get_or_insert(RepairSeries {
            repairs: 0,
            began,
            actor: None,
            last: ended,
        });
        series.repairs = series.repairs.saturating_add(1);
        series.last = ended;
        let actor = repaired_drifts.iter().rev().find_map(|d| d.actor.clone());
        series.actor = actor.or(series.actor.take());
    }

    /// Records that a sync checked the kernel and found nothing.
    pub(super) fn found_nothing(&mut self, began: Instant, ended: Instant) {
        let took = ended.saturating_duration_since(began);
        self.rests_until = Some(ended + took.saturating_mul(REST).min(LONGEST_WAIT));
    }

    /// Forgets all repairs if the quiet period has passed.
    pub(super) fn forgive(&mut self, now: Instant) {
        self.series.take_if(|series| now >= series.last + QUIET);
    }

    /// The recent repairs if there are more than [`AT_ONCE`], and when they are forgotten if
    /// nothing happens until then.
    pub(super) fn held_back(&self) -> Option<(&RepairSeries, Instant)> {
        let series = self.series.as_ref()?;
        (series.repairs > AT_ONCE).then_some((series, series.last + QUIET))
    }
}

/// The wait; doubles with every repair beyond [`AT_ONCE`].
fn wait(excess: u32) -> Duration {
    2u32.checked_pow(excess)
        .and_then(|factor| FIRST_WAIT.checked_mul(factor))
        .map_or(LONGEST_WAIT, |wait| wait.min(LONGEST_WAIT))
}
