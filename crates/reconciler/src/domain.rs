//! One address family, and what the kernel is last known to hold for it.

mod attempt;
mod isolate;
mod part_size;
mod progress;
mod quarantine;
mod repaired_drifts;
mod stage;
mod unsupported_fields;
mod unverified_rules;

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use backend::{
    Backend, Change, CommitError, Drift, ExternalChange, ObserveError, Receipt, Recovery, Rendered,
};
use dataplane::{Dataplane, Family};

use crate::error_chain::error_chain;
use crate::status::{Failing, FamilyStatus, Pace};
use crate::{Clock, Failure, FamilySync, Outcome, Reason, RecentSyncs};
use attempt::{Extent, Rest, as_observed};
use part_size::PartSize;
use progress::{Phase, Progress};
use quarantine::Quarantine;
use repaired_drifts::RepairedDrifts;
use stage::Stage;
use unsupported_fields::UnsupportedFields;
use unverified_rules::{Cause, UnverifiedRules};

/// One address family: its backend, the last known state of the kernel, and the current failures.
/// Families share no state, so one that fails leaves the other in service.
///
/// The last known state is what the kernel acknowledged or what was read back from it, never what
/// was sent to it.
#[derive(Debug)]
pub struct Domain<B: Backend> {
    backend: B,
    /// The last known state. `None`: not known; the next attempt reads the rules back.
    observed: Option<Rendered<B::Rules>>,
    /// What the kernel was left with, if the next read is to show how other programs changed it.
    /// `None` whenever `observed` is `Some`.
    unverified_rules: Option<UnverifiedRules<B::Rules>>,
    /// What the kernel was last known to implement. During a start or a change of configuration it
    /// keeps the earlier value from the first part until the last part is programmed. Unlike
    /// `observed` it survives a commit with unknown effect: a Service that is held back keeps what
    /// it has here.
    programmed: Option<Dataplane>,
    quarantine: Quarantine,
    unsupported_fields: UnsupportedFields,
    failing: Option<Failing>,
    /// When the first part of a large change was begun. `Some` while the last sync programmed only
    /// a part.
    unfinished: Option<Instant>,
    stage: Stage,
    part_size: PartSize,
    programmed_since: Option<SystemTime>,
    last_receipt: Option<SystemTime>,
    last_success: Option<SystemTime>,
    pace: Pace,
    repaired_drifts: RepairedDrifts,
    count: u64,
    syncs: RecentSyncs,
}

// === impl Domain ===

impl<B: Backend> Domain<B> {
    /// A domain with no known kernel state.
    pub fn new(backend: B) -> Domain<B> {
        Domain {
            backend,
            observed: None,
            unverified_rules: None,
            programmed: None,
            quarantine: Quarantine::default(),
            unsupported_fields: UnsupportedFields::default(),
            failing: None,
            unfinished: None,
            stage: Stage::default(),
            part_size: PartSize::default(),
            programmed_since: None,
            last_receipt: None,
            last_success: None,
            pace: Pace::default(),
            repaired_drifts: RepairedDrifts::default(),
            count: 0,
            syncs: RecentSyncs::default(),
        }
    }

    /// The address family.
    pub fn family(&self) -> Family {
        self.backend.family()
    }

    /// The backend that programs it.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// What the kernel is last known to hold; `None` if that is not known.
    pub fn observed(&self) -> Option<&Rendered<B::Rules>> {
        self.observed.as_ref()
    }

    /// Whether any sync has succeeded since the process started.
    pub fn is_programmed(&self) -> bool {
        self.programmed_since.is_some()
    }

    /// The failed syncs since the last successful sync; `None` if there are none.
    pub fn failing(&self) -> Option<&Failing> {
        self.failing.as_ref()
    }

    /// Whether the last sync programmed a part of a large change.
    pub fn is_unfinished(&self) -> bool {
        self.unfinished.is_some()
    }

    /// Records that another program has changed, or may have changed, Signpost's rules.
    pub fn disturb(&mut self, external_change: &ExternalChange, now: Instant) {
        if external_change.families.contains(&self.family()) {
            self.repaired_drifts
                .notify(external_change.actor.as_ref(), now);
        }
    }

    /// Whether a sync for `reason` has work in this family. `Retry` has work only after a failure.
    /// After [`Recovery::Halt`] only a periodic check or a resync request tries again.
    pub fn answers(&self, reason: Reason) -> bool {
        let recovery = self.failing.as_ref().map(|failing| failing.recovery);
        match (reason, recovery) {
            (reason, _) if reason.is_periodic() => true,
            (_, Some(Recovery::Halt)) => false,
            (Reason::Retry, None) => false,
            (Reason::Continued, _) => self.is_unfinished(),
            (Reason::Drift, _) => self.repaired_drifts.is_heard(),
            _ => true,
        }
    }

    /// Programs `desired`, or as much of it as the kernel accepts. Never fails: errors are in the
    /// returned sync and in [`status`](Domain::status). If the change is larger than the backend's
    /// [`chunk_size`](Backend::chunk_size), the sync programs a part of it: [`Outcome::Partial`].
    ///
    /// The cost is proportional to what changed since the last sync. Services that the kernel
    /// refuses are found by bisection and held back: about `2 k log n` commits for `k` refused
    /// among `n` changed.
    pub fn sync(
        &mut self,
        desired: &Dataplane,
        reason: Reason,
        clock: &dyn Clock,
    ) -> Arc<FamilySync> {
        let mut progress = Progress::new(reason, clock);
        if reason.is_periodic() {
            self.quarantine.release_all();
        }
        self.quarantine.release_changed(desired);
        let result = self
            .compare_with_kernel(&mut progress)
            .and_then(|()| self.program(desired, &mut progress));
        self.quarantine.forget_released();
        self.unsupported_fields.follow(&self.backend, desired);
        if let Ok(Rest::Another(programmed)) = result {
            let longest = self.backend.longest_part(desired.config());
            self.part_size.follow(programmed, progress.took(), longest);
        }
        self.conclude(result, &progress)
    }

