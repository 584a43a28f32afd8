//! The edits of a profile that control its rollout. Pure.

use crds::ProxyProfile;
use crds::profile::history::Revision;
use crds::profile::progress::{RolloutPhase, RolloutStatus};
use crds::profile::undo::Undo;
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use crate::config::difference;

/// An edit of a profile.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Edit {
    /// The edit as a JSON merge patch (RFC 7386).
    pub(super) change: Value,
    /// The effect, as the end of a sentence about the profile.
    pub(super) done: String,
}

/// Aborts the rollout in progress. The error says why there is none.
pub(super) fn abort(profile: &ProxyProfile) -> Result<Edit, String> {
    let rollout = rollout(profile)?;
    match rollout.phase {
        RolloutPhase::RollingOut | RolloutPhase::Paused => Ok(Edit {
            change: json!({"spec": {"rollout": {"abort": rollout.config_hash}}}),
            done: format!(
                "aborted: nodes that have the change go back; correct the profile, or {}",
                command(profile, "retry")
            ),
        }),
        phase => Err(format!(
            "no rollout is in progress ({phase:?}); {} returns to an earlier configuration",
            command(profile, "undo")
        )),
    }
}

/// Starts another attempt: of the rollout that has failed, otherwise of the configuration that
/// `rollout.undo` has taken back. The error says why there is nothing to retry.
pub(super) fn retry(profile: &ProxyProfile) -> Result<Edit, String> {
    let rollout = rollout(profile)?;
    let undo = profile.request().undo;
    match rollout.phase {
        RolloutPhase::RolledBack | RolloutPhase::RollingBack | RolloutPhase::Halted => {
            let mut fields =
                json!({"attempt": profile.spec.rollout.complete().attempt.wrapping_add(1)});
            if profile.spec.rollout.abort.as_ref() == Some(&rollout.config_hash) {
                fields["abort"] = Value::Null;
            }
            // The attempt would be undone as soon as there is another configuration to return to.
            if undo == Undo::NothingBefore {
                fields["undo"] = Value::Null;
            }
            Ok(Edit {
                change: json!({"spec": {"rollout": fields}}),
                done: "begins another attempt".to_owned(),
            })
        }
        RolloutPhase::Settled | RolloutPhase::DeadlineExceeded | RolloutPhase::HeldBack
            if matches!(undo, Undo::InEffect(_)) =>
        {
            Ok(Edit {
                change: json!({"spec": {"rollout": {"undo": null}}}),
                done: "rolls its own fields out again: `rollout.undo` is removed".to_owned(),
            })
        }
        phase => Err(format!(
            "its rollout has not failed ({phase:?}); {} shows how far it is",
            command(profile, "status")
        )),
    }
}

/// Restores the configuration of generation `to` in the profile's own fields, or the newest earlier one
/// that all nodes had; if none is known, the one before the current one. The error says why this is not
/// possible.
pub(super) fn undo(profile: &ProxyProfile, to: Option<i64>) -> Result<Edit, String> {
    rollout(profile)?;
    let current = Revision::fields(&profile.spec);
    let history = profile.status.as_ref().map_or(&[][..], |s| &s.history);
    let is_undone = matches!(profile.request().undo, Undo::InEffect(_));
    if let (None, true, Some(newest)) = (to, is_undone, history.first()) {
        let generation = newest.generation;
        let retry = command(profile, "retry");
        let retry = match newest.phase {
            RolloutPhase::RolledBack | RolloutPhase::RollingBack | RolloutPhase::Halted => {
                format!("that has failed, and {retry} tries it again")
            }
            _ => format!("once they have, {retry} rolls the profile's own fields out again"),
        };
        let (name, history) = (profile.name_any(), command(profile, "history"));
        return Err(format!(
            "`rollout.undo` asks nodes to return to generation {generation} already: {retry}; `kubectl signpost rollout undo {name} --to GENERATION` writes the \
             configuration that nodes are to have, {generation} or another of {history}, into the profile's own fields"
        ));
    }
    let desired = match to {
        Some(generation) => history.iter().find(|r| r.generation == generation),
        // Nodes returned from those in between, or never all had them.
        None => {
            let mut earlier = history.iter().skip(1);
            let proven = earlier.find(|revision| revision.rolled_out_at.is_some());
            proven.or(history.get(1))
        }
    };
    let Some(desired) = desired else {
        return Err(match to {
            Some(generation) => format!(
                "its history has no generation {generation}; {} lists what it has",
                command(profile, "history")
            ),
            None => {
                "its history has no configuration before the current one; edit the profile instead"
                    .to_owned()
            }
        });
    };
    let mut spec = merge_patch(&current, &desired.spec);
    if spec.is_empty() && !is_undone {
        return Err(format!(
            "it has the configuration of generation {} already; {} lists others",
            desired.generation,
            command(profile, "history")
        ));
    }
    let fields = difference::fields(&current, &desired.spec);
    let fields: Vec<String> = fields.iter().map(ToString::to_string).collect();
    let mut rollout = Map::new();
    if profile.spec.rollout.abort.as_ref() == Some(&desired.config_hash) {
        rollout.insert("abort".to_owned(), Value::Null);
    }
    // It may name what the profile returns to. Otherwise it names what the profile no longer has.
    if profile.spec.rollout.undo.is_some() {
        rollout.insert("undo".to_owned(), Value::Null);
    }
    if !rollout.is_empty() {
        spec.insert("rollout".to_owned(), Value::Object(rollout));
    }
    let what = match fields.is_empty() {
        true => "`rollout.undo` is removed".to_owned(),
        false => fields.join(", "),
    };
    Ok(Edit {
        change: json!({"spec": spec}),
        done: format!("returns to generation {}: {what}", desired.generation),
    })
}

/// Returns the rollout of the profile's current generation.
fn rollout(profile: &ProxyProfile) -> Result<&RolloutStatus, String> {
    let status = profile.status.as_ref();
    let current = status.filter(|s| s.observed_generation == profile.metadata.generation);
    current.and_then(|status| status.rollout.as_ref()).ok_or_else(|| {
        "the operator has not reported on its current generation, or refuses it; `kubectl signpost status` says more".to_owned()
    })
}

/// Returns a command of this program about the rollout of `profile`, as it is typed.
fn command(profile: &ProxyProfile, step: &str) -> String {
    format!("`kubectl signpost rollout {step} {}`", profile.name_any())
}

/// Returns the merge patch from `before` to `after`.
fn merge_patch(before: &Value, after: &Value) -> Map<String, Value> {
    let (Value::Object(before), Value::Object(after)) = (before, after) else {
        return Map::new();
    };
    let gone = before.keys().filter(|name| !after.contains_key(*name));
    let mut patch: Map<String, Value> = gone.map(|name| (name.clone(), Value::Null)).collect();
    for (name, value) in after {
        match before.get(name) {
            Some(same) if same == value => {}
            Some(old @ Value::Object(_)) if value.is_object() => {
                patch.insert(name.clone(), Value::Object(merge_patch(old, value)));
            }
            _ => {
                patch.insert(name.clone(), value.clone());
            }
        }
    }
    patch
}

#[cfg(test)]
mod tests;
