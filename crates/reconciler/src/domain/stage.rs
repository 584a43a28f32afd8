//! Whether the kernel holds all of some state.

/// Whether what is known to be programmed is all of some state that was wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Stage {
    /// It is, or differs from one by a part of a large change of Services.
    #[default]
    Complete,
    /// An empty kernel is being filled, or rules of another configuration replaced, in parts. What is
    /// programmed stays what it was before until all of it is there: a takeover waits for that, and a
    /// connection to a Service that has its turn later is not stale.
    Rebuilding,
}
