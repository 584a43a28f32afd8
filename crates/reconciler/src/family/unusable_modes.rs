//! The modes that recently turned out to be unusable on this node.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dataplane::Mode;

/// How long an unusable mode is not tried again: longer than a sync takes. If periodic checks
/// are more frequent, most of them skip the mode.
const GIVEN_UP_FOR: Duration = Duration::from_secs(10);

/// The unusable modes, each with its error.
#[derive(Debug, Default)]
pub(super) struct UnusableModes {
    all: BTreeMap<Mode, Cause>,
    /// The last logged error of each mode, kept while the mode is tried again.
    reported: BTreeMap<Mode, String>,
}

#[derive(Debug)]
struct Cause {
    error: String,
    since: Instant,
}

/// Whether an error differs from the last logged one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ErrorChange {
    New,
    Known,
}

// === impl UnusableModes ===

impl UnusableModes {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn contains(&self, mode: Mode) -> bool {
        self.all.contains_key(&mode)
    }

    /// Gives `mode` up from now on. Returns whether the error is new.
    pub(super) fn add(&mut self, mode: Mode, error: String, since: Instant) -> ErrorChange {
        let reported = self.reported.insert(mode, error.clone());
        let error_change = match reported.as_ref() == Some(&error) {
            true => ErrorChange::Known,
            false => ErrorChange::New,
        };
        self.all.insert(mode, Cause { error, since });
        error_change
    }

    /// Returns the modes that are due for another try.
    pub(super) fn overdue(&self, now: Instant) -> Vec<Mode> {
        let all = self.all.iter();
        let overdue =
            all.filter(|(_, cause)| now.saturating_duration_since(cause.since) >= GIVEN_UP_FOR);
        overdue.map(|(mode, _)| *mode).collect()
    }

    /// Allows another try of `mode`. The same error again is not new.
    pub(super) fn remove(&mut self, mode: Mode) {
        self.all.remove(&mode);
    }

    /// Forgets `mode`, which works, and its logged error: the next failure is new.
    pub(super) fn forget(&mut self, mode: Mode) {
        self.all.remove(&mode);
        self.reported.remove(&mode);
    }

    /// Returns the error of each mode, with its causes.
    pub(super) fn errors(&self) -> BTreeMap<Mode, String> {
        let all = self.all.iter();
        all.map(|(mode, cause)| (*mode, cause.error.clone()))
            .collect()
    }
}
