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
pub(crate) struct WriteRateLimiter(BTreeMap<Key, NextWrite>);

/// The kind and name of an object.
type Key = (&'static str, String);

/// The time of an object's next write, and the reason for the delay.
#[derive(Debug)]
struct NextWrite {
    due: Instant,
    /// The number of consecutive failures; 0 after a successful write.
    failures: u32,
    /// How many writes in a row were refused because the object had changed since the plan.
    conflicts: u32,
    /// The last error.
    error: String,
}

/// Whether a failure differs from the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureRepetition {
    /// The first failure in a row, or one with another error.
    New,
    /// The same error as before.
    Repeated,
}

/// A failed write is retried after half of this time to all of it, and then after twice as long each
/// time, up to [`LONGEST_BACKOFF`].
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);
/// The minimum interval between two writes of a status: each write notifies every watcher.
const BETWEEN_STATUS_WRITES: Duration = Duration::from_secs(1);

// === impl WriteRateLimiter ===

impl WriteRateLimiter {
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
            .retain(|key, next_write| desired.contains(key) || now < next_write.due);
        let waits_until = |action: &Action| {
            let next_write = self.0.get(&key(action))?;
            (now < next_write.due).then_some(next_write.due)
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
        if let Action::UpdateStatus { .. } = action {
            let next_write = NextWrite {
                due: now + BETWEEN_STATUS_WRITES,
                failures: 0,
                conflicts: 0,
                error: String::new(),
            };
            self.0.insert(key(action), next_write);
        }
        before.map_or(0, |next_write| next_write.failures)
    }

    /// Records at `now` that the object of `action` has changed since the plan: its watch has to
    /// report the change first, and may lag, or fail for long.
    pub(crate) fn conflicted(&mut self, action: &Action, now: Instant) {
        let before = self.0.remove(&key(action));
        let conflicts = before.as_ref().map_or(0, |next_write| next_write.conflicts);
        let next_write = NextWrite {
            due: now + backoff(conflicts),
            failures: before.as_ref().map_or(0, |next_write| next_write.failures),
            conflicts: conflicts.saturating_add(1),
            error: before
                .map(|next_write| next_write.error)
                .unwrap_or_default(),
        };
        self.0.insert(key(action), next_write);
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
    ) -> FailureRepetition {
        let before = self.0.remove(&key(action));
        let failures = before.as_ref().map_or(0, |next_write| next_write.failures);
        let is_repeated =
            before.is_some_and(|next_write| next_write.failures > 0 && next_write.error == error);
        let next_write = NextWrite {
            due: now + spread(backoff(failures), fraction),
            failures: failures.saturating_add(1),
            conflicts: 0,
            error: error.to_owned(),
        };
        self.0.insert(key(action), next_write);
        if is_repeated {
            FailureRepetition::Repeated
        } else {
            FailureRepetition::New
        }
    }
}

/// The time to wait after one more failure than these.
fn backoff(failures: u32) -> Duration {
    FIRST_BACKOFF
        .saturating_mul(1 << failures.min(6))
        .min(LONGEST_BACKOFF)
}

fn key(action: &Action) -> Key {
    let (kind, name) = action.object();
    (kind, name.to_owned())
}

#[cfg(test)]
mod tests;
