//! The mechanisms that recently turned out to be unusable on this node.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dataplane::Mechanism;

/// How long an unusable mechanism is not tried again: longer than a sync takes. If periodic checks
/// are more frequent, most of them skip the mechanism.
const GIVEN_UP_FOR: Duration = Duration::from_secs(10);

/// The unusable mechanisms, each with its error.
#[derive(Debug, Default)]
pub(super) struct UnusableMechanisms {
    all: BTreeMap<Mechanism, Cause>,
    /// The last logged error of each mechanism, kept while the mechanism is tried again.
    reported: BTreeMap<Mechanism, String>,
}

#[derive(Debug)]
struct Cause {
    error: String,
    since: Instant,
}

/// Whether an error differs from the last logged one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Novelty {
    New,
    Known,
}

// === impl UnusableMechanisms ===

impl UnusableMechanisms {
    pub(super) fn contains(&self, mechanism: Mechanism) -> bool {
        self.all.contains_key(&mechanism)
    }

    /// Gives `mechanism` up from now on. Returns whether the error is new.
    pub(super) fn add(&mut self, mechanism: Mechanism, error: String) -> Novelty {
        let reported = self.reported.insert(mechanism, error.clone());
        let novelty = match reported.as_ref() == Some(&error) {
            true => Novelty::Known,
            false => Novelty::New,
        };
        let since = Instant::now();
        self.all.insert(mechanism, Cause { error, since });
        novelty
    }

    /// Returns the mechanisms that are due for another try.
    pub(super) fn overdue(&self) -> Vec<Mechanism> {
        let all = self.all.iter();
        let overdue = all.filter(|(_, cause)| cause.since.elapsed() >= GIVEN_UP_FOR);
        overdue.map(|(mechanism, _)| *mechanism).collect()
    }

    /// Allows another try of `mechanism`. The same error again is not new.
    pub(super) fn remove(&mut self, mechanism: Mechanism) {
        self.all.remove(&mechanism);
    }

    /// Forgets the logged error of `mechanism`, which works now, so that the next failure is new.
    pub(super) fn forget(&mut self, mechanism: Mechanism) {
        self.reported.remove(&mechanism);
    }

    /// Returns the error of each mechanism, with its causes.
    pub(super) fn errors(&self) -> BTreeMap<Mechanism, String> {
        let all = self.all.iter();
        all.map(|(mechanism, cause)| (*mechanism, cause.error.clone()))
            .collect()
    }
}
