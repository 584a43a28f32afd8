//! The worker that removes stale connections, and reports what it did.

use runtime::chain;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::metrics::ConntrackMetrics;
use super::{ConntrackState, update};
use crate::{Feed, Outcome, Pass};

/// Removes stale connections until `feed` is closed.
pub(super) fn commit_passes(
    feed: &Feed,
    state: &watch::Sender<ConntrackState>,
    metrics: &ConntrackMetrics,
) {
    crate::run(feed, |pass| {
        metrics.finished(&pass);
        report(&pass);
        update(state, |state| match &pass.outcome {
            Outcome::Failed(error) => {
                let error = chain(error).to_string();
                state.uncleaned.insert(pass.family, error);
            }
            Outcome::Complete | Outcome::BudgetSpent => {
                state.uncleaned.remove(&pass.family);
            }
            Outcome::Overtaken => {}
        });
    });
}

fn report(pass: &Pass) {
    let (family, deleted) = (pass.family, pass.deleted);
    let (listed, took) = (pass.listed, pass.took);
    if pass.unreadable > 0 {
        let unreadable = pass.unreadable;
        warn!(%family, unreadable, "skipped conntrack entries that could not be decoded");
    }
    match &pass.outcome {
        Outcome::Failed(error) => {
            warn!(%family, deleted, error = %chain(error), "failed to remove all stale connections; trying again");
        }
        Outcome::BudgetSpent => {
            info!(%family, deleted, listed, ?took, "removed stale connections; more remain");
        }
        Outcome::Overtaken => {
            debug!(%family, deleted, "the programmed rules are unknown; removal of stale connections continues once they are known");
        }
        Outcome::Complete if deleted > 0 => {
            info!(%family, deleted, listed, ?took, "removed stale connections");
        }
        Outcome::Complete => debug!(%family, listed, ?took, "no connection is stale"),
    }
}
