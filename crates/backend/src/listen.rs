//! Notifications of changes that other programs make in the kernel.

use std::error::Error;

use crate::ExternalChange;

/// Why a listener failed.
pub type ListenError = Box<dyn Error + Send + Sync>;

/// Receives notifications of external changes to the rules of both families of one mode. One
/// thread blocks on it.
pub trait ChangeListener: Send {
    /// Subscribes to notifications. From then on the kernel sends one message for each element or
    /// rule that any program commits, so call it after the first, large commits. Earlier changes
    /// are not reported: check the rules once afterwards.
    fn join(&mut self) -> Result<(), ListenError>;

    /// Blocks until another program changes something or the listener is interrupted.
    fn receive(&mut self) -> Result<ForeignChange, ListenError>;
}

/// What other programs changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForeignChange {
    /// Nothing.
    None,
    /// Something, but none of Signpost's rules.
    Elsewhere,
    /// Signpost's rules, or possibly so.
    OwnRules(ExternalChange),
}

// === impl ForeignChange ===

impl ForeignChange {
    /// Combines this change with the `later` one.
    #[must_use]
    pub fn and(self, later: ForeignChange) -> ForeignChange {
        match (self, later) {
            (ForeignChange::OwnRules(mut earlier), ForeignChange::OwnRules(later)) => {
                earlier.merge(later);
                ForeignChange::OwnRules(earlier)
            }
            (own @ ForeignChange::OwnRules(_), _) => own,
            (ForeignChange::Elsewhere, ForeignChange::None) => ForeignChange::Elsewhere,
            (_, later) => later,
        }
    }
}
