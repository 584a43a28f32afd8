//! Changes that wait until the profile's status has the phase and wave that they belong to.
//!
//! If the API server refuses the status, for example because a webhook denies it, no verdict could
//! be written either, and the next operator would repeat a change that failed.

use std::{borrow::Cow, collections::BTreeSet};

use crds::{
    condition::PROGRESSING,
    effective::hash::ConfigHash,
    profile::{progress::RolloutStatus, status::ProxyProfileStatus},
};
use runtime::without_fields;

use crate::{
    fleet::{desired_node_proxy::DesiredNodeProxy, profile_node::ProfileNode},
    records::readable,
};

/// Returns what can be read of `status` once it is written without the fields that the API server
/// does not know.
pub(super) fn as_written<'a>(
    status: &'a ProxyProfileStatus,
    unknown_fields: Option<&BTreeSet<String>>,
) -> Cow<'a, ProxyProfileStatus> {
    let Some(unknown_fields) = unknown_fields else {
        return Cow::Borrowed(status);
    };
    let written = serde_json::to_value(status).unwrap_or_default();
    Cow::Owned(readable(&without_fields(written, unknown_fields)).unwrap_or_default())
}

/// Whether the status as `written` has the progress of the rollout that `status` has.
pub(super) fn has_same_progress(written: &ProxyProfileStatus, status: &ProxyProfileStatus) -> bool {
    let progress = |rollout: &RolloutStatus| (rollout.generation, rollout.phase, rollout.wave);
    written.target_hash == status.target_hash
        && reason(written) == reason(status)
        && written.rollout.as_ref().map(progress) == status.rollout.as_ref().map(progress)
}

/// Whether `desired` changes the node to the configuration of hash `target`. To assign a first
/// configuration, or one that the node has already, is no change.
pub(super) fn assigns_target(
    member: &ProfileNode<'_>,
    desired: &DesiredNodeProxy,
    target: &ConfigHash,
) -> bool {
    let differs = |hash: &ConfigHash| hash != target;
    desired.spec.config_hash == *target
        && member
            .current()
            .is_some_and(|spec| differs(&spec.config_hash))
}

fn reason(status: &ProxyProfileStatus) -> Option<&str> {
    let mut conditions = status.conditions.iter();
    let progressing = conditions.find(|condition| condition.type_ == PROGRESSING);
    progressing.map(|condition| condition.reason.as_str())
}
