//! The configuration that a profile requests: that of its own fields, or an earlier one while
//! `rollout.undo` names them.

use std::{borrow::Cow, cmp::Reverse};

use crate::{
    effective::{EffectiveConfig, hash::ConfigHash},
    profile::{ProxyProfile, ProxyProfileSpec, history::Revision},
};

/// What a profile requests for its nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Request<'a> {
    /// The spec that its nodes get. nodeSelector, priority, paused and rollout are always those of the
    /// profile.
    pub spec: Cow<'a, ProxyProfileSpec>,
    /// What `rollout.undo` does.
    pub undo: Undo,
}

/// What `rollout.undo` does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undo {
    /// Nothing: it is empty, or names another configuration than the profile's own fields.
    Absent,
    /// Nodes get an earlier configuration.
    InEffect(Undone),
    /// It names the profile's own fields, and no other configuration is known that every node had and
    /// that this version can read as a whole.
    NothingBefore,
}

/// The configuration that is undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undone {
    hash: String,
    generation: Option<i64>,
}

/// With this begins what messages say about `rollout.undo`.
pub const ROLLOUT_UNDO: &str = "rollout.undo";

// === impl ProxyProfile ===

impl ProxyProfile {
    /// Returns what the profile requests for its nodes.
    ///
    /// It depends on the profile's status, which must not lead back: once nodes have the earlier
    /// configuration, that is still the latest but for the one that is undone.
    #[must_use]
    pub fn request(&self) -> Request<'_> {
        let undo = self.spec.rollout.undo.as_deref().unwrap_or_default();
        let own = |undo| Request {
            spec: Cow::Borrowed(&self.spec),
            undo,
        };
        if undo.is_empty() {
            return own(Undo::Absent);
        }
        let hash = |spec: &ProxyProfileSpec| ConfigHash::of(&EffectiveConfig::of(spec));
        let present = hash(&self.spec);
        // Another version may have rendered the same fields to another hash.
        let is_present = |revision: &Revision| {
            let spec = revision.profile_spec();
            spec.is_some_and(|spec| hash(&spec) == present)
        };
        let history = self.status.iter().flat_map(|status| &status.history);
        let named = history.clone().find(|it| it.config_hash == undo);
        if present.as_str() != undo && !named.is_some_and(is_present) {
            return own(Undo::Absent);
        }
        let others = history.filter(|it| it.config_hash != undo);
        let mut rolled_out: Vec<_> = others
            .filter_map(|it| Some((it.rolled_out_at.as_ref()?.0, it)))
            .collect();
        rolled_out.sort_by_key(|(rolled_out_at, _)| Reverse(*rolled_out_at));
        let mut last_first = rolled_out.into_iter().map(|(_, revision)| revision);
        let earlier = last_first.find(|revision| !is_present(revision));
        let Some(earlier) = earlier.and_then(Revision::profile_spec) else {
            return own(Undo::NothingBefore);
        };
        let spec = ProxyProfileSpec {
            node_selector: self.spec.node_selector.clone(),
            priority: self.spec.priority,
            paused: self.spec.paused,
            rollout: self.spec.rollout.clone(),
            ..earlier
        };
        Request {
            spec: Cow::Owned(spec),
            undo: Undo::InEffect(Undone {
                hash: undo.to_owned(),
                generation: named.map(|named| named.generation),
            }),
        }
    }
}

// === impl Undo ===

impl Undo {
    /// Says what it does, and how to end that. The configuration for nodes has the hash `instead`, and
    /// the history lists it under `generation`. `None` if it does nothing.
    #[must_use]
    pub fn describe(&self, instead: &ConfigHash, generation: i64) -> Option<String> {
        match self {
            Self::Absent => None,
            Self::InEffect(Undone {
                hash,
                generation: undone,
            }) => {
                let undone = undone.map_or_else(
                    || "the profile's configuration".to_owned(),
                    |undone| format!("generation {undone}"),
                );
                Some(format!(
                    "{ROLLOUT_UNDO}: {undone} ({hash}) is undone, and nodes get generation {generation} of status.history \
                     ({instead}); to end this, remove {ROLLOUT_UNDO}, which rolls {undone} out again, or edit the profile"
                ))
            }
            Self::NothingBefore => Some(format!(
                "{ROLLOUT_UNDO} names the profile's configuration, which no further node gets: status.history has no other \
                 configuration that every node had and that this operator can read as a whole"
            )),
        }
    }
}
