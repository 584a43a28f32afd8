//! The state of a simulated node.

use super::agents::World;

/// The state of a node.
#[derive(Debug, Clone, Default)]
pub(super) struct SimulatedNode {
    /// Whether the kernel refuses changes.
    pub(super) is_failing: bool,
    /// The number of Services that were added since the start.
    pub(super) added_services: u32,
}

// === impl SimulatedNode ===

impl SimulatedNode {
    /// Takes in what `world` does on the node of this name.
    pub(super) fn apply(&mut self, world: &World, name: &str) {
        self.is_failing = world.failing.as_deref() == Some(name);
    }
}
