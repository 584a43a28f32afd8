//! External changes: changes to Signpost's rules by other programs.

use std::collections::BTreeSet;
use std::fmt;

use dataplane::Family;

/// An external change: another program has changed, or may have changed, Signpost's rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disturbance {
    /// The families whose rules may have changed.
    pub families: BTreeSet<Family>,
    /// The process that made the change, if the kernel reports it.
    pub culprit: Option<Culprit>,
}

/// A process that made an external change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Culprit {
    /// Its name, as the kernel truncates it.
    pub program: String,
    /// Its process ID in the initial PID namespace. The process may have ended since.
    pub process: u32,
}

// === impl Disturbance ===

impl Disturbance {
    /// A possible change by an unknown process, in both families. Used where a change cannot be
    /// ruled out.
    pub fn possible() -> Disturbance {
        Disturbance {
            families: Family::ALL.into(),
            culprit: None,
        }
    }

    /// Adds `later` to this change. If both name a process, the later one is kept.
    pub fn merge(&mut self, later: Disturbance) {
        self.families.extend(later.families);
        self.culprit = later.culprit.or(self.culprit.take());
    }
}

// === impl Culprit ===

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {})", self.program, self.process)
    }
}
