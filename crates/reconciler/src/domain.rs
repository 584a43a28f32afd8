//! One family of the kernel, and what is believed of it.

mod attempt;
mod damages;
mod doubt;
mod isolate;
mod progress;
mod quarantine;
mod shortfall;
mod stage;
mod stride;

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use backend::{
    Backend, Change, CommitError, Disturbance, Drift, ObserveError, Receipt, Recovery, Rendered,
};
use dataplane::{Dataplane, Family};

use crate::error_chain::error_chain;
use crate::status::{Failing, FamilyStatus, Pace};
use crate::{Clock, Failure, Outcome, Reason, Round, Rounds};
use attempt::{Extent, Rest, as_observed};
use damages::Damages;
use doubt::{Cause, Doubt};
use progress::{Phase, Progress};
use quarantine::Quarantine;
use shortfall::Shortfall;
use stage::Stage;
use stride::Stride;

/// One family: its backend, what the kernel is believed to hold, and what has gone wrong. Families
/// know nothing of each other, so that one that is broken leaves the other served.
///
/// What is believed is what the kernel acknowledged or was seen to hold, never what was sent to it.
#[derive(Debug)]
pub struct Domain<B: Backend> {
    backend: B,
    /// `None`: not known; the next attempt reads the kernel back.
    believed: Option<Rendered<B::Rules>>,
    /// What was believed before, where what is read next tells what others did to it. `None`
    /// whenever something is believed.
    doubt: Option<Doubt<B::Rules>>,
    /// What the kernel was last known to carry out, before the first part of a start or of a change of
    /// configuration until its last one is there. Unlike what is believed it survives a commit
    /// with unknown effect: a Service that is held back keeps what it has here.
    programmed: Option<Dataplane>,
    quarantine: Quarantine,
    shortfall: Shortfall,
    failing: Option<Failing>,
    /// When the first part of a large change was begun, while the last round programmed a part of it.
    unfinished: Option<Instant>,
    stage: Stage,
    stride: Stride,
    programmed_since: Option<SystemTime>,
    last_receipt: Option<SystemTime>,
    last_success: Option<SystemTime>,
    pace: Pace,
    damages: Damages,
    count: u64,
    rounds: Rounds,
}

// === impl Domain ===

impl<B: Backend> Domain<B> {
    /// A family of which nothing is known.
    pub fn new(backend: B) -> Domain<B> {
        Domain {
            backend,
            believed: None,
            doubt: None,
            programmed: None,
            quarantine: Quarantine::default(),
            shortfall: Shortfall::default(),
            failing: None,
            unfinished: None,
            stage: Stage::default(),
            stride: Stride::default(),
            programmed_since: None,
            last_receipt: None,
            last_success: None,
            pace: Pace::default(),
            damages: Damages::default(),
            count: 0,
            rounds: Rounds::default(),
        }
    }

    /// Which family.
    pub fn family(&self) -> Family {
        self.backend.family()
    }

    /// The mechanism that programs it.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// What the kernel is believed to hold; `None` when that is not known.
    pub fn believed(&self) -> Option<&Rendered<B::Rules>> {
        self.believed.as_ref()
    }

    /// Whether some round has succeeded since the process started.
    pub fn is_programmed(&self) -> bool {
        self.programmed_since.is_some()
    }

    /// What has gone wrong since a round last succeeded.
    pub fn failing(&self) -> Option<&Failing> {
        self.failing.as_ref()
    }

    /// Whether the last round programmed a part of a large change.
    pub fn is_unfinished(&self) -> bool {
        self.unfinished.is_some()
    }

    /// Notes that somebody has changed, or may have changed, what is ours.
    pub fn disturb(&mut self, disturbance: &Disturbance, now: Instant) {
        if disturbance.families.contains(&self.family()) {
            self.damages.hear(disturbance.culprit.as_ref(), now);
        }
    }

