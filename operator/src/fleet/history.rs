//! The history of a profile's configurations in its status, and the proven one among them.

use std::sync::Arc;

use crds::{
    node_proxy::NodeProxySpec,
    profile::{
        ProxyProfile,
        history::{MOST_REVISIONS, Revision},
        progress::{RolloutPhase, RolloutStatus},
        status::ProxyProfileStatus,
    },
    resolve,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::{fleet::rollout_target::RolloutTarget, records::ProfileRecord};

/// Returns the revisions for the status of `record`, newest first, with the requested one in the
/// state `rollout`. A configuration that returns becomes the newest again and is listed once. All
/// nodes have the configuration of hash `current`, if they have the same.
pub(super) fn next_history(
    record: &ProfileRecord,
    target: &RolloutTarget,
    rollout: &RolloutStatus,
    current: Option<&str>,
    now: Timestamp,
) -> Vec<Revision> {
    let mut history = with_rollout_times(&record.status());
    let is_current = |revision: &Revision| revision.config_hash == rollout.config_hash;
    let newest = history.first().filter(|newest| is_current(newest));
    let since = newest.map_or_else(|| Time(now), |newest| newest.since.clone());
    let had_ended = newest.is_some_and(|newest| has_reached_every_node(newest.phase));
    let known = history.iter().find(|revision| is_current(revision));
    let known = known.and_then(|known| known.rolled_out_at.clone());
    // A rollout over no node ends at once, and has no waves. Nodes that move later have none there.
    let had_nodes = !rollout.waves.is_empty() || current == Some(&*rollout.config_hash);
    let has_ended = has_reached_every_node(rollout.phase) && had_nodes;
    let rolled_out_at = match known {
        Some(known) if had_ended || !has_ended => Some(known),
        _ => has_ended.then(|| Time(later_than_all(&history, now))),
    };
    let newest = Revision {
        generation: rollout.generation,
        config_hash: rollout.config_hash.clone(),
        since,
        phase: rollout.phase,
        rolled_out_at,
        spec: Revision::fields(&target.requested),
    };
    history.retain(|revision| !is_current(revision));
    history.insert(0, newest);
    truncate(&mut history, &target.rollout.undo);
    history
}

/// Returns what the nodes of `profile` had at last for certain: the configuration whose rollout was
/// the last to end with every node having been assigned it. The profile may request it still, or
/// again. `None` if no rollout has ended, or if this version cannot read the whole configuration.
///
/// The hash is that of this version: another one may have rendered the same fields otherwise.
pub(super) fn proven(profile: &ProxyProfile) -> Option<Arc<NodeProxySpec>> {
    let name = profile.metadata.name.as_deref().unwrap_or_default();
    let history = with_rollout_times(profile.status.as_ref()?);
    let revision = last_rolled_out(&history)?;
    let fields = revision.profile_spec()?;
    Some(Arc::new(resolve::stamp(name, revision.generation, &fields)))
}

/// Returns the history. If no revision says when its rollout ended, an older version wrote it, and
/// the newest that ended on nodes counts as having ended when the profile began to request it.
fn with_rollout_times(status: &ProxyProfileStatus) -> Vec<Revision> {
    let mut history = status.history.clone();
    if history.iter().any(|it| it.rolled_out_at.is_some()) {
        return history;
    }
    // A rollout over no node ends, too.
    let had_nodes = |hash: &str| {
        let rollout = status.rollout.iter();
        let mut rollout = rollout.filter(|it| it.config_hash == hash && !it.waves.is_empty());
        status.current_hash.as_deref() == Some(hash) || rollout.next().is_some()
    };
    let mut newest_first = history.iter_mut();
    let ended =
        newest_first.find(|it| has_reached_every_node(it.phase) && had_nodes(&it.config_hash));
    if let Some(ended) = ended {
        ended.rolled_out_at = Some(ended.since.clone());
    }
    history
}

/// Returns `now`, or the second after the latest rollout that ended. The status has whole seconds,
/// and an operator on a machine with a fast clock may have written it.
fn later_than_all(history: &[Revision], now: Timestamp) -> Timestamp {
    let ends = history.iter().filter_map(|it| it.rolled_out_at.as_ref());
    let latest = ends.map(|time| time.0).max();
    latest.map_or(now, |latest| now.max(latest + SignedDuration::from_secs(1)))
}

const fn has_reached_every_node(phase: RolloutPhase) -> bool {
    matches!(
        phase,
        RolloutPhase::Settled | RolloutPhase::DeadlineExceeded | RolloutPhase::HeldBack
    )
}

fn last_rolled_out(history: &[Revision]) -> Option<&Revision> {
    let ended = history.iter().filter(|it| it.rolled_out_at.is_some());
    ended.max_by_key(|it| it.rolled_out_at.as_ref().map(|time| time.0))
}

/// Removes the oldest revisions above the limit, but never the proven one: of many edits in a row
/// none may have been rolled out. Nor the one of hash `undo`: without it another version, which
/// renders it to another hash, would not know which fields are undone.
fn truncate(history: &mut Vec<Revision>, undo: &str) {
    while history.len() > MOST_REVISIONS {
        let proven = last_rolled_out(history).map(|proven| proven.config_hash.clone());
        let is_removable = |revision: &Revision| {
            Some(&revision.config_hash) != proven.as_ref() && revision.config_hash != undo
        };
        match history.iter().rposition(is_removable) {
            Some(oldest) => drop(history.remove(oldest)),
            None => history.truncate(MOST_REVISIONS),
        }
    }
}
