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
        ProxyProfileSpec,
        progress::RolloutVerdict,
        rollout::{OnFailure, Rollout},
        status::ProxyProfileStatus,
    },
};
use jiff::Timestamp;

use crate::fleet::{
    budget::{self, is_about_the_change},
    member::{Member, Wanted},
    sightings::Sightings,
    standing::Standing,
    verdict::{aborted, failing, verdict},
    waves::{Progress, Waves},
};

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
    /// Everything it asks for but that.
    pub(crate) asked: ProxyProfileSpec,
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
    /// The generation of the profile at which it was last seen to stand so. A later one is another attempt after a failure.
    generation: i64,
    /// The generation it began with.
    began: i64,
    /// What the profile asked for when that was seen; absent if another operator saw it.
    asked: Option<ProxyProfileSpec>,
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
        /// Which nodes, and why.
        verdict: RolloutVerdict,
    },
    /// Too many nodes failed.
    Failed {
        /// What followed.
        outcome: OnFailure,
        /// Which nodes, and why.
        verdict: RolloutVerdict,
    },
}

/// What one look at the nodes leads to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Advance {
    /// How far the waves have come.
    pub(crate) progress: Progress,
    /// What each node is to have.
    pub(crate) wanted: BTreeMap<String, Wanted>,
    /// When to look again although nothing was heard.
    pub(crate) wake: Option<Timestamp>,
}

// === impl Course ===