    /// Whether a round for `reason` has anything to do here. A retry is for what failed; where no
    /// change will ever be taken, only the periodic check and a person's request try again.
    pub fn answers(&self, reason: Reason) -> bool {
        let recovery = self.failing.as_ref().map(|failing| failing.recovery);
        match (reason, recovery) {
            (reason, _) if reason.is_periodic() => true,
            (_, Some(Recovery::Halt)) => false,
            (Reason::Retry, None) => false,
            (Reason::Continued, _) => self.is_unfinished(),
            (Reason::Drift, _) => self.damages.is_heard(),
            _ => true,
        }
    }

    /// Makes the kernel hold `desired`, or as much of it as it takes. Never fails: what went wrong
    /// is in the round and in [`status`](Domain::status). Of a change that is larger than the backend's
    /// [`chunk_size`](Backend::chunk_size), a part is programmed: [`Outcome::Partial`].
    ///
    /// Costs what changed since the last round. A Service that the kernel refuses is found by
    /// halving and held back: about `2 k log n` commits for `k` of them among `n` that changed.
    pub fn round(&mut self, desired: &Dataplane, reason: Reason, clock: &dyn Clock) -> Arc<Round> {
        let mut progress = Progress::new(reason, clock);
        if reason.is_periodic() {
            self.quarantine.release_all();
        }
        self.quarantine.release_changed(desired);
        let result = self
            .compare_with_kernel(&mut progress)
            .and_then(|()| self.program(desired, &mut progress));
        self.quarantine.forget_released();
        self.shortfall.follow(&self.backend, desired);
        if let Ok(Rest::Another(programmed)) = result {
            let longest = self.backend.longest_part(desired.config());
            self.stride.follow(programmed, progress.took(), longest);
        }
        self.conclude(result, &progress)
    }

    /// How it stands.
    pub fn status(&self) -> FamilyStatus {
        FamilyStatus {
            family: self.family(),
            programmed_since: self.programmed_since,
            last_receipt: self.last_receipt,
            last_success: self.last_success,
            failing: self.failing.clone(),
            pace: self.pace,
            drifts: self.damages.repaired(),
            last_damage: self.damages.last().cloned(),
            quarantined: self.quarantine.list(),
            shortcomings: Arc::clone(self.shortfall.list()),
            programmed: self.programmed.clone(),
            rounds: self.rounds.clone(),
        }
    }

    /// Removes everything that is ours from the kernel. Whatever comes of it, the next round reads
    /// the kernel back. A failure is in [`status`](Domain::status), too.
    pub fn commit_removal(&mut self, clock: &dyn Clock) -> Result<Receipt, CommitError> {
        self.believed = None;
        self.doubt = None;
        let receipt = match self.backend.commit_removal() {
            Ok(receipt) => receipt,
            Err(error) => {
                let failure = Failure {
                    error: error_chain(&error),
                    recovery: error.recovery,
                };
                self.fail(failure, clock.wall_time(), 0);
                return Err(error);
            }
        };
        self.programmed = None;
        self.programmed_since = None;
        self.failing = None;
        self.unfinished = None;
        self.stage = Stage::default();
        self.quarantine = Quarantine::default();
        self.shortfall = Shortfall::default();
        // What others do to what is not there harms nobody.
        self.damages.forget_heard();
        Ok(receipt)
    }

    /// Looks at the kernel where the round is for that and something is believed that can be wrong.
    fn compare_with_kernel(&mut self, progress: &mut Progress<'_>) -> Result<(), Failure> {
        if !progress.reason.checks_kernel() {
            return Ok(());
        }
        let Some(believed) = self.believed.take() else {
            // There is nothing to compare with, save where there is a doubt: then the attempt does.
            if self.doubt.is_none() {
                self.damages.forget_heard();
            }
            return Ok(());
        };
        let heard = self.damages.take_heard();
        let backend = &mut self.backend;
        let look = match progress.reason {
            Reason::Retry | Reason::Continued | Reason::Changed | Reason::Startup => false,
            Reason::Requested => true,
            // Not being told that nothing happened is reason enough to look.
            Reason::Timer | Reason::Drift => progress
                .measure(Phase::Observe, || backend.observe_drift())
                .map_or(true, |drift| drift == Drift::Possible),
        };
        if !look {
            self.damages.find_nothing(heard, progress);
            self.believed = Some(believed);
            return Ok(());
        }
        let rules = match self.observe(progress) {
            Ok(rules) => rules,
            Err(failure) => {
                self.damages.hear_again(heard);
                self.doubt = Some(Doubt {
                    rules: believed.rules,
                    cause: Cause::Unread,
                });
                return Err(failure);
            }
        };
        if rules == believed.rules {
            self.damages.find_nothing(heard, progress);
            self.believed = Some(believed);
        } else {
            let size = self.backend.diff(&rules, &believed.rules).size();
            self.damages.find(size, heard, progress);
            progress.reason = Reason::Drift;
            self.believed = Some(as_observed(rules));
        }
        Ok(())
    }

