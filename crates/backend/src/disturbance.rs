//! External changes: those that other programs make to Signpost's rules.

use std::collections::BTreeSet;
use std::fmt;

use dataplane::Family;

/// An external change: another program has changed, or may have changed, Signpost's rules in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disturbance {
    /// The families concerned.
    pub families: BTreeSet<Family>,
    /// The process that made it, if the kernel reports it.
    pub culprit: Option<Culprit>,
}

/// A process that made an external change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Culprit {
    /// Its name, as the kernel truncates it.
    pub program: String,
    /// Its id in the machine's own process namespace. It may have ended since.
    pub process: u32,
}

// === impl Disturbance ===

impl Disturbance {
    /// A possible change by an unknown process, in both families: it is not known that there was none.
    pub fn possible() -> Disturbance {
        Disturbance {
            families: Family::ALL.into(),
            culprit: None,
        }
    }

    /// Combines both. Of two processes the later one counts.
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
