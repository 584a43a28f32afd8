//! What the loop publishes to the rest of the process.

use std::sync::Arc;
use std::time::SystemTime;

use backend::{Backend, Leftover};

use crate::{FamilyReconciler, FamilyStatus, FamilySync, Latency, Reason, RepairBackoff};

/// An event of the loop.
#[derive(Debug)]
pub enum LoopEvent<'a, B: Backend> {
    /// A sync begins. Carries no status, because nothing has changed yet and the kernel is
    /// waiting.
    Began(RunningSync),
    /// A sync has ended, or the status has changed. Includes the families, for callers that need
    /// their rules.
    Report(Report, &'a [FamilyReconciler<B>]),
}

/// A running sync. It can take minutes on a slow machine and still succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunningSync {
    /// Why it runs.
    pub reason: Reason,
    /// When it began.
    pub since: SystemTime,
}

/// The status of all families, and what has just happened. A receiver may skip reports, except for
/// their latencies: to find what changed between two reports, compare their `programmed` states.
#[derive(Debug, Clone)]
pub struct Report {
    /// What the loop does between syncs.
    pub activity: Activity,
    /// The status of each family, in the order in which they are programmed.
    pub families: Vec<FamilyStatus>,
    /// Set while another program keeps changing Signpost's rules, so that repairs are delayed.
    pub repair_backoff: Option<RepairBackoff>,
    /// The syncs that ended since the last report.
    pub finished: Vec<Arc<FamilySync>>,
    /// The latencies of the changes that these syncs programmed. Changes that waited for a family
    /// to be programmed for the first time are left out.
    pub latencies: Vec<Latency>,
}

impl Report {
    /// The number of connections that need what a withdrawal has left.
    pub fn remaining_connections(&self) -> u64 {
        let counts = self.families.iter().map(|family| match family.leftover {
            Leftover::Nothing => 0,
            Leftover::Connections(count) => count.get(),
        });
        counts.sum()
    }
}

/// What the loop does while no sync runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// It waits for work.
    Waiting,
    /// It keeps the kernel as it is.
    Paused,
    /// It keeps the kernel free of Signpost's rules. A family whose removal failed is reported as
    /// failing and is retried.
    Withdrawn,
}
