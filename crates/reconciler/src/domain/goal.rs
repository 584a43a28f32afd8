//! What a domain is to do with its rules.

use dataplane::Dataplane;

/// What a domain is to do with its rules.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Goal<'a> {
    /// Its rules serve this desired state.
    Serve(&'a Dataplane),
    /// If the kernel holds rules of it, they follow this desired state. If not, none are written:
    /// another domain of the family is about to serve.
    Follow(&'a Dataplane),
    /// The kernel holds no rules of it: another domain of the family serves.
    Nothing,
}

// === impl Goal ===

impl<'a> Goal<'a> {
    pub(super) fn desired(self) -> Option<&'a Dataplane> {
        match self {
            Goal::Serve(desired) | Goal::Follow(desired) => Some(desired),
            Goal::Nothing => None,
        }
    }
}
