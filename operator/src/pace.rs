//! Rate limits of the writes: backoff after a failure, and a minimum interval between two writes of
//! a status.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use runtime::jitter::spread;

use crate::fleet::Action;

/// The objects whose next write must wait. All others may be written at any time.
#[derive(Debug, Default)]
pub(crate) struct Pace(BTreeMap<Key, Turn>);

/// The kind and name of an object.
type Key = (&'static str, String);

/// The time of an object's next write, and the reason for the delay.
#[derive(Debug)]
struct Turn {
    due: Instant,
    /// The number of consecutive failures; 0 after a successful write.
    failures: u32,
    /// How many writes in a row were refused because the object had changed since the plan.
    outdated: u32,
    /// The last error.
    error: String,
}

/// Whether a failure differs from the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Novelty {
    /// The first failure in a row, or one with another error.
    New,
    /// The same error as before.
    Known,
}

/// A failed write is retried after half of this time to all of it, and then after twice as long each
/// time, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The minimum interval between two writes of a status: each write notifies every watcher.
const BETWEEN_REPORTS: Duration = Duration::from_secs(1);

// === impl Pace ===

impl Pace {
    /// Returns those of `actions` that are due at `now`, and when the next of the others is due.
    /// `actions` must be all pending writes: an object that they do not name is forgotten once it
    /// is due.
    pub(crate) fn take_due(
        &mut self,
        actions: Vec<Action>,
        now: Instant,
    ) -> (Vec<Action>, Option<Instant>) {
        let desired: BTreeSet<Key> = actions.iter().map(key).collect();
        self.0
            .retain(|key, turn| desired.contains(key) || now < turn.due);
        let waits_until = |action: &Action| {
            let turn = self.0.get(&key(action))?;
            (now < turn.due).then_some(turn.due)
        };
        let next = actions.iter().filter_map(waits_until).min();
        let due = actions
            .into_iter()
            .filter(|action| waits_until(action).is_none());
        (due.collect(), next)
    }

    /// Records that `action` succeeded at `now`; returns the number of consecutive failures before.
    pub(crate) fn succeeded(&mut self, action: &Action, now: Instant) -> u32 {
        let before = self.0.remove(&key(action));
        if let Action::Report { .. } = action {
            let turn = Turn {
                due: now + BETWEEN_REPORTS,
                failures: 0,
                outdated: 0,
                error: String::new(),
            };
            self.0.insert(key(action), turn);
        }
        before.map_or(0, |turn| turn.failures)
    }

    /// Records at `now` that the object of `action` has changed since the plan: its watch has to
    /// report the change first, and may lag, or fail for long.
    pub(crate) fn outdated(&mut self, action: &Action, now: Instant) {
        let before = self.0.remove(&key(action));
        let outdated = before.as_ref().map_or(0, |turn| turn.outdated);
        let turn = Turn {
            due: now + pause(outdated),
            failures: before.as_ref().map_or(0, |turn| turn.failures),
            outdated: outdated.saturating_add(1),
            error: before.map(|turn| turn.error).unwrap_or_default(),
        };
        self.0.insert(key(action), turn);
    }

    /// Records that `action` failed at `now` with `error`. `fraction`, from 0 to 1, is random: an API
    /// server that refuses the writes of a thousand nodes is not asked for all of them again in one
    /// moment.
    pub(crate) fn failed(
        &mut self,
        action: &Action,
        error: &str,
        now: Instant,
        fraction: f64,
    ) -> Novelty {
        let before = self.0.remove(&key(action));
        let failures = before.as_ref().map_or(0, |turn| turn.failures);
        let known = before.is_some_and(|turn| turn.failures > 0 && turn.error == error);
        let turn = Turn {
            due: now + spread(pause(failures), fraction),
            failures: failures.saturating_add(1),
            outdated: 0,
            error: error.to_owned(),
        };
        self.0.insert(key(action), turn);
        if known { Novelty::Known } else { Novelty::New }
    }
}

/// The pause after one more failure than these.
fn pause(failures: u32) -> Duration {
    FIRST_PAUSE
        .saturating_mul(1 << failures.min(6))
        .min(LONGEST_PAUSE)
}

fn key(action: &Action) -> Key {
    let (kind, name) = action.object();
    (kind, name.to_owned())
}

#[cfg(test)]
mod tests;
