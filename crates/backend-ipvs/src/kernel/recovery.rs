//! What to do when one of the subsystems refuses a step.

use backend::{Effect, Recovery};
use netlink::{QueryError, ipvs, route};

/// How to recover from a failed transaction, and its effect. If `is_first`, no earlier step of the
/// change had taken effect.
pub(super) fn of_table(error: &netlink::CommitError, is_first: bool) -> (Recovery, Effect) {
    let is_refused = matches!(error, netlink::CommitError::Refused { .. });
    let effect = match is_first && is_refused {
        true => Effect::None,
        false => Effect::Possible,
    };
    let recovery = match (nftables_model::recovery(error, 0), is_first) {
        // Reading again does not add a missing module, nor a permission.
        (Recovery::Halt, _) => Recovery::Halt,
        (_, false) => Recovery::Observe,
        (recovery, true) => recovery,
    };
    (recovery, effect)
}

/// Like [`of_table`], for operations on virtual servers: of those sent together, all that were not
/// refused have taken effect. If the kernel will never take one, what the others have left is read for
/// each attempt without it.
pub(super) fn of_servers(error: &ipvs::CommitError, is_first: bool) -> (Recovery, Effect) {
    let is_whole = match error {
        ipvs::CommitError::Refused { refused, answered } => refused.len() == *answered,
        ipvs::CommitError::Socket { .. } => false,
        ipvs::CommitError::Missing
        | ipvs::CommitError::Unreserved(_)
        | ipvs::CommitError::Find(_)
        | ipvs::CommitError::RefusedSetting { .. } => true,
    };
    match is_first && is_whole {
        true => (translate(&error.recovery()), Effect::None),
        false => match error.recovery() {
            ipvs::Recovery::Isolate if is_first => (Recovery::Isolate, Effect::Possible),
            // Reading again does not add a missing module.
            ipvs::Recovery::LoadModule(_) | ipvs::Recovery::Halt => {
                (Recovery::Halt, Effect::Possible)
            }
            _ => (Recovery::Observe, Effect::Possible),
        },
    }
}

/// Like [`of_table`], for the routing rule.
pub(super) fn of_delivery(error: &route::CommitError, is_first: bool) -> (Recovery, Effect) {
    match (error.recovery(), is_first) {
        // One of the two objects may exist.
        (route::Recovery::Halt, true) => (Recovery::Halt, Effect::None),
        (route::Recovery::Halt, false) => (Recovery::Halt, Effect::Possible),
        (route::Recovery::Retry | route::Recovery::Observe, _) => {
            (Recovery::Observe, Effect::Possible)
        }
    }
}

pub(super) fn of_reading_servers(error: &QueryError) -> Recovery {
    match translate(&error.recovery()) {
        Recovery::Halt => Recovery::Halt,
        _ => Recovery::Observe,
    }
}

fn translate(recovery: &ipvs::Recovery) -> Recovery {
    match recovery {
        ipvs::Recovery::Retry => Recovery::Retry,
        ipvs::Recovery::Observe => Recovery::Observe,
        ipvs::Recovery::Isolate => Recovery::Isolate,
        ipvs::Recovery::LoadModule(_) | ipvs::Recovery::Halt => Recovery::Halt,
    }
}
