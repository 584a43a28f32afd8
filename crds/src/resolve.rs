//! Which profile applies to a node, and why the others do not.
//!
//! The order among the profiles that select a node: the lowest priority number, then the oldest,
//! then the first by name. It depends on nothing else, so that the operator, the agent and the
//! command `explain` always agree, in whatever order they read the profiles.
//!
//! A node keeps its configuration in two cases:
//!
//! - The deciding profile is paused. A node without a configuration still gets that of the paused
//!   profile: without a service proxy it could not reach any Service.
//! - The profile that the node has its configuration from is no longer valid, and no valid profile
//!   comes before it. A mistake in a profile changes nothing on the nodes where that profile is in
//!   force.

use std::{cmp::Ordering, collections::BTreeMap, fmt, sync::Arc};

use jiff::Timestamp;

use crate::{
    check::{self, FieldError},
    effective::{EffectiveConfig, hash::ConfigHash},
    node_proxy::NodeProxySpec,
    profile::{ProxyProfile, ProxyProfileSpec},
    unsupported,
};

/// The properties of a node that the decision depends on. Large ones are shared: an operator asks for
/// thousands of nodes at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: Arc<BTreeMap<String, String>>,
    /// Its latest configuration, if any.
    pub current: Option<Arc<NodeProxySpec>>,
}

/// All profiles in the order in which they decide, checked and completed once for any number of nodes.
#[derive(Clone, Debug)]
pub struct Ranking<'a> {
    ranked: Vec<Ranked<'a>>,
}

#[derive(Clone, Debug)]
struct Ranked<'a> {
    profile: &'a ProxyProfile,
    name: &'a str,
    outcome: Result<Arc<NodeProxySpec>, Vec<FieldError>>,
}

/// The configuration that a node should have, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// The node's configuration; absent if no profile decides, which is not an error.
    pub effective: Option<Arc<NodeProxySpec>>,
    /// The profile that decides.
    pub winner: Option<String>,
    /// Why the node keeps its configuration although its profile has a different one.
    pub hold: Option<Hold>,
    /// Which profile decides and why, as a sentence.
    pub reason: String,
    /// Every profile, in the order in which they decide.
    pub candidates: Vec<Candidate>,
}

/// One profile, evaluated for one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its name.
    pub profile: String,
    /// Its priority.
    pub priority: i32,
    /// Its role on the node.
    pub role: ProfileRole,
}

/// The role of a profile on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProfileRole {
    /// This profile decides.
    Deciding,
    /// It also selects the node, but another profile comes first.
    Outranked {
        /// The profile that decides.
        to: String,
        /// Why that profile comes first.
        by: Precedence,
    },
    /// It does not select the node.
    NotSelected,
    /// It is not valid, and decides on no node.
    Rejected(Vec<FieldError>),
}

/// Why one profile comes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precedence {
    /// A lower priority number: intended layering.
    Priority,
    /// The same priority, but older: a conflict that the user should resolve.
    Age,
    /// The same priority and age: a conflict that the user should resolve.
    Name,
}

/// Why a node keeps its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The deciding profile is paused.
    Paused,
    /// The profile that its configuration comes from is no longer valid.
    Rejected,
}

/// Returns the configuration that `node` should have. For many nodes, create one [`Ranking`] for
/// all of them.
#[must_use]
pub fn resolve<'a>(
    profiles: impl IntoIterator<Item = &'a ProxyProfile>,
    node: &NodeFacts,
) -> Resolution {
    Ranking::of(profiles).resolve(node)
}

// === impl Ranking ===

impl<'a> Ranking<'a> {
    /// Checks, completes and orders `profiles`.
    #[must_use]
    pub fn of(profiles: impl IntoIterator<Item = &'a ProxyProfile>) -> Self {
        let mut ranked: Vec<Ranked<'a>> = profiles.into_iter().map(Ranked::of).collect();
        ranked.sort_by(|a, b| a.precedence_over(b).0);
        Self { ranked }
    }

    /// Returns the configuration that `node` should have.
    #[must_use]
    pub fn resolve(&self, node: &NodeFacts) -> Resolution {
        let decides = |ranked: &&Ranked<'_>| match &ranked.outcome {
            Ok(_) => ranked.profile.spec.node_selector.selects(&node.labels),
            Err(_) => node
                .current
                .as_ref()
                .is_some_and(|current| current.profile_name == ranked.name),
        };
        let winner = self.ranked.iter().find(decides);
        let candidates: Vec<Candidate> = self
            .ranked
            .iter()
            .map(|ranked| ranked.candidate(winner, node))
            .collect();
        let (effective, hold) = match winner {
            None => (None, None),
            Some(winner) => match (&winner.outcome, &node.current) {
                (Err(_), current) => (current.clone(), Some(Hold::Rejected)),
                (Ok(_), Some(current)) if winner.profile.spec.paused => {
                    (Some(current.clone()), Some(Hold::Paused))
                }
                (Ok(effective), _) => (Some(effective.clone()), None),
            },
        };
        Resolution {
            reason: explain(winner, hold, &candidates, node),
            winner: winner.map(|winner| winner.name.to_owned()),
            effective,
            hold,
            candidates,
        }
    }
}

