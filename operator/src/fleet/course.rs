//! The course of one profile's changes over its nodes: wave by wave, canaries first, and back when a wave fails.
//!
//! Which nodes have a change, since when, and what they had before is read from their objects every time. Only what
//! cannot be read there is kept, and written into the profile's status: that a rollout came to its end, well or badly.
//! An operator that starts in the middle of a rollout therefore goes on where the last one stopped.
//!
//! Nodes also come to a profile whose rollout has ended. One that joins the cluster is given the configuration at once,
//! whatever became of those before it: it has no other, so that nothing could be saved by waiting. How it does is summed
//! up with the others. One that comes from another configuration (its labels changed, or the selector) has something to
//! lose: as many change at once as may be unavailable, and when as many fail, the next ones keep what they have. Nobody
//! goes back for their sake: the profile is known to work where it was.

use std::collections::BTreeMap;

use crds::{
    condition::{
        PROGRESSING,
        reason::{DEADLINE_EXCEEDED, HALTED, HELD_BACK, ROLLED_BACK, SETTLED},
    },
    effective::hash::ConfigHash,
    node_proxy::NodeProxySpec,
    profile::{
        rollout::{OnFailure, Rollout},
        status::ProxyProfileStatus,
    },
};
use jiff::Timestamp;

use crate::fleet::member::{Failure, Health, Member, Onset, Standing, Wanted};

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
    /// The rollout has ended, but too many fail of the nodes that came since, and others wait.
    HeldBack {
        /// Which nodes, and why, for people.
        message: String,
    },
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
                    reason if reason == HELD_BACK.name => Phase::HeldBack {
                        message: said.message.clone(),
                    },
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
        match self.phase {
            Phase::Rolling => self.judge_rollout(target, members, standings),
            Phase::Settled | Phase::Overdue | Phase::HeldBack { .. } => {
                self.judge_newcomers(target, members, standings);
            }
            Phase::Failed { .. } => {}
        }
    }

    fn judge_rollout(&mut self, target: &Target, members: &[Member<'_>], standings: &[Standing]) {
        let open = |standing: &Standing| {
            matches!(
                standing,
                Standing::Bare | Standing::Behind(_) | Standing::Pending(_)
            )
        };
        let failing: Vec<_> = failing(members, standings).collect();
        if failing.len() >= tolerated(&target.rollout, standings) {
            self.phase = Phase::Failed {
                outcome: target.rollout.on_failure,
                message: describe_failure(&failing, members.len()),
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

    /// Whether nodes that come from another configuration may take on this one.
    fn judge_newcomers(&mut self, target: &Target, members: &[Member<'_>], standings: &[Standing]) {
        let behind = |standing: &&Standing| matches!(standing, Standing::Behind(_));
        let waiting = standings.iter().filter(behind).count();
        let failing: Vec<_> = failing(members, standings)
            .filter(|(_, failure)| failure.onset == Onset::WithTheChange)
            .collect();
        let all_done = || standings.iter().all(|standing| *standing == Standing::Done);
        if waiting > 0 && failing.len() >= tolerated(&target.rollout, standings) {
            let failed = describe_failure(&failing, members.len());
            self.phase = Phase::HeldBack {
                message: format!("{waiting} keep what they have: {failed}"),
            };
        } else if self.phase != Phase::Overdue || all_done() {
            self.phase = Phase::Settled;
        }
    }

    /// As many nodes as may change at once take on the configuration.
    fn spread(
        &self,
        rollout: &Rollout,
        members: &[Member<'_>],
        standings: &[Standing],
    ) -> BTreeMap<String, Wanted> {
        // Failures of a rollout in progress use up what it may risk. After it those do that came with the change: what
        // happens to a node later must not keep others from coming.
        let risky = |standing: &&Standing| match standing {
            Standing::Pending(_) => true,
            Standing::Failing(failure) => {
                self.phase == Phase::Rolling || failure.onset == Onset::WithTheChange
            }
            _ => false,
        };
        let changing = standings.iter().filter(risky).count();
        let missing = canaries_missing(rollout, standings);
        let most = rollout.max_unavailable.of(members.len());
        let allowed = match self.phase {
            Phase::HeldBack { .. } => 0,
            _ if missing > 0 => missing.min(most),
            _ => most,
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

/// The nodes that fail.
fn failing<'a>(
    members: &'a [Member<'_>],
    standings: &'a [Standing],
) -> impl Iterator<Item = (&'a str, &'a Failure)> {
    let failure = |(member, standing): (&'a Member<'_>, &'a Standing)| match standing {
        Standing::Failing(failure) => Some((member.name(), failure)),
        _ => None,
    };
    members.iter().zip(standings).filter_map(failure)
}

/// With how many failures no further node changes.
fn tolerated(rollout: &Rollout, standings: &[Standing]) -> usize {
    if canaries_missing(rollout, standings) > 0 {
        1
    } else {
        rollout.max_unavailable.of(standings.len())
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

fn describe_failure(failing: &[(&str, &Failure)], total: usize) -> String {
    let count = failing.len();
    let mut text = format!("{count} of {total} nodes failed");
    for (index, (name, failure)) in failing.iter().take(MOST_NAMED).enumerate() {
        text += if index == 0 { ": " } else { "; " };
        text += &format!("{name} ({})", failure.why);
    }
    if count > MOST_NAMED {
        text += &format!("; and {} more", count - MOST_NAMED);
    }
    text
}
