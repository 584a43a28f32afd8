//! How one family stands.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use backend::{Recovery, Shortcoming};
use dataplane::{Dataplane, Family};

use crate::{Damage, Quarantined, Rounds};

/// From how long on a round that succeeds counts as slow. Connections to an endpoint that is gone
/// fail for as long as a round takes; clients give up on theirs after about this time.
pub const SLOW_ROUND: Duration = Duration::from_secs(10);

/// How one family stands, for conditions, metrics and people.
#[derive(Debug, Clone)]
pub struct FamilyStatus {
    /// Which family.
    pub family: Family,
    /// Since when the kernel has held what some round wanted of it, whether or not later rounds
    /// failed: what it holds is served. `None`: no round has succeeded since the process started.
    pub programmed_since: Option<SystemTime>,
    /// When the kernel last acknowledged a change.
    pub last_receipt: Option<SystemTime>,
    /// When a round last succeeded, with or without anything to write.
    pub last_success: Option<SystemTime>,
    /// What has gone wrong since then.
    pub failing: Option<Failing>,
    /// How long the last successful round took.
    pub pace: Pace,
    /// How often something was repaired that somebody else had changed.
    pub drifts: u64,
    /// The last of these.
    pub last_damage: Option<Damage>,
    /// The Services that the kernel refuses.
    pub quarantined: Vec<Quarantined>,
    /// What the backend cannot honour and what it does instead.
    pub shortcomings: Arc<[Shortcoming]>,
    /// What the kernel was last known to carry out; a failed round leaves it as it is. `None`:
    /// nothing is known to be programmed by this process.
    pub programmed: Option<Dataplane>,
    /// The last rounds.
    pub rounds: Rounds,
}

/// A run of failed rounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failing {
    /// When the first of them began.
    pub since: SystemTime,
    /// How many there were.
    pub rounds: u32,
    /// How many of them ran only because the one before had failed.
    pub retries: u32,
    /// The last error with its causes.
    pub error: String,
    /// What is done about it.
    pub recovery: Recovery,
}

/// How fast rounds are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pace {
    /// As they should be.
    #[default]
    Ordinary,
    /// The last one that succeeded took longer than [`SLOW_ROUND`].
    Slow {
        /// How long.
        took: Duration,
    },
}

/// How one family stands, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// No round has succeeded since the process started: not ready.
    NeverProgrammed,
    /// The kernel holds what is wanted.
    Programmed,
    /// The kernel holds what is wanted but for Services that it refuses.
    PartlyProgrammed,
    /// The kernel holds what was wanted before; what is wanted now has not arrived.
    Failing,
}

// === impl FamilyStatus ===

impl FamilyStatus {
    /// All of it in a word.
    pub fn standing(&self) -> Standing {
        match (&self.programmed_since, &self.failing) {
            (None, _) => Standing::NeverProgrammed,
            (Some(_), Some(_)) => Standing::Failing,
            (Some(_), None) if !self.quarantined.is_empty() => Standing::PartlyProgrammed,
            (Some(_), None) => Standing::Programmed,
        }
    }
}

// === impl Pace ===

impl Pace {
    /// The pace of a round that took this long.
    pub(crate) fn of(took: Duration) -> Pace {
        if took > SLOW_ROUND {
            Pace::Slow { took }
        } else {
            Pace::Ordinary
        }
    }
}
