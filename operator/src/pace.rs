//! When what is to be written may be written: not at once again after a failure, and no status more often than anybody
//! reads it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use crate::fleet::Action;

/// The objects that have to wait, each for its turn. The others may be written at any time.
#[derive(Debug, Default)]
pub(crate) struct Pace(BTreeMap<Key, Turn>);

/// What is written, by kind and name of the object.
type Key = (&'static str, String);

/// When an object may be written next, and why not sooner.
#[derive(Debug)]
struct Turn {
    due: Instant,
    /// How often in a row it could not be written; 0 when it was written of late.
    failures: u32,
    /// What the last failure was.
    error: String,
}

/// Whether there is anything in a failure that was not said before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Novelty {
    /// The first of its kind in a row.
    New,
    /// The same again.
    Known,
}

/// A write that was refused is tried again after this time, and then after twice as long each time up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Nobody reads a status more often than this, and every write of it wakes everybody who watches.
const BETWEEN_REPORTS: Duration = Duration::from_secs(1);

// === impl Pace ===

impl Pace {
    /// Those of `actions` whose turn it is at `now`, and when it is that of the first of the others. `actions` are all
    /// there is to write: what they do not name is not waited for, and forgotten once its turn has come.
    pub(crate) fn take_due(
        &mut self,
        actions: Vec<Action>,
        now: Instant,
    ) -> (Vec<Action>, Option<Instant>) {
        let wanted: BTreeSet<Key> = actions.iter().map(key).collect();
        self.0
            .retain(|key, turn| wanted.contains(key) || now < turn.due);
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

    /// Notes that `action` was carried out at `now`; returns how often in a row it had failed before.
    pub(crate) fn succeeded(&mut self, action: &Action, now: Instant) -> u32 {
        let before = self.0.remove(&key(action));
        if let Action::Report { .. } = action {
            let turn = Turn {
                due: now + BETWEEN_REPORTS,
                failures: 0,
                error: String::new(),
            };
            self.0.insert(key(action), turn);
        }
        before.map_or(0, |turn| turn.failures)
    }

    /// Notes that `action` failed at `now` with `error`.
    pub(crate) fn failed(&mut self, action: &Action, error: &str, now: Instant) -> Novelty {
        let before = self.0.remove(&key(action));
        let failures = before.as_ref().map_or(0, |turn| turn.failures);
        let known = before.is_some_and(|turn| turn.failures > 0 && turn.error == error);
        let pause = FIRST_PAUSE
            .saturating_mul(1 << failures.min(6))
            .min(LONGEST_PAUSE);
        let turn = Turn {
            due: now + pause,
            failures: failures.saturating_add(1),
            error: error.to_owned(),
        };
        self.0.insert(key(action), turn);
        if known { Novelty::Known } else { Novelty::New }
    }
}

fn key(action: &Action) -> Key {
    let (kind, name) = action.object();
    (kind, name.to_owned())
}

#[cfg(test)]
mod tests;
