//! The nodes that a rollback has changed back. They are judged as those of the rollout were: the
//! configuration that they return to may have stopped working, too.

use crds::{effective::hash::ConfigHash, profile::rollout::Rollout};
use jiff::Timestamp;

use crate::{
    baseline::Readiness,
    fleet::{
        budget::is_changing,
        member::Member,
        node_progress::{FailureStart, NodeProgress},
        observations::Observations,
        rollout_progress::{Phase, is_ready},
    },
};

/// The progress of a rollback.
#[derive(Clone, Debug, Default)]
pub(crate) struct Returns {
    /// How many more nodes may be changed back now.
    pub(crate) room: Room,
    /// The nodes that failed after they were changed back, each with the reason, if they are as
    /// many as stop a rollout. No node that serves follows them.
    pub(crate) failed: Vec<String>,
    /// When to evaluate again even if no event arrives.
    pub(crate) wake: Option<Timestamp>,
}

/// How many more nodes may be changed back now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Room {
    /// Nodes that serve.
    serving: usize,
    /// Nodes whose agents are silent. A zone that returns carries out at once what its nodes were
    /// given meanwhile.
    silent: usize,
}

// === impl Returns ===

impl Returns {
    /// Evaluates the nodes that were changed back from the configuration of hash `from`.
    pub(crate) fn of(
        from: &ConfigHash,
        rollout: &Rollout,
        members: &[Member<'_>],
        observations: &mut Observations,
        now: Timestamp,
    ) -> Self {
        let (mut returned, mut changing, mut awaited) = (0, 0, 0);
        let mut failed = Vec::new();
        let mut wake = None;
        for member in members {
            let back = member.progress_back(from, rollout, observations, now);
            let Some((progress, baseline)) = back else {
                continue;
            };
            wake = [wake, progress.ends()].into_iter().flatten().min();
            if baseline.agent == Readiness::NotReady {
                // Nodes that failed with the change went back at once, and take no place.
                let is_awaited = matches!(progress, NodeProgress::Pending(_));
                awaited += usize::from(is_awaited && member.is_silent(now));
                continue;
            }
            returned += usize::from(baseline.is_well());
            match progress {
                // Its failure is no part of the rollback, which would wait for it without a word.
                NodeProgress::Failing(failure) if failure.onset == FailureStart::Afterwards => {}
                // It may have failed before this operator started.
                NodeProgress::Failing(failure) => {
                    changing += 1;
                    failed.push(format!("{} ({})", member.name(), failure.reason));
                }
                _ => changing += usize::from(is_changing(&Phase::Rolling, &progress)),
            }
        }
        let most = rollout.max_unavailable.of(members.len());
        let tolerated = rollout.max_failures.of(returned).min(most);
        let is_stopped = failed.len() >= tolerated;
        if !is_stopped {
            failed.clear();
        }
        Self {
            room: Room {
                serving: if is_stopped {
                    0
                } else {
                    most.saturating_sub(changing)
                },
                silent: most.saturating_sub(awaited),
            },
            failed,
            wake,
        }
    }
}

// === impl Room ===

impl Room {
    /// Whether `member` may be changed back now; it then takes up its place. Nodes that do not serve
    /// as they did before the change have nothing to lose, and need no place.
    pub(crate) fn take(
        &mut self,
        member: &Member<'_>,
        progress: &NodeProgress,
        now: Timestamp,
    ) -> bool {
        let room = if member.is_silent(now) {
            &mut self.silent
        } else if is_ready(progress)
            || matches!(progress, NodeProgress::Proving(_))
            || member.serves_as_before()
        {
            &mut self.serving
        } else {
            return true;
        };
        let may = *room > 0;
        *room = room.saturating_sub(1);
        may
    }
}