// === impl Ranked ===

impl<'a> Ranked<'a> {
    fn of(profile: &'a ProxyProfile) -> Self {
        let name = profile.metadata.name.as_deref().unwrap_or_default();
        let errors = check::check(&profile.spec);
        let outcome = if errors.is_empty() {
            let generation = profile.metadata.generation.unwrap_or_default();
            Ok(Arc::new(stamp(name, generation, &profile.request().spec)))
        } else {
            Err(errors)
        };
        Self {
            profile,
            name,
            outcome,
        }
    }

    /// Returns which of the two comes first, and why.
    fn precedence_over(&self, other: &Self) -> (Ordering, Precedence) {
        let priority = |ranked: &Self| ranked.profile.spec.priority;
        // A profile from a file has no creation time: it counts as younger than any profile with
        // one.
        let created = |ranked: &Self| {
            ranked
                .profile
                .metadata
                .creation_timestamp
                .as_ref()
                .map_or(Timestamp::MAX, |created| created.0)
        };
        match (
            priority(self).cmp(&priority(other)),
            created(self).cmp(&created(other)),
        ) {
            (Ordering::Equal, Ordering::Equal) => (self.name.cmp(other.name), Precedence::Name),
            (Ordering::Equal, age) => (age, Precedence::Age),
            (order, _) => (order, Precedence::Priority),
        }
    }

    fn candidate(&self, winner: Option<&Self>, node: &NodeFacts) -> Candidate {
        let role = match (&self.outcome, winner) {
            (Err(errors), _) => ProfileRole::Rejected(errors.clone()),
            (Ok(_), Some(winner)) if winner.name == self.name => ProfileRole::Deciding,
            (Ok(_), Some(winner)) if self.profile.spec.node_selector.selects(&node.labels) => {
                ProfileRole::Outranked {
                    to: winner.name.to_owned(),
                    by: winner.precedence_over(self).1,
                }
            }
            (Ok(_), _) => ProfileRole::NotSelected,
        };
        Candidate {
            profile: self.name.to_owned(),
            priority: self.profile.spec.priority,
            role,
        }
    }
}

/// Returns what profile `name` assigns to its nodes when `spec` is its spec in this `generation`.
#[must_use]
pub fn stamp(name: &str, generation: i64, spec: &ProxyProfileSpec) -> NodeProxySpec {
    let config = EffectiveConfig::of(spec);
    NodeProxySpec {
        profile_name: name.to_owned(),
        profile_generation: generation,
        config_hash: ConfigHash::of(&config),
        config,
        written_fields: unsupported::written_fields(spec),
    }
}

fn explain(
    winner: Option<&Ranked<'_>>,
    hold: Option<Hold>,
    candidates: &[Candidate],
    node: &NodeFacts,
) -> String {
    let Some(winner) = winner else {
        let rejected = candidates
            .iter()
            .filter(|candidate| matches!(candidate.role, ProfileRole::Rejected(_)));
        return match rejected.count() {
            0 => format!("no profile selects node {}", node.name),
            count => format!(
                "no profile selects node {}; {count} ignored as invalid",
                node.name
            ),
        };
    };
    let mut text = format!(
        "profile {} applies with priority {}",
        winner.name, winner.profile.spec.priority
    );
    for candidate in candidates {
        if let ProfileRole::Outranked { by, .. } = candidate.role {
            text += &format!("; {} selects the node too but {by}", candidate.profile);
            if by == Precedence::Priority {
                text += &format!(" ({})", candidate.priority);
            }
        }
    }
    text + match hold {
        None => "",
        Some(Hold::Paused) => "; it is paused, so the node keeps its configuration",
        Some(Hold::Rejected) => "; it is no longer valid, so the node keeps its configuration",
    }
}

// === impl Resolution ===

impl Resolution {
    /// The profiles that lost although they have the winner's priority: the user should change their priorities.
    pub fn conflicts(&self) -> impl Iterator<Item = &Candidate> {
        self.candidates.iter().filter(|candidate| {
            matches!(
                candidate.role,
                ProfileRole::Outranked {
                    by: Precedence::Age | Precedence::Name,
                    ..
                }
            )
        })
    }
}

// === impl Precedence ===

impl fmt::Display for Precedence {
    /// Completes "profile b selects the node too but …".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Priority => "has a higher priority number",
            Self::Age => "is younger at the same priority",
            Self::Name => "comes later by name at the same priority and age",
        })
    }
}

#[cfg(test)]
mod tests;
