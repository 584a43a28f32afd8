//! What a profile requests for its nodes.

use std::sync::Arc;

use crds::{
    effective::{EffectiveConfig, hash::ConfigHash},
    node_proxy::NodeProxySpec,
    profile::{
        ProxyProfile, ProxyProfileSpec,
        progress::RolloutPhase,
        rollout::Rollout,
        undo::{Request, Undo},
    },
    resolve,
};

use crate::fleet::history;

/// The configuration that a profile requests for its nodes.
#[derive(Clone, Debug)]
pub(crate) struct RolloutTarget {
    /// The name of the profile.
    pub(crate) profile: String,
    /// The hash of its configuration.
    pub(crate) hash: ConfigHash,
    /// The generation of the profile.
    pub(crate) generation: i64,
    /// The generation of the profile that last requested another configuration; 0 if none did.
    pub(crate) previous_generation: i64,
    /// The proven configuration of the profile, which may be the requested one.
    pub(crate) proven: Option<Arc<NodeProxySpec>>,
    /// How to roll out a change.
    pub(crate) rollout: Rollout,
    /// Whether changes reach nodes at all.
    pub(crate) pause: PauseState,
    /// The spec that is requested. What only holds changes back or undoes them is left out: to change that
    /// is no other attempt.
    pub(crate) requested: ProxyProfileSpec,
    /// The hash of `requested`.
    pub(crate) request_hash: ConfigHash,
    /// What `rollout.undo` does.
    pub(crate) undo: Undo,
}

/// Whether a profile's changes reach its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PauseState {
    /// Nodes receive changes.
    Active,
    /// `spec.paused`: nodes keep their configuration.
    Paused,
}

// === impl RolloutTarget ===

impl RolloutTarget {
    /// Returns what `profile` requests.
    pub(super) fn of(profile: &ProxyProfile) -> Self {
        let Request { spec, undo } = profile.request();
        let name = profile.metadata.name.clone().unwrap_or_default();
        let generation = profile.metadata.generation.unwrap_or_default();
        let hash = ConfigHash::of(&EffectiveConfig::of(&spec));
        let mut history = profile.status.iter().flat_map(|status| &status.history);
        let previous = history.find(|revision| revision.config_hash != hash.as_str());
        let mut requested = spec.into_owned();
        requested.paused = false;
        requested.rollout.undo = None;
        Self {
            previous_generation: previous.map_or(0, |revision| revision.generation),
            proven: match undo {
                // All nodes had it, and no node is to get what is undone, unless the others went back to
                // that.
                Undo::InEffect(_) if !has_failed(profile, &hash) => {
                    Some(Arc::new(resolve::stamp(&name, generation, &requested)))
                }
                Undo::InEffect(_) | Undo::Absent | Undo::NothingBefore => history::proven(profile),
            },
            profile: name,
            hash,
            generation,
            rollout: profile.spec.rollout.complete(),
            request_hash: ConfigHash::of_request(&requested),
            requested,
            // What is undone reaches no further node, also where nothing is known to return to.
            pause: if profile.spec.paused || undo == Undo::NothingBefore {
                PauseState::Paused
            } else {
                PauseState::Active
            },
            undo,
        }
    }
}

/// Whether the last rollout of `profile` is of this configuration and has failed.
fn has_failed(profile: &ProxyProfile, hash: &ConfigHash) -> bool {
    let rollout = profile.status.as_ref().and_then(|it| it.rollout.as_ref());
    rollout.is_some_and(|rollout| {
        rollout.config_hash == hash.as_str()
            && matches!(
                rollout.phase,
                RolloutPhase::RollingBack | RolloutPhase::RolledBack | RolloutPhase::Halted
            )
    })
}
