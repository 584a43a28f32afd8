//! Whether the kernel holds one desired state completely.

/// Whether `Domain::programmed` is one complete desired state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Completeness {
    /// It is complete, or differs from a complete one by a part of a large change of Services.
    #[default]
    Complete,
    /// An empty kernel is being filled, or the rules of another configuration replaced, in parts; or
    /// a search decides which of the Services that the kernel does not have can be programmed.
    /// `Domain::programmed` keeps its earlier value until the last part: a takeover waits for that,
    /// and connections to Services that are not programmed yet must not count as stale.
    Rebuilding,
}
