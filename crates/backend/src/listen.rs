//! Notifications of what other programs change in the kernel.

use std::error::Error;

use crate::Disturbance;

/// Why a listener failed.
pub type ListenError = Box<dyn Error + Send + Sync>;

/// Receives notifications of external changes to the rules of both families of one mechanism. One thread blocks on it.
pub trait ChangeListener: Send {
    /// Begins to listen. From then on the kernel writes a message for each element or rule that any
    /// program commits, so call it after the first, large commits. Earlier changes are not reported:
    /// check once afterwards.
    fn join(&mut self) -> Result<(), ListenError>;

    /// Blocks until another program changes something, or until it is interrupted.
    fn receive(&mut self) -> Result<ForeignChange, ListenError>;
}

/// What other programs changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForeignChange {
    /// Nothing.
    None,
    /// Something, but nothing of Signpost's.
    Elsewhere,
    /// Signpost's rules, or perhaps.
    Ours(Disturbance),
}

// === impl ForeignChange ===

impl ForeignChange {
    /// This, and `later` after it.
    #[must_use]
    pub fn and(self, later: ForeignChange) -> ForeignChange {
        match (self, later) {
            (ForeignChange::Ours(mut earlier), ForeignChange::Ours(later)) => {
                earlier.merge(later);
                ForeignChange::Ours(earlier)
            }
            (ours @ ForeignChange::Ours(_), _) => ours,
            (ForeignChange::Elsewhere, ForeignChange::None) => ForeignChange::Elsewhere,
            (_, later) => later,
        }
    }
}
