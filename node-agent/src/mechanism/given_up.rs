//! The mechanisms that cannot be used here, as far as was seen of late.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dataplane::Mechanism;

/// For how long a mechanism that turned out impossible is not tried again: longer than a round takes.
/// Where periodic checks come more often, most of them pass without.
const GIVEN_UP_FOR: Duration = Duration::from_secs(10);

/// Mechanisms, each with the error.
#[derive(Debug, Default)]
pub(super) struct GivenUp {
    all: BTreeMap<Mechanism, Cause>,
    /// What was last logged of each, whether or not it is being tried again.
    told: BTreeMap<Mechanism, String>,
}

#[derive(Debug)]
struct Cause {
    error: String,
    since: Instant,
}

/// Whether something is known already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Novelty {
    New,
    Known,
}

// === impl GivenUp ===

impl GivenUp {
    pub(super) fn contains(&self, mechanism: Mechanism) -> bool {
        self.all.contains_key(&mechanism)
    }

    /// Gives one up, from now on; whether that is news.
    pub(super) fn add(&mut self, mechanism: Mechanism, error: String) -> Novelty {
        let told = self.told.insert(mechanism, error.clone());
        let novelty = match told.as_ref() == Some(&error) {
            true => Novelty::Known,
            false => Novelty::New,
        };
        let since = Instant::now();
        self.all.insert(mechanism, Cause { error, since });
        novelty
    }

    /// Those that may have become possible.
    pub(super) fn overdue(&self) -> Vec<Mechanism> {
        let all = self.all.iter();
        let overdue = all.filter(|(_, cause)| cause.since.elapsed() >= GIVEN_UP_FOR);
        overdue.map(|(mechanism, _)| *mechanism).collect()
    }

    /// It is tried again. If it fails as it did before, that is no news.
    pub(super) fn remove(&mut self, mechanism: Mechanism) {
        self.all.remove(&mechanism);
    }

    /// It serves, so that it would be news if it failed.
    pub(super) fn forget(&mut self, mechanism: Mechanism) {
        self.told.remove(&mechanism);
    }

    /// Each with the error and its causes.
    pub(super) fn errors(&self) -> BTreeMap<Mechanism, String> {
        let all = self.all.iter();
        all.map(|(mechanism, cause)| (*mechanism, cause.error.clone()))
            .collect()
    }
}
