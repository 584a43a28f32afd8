//! The status of one family.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use backend::{Leftover, Recovery, UnsupportedField};
use dataplane::{Dataplane, Family};

use crate::{DriftByProgram, Quarantined, RecentSyncs, RepairedDrift};

/// A successful sync that takes longer than this counts as slow. Connections to a removed endpoint
/// fail for as long as a sync takes, and clients time out after about this time.
pub const SLOW_SYNC: Duration = Duration::from_secs(10);

/// The status of one family, for conditions, metrics and people.
#[derive(Debug, Clone)]
pub struct FamilyStatus {
    /// The address family.
    pub family: Family,
    /// Since when the kernel has held the desired state of some sync. Later failed syncs do not
    /// reset it: the kernel still serves what it holds. `None`: no sync has succeeded since the
    /// process started.
    pub programmed_since: Option<SystemTime>,
    /// When the kernel last acknowledged a change.
    pub last_receipt: Option<SystemTime>,
    /// When a sync last succeeded, whether or not it wrote anything.
    pub last_success: Option<SystemTime>,
    /// The failed syncs since then.
    pub failing: Option<Failing>,
    /// How long the last successful sync took.
    pub pace: Pace,
    /// How many changes by other programs were repaired.
    pub drifts: u64,
    /// The last of these changes.
    pub last_repaired_drift: Option<RepairedDrift>,
    /// The programs that made those changes.
    pub drift_by_program: Arc<[DriftByProgram]>,
    /// The Services that the kernel refuses.
    pub quarantined: Vec<Quarantined>,
    /// How many other Services changed together with one that the kernel refuses, and wait until a search
    /// has found out which. They have what they had before.
    pub searched: usize,
    /// What the backend does not support, and what it does instead.
    pub unsupported_fields: Arc<[UnsupportedField]>,
    /// What the kernel was last known to implement; a failed sync does not change it. `None`:
    /// nothing is known to be programmed by this process.
    pub programmed: Option<Dataplane>,
    /// Whether a switch of modes is under way, or rules of another mode may be left. `programmed` then is
    /// what was programmed before, and the kernel may implement something newer.
    pub is_switching: bool,
    /// The last syncs.
    pub syncs: RecentSyncs,
    /// What the last withdrawal has left in the kernel, if no sync followed.
    pub leftover: Leftover,
}

/// A run of failed syncs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failing {
    /// When the first of them began.
    pub since: SystemTime,
    /// The number of failed syncs.
    pub syncs: u32,
    /// How many of them ran only because the previous one had failed.
    pub retries: u32,
    /// The last error with its causes.
    pub error: String,
    /// What the loop does about it.
    pub recovery: Recovery,
}

/// How fast syncs are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pace {
    /// No slower than [`SLOW_SYNC`].
    #[default]
    Ordinary,
    /// The last successful sync took longer than [`SLOW_SYNC`].
    Slow {
        /// How long it took.
        took: Duration,
    },
}

/// The state of one family, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FamilyCondition {
    /// No sync has succeeded since the process started: not ready.
    NeverProgrammed,
    /// The kernel holds the desired state.
    Programmed,
    /// The kernel holds the desired state except for the Services that it refuses, and those that wait
    /// until these are known.
    PartlyProgrammed,
    /// The kernel holds an earlier desired state; the current one is not programmed.
    Failing,
}

// === impl FamilyStatus ===

impl FamilyStatus {
    /// The status of a family of which no sync has run yet. Tests add what they need.
    pub fn new(family: Family) -> FamilyStatus {
        FamilyStatus {
            family,
            programmed_since: None,
            last_receipt: None,
            last_success: None,
            failing: None,
            pace: Pace::Ordinary,
            drifts: 0,
            last_repaired_drift: None,
            drift_by_program: Arc::default(),
            quarantined: Vec::new(),
            searched: 0,
            unsupported_fields: Arc::default(),
            programmed: None,
            is_switching: false,
            syncs: RecentSyncs::default(),
            leftover: Leftover::Nothing,
        }
    }

    /// Summarises the status in one word.
    pub fn condition(&self) -> FamilyCondition {
        match (&self.programmed_since, &self.failing) {
            (None, _) => FamilyCondition::NeverProgrammed,
            (Some(_), Some(_)) => FamilyCondition::Failing,
            (Some(_), None) if self.quarantined.is_empty() && self.searched == 0 => {
                FamilyCondition::Programmed
            }
            (Some(_), None) => FamilyCondition::PartlyProgrammed,
        }
    }
}

// === impl Pace ===

impl Pace {
    /// The pace of a sync that took this long.
    pub(crate) fn of(took: Duration) -> Pace {
        if took > SLOW_SYNC {
            Pace::Slow { took }
        } else {
            Pace::Ordinary
        }
    }
}
