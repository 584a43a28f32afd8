//! What others do to what is ours.

use std::collections::BTreeSet;
use std::fmt;

use dataplane::Family;

/// Somebody else has changed, or may have changed, what is ours in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disturbance {
    /// In these families.
    pub families: BTreeSet<Family>,
    /// Who it was, where the kernel says so.
    pub culprit: Option<Culprit>,
}

/// A process that changed something.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Culprit {
    /// The name it runs under, as the kernel cuts it.
    pub program: String,
    /// Its id in the machine's own process namespace. It may have ended since.
    pub process: u32,
}

// === impl Disturbance ===

impl Disturbance {
    /// One by nobody in particular, in both families: it is not known that there was none.
    pub fn possible() -> Disturbance {
        Disturbance {
            families: Family::ALL.into(),
            culprit: None,
        }
    }

    /// Makes it both. Of two culprits the later one counts.
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