impl Course {
    /// Where a course stands according to what was last written about it.
    pub(crate) fn resume(target: &Target, status: &ProxyProfileStatus) -> Self {
        let said = status
            .conditions
            .iter()
            .find(|condition| condition.type_ == PROGRESSING);
        let same_target = status.target_hash.as_deref() == Some(target.hash.as_str());
        let verdict = |message: &str| {
            let written = status
                .rollout
                .as_ref()
                .and_then(|rollout| rollout.verdict.clone());
            written.unwrap_or_else(|| RolloutVerdict {
                message: message.to_owned(),
                ..RolloutVerdict::default()
            })
        };
        let failed = |outcome, message: &str| Phase::Failed {
            outcome,
            verdict: verdict(message),
        };
        let mut generation = target.generation;
        let phase = match said {
            Some(said) if same_target => {
                generation = said.observed_generation.unwrap_or(generation);
                match said.reason.as_str() {
                    reason if reason == SETTLED.name => Phase::Settled,
                    reason if reason == DEADLINE_EXCEEDED.name => Phase::Overdue,
                    reason if reason == HELD_BACK.name => Phase::HeldBack {
                        verdict: verdict(&said.message),
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
        let written = status.rollout.as_ref().filter(|_| same_target);
        Self {
            hash: target.hash.clone(),
            generation,
            began: written.map_or(target.generation, |rollout| rollout.generation),
            asked: (generation == target.generation).then(|| target.asked.clone()),
            phase,
        }
    }

    /// The hash of the configuration.
    pub(crate) const fn hash(&self) -> &ConfigHash {
        &self.hash
    }

    /// The generation of the profile it began with.
    pub(crate) const fn began(&self) -> i64 {
        self.began
    }

    /// Looks at the nodes, moves on, and says what each is to have.
    pub(crate) fn advance(
        &mut self,
        target: &Target,
        members: &[Member<'_>],
        sightings: &mut Sightings,
        now: Timestamp,
    ) -> Advance {
        // To pause is no attempt, nor is to go on: changed nodes go back all the same, and the failure stands.
        let edited_after_failure = matches!(self.phase, Phase::Failed { .. })
            && self.generation != target.generation
            && self.asked.as_ref() != Some(&target.asked)
            && target.flow == Flow::Open;
        if self.hash != target.hash || edited_after_failure {
            *self = Self {
                hash: target.hash.clone(),
                generation: target.generation,
                began: target.generation,
                asked: Some(target.asked.clone()),
                phase: Phase::Rolling,
            };
        }
        if !matches!(self.phase, Phase::Failed { .. }) {
            self.generation = target.generation;
            self.asked = Some(target.asked.clone());
        }
        let standings: Vec<Standing> = members
            .iter()
            .map(|member| member.standing(&self.hash, &target.rollout, sightings, now))
            .collect();
        let waves = Waves::of(&target.rollout, members, &standings);
        if self.phase == Phase::Rolling && target.rollout.abort == self.hash.as_str() {
            self.phase = Phase::Failed {
                outcome: OnFailure::Rollback,
                verdict: aborted(failing(members, &standings).count()),
            };
        }
        if target.flow == Flow::Open {
            self.judge(target, members, &standings, &waves);
        }
        let take = |member: &Member<'_>| member.take(&member.effective, &target.rollout, now);
        let give = match (&self.phase, target.flow) {
            (Phase::Failed { outcome, .. }, _) => {
                self.retreat(*outcome, &target.rollout, members, &standings, now)
            }
            (_, Flow::Paused) => {
                let proven = self.proven(members, &standings);
                let keep = |member: &Member<'_>| member.keep(&target.rollout, now);
                let give = |member| keep(member).or_else(|| proven.map(Wanted::first));
                members.iter().map(give).collect()
            }
            (_, Flow::Open) => self.spread(&target.rollout, members, &standings, &waves, now),
        };
        let returning_until = members.iter().filter_map(|member| {
            let is_returning = member.is_returning(&self.hash, &target.rollout, now);
            is_returning.then(|| member.deadline(&target.rollout))?
        });
        let wanted = members.iter().zip(give).map(|(member, kept)| {
            let wanted = kept.unwrap_or_else(|| take(member));
            (member.name().to_owned(), wanted)
        });
        Advance {
            progress: waves.progress(&self.hash, members, &standings),
            wanted: wanted.collect(),
            wake: standings
                .iter()
                .filter_map(Standing::ends)
                .chain(returning_until)
                .min(),
        }
    }

    fn judge(
        &mut self,
        target: &Target,
        members: &[Member<'_>],
        standings: &[Standing],
        waves: &Waves,
    ) {
        let tolerated = waves.tolerated(&target.rollout);
        match self.phase {
            Phase::Rolling => self.judge_rollout(target, members, standings, tolerated),
            Phase::Settled | Phase::Overdue | Phase::HeldBack { .. } => {
                self.judge_newcomers(members, standings, tolerated);
            }
            Phase::Failed { .. } => {}
        }
    }

    fn judge_rollout(
        &mut self,
        target: &Target,
        members: &[Member<'_>],
        standings: &[Standing],
        tolerated: usize,
    ) {
        let open = |standing: &Standing| {
            !matches!(
                standing,
                Standing::Done | Standing::Joined | Standing::Excused | Standing::Failing(_)
            )
        };
        let failing: Vec<_> = failing(members, standings).collect();
        if failing.len() >= tolerated {
            self.phase = Phase::Failed {
                outcome: target.rollout.on_failure,
                verdict: verdict(&failing, members.len()),
            };
        } else if !members.is_empty() && !standings.iter().any(open) {
            self.phase = if standings.iter().all(is_ready) {
                Phase::Settled
            } else {
                Phase::Overdue
            };
        }
    }

    /// Whether nodes that come from another configuration may take on this one.
    fn judge_newcomers(
        &mut self,
        members: &[Member<'_>],
        standings: &[Standing],
        tolerated: usize,
    ) {
        let count = |is: fn(&Standing) -> bool| standings.iter().filter(|s| is(s)).count();
        let waiting = count(|standing| matches!(standing, Standing::Behind(_)));
        let failing: Vec<_> = failing(members, standings)
            .filter(|(_, failure)| is_about_the_change(&self.phase, failure))
            .collect();
        if waiting > 0 && failing.len() >= tolerated {
            let mut verdict = verdict(&failing, members.len());
            verdict.message = format!("{waiting} keep their configuration: {}", verdict.message);
            self.phase = Phase::HeldBack { verdict };
            return;
        }
        // An operator that has just started sees no failure before the grace is over.
        let ailing = count(|standing| matches!(standing, Standing::Ailing(_)));
        let is_held = matches!(self.phase, Phase::HeldBack { .. });
        if is_held && waiting > 0 && failing.len() + ailing >= tolerated {
            return;
        }
        if self.phase != Phase::Overdue || standings.iter().all(is_ready) {
            self.phase = Phase::Settled;
        }
    }

    /// As many nodes as may change at once take on the configuration; what the others are to keep.
    fn spread(
        &self,
        rollout: &Rollout,
        members: &[Member<'_>],
        standings: &[Standing],
        waves: &Waves,
        now: Timestamp,
    ) -> Vec<Option<Wanted>> {
        let next = budget::next(&self.phase, rollout, members, standings, waves);
        let proven = self.proven(members, standings);
        let give = |(member, standing): (&Member<'_>, &Standing)| match standing {
            Standing::Bare => member
                .keep(rollout, now)
                .or_else(|| proven.map(Wanted::first)),
            Standing::Behind(_) if !next.contains(member.name()) => member.keep(rollout, now),
            _ if member.is_outdated() && !next.contains(member.name()) => member.keep(rollout, now),
            _ => None,
        };
        members.iter().zip(standings).map(give).collect()
    }

    /// What a node that joins gets while a change of its profile is not proven: what the others had before it.
    fn proven<'a>(
        &self,
        members: &'a [Member<'_>],
        standings: &[Standing],
    ) -> Option<&'a NodeProxySpec> {
        let profile = &members.first()?.effective.profile_name;
        let is_behind = |standing: &Standing| matches!(standing, Standing::Behind(_));
        let is_proven = !standings.iter().any(is_behind) && standings.contains(&Standing::Done);
        self.trusted(members)
            .filter(|_| self.phase == Phase::Rolling && !is_proven)
            .filter(|spec| spec.profile_name == *profile)
    }

    /// Changed nodes go back or stay, and the others keep what they have. Those that are not well have nothing to lose and
    /// go back at once; of the others no more at a time than may be unavailable.
    fn retreat(
        &self,
        outcome: OnFailure,
        rollout: &Rollout,
        members: &[Member<'_>],
        standings: &[Standing],
        now: Timestamp,
    ) -> Vec<Option<Wanted>> {
        let trusted = self.trusted(members);
        let is_returning = |member: &&Member<'_>| member.is_returning(&self.hash, rollout, now);
        let returning = members.iter().filter(is_returning).count();
        let most = rollout.max_unavailable.of(members.len());
        let mut room = most.saturating_sub(returning);
        let mut may_go_back = |standing: &Standing| {
            let is_well = is_ready(standing) || matches!(standing, Standing::Proving(_));
            if !is_well {
                return true;
            }
            let may = room > 0;
            room = room.saturating_sub(1);
            may
        };
        let give = |(member, standing): (&Member<'_>, &Standing)| {
            let fallback = || {
                trusted.map(|spec| Wanted {
                    baseline: member.present(now),
                    ..Wanted::first(spec)
                })
            };
            let changed = member
                .current()
                .is_some_and(|current| current.config_hash == self.hash);
            let back = match outcome {
                OnFailure::Rollback if changed && may_go_back(standing) => {
                    member.go_back(now).or_else(fallback)
                }
                OnFailure::Rollback | OnFailure::Halt => None,
            };
            back.or_else(|| member.keep(rollout, now)).or_else(fallback)
        };
        members.iter().zip(standings).map(give).collect()
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

/// Whether the node is ready with the configuration and has been for long enough.
pub(crate) const fn is_ready(standing: &Standing) -> bool {
    matches!(standing, Standing::Done | Standing::Joined)
}
