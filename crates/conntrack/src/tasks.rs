//! The tasks of an agent for the kernel's conntrack table: they remove stale connections, set its limits,
//! watch its fill, and keep connections redirected.

mod cleaning;
mod fill;
mod findings;
mod hooks;
mod metrics;
mod statistics;
mod tuning;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use backend::Recovery;
use crds::profile::forwarding::Conntrack;
use dataplane::Family;
use reconciler::{Activity, FamilyStatus, Outcome, Reason, Report};
use runtime::{Metrics, Supervisor};
use tokio::sync::watch;

use crate::{Feed, ProgrammedState};
pub use fill::{Pressure, observe_fill};
pub use findings::{degradation, findings};
use metrics::ConntrackMetrics;

/// The state of the table, for conditions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConntrackState {
    /// The fill level of the table.
    pub pressure: Pressure,
    /// Whether the profile's settings are applied.
    pub limits: Limits,
    /// Why stale connections may be left, by family.
    pub uncleaned: BTreeMap<Family, String>,
}

/// Whether the profile's conntrack settings are applied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Limits {
    /// No profile is known yet.
    #[default]
    Awaited,
    /// They are applied.
    Set,
    /// These files could not be written, with the reasons.
    NotSet(Vec<String>),
}

/// What the tasks read, and where they post.
#[derive(Debug)]
pub struct Inputs<C> {
    /// The node's configuration; `None` while it is not known.
    pub config: watch::Receiver<Option<C>>,
    /// The conntrack settings in a configuration.
    pub settings: fn(&C) -> Conntrack,
    /// The reconciler's last report.
    pub report: watch::Receiver<Option<Arc<Report>>>,
    /// The directory with the kernel's settings: `/proc/sys`.
    pub sysctls: PathBuf,
    /// Where the state of the table is posted. Readers wake if it differs.
    pub state: watch::Sender<ConntrackState>,
}

/// Starts every conntrack task. Returns the feed of the worker that removes stale connections.
pub fn start<C: Send + Sync + 'static>(
    supervisor: &Supervisor,
    metrics: &Metrics,
    inputs: Inputs<C>,
) -> Feed {
    let Inputs {
        config,
        settings,
        report,
        sysctls,
        state,
    } = inputs;
    let feed = Feed::default();
    let metrics = ConntrackMetrics::register(metrics);
    let (followed, reported) = (feed.clone(), state.clone());
    supervisor.spawn_thread("connections", move |_| {
        cleaning::commit_passes(&followed, &reported, &metrics);
    });
    // The worker waits for its feed, not for signals: close the feed.
    let (closed, stop) = (feed.clone(), supervisor.stop());
    supervisor.spawn("connections' end", async move {
        stop.cancelled().await;
        closed.close();
    });
    supervisor.spawn(
        "connection limits",
        tuning::follow(config, settings, sysctls, state.clone(), supervisor.stop()),
    );
    supervisor.spawn("connection hooks", hooks::keep(report, supervisor.stop()));
    supervisor.spawn("connection table", fill::watch(state, supervisor.stop()));
    feed
}

/// Changes the state of the table. Wakes readers if it differs.
fn update(state: &watch::Sender<ConntrackState>, change: impl FnOnce(&mut ConntrackState)) {
    state.send_if_modified(|state| {
        let before = state.clone();
        change(state);
        *state != before
    });
}

/// Posts to the worker what is known about the programmed rules after the syncs in `report`.
pub fn post(feed: &Feed, report: &Report) {
    for (family, knowledge) in known_after(report) {
        feed.post(family, knowledge);
    }
}

/// Returns what is known after the syncs in `report`, in the order in which the worker must process
/// it.
///
/// A repair restores the rules that an external change had damaged, but not the flows that the
/// damaged rules created. The programmed state is the same as before, but it was unknown in
/// between. A check after a notification that found no drift does not mean this: every listener
/// triggers one when it starts, for changes that it may have missed.
fn known_after(report: &Report) -> Vec<(Family, ProgrammedState)> {
    let mut known_after = Vec::new();
    if report.activity == Activity::Withdrawn {
        // Another proxy now decides where connections go.
        known_after.extend(Family::ALL.map(|family| (family, ProgrammedState::Unknown)));
    }
    for sync in &report.finished {
        let family = sync.family;
        // A failed sync may have found damage that only a later one repairs.
        let failed = matches!(sync.outcome, Outcome::Failed(_));
        let disturbed = sync.repaired_drift.is_some() || failed && sync.reason == Reason::Drift;
        let status = report.families.iter().find(|s| s.family == family);
        let certainty = certainty(&sync.outcome, status);
        if disturbed || certainty == Certainty::Lost {
            known_after.push((family, ProgrammedState::Unknown));
        }
        let programmed = status.and_then(|status| status.programmed.clone());
        if certainty == Certainty::Kept
            && let Some(programmed) = programmed
        {
            known_after.push((family, ProgrammedState::Programmed(programmed)));
        }
    }
    known_after
}

/// Whether the kernel is known to hold the programmed state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Certainty {
    Kept,
    /// A commit may have taken effect in part, or a switch of modes is under way.
    Lost,
}

/// A part brings no certainty back that the last failed sync has lost: it may be one of another mode, of
/// which the programmed state tells nothing. Nor does that state tell anything during a switch, in which
/// the rules of the mode that serves follow changes.
fn certainty(outcome: &Outcome, status: Option<&FamilyStatus>) -> Certainty {
    if status.is_some_and(|status| status.is_switching) {
        return Certainty::Lost;
    }
    let failing = status.and_then(|status| status.failing.as_ref());
    let recovery = match outcome {
        Outcome::Unchanged | Outcome::Committed => None,
        Outcome::Partial => failing.map(|failing| failing.recovery),
        Outcome::Failed(failure) => Some(failure.recovery),
    };
    match recovery {
        None | Some(Recovery::Retry | Recovery::Isolate) => Certainty::Kept,
        Some(Recovery::Observe | Recovery::Halt) => Certainty::Lost,
    }
}

#[cfg(test)]
mod tests;