    /// The status of this family.
    pub fn status(&self) -> FamilyStatus {
        FamilyStatus {
            family: self.family(),
            programmed_since: self.programmed_since,
            last_receipt: self.last_receipt,
            last_success: self.last_success,
            failing: self.failing.clone(),
            pace: self.pace,
            drifts: self.repaired_drifts.repaired(),
            last_repaired_drift: self.repaired_drifts.last().cloned(),
            drift_by_program: Arc::clone(self.repaired_drifts.drift_by_program()),
            quarantined: self.quarantine.list(),
            unsupported_fields: Arc::clone(self.unsupported_fields.list()),
            programmed: self.programmed.clone(),
            syncs: self.syncs.clone(),
        }
    }

    /// Removes all of Signpost's rules from the kernel. Whether this succeeds or fails, the next
    /// sync reads the rules back. A failure also appears in `status`.
    pub fn commit_removal(&mut self, clock: &dyn Clock) -> Result<Receipt, CommitError> {
        self.observed = None;
        self.unverified_rules = None;
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
        self.unsupported_fields = UnsupportedFields::default();
        // There are no rules left that other programs could damage.
        self.repaired_drifts.forget_heard();
        Ok(receipt)
    }

    /// Reads the rules back if the sync's reason asks for it and there is a known state to verify.
    fn compare_with_kernel(&mut self, progress: &mut Progress<'_>) -> Result<(), Failure> {
        if !progress.reason.checks_kernel() {
            return Ok(());
        }
        let Some(observed) = self.observed.take() else {
            // Nothing to compare with. With a doubt recorded, the attempt compares instead.
            if self.unverified_rules.is_none() {
                self.repaired_drifts.forget_heard();
            }
            return Ok(());
        };
        let heard = self.repaired_drifts.take_heard();
        let backend = &mut self.backend;
        let look = match progress.reason {
            Reason::Retry | Reason::Continued | Reason::Changed | Reason::Startup => false,
            Reason::Requested => true,
            // If drift cannot be ruled out, read the rules back.
            Reason::Timer | Reason::Drift => progress
                .measure(Phase::Observe, || backend.observe_drift())
                .map_or(true, |drift| drift == Drift::Possible),
        };
        if !look {
            self.repaired_drifts.find_nothing(heard, progress);
            self.observed = Some(observed);
            return Ok(());
        }
        let rules = match self.observe(progress) {
            Ok(rules) => rules,
            Err(failure) => {
                self.repaired_drifts.restore_notification(heard);
                self.unverified_rules = Some(UnverifiedRules {
                    rules: observed.rules,
                    cause: Cause::Unread,
                });
                return Err(failure);
            }
        };
        if rules == observed.rules {
            self.repaired_drifts.find_nothing(heard, progress);
            self.observed = Some(observed);
        } else {
            let size = self.backend.diff(&rules, &observed.rules).size();
            self.repaired_drifts.find(size, heard, progress);
            progress.reason = Reason::Drift;
            self.observed = Some(as_observed(rules));
        }
        Ok(())
    }

    /// Commits the desired state, or a part of it. If the kernel refuses it, searches the whole
    /// change for the Services that it refuses.
    fn program(
        &mut self,
        desired: &Dataplane,
        progress: &mut Progress<'_>,
    ) -> Result<Rest, Failure> {
        let admitted = self.quarantine.apply(desired, self.programmed.as_ref());
        match self.attempt(&admitted, Extent::Chunk, progress) {
            Err(failure) if failure.recovery == Recovery::Isolate => {
                self.isolate(desired, admitted, failure, progress)?;
                Ok(Rest::Nothing)
            }
            result => result,
        }
    }

    fn advance(&mut self, admitted: &Dataplane, rules: B::Rules, rest: Rest) {
        if rest == Rest::Nothing {
            self.stage = Stage::Complete;
        }
        if self.stage == Stage::Complete {
            self.programmed = Some(admitted.clone());
        }
        self.observed = Some(Rendered {
            dataplane: admitted.clone(),
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

    /// Records a failure of work that began at `started`. `retries` is 1 if the work only repeated
    /// what had failed, otherwise 0.
    fn fail(&mut self, failure: Failure, started: SystemTime, retries: u32) {
        let (since, syncs, before) = match &self.failing {
            Some(before) => (before.since, before.syncs, before.retries),
            None => (started, 0, 0),
        };
        self.failing = Some(Failing {
            since,
            syncs: syncs.saturating_add(1),
            retries: before.saturating_add(retries),
            error: failure.error,
            recovery: failure.recovery,
        });
    }

    /// Records how the sync ended.
    fn conclude(
        &mut self,
        result: Result<Rest, Failure>,
        progress: &Progress<'_>,
    ) -> Arc<FamilySync> {
        let now = progress.clock.wall_time();
        let took = progress.took();
        let ended = progress.clock.now();
        let began = self.unfinished.take().unwrap_or(progress.began);
        let mut repaired_drift = None;
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
                repaired_drift = self.repaired_drifts.repair(ended);
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
        let sync = Arc::new(FamilySync {
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
            repaired_drift,
            quarantined: self.quarantine.list(),
            unsupported_fields: Arc::clone(self.unsupported_fields.list()),
        });
        self.syncs.push(Arc::clone(&sync));
        sync
    }
}

#[cfg(test)]
mod tests;
