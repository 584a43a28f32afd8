//! What one round did, and the rounds of late.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use backend::{Recovery, Shortcoming, Size};
use dataplane::{Family, ServiceKey};

use crate::Damage;

/// Why a round ran, in the order of how much is asked of it: a round that has several reasons has the
/// last of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The round before failed.
    Retry,
    /// The round before programmed a part of a large change.
    Continued,
    /// What is wanted has changed.
    Changed,
    /// Somebody else has changed, or may have changed, what is ours in the kernel.
    Drift,
    /// The periodic check.
    Timer,
    /// A person asked for it.
    Requested,
    /// It is the first since this process started.
    Startup,
}

/// One attempt to make one family of the kernel hold what is wanted.
#[derive(Debug, Clone)]
pub struct Round {
    /// Which family.
    pub family: Family,
    /// The how-manieth round of this family since the process started, from 1.
    pub number: u64,
    /// Why it ran. A periodic check that found the kernel changed ran because of drift.
    pub reason: Reason,
    /// When it began.
    pub started: SystemTime,
    /// How long it took, from beginning to end.
    pub took: Duration,
    /// When it ended, to measure from and to.
    pub ended: Instant,
    /// Where the time went.
    pub phases: Phases,
    /// How much was written, over all of its commits.
    pub size: Size,
    /// How many transactions the kernel acknowledged.
    pub transactions: usize,
    /// How it ended.
    pub outcome: Outcome,
    /// What somebody else had done, once it is repaired.
    pub damage: Option<Damage>,
    /// The Services that the kernel refuses, each with the error.
    pub quarantined: Vec<Quarantined>,
    /// What the backend cannot honour and what it does instead.
    pub shortcomings: Arc<[Shortcoming]>,
}

/// How long each part of a round took, over all of its attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Phases {
    /// Reading the kernel back, and asking whether it has drifted.
    pub observe: Duration,
    /// Saying what it should hold.
    pub render: Duration,
    /// Finding the way there.
    pub diff: Duration,
    /// Going it, until the kernel acknowledged or refused.
    pub commit: Duration,
}

/// How a round ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The kernel held what was wanted already; nothing was written.
    Unchanged,
    /// The kernel acknowledged everything but the quarantined Services.
    Committed,
    /// The kernel acknowledged a part of a large change. Another round follows at once, with whatever
    /// has changed meanwhile.
    Partial,
    /// It did not get there.
    Failed(Failure),
}

/// Why a round did not get there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The error with its causes.
    pub error: String,
    /// What is done about it.
    pub recovery: Recovery,
}

/// A Service that the kernel refuses. It keeps what was programmed for it last, if anything; it is
/// tried again when it changes and at every periodic check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// Which Service.
    pub service: ServiceKey,
    /// The kernel's error with its causes.
    pub error: String,
    /// Since when it is refused.
    pub since: SystemTime,
}

/// The last rounds of one family, oldest first: at most [`Rounds::KEPT`].
#[derive(Debug, Clone, Default)]
pub struct Rounds(VecDeque<Arc<Round>>);

// === impl Rounds ===

impl Rounds {
    /// How many are kept.
    pub const KEPT: usize = 10;

    /// Oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Round>> {
        self.0.iter()
    }

    /// The last one.
    pub fn last(&self) -> Option<&Arc<Round>> {
        self.0.back()
    }

    pub(crate) fn push(&mut self, round: Arc<Round>) {
        if self.0.len() == Rounds::KEPT {
            self.0.pop_front();
        }
        self.0.push_back(round);
    }
}

impl fmt::Display for Rounds {
    /// One line a round, oldest first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for round in &self.0 {
            writeln!(f, "{round}")?;
        }
        Ok(())
    }
}

// === impl Round ===

impl Round {
    /// Whether the kernel holds what was wanted, but for quarantined Services.
    pub fn succeeded(&self) -> bool {
        match self.outcome {
            Outcome::Unchanged | Outcome::Committed => true,
            Outcome::Partial | Outcome::Failed(_) => false,
        }
    }
}

impl fmt::Display for Round {
    /// One line: which, when, why, how it ended, how long and how much.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} round {}", self.family, self.number)?;
        if let Ok(started) = jiff::Timestamp::try_from(self.started) {
            write!(f, " at {started:.3}")?;
        }
        write!(f, " ({}): {}", self.reason, self.outcome)?;
        if self.transactions > 0 {
            let (size, transactions) = (self.size, self.transactions);
            let (elements, objects) = (size.elements, size.objects);
            let plural = if transactions == 1 { "" } else { "s" };
            write!(
                f,
                ", wrote {elements} elements and {objects} objects in {transactions} transaction{plural}"
            )?;
        }
        write!(f, ", took {:?} ({})", self.took, self.phases)?;
        if let Some(damage) = &self.damage {
            write!(f, "; {damage}")?;
        }
        for quarantined in &self.quarantined {
            write!(f, "; {quarantined}")?;
        }
        if !self.shortcomings.is_empty() {
            write!(f, "; {} shortcomings", self.shortcomings.len())?;
        }
        Ok(())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Retry => "Retry",
            Reason::Continued => "Continued",
            Reason::Changed => "Changed",
            Reason::Drift => "Drift",
            Reason::Timer => "Timer",
            Reason::Requested => "Requested",
            Reason::Startup => "Startup",
        })
    }
}

impl fmt::Display for Phases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Phases {
            observe,
            render,
            diff,
            commit,
        } = self;
        write!(
            f,
            "observe {observe:?}, render {render:?}, diff {diff:?}, commit {commit:?}"
        )
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Unchanged => f.write_str("unchanged"),
            Outcome::Committed => f.write_str("committed"),
            Outcome::Partial => f.write_str("committed in part, the rest follows"),
            Outcome::Failed(failure) => failure.fmt(f),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let next = match self.recovery {
            Recovery::Retry => "retrying soon",
            Recovery::Observe => "reading the rules back from the kernel and retrying soon",
            Recovery::Isolate => "no single Service causes it; retrying soon",
            Recovery::Halt => "retrying only at the periodic check",
        };
        write!(f, "{}; {next}", self.error)
    }
}

impl fmt::Display for Quarantined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Service {} is refused: {}", self.service, self.error)
    }
}
