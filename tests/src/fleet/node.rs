//! The state of a simulated node.

/// The state of a node.
#[derive(Debug, Clone, Default)]
pub(super) struct SimulatedNode {
    /// The number of Services that were added since the start.
    pub(super) added_services: u32,
}
