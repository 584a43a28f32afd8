//! The answers to probes: whether this process should get work, and whether it should be killed.
//!
//! Readiness is what tasks say about themselves. Liveness is only ever about work that was begun or
//! is due and does not come to an end: a process with nothing to do is alive, one that is slow but
//! gets on is alive, one that is stuck is not.

mod endpoints;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The named checks and heartbeats of one process. Cheap to clone; clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Health(Arc<Mutex<State>>);

/// Ordered by name, so that two answers compare line by line.
#[derive(Debug, Default)]
struct State {
    checks: BTreeMap<String, Readiness>,
    heartbeats: BTreeMap<String, Pulse>,
}

/// What a task says about its part of the work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// It can do its work.
    Ready,
    /// It cannot, for this reason, as a sentence.
    NotReady(String),
}

/// Sets one readiness check. Cheap to clone; clones set the same one.
#[derive(Debug, Clone)]
pub struct Check {
    health: Health,
    name: Arc<str>,
}

/// Says that one loop gets on with its work. Cheap to clone; clones speak for the same loop.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    health: Health,
    name: Arc<str>,
}

#[derive(Debug)]
struct Pulse {
    /// How long work may take without progress.
    allowed: Duration,
    /// When work became due, or last progressed. Nothing when there is none.
    busy_since: Option<Instant>,
}

/// The answer to a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// One a check, ordered by name.
    pub lines: Vec<ReportLine>,
}

/// The answer to a probe about one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportLine {
    /// The check's name.
    pub name: String,
    /// Why it fails, if it does.
    pub failure: Option<String>,
}

// === impl Health ===

impl Health {
    /// No checks: ready and alive.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a readiness check, not ready until it says so. Add all before serving, or the process
    /// is ready for a moment before it is not. The same name twice is the same check.
    pub fn check(&self, name: &str) -> Check {
        self.state()
            .checks
            .entry(name.to_owned())
            .or_insert_with(|| Readiness::NotReady("has not reported yet".to_owned()));
        Check {
            health: self.clone(),
            name: name.into(),
        }
    }

    /// Adds a loop that must make progress at least every `allowed` while it has something to do.
    ///
    /// Failing kills the process, so the limit is for what can only be a fault: several times the
    /// slowest round that ever succeeded.
    pub fn heartbeat(&self, name: &str, allowed: Duration) -> Heartbeat {
        self.state().heartbeats.insert(
            name.to_owned(),
            Pulse {
                allowed,
                busy_since: None,
            },
        );
        Heartbeat {
            health: self.clone(),
            name: name.into(),
        }
    }

    /// Whether this process should get work.
    pub fn readiness(&self) -> Report {
        let state = self.state();
        let lines = state.checks.iter().map(|(name, readiness)| ReportLine {
            name: name.clone(),
            failure: match readiness {
                Readiness::Ready => None,
                Readiness::NotReady(reason) => Some(reason.clone()),
            },
        });
        Report {
            lines: lines.collect(),
        }
    }

    /// Whether this process still works; if not, only a restart helps.
    pub fn liveness(&self) -> Report {
        let now = Instant::now();
        let state = self.state();
        let lines = state.heartbeats.iter().map(|(name, pulse)| ReportLine {
            name: name.clone(),
            failure: pulse.failure(now),
        });
        Report {
            lines: lines.collect(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A thread that panicked while holding it left whole entries behind: each is one assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Check ===

impl Check {
    /// The task can do its work.
    pub fn ready(&self) {
        self.report(Readiness::Ready);
    }

    /// The task cannot do its work, for this reason.
    pub fn not_ready(&self, reason: impl fmt::Display) {
        self.report(Readiness::NotReady(reason.to_string()));
    }

    /// Replaces the previous report.
    pub fn report(&self, readiness: Readiness) {
        self.health
            .state()
            .checks
            .insert(self.name.to_string(), readiness);
    }
}

// === impl Heartbeat ===

impl Heartbeat {
    /// There is work, from now on. The loop calls this when it begins a round; a sender of work may
    /// call it, too, so that a loop that never begins is noticed. A call while already busy changes
    /// nothing: the age counts from the first one.
    pub fn busy(&self) {
        self.change(|since| since.or_else(|| Some(Instant::now())));
    }

    /// A part of the work is done and more is left: the age counts from now.
    pub fn beat(&self) {
        self.change(|_| Some(Instant::now()));
    }

    /// There is nothing to do. From here on no time is too long.
    pub fn idle(&self) {
        self.change(|_| None);
    }

    fn change(&self, next: impl FnOnce(Option<Instant>) -> Option<Instant>) {
        if let Some(pulse) = self.health.state().heartbeats.get_mut(&*self.name) {
            pulse.busy_since = next(pulse.busy_since);
        }
    }
}

// === impl Pulse ===

impl Pulse {
    fn failure(&self, now: Instant) -> Option<String> {
        let age = now.saturating_duration_since(self.busy_since?);
        (age > self.allowed).then(|| {
            format!(
                "no progress for {} s, {} s allowed",
                age.as_secs(),
                self.allowed.as_secs()
            )
        })
    }
}

// === impl Report ===

impl Report {
    /// Whether every check passed.
    pub fn passed(&self) -> bool {
        self.lines.iter().all(|line| line.failure.is_none())
    }
}

impl fmt::Display for ReportLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.failure {
            None => write!(f, "[+]{} ok", self.name),
            Some(reason) => write!(f, "[-]{} {reason}", self.name),
        }
    }
}

#[cfg(test)]
mod tests;
