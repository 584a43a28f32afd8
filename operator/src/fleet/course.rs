//! The course of one profile's changes over its nodes: wave by wave, canaries first, and back when a wave fails.
//!
//! Which nodes have a change, since when, and what they had before is read from their objects every time. Only what
//! cannot be read there is kept, and written into the profile's status: that a rollout came to its end, well or badly.
//! An operator that starts in the middle of a rollout therefore goes on where the last one stopped.

use std::collections::BTreeMap;

use crds::{
    condition::{
        PROGRESSING,
        reason::{DEADLINE_EXCEEDED, HALTED, ROLLED_BACK, SETTLED},
    },
    effective::hash::ConfigHash,
    node_proxy::NodeProxySpec,
    profile::{
        rollout::{OnFailure, Rollout},
        status::ProxyProfileStatus,
    },
};
use jiff::Timestamp;

use crate::fleet::member::{Health, Member, Standing, Wanted};

/// What a profile asks of its nodes.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// The hash of its configuration.
    pub(crate) hash: ConfigHash,
    /// The generation of the profile.
    pub(crate) generation: i64,
    /// How it wants a change to spread.
    pub(crate) rollout: Rollout,
    /// Whether changes reach nodes at all.
    pub(crate) flow: Flow,
}

/// Whether a profile's changes reach its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// They do.
    Open,
    /// `spec.paused`: nodes keep what they have.
    Paused,
}

/// How far one configuration of a profile has come.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Course {
    /// The configuration.
    hash: ConfigHash,
    /// The generation of the profile it began with. A later one is another attempt after a failure.
    generation: i64,
    /// How far it has come.
    pub(crate) phase: Phase,
}

/// How far a configuration has come.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Phase {
    /// Nodes are taking it on.
    Rolling,
    /// Every node that could took it on. What goes wrong from here on is not the rollout's doing.
    Settled,
    /// Every node has it, but some did not report success in time, fewer than would have failed the rollout.
    Overdue,
    /// Too many nodes failed.
    Failed {
        /// What followed.
        outcome: OnFailure,
        /// Which nodes, and why, for people.
        message: String,
    },
}

/// What one look at the nodes leads to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wave {
    /// What each node is to have.
    pub(crate) wanted: BTreeMap<String, Wanted>,
    /// When to look again although nothing was heard.
    pub(crate) wake: Option<Timestamp>,
}

/// More names than this make a sentence nobody reads to its end.
const MOST_NAMED: usize = 5;

// === impl Course ===

impl Course {
    /// Where a course stands according to what was last written about it.
    pub(crate) fn resume(target: &Target, status: &ProxyProfileStatus) -> Self {
        let said = status
            .conditions
            .iter()
            .find(|condition| condition.type_ == PROGRESSING);
        let same_target = status.target_hash.as_deref() == Some(target.hash.as_str());
        let failed = |outcome, message: &str| Phase::Failed {
            outcome,
            message: message.to_owned(),
        };
        let mut generation = target.generation;
        let phase = match said {
            Some(said) if same_target => {
                generation = said.observed_generation.unwrap_or(generation);
                match said.reason.as_str() {
                    reason if reason == SETTLED.name => Phase::Settled,
                    reason if reason == DEADLINE_EXCEEDED.name => Phase::Overdue,
                    reason if reason == HALTED.name => failed(OnFailure::Halt, &said.message),
                    reason if reason == ROLLED_BACK.name => {
                        failed(OnFailure::Rollback, &said.message)
                    }
                    _ => Phase::Rolling,
                }
            }
            _ => Phase::Rolling,
        };
        Self {
            hash: target.hash.clone(),
            generation,
            phase,
        }
    }

