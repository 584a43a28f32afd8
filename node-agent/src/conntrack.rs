//! The kernel's connection tracking table: what is removed from it, what it is set to, how full it is.

mod cleaning;
mod fill;
mod findings;
mod metrics;
mod statistics;
mod tuning;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use ::conntrack::{Feed, Knowledge};
use backend::Recovery;
use dataplane::Family;
use reconciler::{Activity, Outcome, Reason, Report};
use runtime::{Metrics, Supervisor};

use crate::board::Board;
use crate::conntrack::metrics::ConntrackMetrics;
pub(crate) use fill::{Pressure, observe_fill};
pub(crate) use findings::{degradation, findings};

/// How the table stands, for conditions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ConntrackState {
    /// How full it is.
    pub(crate) pressure: Pressure,
    /// Whether it is set as the profile says.
    pub(crate) limits: Limits,
    /// Why stale connections may be left, by family.
    pub(crate) uncleaned: BTreeMap<Family, String>,
}

/// Whether the table is set as the profile says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Limits {
    /// No profile is known yet.
    #[default]
    Awaited,
    /// It is.
    Set,
    /// These files could not be written, and why.
    NotSet(Vec<String>),
}

/// Starts every task about the table; settings are below `sysctls`. Returns the feed of the worker.
pub(crate) fn start(
    supervisor: &Supervisor,
    metrics: &Metrics,
    board: &Arc<Board>,
    sysctls: PathBuf,
) -> Feed {
    let feed = Feed::default();
    let metrics = ConntrackMetrics::register(metrics);
    let (followed, told) = (feed.clone(), Arc::clone(board));
    supervisor.spawn_thread("connections", move |_| {
        cleaning::commit_passes(&followed, &told, &metrics);
    });
    // The worker waits for its feed, not for signals: close the feed.
    let (closed, stop) = (feed.clone(), supervisor.stop());
    supervisor.spawn("connections' end", async move {
        stop.cancelled().await;
        closed.close();
    });
    supervisor.spawn(
        "connection limits",
        tuning::follow(Arc::clone(board), sysctls, supervisor.stop()),
    );
    supervisor.spawn(
        "connection table",
        fill::watch(Arc::clone(board), supervisor.stop()),
    );
    feed
}

/// Gives the worker what is known of the programmed rules after the rounds in `report`.
pub(crate) fn post(feed: &Feed, report: &Report) {
    for (family, knowledge) in learnt(report) {
        feed.post(family, knowledge);
    }
}

/// What is known after the rounds in `report`, in the order in which it is to be taken in.
///
/// A repair restores the rules that an external change had damaged, but not the flows that the
/// damaged rules created: the same is programmed as before, and yet nothing was known in between. A
/// check after a notification that found no drift means no such thing: every listener causes one
/// when it starts, for what it may have missed before.
fn learnt(report: &Report) -> Vec<(Family, Knowledge)> {
    let mut learnt = Vec::new();
    if report.activity == Activity::Withdrawn {
        // Whose connections these are now, and where they lead, is another proxy's business.
        learnt.extend(Family::ALL.map(|family| (family, Knowledge::Unknown)));
    }
    for round in &report.finished {
        let family = round.family;
        // One that failed may have found what only a later one repairs.
        let failed = matches!(round.outcome, Outcome::Failed(_));
        let disturbed = round.damage.is_some() || failed && round.reason == Reason::Drift;
        let certainty = certainty(&round.outcome);
        if disturbed || certainty == Certainty::Lost {
            learnt.push((family, Knowledge::Unknown));
        }
        let status = report.families.iter().find(|s| s.family == family);
        let programmed = status.and_then(|status| status.programmed.clone());
        if certainty == Certainty::Kept
            && let Some(programmed) = programmed
        {
            learnt.push((family, Knowledge::Programmed(programmed)));
        }
    }
    learnt
}

/// Whether the kernel carries out what is programmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Certainty {
    Kept,
    /// A commit may have taken effect in part.
    Lost,
}

fn certainty(outcome: &Outcome) -> Certainty {
    match outcome {
        Outcome::Unchanged | Outcome::Committed | Outcome::Partial => Certainty::Kept,
        Outcome::Failed(failure) => match failure.recovery {
            Recovery::Retry | Recovery::Isolate => Certainty::Kept,
            Recovery::Observe | Recovery::Halt => Certainty::Lost,
        },
    }
}

#[cfg(test)]
mod tests;
