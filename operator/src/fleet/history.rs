//! The history of a profile's configurations in its status.

use crds::profile::{
    history::{MOST_REVISIONS, Revision},
    progress::RolloutStatus,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::records::ProfileRecord;

/// Returns the revisions for the status of `record`, newest first, with the current one in the
/// state `rollout`. A configuration that returns becomes the newest again and is listed once.
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
