//! What answers to health checks depend on.

use std::time::Duration;

use catalog::NodeLifecycle;
use crds::EffectiveConfig;
use health_checks::NodeFacts;

use super::Board;

impl NodeFacts for Board {
    fn lifecycle(&self) -> NodeLifecycle {
        let view = self.view.borrow();
        // A node without a view is not programmed either.
        view.as_ref()
            .map_or(NodeLifecycle::Staying, |view| view.lifecycle)
    }

    fn sync_period(&self) -> Duration {
        let view = self.view.borrow();
        let period = match &*view {
            Some(view) => view.effective.sync_period,
            None => EffectiveConfig::default().sync_period,
        };
        period.duration()
    }
}
