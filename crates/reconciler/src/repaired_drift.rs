//! Changes by other programs to Signpost's rules, and their repair.

use std::fmt;
use std::time::{Duration, SystemTime};

use backend::{Actor, Size};

/// A difference between what the kernel held and what it had been left with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairedDrift {
    /// When it was found.
    pub found: SystemTime,
    /// The last program known to have changed something, if a notification arrived and the kernel
    /// named the program.
    pub actor: Option<Actor>,
    /// How much Signpost had to write to restore the previous state.
    pub size: Size,
    /// How long the repair took: from the notification, or else from the start of the sync that
    /// found the damage.
    pub repaired_after: Duration,
}

/// Another program keeps changing Signpost's rules, so repairs are delayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairBackoff {
    /// Since when repairs are delayed.
    pub since: SystemTime,
    /// How many repairs were made before that.
    pub repairs: u32,
    /// The time within which they were made.
    pub within: Duration,
    /// The last program known to have changed something by then.
    pub actor: Option<Actor>,
}

// === impl RepairedDrift ===

impl fmt::Display for RepairedDrift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Size { elements, objects } = self.size;
        match &self.actor {
            Some(actor) => actor.fmt(f)?,
            None => f.write_str("another program")?,
        }
        write!(f, " had changed {elements} elements and {objects} objects")
    }
}

// === impl RepairBackoff ===

impl fmt::Display for RepairBackoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.actor {
            Some(actor) => actor.fmt(f)?,
            None => f.write_str("another program")?,
        }
        let RepairBackoff {
            repairs, within, ..
        } = self;
        let seconds = within.as_secs_f64();
        write!(
            f,
            " keeps changing the rules: repaired {repairs} times within {seconds:.1} s"
        )
    }
}
