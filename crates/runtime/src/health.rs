//! The answers to probes: whether this process is ready for work, and whether it must be restarted.
//!
//! Tasks report their readiness themselves. Liveness only concerns work that has begun or is due
//! and does not finish: a process without work is alive, a slow process that makes progress is
//! alive, a stuck process is not.

mod endpoints;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The named checks and heartbeats of one process. Cheap to clone; clones share their state.
#[derive(Debug, Clone, Default)]
pub struct Health(Arc<Mutex<State>>);

/// Sorted by name, so that two answers can be compared line by line.
#[derive(Debug, Default)]
struct State {
    checks: BTreeMap<String, Readiness>,
    heartbeats: BTreeMap<String, HeartbeatState>,
}

/// The readiness that a task reports for its part of the work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// It can do its work.
    Ready,
    /// It cannot do its work; the reason as a sentence.
    NotReady(String),
}

/// Sets one readiness check. Cheap to clone; clones set the same one.
#[derive(Debug, Clone)]
pub struct Check {
    health: Health,
    name: Arc<str>,
}

/// Reports the progress of one loop. Cheap to clone; clones report for the same loop.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    health: Health,
    name: Arc<str>,
}

#[derive(Debug)]
struct HeartbeatState {
    /// The maximum time without progress while there is work.
    allowed: Duration,
    /// When work became due, or last progressed. `None` if there is no work.
    busy_since: Option<Instant>,
}

/// The answer to a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// One line for each check, sorted by name.
    pub lines: Vec<ReportLine>,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportLine {
    /// The check's name.
    pub name: String,
    /// Why it fails, if it does.
    pub failure: Option<String>,
}

// === impl Health ===

impl Health {
    /// Creates an instance without checks: ready and alive.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a readiness check, which is not ready until it reports so. Add all checks before
    /// serving; otherwise the process is briefly ready before it is not. Adding a name twice
    /// returns the same check.
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

    /// Adds a loop that must make progress at least every `allowed` while it has work.
    ///
    /// A failed liveness probe kills the process, so choose a limit that only a fault can exceed:
    /// several times the slowest sync that ever succeeded.
    pub fn heartbeat(&self, name: &str, allowed: Duration) -> Heartbeat {
        self.state().heartbeats.insert(
            name.to_owned(),
            HeartbeatState {
                allowed,
                busy_since: None,
            },
        );
        Heartbeat {
            health: self.clone(),
            name: name.into(),
        }
    }

    /// Whether this process is ready for work.
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

    /// Whether this process is alive; if not, only a restart helps.
    pub fn liveness(&self) -> Report {
        let now = Instant::now();
        let state = self.state();
        let lines = state.heartbeats.iter().map(|(name, heartbeat)| ReportLine {
            name: name.clone(),
            failure: heartbeat.failure(now),
        });
        Report {
            lines: lines.collect(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A thread that panicked while it held the lock left no partial entries: each update is one
        // assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Check ===

impl Check {
    /// Reports that the task can do its work.
    pub fn ready(&self) {
        self.report(Readiness::Ready);
    }

    /// Reports that the task cannot do its work, and why.
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
    /// Reports that there is work. The loop calls this when it begins a sync; a sender of work may
    /// call it, too, so that a loop that never begins is detected. A call while already busy
    /// changes nothing: the time counts from the first call.
    pub fn busy(&self) {
        self.change(|since| since.or_else(|| Some(Instant::now())));
    }

    /// Reports that a part of the work is done and more is left: the time counts from now.
    pub fn beat(&self) {
        self.change(|_| Some(Instant::now()));
    }

    /// Reports that there is no work, so that no time limit applies.
    pub fn idle(&self) {
        self.change(|_| None);
    }

    fn change(&self, next: impl FnOnce(Option<Instant>) -> Option<Instant>) {
        if let Some(heartbeat) = self.health.state().heartbeats.get_mut(&*self.name) {
            heartbeat.busy_since = next(heartbeat.busy_since);
        }
    }
}

// === impl HeartbeatState ===

impl HeartbeatState {
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
