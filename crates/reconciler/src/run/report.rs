//! What the loop tells the rest of the process.

use std::sync::Arc;
use std::time::SystemTime;

use backend::Backend;

use crate::{Contest, Domain, FamilyStatus, Latency, Reason, Round};

/// What the loop says, as it happens.
#[derive(Debug)]
pub enum News<'a, B: Backend> {
    /// A round begins. Says nothing of how anything stands, because nothing has changed yet and the
    /// kernel is waiting.
    Began(UnderWay),
    /// A round has ended, or there is something else to tell. With the families themselves, for
    /// whoever wants to see their rules.
    Report(Report, &'a [Domain<B>]),
}

/// A round that runs. It can take minutes on a slow machine and succeed all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnderWay {
    /// Why.
    pub reason: Reason,
    /// Since when.
    pub since: SystemTime,
}

/// How everything stands, and what has just happened. Reports may be skipped over, save for their
/// latencies: whoever needs to know what changed between two of them compares what is programmed.
#[derive(Debug, Clone)]
pub struct Report {
    /// What the loop does between rounds.
    pub activity: Activity,
    /// How each family stands, in the order in which they are programmed.
    pub families: Vec<FamilyStatus>,
    /// Whether somebody keeps changing what is ours, so that repairs are held back.
    pub contest: Option<Contest>,
    /// The rounds that ended since the last report.
    pub finished: Vec<Arc<Round>>,
    /// How long the changes took that these rounds programmed. Changes that waited for a family
    /// to be programmed for the first time are left out.
    pub latencies: Vec<Latency>,
}

/// What the loop does while no round runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// It waits for something to do.
    Waiting,
    /// It has been told to keep what is programmed as it is.
    Paused,
    /// It has been told to have nothing of ours in the kernel. A family of which something is left
    /// fails, and is tried again.
    Withdrawn,
}
