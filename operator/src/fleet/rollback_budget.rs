//! How many nodes may be rolled back at once.

use jiff::Timestamp;

use crate::fleet::{node_progress::NodeProgress, profile_node::ProfileNode};

/// How many more nodes may be rolled back now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RollbackBudget {
    /// Nodes that serve.
    pub(super) serving: usize,
    /// Nodes whose agents are silent. A zone that returns carries out at once what its nodes were
    /// given meanwhile.
    pub(super) silent: usize,
}

// === impl RollbackBudget ===

impl RollbackBudget {
    /// Whether `member` may be rolled back now; it then uses the budget. Nodes that do not serve
    /// as they did before the change have nothing to lose, and use none.
    pub(crate) fn claim(
        &mut self,
        member: &ProfileNode<'_>,
        progress: &NodeProgress,
        now: Timestamp,
    ) -> bool {
        let budget = if member.is_silent(now) {
            &mut self.silent
        } else if progress.is_ready()
            || matches!(progress, NodeProgress::AwaitingMinReady(_))
            || member.serves_as_before()
        {
            &mut self.serving
        } else {
            return true;
        };
        let may = *budget > 0;
        *budget = budget.saturating_sub(1);
        may
    }
}
