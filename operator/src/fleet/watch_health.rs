//! For how long watches have failed, for a metric. What the operator knows of nodes is then old: a node
//! that is ready with a change looks like one that never reported.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};

use crate::fleet::node_progress::after;

/// The failures of watches, by kind.
#[derive(Debug, Default)]
pub(super) struct WatchHealth(BTreeMap<&'static str, Failures>);

/// Failures of a watch that follow one another.
#[derive(Clone, Copy, Debug)]
struct Failures {
    first: Timestamp,
    last: Timestamp,
}

/// A watch that has failed no more for so long works again. It is tried again after a minute at most, and
/// a request may be without an answer for a minute and a half. A quiet watch says nothing else.
const WORKS_AGAIN: Duration = Duration::from_secs(180);

// === impl WatchHealth ===

impl WatchHealth {
    /// Notes that the watch of `kind` failed at `at`.
    pub(super) fn failed(&mut self, kind: &'static str, at: Timestamp) {
        let failures = self.0.entry(kind).or_insert(Failures {
            first: at,
            last: at,
        });
        if failures.ends() <= at {
            failures.first = at;
        }
        failures.last = at;
    }

    /// Returns for how long each watch that failed has been failing at `now`.
    pub(super) fn failing(&self, now: Timestamp) -> impl Iterator<Item = (&'static str, Duration)> {
        self.0
            .iter()
            .map(move |(kind, failures)| (*kind, failures.span(now)))
    }
}

// === impl Failures ===

impl Failures {
    fn ends(&self) -> Timestamp {
        after(self.last, WORKS_AGAIN)
    }

    fn span(&self, now: Timestamp) -> Duration {
        if self.ends() <= now {
            return Duration::ZERO;
        }
        let span: SignedDuration = self.last.duration_since(self.first);
        span.try_into().unwrap_or_default()
    }
}
