//! External changes: changes to Signpost's rules by other programs.

use std::collections::BTreeSet;
use std::fmt;

use dataplane::Family;

/// An external change: another program has changed, or may have changed, Signpost's rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalChange {
    /// The families whose rules may have changed.
    pub families: BTreeSet<Family>,
    /// The process that made the change, if the kernel reports it.
    pub actor: Option<Actor>,
}

/// A process that made an external change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Actor {
    /// Its name, as the kernel truncates it.
    pub program: String,
    /// Its process ID in the initial PID namespace. The process may have ended since.
    pub process: u32,
}

// === impl ExternalChange ===

impl ExternalChange {
    /// A possible change by an unknown process, in both families. Used where a change cannot be
    /// ruled out.
    pub fn possible() -> ExternalChange {
        ExternalChange {
            families: Family::ALL.into(),
            actor: None,
        }
    }

    /// Adds `later` to this change. If both name a process, the later one is kept.
    pub fn merge(&mut self, later: ExternalChange) {
        self.families.extend(later.families);
        self.actor = later.actor.or(self.actor.take());
    }
}

// === impl Actor ===

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {})", self.program, self.process)
    }
}
