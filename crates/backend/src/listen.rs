//! Listening to what others change in the kernel.

use std::error::Error;

use crate::Disturbance;

/// Why nothing more can be heard.
pub type ListenError = Box<dyn Error + Send + Sync>;

/// Listens to what others do to the rules of both families of one mechanism. One thread waits for it.
pub trait ChangeListener: Send {
    /// Begins to listen. From then on the kernel writes a message for each element or rule that anybody
    /// commits, so this is best done when the first, large commits are over. What happened before is
    /// not reported: look once afterwards.
    fn join(&mut self) -> Result<(), ListenError>;

    /// Waits for others to change something, or for an interruption.
    fn receive(&mut self) -> Result<ForeignChange, ListenError>;
}

/// What others did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForeignChange {
    /// Nothing.
    None,
    /// Something, to nothing of ours.
    Elsewhere,
    /// Something to what is ours, or perhaps.
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
