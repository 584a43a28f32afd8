//! What one sync did, and the most recent syncs.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use backend::{CommitError, ObserveError, Recovery, Size, UnsupportedField};
use dataplane::{Family, ServiceKey};

use crate::RepairedDrift;
use crate::error_chain::error_chain;

/// Why a sync ran, ordered by how much the sync does. A sync with several reasons reports the
/// last of them in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The previous sync failed.
    Retry,
    /// The previous sync programmed a part of a large change.
    Continued,
    /// The desired state has changed.
    Changed,
    /// Another program has changed, or may have changed, Signpost's rules in the kernel.
    Drift,
    /// The periodic check.
    Timer,
    /// An operator requested it.
    Requested,
    /// It is the first sync since this process started.
    Startup,
}

/// One attempt to program the desired state of one family.
#[derive(Debug, Clone)]
pub struct FamilySync {
    /// The address family.
    pub family: Family,
    /// The number of this sync in its family since the process started, from 1.
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
    /// The change by another program that this sync repaired.
    pub repaired_drift: Option<RepairedDrift>,
    /// The Services that the kernel refuses, each with the error.
    pub quarantined: Vec<Quarantined>,
    /// What the backend does not support, and what it does instead.
    pub unsupported_fields: Arc<[UnsupportedField]>,
}

/// The time spent in each phase of a sync, over all attempts.
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

/// How a sync ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The kernel already held the desired state; nothing was written.
    Unchanged,
    /// The kernel acknowledged everything except the quarantined Services.
    Committed,
    /// The kernel acknowledged a part of a large change. Another sync follows and includes any changes
    /// made meanwhile: at once, or if all is left to a mode that has failed, at its next attempt.
    Partial,
    /// The desired state is not programmed.
    Failed(Failure),
}

/// Why a sync failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The error with its causes.
    pub error: String,
    /// What the loop does about it.
    pub recovery: Recovery,
}

/// A Service that the kernel refuses. It keeps the rules programmed for it last, if any. It is
/// retried when it changes and at periodic checks, of which each has room for some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// The Service.
    pub service: ServiceKey,
    /// The kernel's error with its causes.
    pub error: String,
    /// When the kernel first refused it.
    pub since: SystemTime,
}

/// The most recent syncs of one family, oldest first: at most [`RecentSyncs::KEPT`].
#[derive(Debug, Clone, Default)]
pub struct RecentSyncs(VecDeque<Arc<FamilySync>>);

// === impl Failure ===

impl Failure {
    /// Both failures of one sync, with what the loop does about the first.
    pub(crate) fn both(first: Failure, second: Failure) -> Failure {
        Failure {
            error: format!("{}; {}", first.error, second.error),
            recovery: first.recovery,
        }
    }
}

impl From<&CommitError> for Failure {
    fn from(error: &CommitError) -> Failure {
        Failure {
            error: error_chain(error),
            recovery: error.recovery,
        }
    }
}

impl From<&ObserveError> for Failure {
    fn from(error: &ObserveError) -> Failure {
        Failure {
            error: error_chain(error),
            recovery: error.recovery,
        }
    }
}

// === impl RecentSyncs ===

impl RecentSyncs {
    /// The maximum number of syncs kept.
    pub const KEPT: usize = 10;

    /// Oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<FamilySync>> {
        self.0.iter()
    }

    /// The most recent sync.
    pub fn last(&self) -> Option<&Arc<FamilySync>> {
        self.0.back()
    }

    pub(crate) fn push(&mut self, sync: Arc<FamilySync>) {
        let is_idle_check =
            |sync: &FamilySync| sync.reason == Reason::Drift && sync.outcome == Outcome::Unchanged;
        // Checks that find nothing one after the other would push out everything else.
        if is_idle_check(&sync) {
            self.0.pop_back_if(|last| is_idle_check(last));
        }
        if self.0.len() == RecentSyncs::KEPT {
            self.0.pop_front();
        }
        self.0.push_back(sync);
    }
}

impl fmt::Display for RecentSyncs {
    /// One line for each sync, oldest first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for sync in &self.0 {
            writeln!(f, "{sync}")?;
        }
        Ok(())
    }
}

// === impl FamilySync ===

impl FamilySync {
    /// The first sync of `family`, which ends now, began at the Unix epoch, took no time and wrote
    /// nothing. Tests add what they need.
    pub fn new(family: Family, reason: Reason, outcome: Outcome) -> FamilySync {
        FamilySync {
            family,
            number: 1,
            reason,
            started: SystemTime::UNIX_EPOCH,
            took: Duration::ZERO,
            ended: Instant::now(),
            phases: Phases::default(),
            size: Size::default(),
            transactions: 0,
            outcome,
            repaired_drift: None,
            quarantined: Vec::new(),
            unsupported_fields: Arc::default(),
        }
    }

    /// Whether the kernel holds the desired state, except for quarantined Services.
    pub fn succeeded(&self) -> bool {
        match self.outcome {
            Outcome::Unchanged | Outcome::Committed => true,
            Outcome::Partial | Outcome::Failed(_) => false,
        }
    }
}

impl fmt::Display for FamilySync {
    /// One line: family, number, time, reason, outcome, size and duration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sync {}", self.family, self.number)?;
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
        if let Some(repaired_drift) = &self.repaired_drift {
            write!(f, "; {repaired_drift}")?;
        }
        for quarantined in &self.quarantined {
            write!(f, "; {quarantined}")?;
        }
        if !self.unsupported_fields.is_empty() {
            write!(f, "; {} unsupported fields", self.unsupported_fields.len())?;
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
