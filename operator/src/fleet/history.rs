//! The configurations that a profile has asked for, as its status lists them.

use crds::profile::{
    history::{MOST_REVISIONS, Revision},
    progress::RolloutStatus,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::records::ProfileRecord;

/// What the status of `record` is to list, the newest first, where its configuration stands as `rollout` says. One that comes
/// again is the newest again, and is listed once.
pub(super) fn follow(
    record: &ProfileRecord,
    rollout: &RolloutStatus,
    now: Timestamp,
) -> Vec<Revision> {
    let mut history = record.status().history;
    let is_newest = history
        .first()
        .is_some_and(|newest| newest.config_hash == rollout.config_hash);
    let since = match history.first() {
        Some(newest) if is_newest => newest.since.clone(),
        _ => Time(now),
    };
    history.retain(|revision| revision.config_hash != rollout.config_hash);
    let newest = Revision {
        generation: rollout.generation,
        config_hash: rollout.config_hash.clone(),
        since,
        phase: rollout.phase,
        spec: Revision::fields(&record.profile.spec),
    };
    history.insert(0, newest);
    history.truncate(MOST_REVISIONS);
    history
}
