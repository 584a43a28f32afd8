//! What answers to health checks depend on.

use std::sync::Arc;
use std::time::Duration;

use catalog::NodeLifecycle;
use crds::EffectiveConfig;
use health_checks::NodeFacts;
use tokio::sync::watch;

use crate::engine::View;

/// The node, as the engine's view shows it.
#[derive(Debug)]
pub(crate) struct ViewedNode(pub(crate) watch::Receiver<Option<Arc<View>>>);

// === impl ViewedNode ===

impl NodeFacts for ViewedNode {
    fn lifecycle(&self) -> NodeLifecycle {
        let view = self.0.borrow();
        // A node without a view is not programmed either.
        view.as_ref()
            .map_or(NodeLifecycle::Staying, |view| view.lifecycle)
    }

    fn sync_period(&self) -> Duration {
        let view = self.0.borrow();
        let period = match &*view {
            Some(view) => view.effective.sync_period,
            None => EffectiveConfig::default().sync_period,
        };
        period.duration()
    }
}
