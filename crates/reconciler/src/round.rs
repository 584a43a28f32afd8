//! What one round did, and the most recent rounds.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use backend::{Recovery, Shortcoming, Size};
use dataplane::{Family, ServiceKey};

use crate::Damage;

/// Why a round ran, ordered by how much the round does. A round with several reasons reports the
/// last of them in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The previous round failed.
    Retry,
    /// The previous round programmed a part of a large change.
    Continued,
    /// The desired state has changed.
    Changed,
    /// Another program has changed, or may have changed, Signpost's rules in the kernel.
    Drift,
    /// The periodic check.
    Timer,
    /// An operator requested it.
    Requested,
    /// It is the first round since this process started.
    Startup,
}

/// One attempt to program the desired state of one family.
#[derive(Debug, Clone)]
pub struct Round {
    /// The address family.
    pub family: Family,
    /// The number of this round in its family since the process started, from 1.
    pub number: u64,
    /// Why it ran. A periodic check that found the kernel changed ran because of drift.
    pub reason: Reason,
    /// When it began.
    pub started: SystemTime,
    /// How long it took in total.
    pub took: Duration,
    /// When it ended, on the monotonic clock.
    pub ended: Instant,
    /// How long each phase took.
    pub phases: Phases,
    /// How much was written, over all commits.
    pub size: Size,
    /// How many transactions the kernel acknowledged.
    pub transactions: usize,
    /// How it ended.
    pub outcome: Outcome,
    /// The change by another program that this round repaired.
    pub damage: Option<Damage>,
    /// The Services that the kernel refuses, each with the error.
    pub quarantined: Vec<Quarantined>,
    /// What the backend does not support, and what it does instead.
    pub shortcomings: Arc<[Shortcoming]>,
}

/// The time spent in each phase of a round, over all attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Phases {
    /// Reading the rules back, and checking for drift.
    pub observe: Duration,
    /// Rendering the desired rules.
    pub render: Duration,
    /// Computing the change.
    pub diff: Duration,
    /// Committing, until the kernel acknowledged or refused.
    pub commit: Duration,
}

/// How a round ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The kernel already held the desired state; nothing was written.
    Unchanged,
    /// The kernel acknowledged everything except the quarantined Services.
    Committed,
    /// The kernel acknowledged a part of a large change. Another round follows at once and includes
    /// any changes made meanwhile.
    Partial,
    /// The desired state is not programmed.
    Failed(Failure),
}

/// Why a round failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The error with its causes.
    pub error: String,
    /// What the loop does about it.
    pub recovery: Recovery,
}

/// A Service that the kernel refuses. It keeps the rules programmed for it last, if any. It is
/// retried when it changes and at every periodic check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// The Service.
    pub service: ServiceKey,
    /// The kernel's error with its causes.
    pub error: String,
    /// When the kernel first refused it.
    pub since: SystemTime,
}

/// The most recent rounds of one family, oldest first: at most [`Rounds::KEPT`].
#[derive(Debug, Clone, Default)]
pub struct Rounds(VecDeque<Arc<Round>>);

// === impl Rounds ===

impl Rounds {
    /// The maximum number of rounds kept.
    pub const KEPT: usize = 10;

    /// Oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Round>> {
        self.0.iter()
    }

    /// The most recent round.
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
    /// One line for each round, oldest first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for round in &self.0 {
            writeln!(f, "{round}")?;
        }
        Ok(())
    }
}

// === impl Round ===

impl Round {
    /// Whether the kernel holds the desired state, except for quarantined Services.
    pub fn succeeded(&self) -> bool {
        match self.outcome {
            Outcome::Unchanged | Outcome::Committed => true,
            Outcome::Partial | Outcome::Failed(_) => false,
        }
    }
}

impl fmt::Display for Round {
    /// One line: family, number, time, reason, outcome, size and duration.
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