    /// Commits what is wanted, or a part of it; where that is refused, finds the Services it is
    /// refused for, in the whole.
    fn program(
        &mut self,
        desired: &Dataplane,
        progress: &mut Progress<'_>,
    ) -> Result<Rest, Failure> {
        let wanted = self.quarantine.apply(desired, self.programmed.as_ref());
        match self.attempt(&wanted, Extent::Chunk, progress) {
            Err(failure) if failure.recovery == Recovery::Isolate => {
                self.isolate(desired, wanted, failure, progress)?;
                Ok(Rest::Nothing)
            }
            result => result,
        }
    }

    fn advance(&mut self, wanted: &Dataplane, rules: B::Rules, rest: Rest) {
        if rest == Rest::Nothing {
            self.stage = Stage::Complete;
        }
        if self.stage == Stage::Complete {
            self.programmed = Some(wanted.clone());
        }
        self.believed = Some(Rendered {
            dataplane: wanted.clone(),
            rules,
        });
    }

    fn observe(&mut self, progress: &mut Progress<'_>) -> Result<B::Rules, Failure> {
        let backend = &mut self.backend;
        progress
            .measure(Phase::Observe, || backend.observe())
            .map_err(|error: ObserveError| Failure {
                error: error_chain(&error),
                recovery: error.recovery,
            })
    }

    /// Writes down a failure of what began at `started`; `retries` is 1 where it only repeated what
    /// had failed, and 0 elsewhere.
    fn fail(&mut self, failure: Failure, started: SystemTime, retries: u32) {
        let (since, rounds, before) = match &self.failing {
            Some(before) => (before.since, before.rounds, before.retries),
            None => (started, 0, 0),
        };
        self.failing = Some(Failing {
            since,
            rounds: rounds.saturating_add(1),
            retries: before.saturating_add(retries),
            error: failure.error,
            recovery: failure.recovery,
        });
    }

    /// Writes down how the round ended.
    fn conclude(&mut self, result: Result<Rest, Failure>, progress: &Progress<'_>) -> Arc<Round> {
        let now = progress.clock.wall_time();
        let took = progress.took();
        let ended = progress.clock.now();
        let began = self.unfinished.take().unwrap_or(progress.began);
        let mut damage = None;
        let outcome = match result {
            Ok(Rest::Another(_)) => {
                self.unfinished = Some(began);
                Outcome::Partial
            }
            Ok(Rest::Nothing) => {
                self.failing = None;
                self.pace = Pace::of(ended.saturating_duration_since(began));
                self.last_success = Some(now);
                self.programmed_since.get_or_insert(now);
                damage = self.damages.repair(ended);
                match progress.transactions {
                    0 => Outcome::Unchanged,
                    _ => Outcome::Committed,
                }
            }
            Err(failure) => {
                let retry = u32::from(progress.reason == Reason::Retry);
                self.fail(failure.clone(), progress.started, retry);
                Outcome::Failed(failure)
            }
        };
        self.count += 1;
        let round = Arc::new(Round {
            family: self.family(),
            number: self.count,
            reason: progress.reason,
            started: progress.started,
            took,
            ended,
            phases: progress.phases,
            size: progress.size,
            transactions: progress.transactions,
            outcome,
            damage,
            quarantined: self.quarantine.list(),
            shortcomings: Arc::clone(self.shortfall.list()),
        });
        self.rounds.push(Arc::clone(&round));
        round
    }
}

#[cfg(test)]
mod tests;