    /// Looks at the nodes, moves on, and says what each is to have.
    pub(crate) fn advance(
        &mut self,
        target: &Target,
        members: &[Member<'_>],
        now: Timestamp,
    ) -> Wave {
        let edited_after_failure =
            matches!(self.phase, Phase::Failed { .. }) && self.generation != target.generation;
        if self.hash != target.hash || edited_after_failure {
            *self = Self {
                hash: target.hash.clone(),
                generation: target.generation,
                phase: Phase::Rolling,
            };
        }
        let standings: Vec<Standing> = members
            .iter()
            .map(|member| member.standing(&self.hash, &target.rollout, now))
            .collect();
        if target.flow == Flow::Open {
            self.judge(target, members, &standings);
        }
        let wanted = match (&self.phase, target.flow) {
            (Phase::Failed { outcome, .. }, _) => self.retreat(*outcome, members),
            (_, Flow::Paused) => members
                .iter()
                .map(|member| settle(member, member.keep()))
                .collect(),
            (_, Flow::Open) => self.spread(&target.rollout, members, &standings),
        };
        let deadlines = standings.iter().filter_map(|standing| match standing {
            Standing::Pending(deadline) => Some(*deadline),
            _ => None,
        });
        Wave {
            wanted,
            wake: deadlines.min(),
        }
    }

    fn judge(&mut self, target: &Target, members: &[Member<'_>], standings: &[Standing]) {
        let open = |standing: &Standing| {
            matches!(
                standing,
                Standing::Bare | Standing::Behind(_) | Standing::Pending(_)
            )
        };
        let failing = || {
            members
                .iter()
                .zip(standings)
                .filter_map(|(member, standing)| match standing {
                    Standing::Failing(why) => Some((member.name(), why.as_str())),
                    _ => None,
                })
        };
        match &self.phase {
            Phase::Rolling => {
                let failures = failing().count();
                let tolerated = if canaries_missing(&target.rollout, standings) > 0 {
                    1
                } else {
                    target.rollout.max_unavailable.of(members.len())
                };
                if failures >= tolerated {
                    let message = describe_failure(failing(), failures, members.len());
                    self.phase = Phase::Failed {
                        outcome: target.rollout.on_failure,
                        message,
                    };
                } else if !members.is_empty() && !standings.iter().any(open) {
                    let all_done = standings.iter().all(|standing| *standing == Standing::Done);
                    self.phase = if all_done {
                        Phase::Settled
                    } else {
                        Phase::Overdue
                    };
                }
            }
            Phase::Overdue if standings.iter().all(|standing| *standing == Standing::Done) => {
                self.phase = Phase::Settled
            }
            Phase::Overdue | Phase::Settled | Phase::Failed { .. } => {}
        }
    }

    /// As many nodes as may change at once take on the configuration.
    fn spread(
        &self,
        rollout: &Rollout,
        members: &[Member<'_>],
        standings: &[Standing],
    ) -> BTreeMap<String, Wanted> {
        // Failures of a rollout in progress use up what it may risk; later ones must not keep a node from joining.
        let risky = |standing: &&Standing| match standing {
            Standing::Pending(_) => true,
            Standing::Failing(_) => self.phase == Phase::Rolling,
            _ => false,
        };
        let changing = standings.iter().filter(risky).count();
        let missing = canaries_missing(rollout, standings);
        let allowed = rollout.max_unavailable.of(members.len());
        let allowed = if missing > 0 {
            missing.min(allowed)
        } else {
            allowed
        };
        let mut behind: Vec<(Health, &str)> = members
            .iter()
            .zip(standings)
            .filter_map(|(member, standing)| match standing {
                Standing::Behind(health) => Some((*health, member.name())),
                _ => None,
            })
            .collect();
        behind.sort();
        let next: Vec<&str> = behind
            .iter()
            .take(allowed.saturating_sub(changing))
            .map(|(_, name)| *name)
            .collect();
        let give = |(member, standing): (&Member<'_>, &Standing)| {
            let waits = matches!(standing, Standing::Behind(_)) && !next.contains(&member.name());
            let kept = if waits { member.keep() } else { None };
            settle(member, kept)
        };
        members.iter().zip(standings).map(give).collect()
    }

    /// Changed nodes go back or stay, and the others keep what they have.
    fn retreat(&self, outcome: OnFailure, members: &[Member<'_>]) -> BTreeMap<String, Wanted> {
        let trusted = self.trusted(members);
        let give = |member: &Member<'_>| {
            let fallback = || {
                trusted.map(|spec| Wanted {
                    spec: spec.clone(),
                    previous: None,
                })
            };
            let changed = member
                .current()
                .is_some_and(|current| current.config_hash == self.hash);
            let back = match outcome {
                OnFailure::Rollback if changed => member.go_back().or_else(fallback),
                OnFailure::Rollback | OnFailure::Halt => None,
            };
            settle(member, back.or_else(|| member.keep()).or_else(fallback))
        };
        members.iter().map(give).collect()
    }

    /// The configuration most nodes have, or go back to, that is not the failed one: what a node that joins meanwhile gets.
    fn trusted<'a>(&self, members: &'a [Member<'_>]) -> Option<&'a NodeProxySpec> {
        let mut votes: BTreeMap<&ConfigHash, (usize, &NodeProxySpec)> = BTreeMap::new();
        for member in members {
            let previous = member.proxy.and_then(|proxy| proxy.previous.as_ref());
            for spec in member
                .current()
                .into_iter()
                .chain(previous)
                .filter(|spec| spec.config_hash != self.hash)
            {
                votes.entry(&spec.config_hash).or_insert((0, spec)).0 += 1;
            }
        }
        votes
            .into_values()
            .max_by_key(|(count, _)| *count)
            .map(|(_, spec)| spec)
    }
}

/// How many more nodes have to be ready before the change goes on to the others.
fn canaries_missing(rollout: &Rollout, standings: &[Standing]) -> usize {
    let able = standings.iter().filter(|standing| {
        !matches!(
            standing,
            Standing::Bare | Standing::Excused | Standing::Behind(Health::Unreachable)
        )
    });
    let wanted = usize::try_from(rollout.canary)
        .unwrap_or(usize::MAX)
        .min(able.count());
    wanted.saturating_sub(
        standings
            .iter()
            .filter(|standing| **standing == Standing::Done)
            .count(),
    )
}

/// What `member` is to have: `wanted`, or else what its profile says.
fn settle(member: &Member<'_>, wanted: Option<Wanted>) -> (String, Wanted) {
    (
        member.name().to_owned(),
        wanted.unwrap_or_else(|| member.take(&member.effective)),
    )
}

fn describe_failure<'a>(
    failing: impl Iterator<Item = (&'a str, &'a str)>,
    count: usize,
    total: usize,
) -> String {
    let mut text = format!("{count} of {total} nodes failed");
    for (index, (name, why)) in failing.take(MOST_NAMED).enumerate() {
        text += if index == 0 { ": " } else { "; " };
        text += &format!("{name} ({why})");
    }
    if count > MOST_NAMED {
        text += &format!("; and {} more", count - MOST_NAMED);
    }
    text
}
