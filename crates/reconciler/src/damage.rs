//! What others did to what is ours, and that it was repaired.

use std::fmt;
use std::time::{Duration, SystemTime};

use backend::{Culprit, Size};

/// A difference between what the kernel held and what it had been left with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// When it was found.
    pub found: SystemTime,
    /// Who was heard changing something last, if anybody was heard and the kernel said who.
    pub culprit: Option<Culprit>,
    /// How much had to be written for the kernel to hold again what it had held.
    pub size: Size,
    /// How long it took to repair: from when somebody was heard, or from the beginning of the round
    /// that found it.
    pub repaired_after: Duration,
}

/// Somebody keeps changing what is ours, so that repairs are held back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contest {
    /// Since when they are.
    pub since: SystemTime,
    /// How often it was repaired before that.
    pub repairs: u32,
    /// Within which time.
    pub within: Duration,
    /// Who was heard changing something last by then.
    pub culprit: Option<Culprit>,
}

// === impl Damage ===

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Size { elements, objects } = self.size;
        match &self.culprit {
            Some(culprit) => culprit.fmt(f)?,
            None => f.write_str("another program")?,
        }
        write!(f, " had changed {elements} elements and {objects} objects")
    }
}

// === impl Contest ===

impl fmt::Display for Contest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.culprit {
            Some(culprit) => culprit.fmt(f)?,
            None => f.write_str("another program")?,
        }
        let Contest {
            repairs, within, ..
        } = self;
        let seconds = within.as_secs_f64();
        write!(
            f,
            " keeps changing the rules: repaired {repairs} times within {seconds:.1} s"
        )
    }
}
