//! One mode of one address family, and what the kernel is last known to hold for it.

mod adaptive_part_size;
mod attempt;
mod completeness;
mod goal;
mod isolate;
mod pending_drift;
mod quarantine;
mod unsupported_fields;
mod unverified_rules;

use std::sync::Arc;
use std::time::{Duration, Instant};

use backend::{
    Actor, Backend, Change, CommitError, Drift, DriftDetection, Leftover, ObserveError, Receipt,
    Recovery, Rendered, UnsupportedField,
};
use dataplane::Dataplane;

use crate::progress::{Phase, Progress};
use crate::{Failure, Quarantined, Reason, RepairedDrift};
use adaptive_part_size::AdaptivePartSize;
pub(crate) use attempt::Rest;
use attempt::{Attempt, AttemptScope, as_observed};
use completeness::Completeness;
pub(crate) use goal::Goal;
use pending_drift::PendingDrift;
use quarantine::{Quarantine, Suspicion};
use unsupported_fields::UnsupportedFields;
use unverified_rules::{Cause, UnverifiedRules};

/// One mode of one address family: its backend, and the last known state of the kernel. Domains
/// share no state, so one that fails leaves the others in service.
///
/// The last known state is what the kernel acknowledged or what was read back from it, never what
/// was sent to it.
#[derive(Debug)]
pub(crate) struct Domain<B: Backend> {
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
    completeness: Completeness,
    part_size: AdaptivePartSize,
    pending_drift: PendingDrift,
    /// How long the backend took for the last two answers that there is no drift.
    checks_took: [Duration; 2],
}

/// Whether the kernel holds any of a domain's rules, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holding {
    Unknown,
    Nothing,
    Rules,
}

// === impl Domain ===

impl<B: Backend> Domain<B> {
    /// A domain with no known kernel state.
    pub(crate) fn new(backend: B) -> Domain<B> {
        Domain {
            backend,
            observed: None,
            unverified_rules: None,
            programmed: None,
            quarantine: Quarantine::default(),
            unsupported_fields: UnsupportedFields::default(),
            completeness: Completeness::default(),
            part_size: AdaptivePartSize::default(),
            pending_drift: PendingDrift::default(),
            checks_took: [Duration::ZERO; 2],
        }
    }

    pub(crate) fn backend(&self) -> &B {
        &self.backend
    }

    /// How long a check of the kernel takes, if changes are noticed only by checks: the shorter one
    /// of the last two, since a busy machine delays one.
    pub(crate) fn check_took(&self) -> Option<Duration> {
        let took = self.checks_took.into_iter().min();
        took.filter(|_| self.backend.drift_detection() == DriftDetection::ByCheck)
    }

    /// What the kernel is last known to hold; `None` if that is not known.
    pub(crate) fn observed(&self) -> Option<&Rendered<B::Rules>> {
        self.observed.as_ref()
    }

    pub(crate) fn holding(&self) -> Holding {
        match &self.observed {
            None => Holding::Unknown,
            Some(observed) if observed.rules == B::Rules::default() => Holding::Nothing,
            Some(_) => Holding::Rules,
        }
    }

    /// What the kernel was last known to implement.
    pub(crate) fn programmed(&self) -> Option<&Dataplane> {
        self.programmed.as_ref()
    }

    /// The Services that the kernel refuses.
    pub(crate) fn quarantined(&self) -> Vec<Quarantined> {
        self.quarantine.list()
    }

    /// How many Services the search has yet to try for the first time, see [`Quarantine::searched`].
    pub(crate) fn searched(&self) -> usize {
        self.quarantine.searched()
    }

    /// How many Services are held back, whether or not the kernel refuses them.
    #[cfg(test)]
    pub(crate) fn held_back(&self) -> usize {
        self.quarantine.len()
    }

    /// What the backend does not support, and what it does instead.
    pub(crate) fn unsupported_fields(&self) -> &Arc<[UnsupportedField]> {
        self.unsupported_fields.list()
    }

    /// Records that another program has changed, or may have changed, Signpost's rules.
    pub(crate) fn notify(&mut self, actor: Option<&Actor>, now: Instant) {
        self.pending_drift.notify(actor, now);
    }

    /// Whether a notification arrived that no sync has checked yet.
    pub(crate) fn is_notified(&self) -> bool {
        self.pending_drift.is_notified()
    }

    /// The difference that was found and that the sync which ended now has repaired.
    pub(crate) fn take_repaired(&mut self, ended: Instant) -> Option<RepairedDrift> {
        self.pending_drift.repair(ended)
    }

    /// Pursues `goal`, as far as the kernel accepts it and one part goes. If the change is larger
    /// than the backend's [`part_size`](Backend::part_size), programs a part of it. Counts in
    /// `progress` what it does.
    ///
    /// The cost is proportional to what changed since the last sync. Services that the kernel
    /// refuses are found by bisection and held back: about `2 k log n` commits for `k` refused
    /// among `n` changed in one part. A search that takes longer than a part goes on in the next sync.
    pub(crate) fn sync(
        &mut self,
        goal: Goal<'_>,
        reason: Reason,
        progress: &mut Progress<'_>,
    ) -> Result<Rest, Failure> {
        progress.allow_reread();
        if let Some(desired) = goal.desired() {
            if reason.is_periodic() {
                self.quarantine.retry_all();
            }
            self.quarantine.release_changed(desired);
        }
        let result = self
            .compare_with_kernel(reason, progress)
            .and_then(|()| self.pursue(goal, progress));
        // If no Service explains the refusal, the kernel may hold something else than was last read.
        // A table goes with the program that owns it, without a generation and without a
        // notification (nft_rcv_nl_event in nf_tables_api.c).
        if matches!(&result, Err(failure) if failure.recovery == Recovery::Isolate) {
            self.forget_observed();
        }
        if let Goal::Serve(desired) = goal {
            // Rules that were read, as before a repair that failed, do not show what has no room.
            let programmed = result.as_ref().ok().and(self.observed.as_ref());
            let rules = programmed.map(|programmed| &programmed.rules);
            self.unsupported_fields
                .follow(&self.backend, desired, rules);
        }
        result
    }

    /// Reads the rules back if they are not known and no earlier state is to be compared with them.
    pub(crate) fn read(&mut self, progress: &mut Progress<'_>) -> Result<(), Failure> {
        if self.observed.is_none() && self.unverified_rules.is_none() {
            self.observed = Some(as_observed(self.observe(progress)?));
        }
        Ok(())
    }

    /// Releases what the backend needs only to read and write.
    pub(crate) fn release(&mut self) {
        self.backend.release();
    }

    /// Removes all of Signpost's rules of this mode from the kernel. Whether this succeeds or fails,
    /// the next sync reads the rules back.
    pub(crate) fn commit_removal(&mut self) -> Result<Receipt, CommitError> {
        self.forget_observed();
        let receipt = self.backend.commit_removal()?;
        self.forget_programmed();
        Ok(receipt)
    }

    /// The same, but what established connections need may stay.
    pub(crate) fn commit_withdrawal(&mut self) -> Result<Leftover, CommitError> {
        self.forget_observed();
        let leftover = self.backend.commit_withdrawal()?;
        self.forget_programmed();
        Ok(leftover)
    }

    /// Makes the next sync read the rules back, whatever it finds. Nothing is known any more that
    /// another program could have changed.
    pub(crate) fn forget_observed(&mut self) {
        self.observed = None;
        self.unverified_rules = None;
        self.pending_drift.forget_notification();
    }

    fn forget_programmed(&mut self) {
        self.programmed = None;
        self.completeness = Completeness::default();
        self.quarantine = Quarantine::default();
        self.unsupported_fields = UnsupportedFields::default();
    }

    fn pursue(&mut self, goal: Goal<'_>, progress: &mut Progress<'_>) -> Result<Rest, Failure> {
        match goal {
            Goal::Serve(desired) => self.program(desired, progress),
            Goal::Follow(desired) => {
                self.read(progress)?;
                if self.holding() == Holding::Nothing {
                    return Ok(Rest::Nothing);
                }
                self.program(desired, progress)
            }
            Goal::Nothing => {
                let removal =
                    self.attempt(&Dataplane::default(), AttemptScope::Nothing, progress)?;
                let rest = removal.programmed()?;
                self.forget_programmed();
                Ok(rest)
            }
        }
    }

    /// Reads the rules back if the sync's reason asks for it and there is a known state to verify.
    fn compare_with_kernel(
        &mut self,
        reason: Reason,
        progress: &mut Progress<'_>,
    ) -> Result<(), Failure> {
        if !reason.checks_kernel() {
            return Ok(());
        }
        let Some(observed) = self.observed.take() else {
            // Nothing to compare with. With a doubt recorded, the attempt compares instead.
            if self.unverified_rules.is_none() {
                self.pending_drift.forget_notification();
            }
            return Ok(());
        };
        let notification = self.pending_drift.take_notification();
        let backend = &mut self.backend;
        let look = match reason {
            Reason::Retry | Reason::Continued | Reason::Changed | Reason::Startup => false,
            Reason::Requested => true,
            // If drift cannot be ruled out, read the rules back.
            Reason::Timer | Reason::Drift => {
                let before = progress.phases.observe;
                let drift = progress.measure(Phase::Observe, || backend.observe_drift());
                let took = progress.phases.observe.saturating_sub(before);
                match drift {
                    Ok(Drift::Possible) => {
                        // After two slow checks, each next one may come so late that a full read is
                        // due, and none would count any more.
                        self.checks_took[0] = took.min(self.checks_took[0]);
                        true
                    }
                    Err(_) => true,
                    Ok(found) => {
                        self.checks_took = [took, self.checks_took[0]];
                        // The notification may be of what was not compared.
                        notification.is_some() && found == Drift::NoneInPart
                    }
                }
            }
        };
        if !look {
            self.pending_drift.find_nothing(notification, progress);
            self.observed = Some(observed);
            return Ok(());
        }
        let rules = match self.observe(progress) {
            Ok(rules) => rules,
            Err(failure) => {
                self.pending_drift.restore_notification(notification);
                self.unverified_rules = Some(UnverifiedRules {
                    rules: observed.rules,
                    cause: Cause::Unread,
                });
                return Err(failure);
            }
        };
        if rules == observed.rules {
            self.pending_drift.find_nothing(notification, progress);
            self.observed = Some(observed);
        } else {
            let size = self.backend.diff(&rules, &observed.rules).size();
            self.pending_drift.find(size, notification, progress);
            progress.reason = Reason::Drift;
            self.observed = Some(as_observed(rules));
        }
        Ok(())
    }

    /// Programs `desired`, or a part of it, without what is held back. Then tries what is held back,
    /// so that it delays no other change, for about as long as a part may take.
    fn program(
        &mut self,
        desired: &Dataplane,
        progress: &mut Progress<'_>,
    ) -> Result<Rest, Failure> {
        let began = progress.clock.now();
        let longest = self.backend.longest_part(desired.config());
        let mut rest = self.program_admitted(desired, progress)?;
        if let Rest::Another(programmed) = rest {
            let took = progress.clock.now().saturating_duration_since(began);
            self.part_size.follow(programmed, took, longest);
        }
        let admitted = self.search(desired, (began, longest), progress)?;
        let is_over = self.quarantine.next_suspicion() != Some(Suspicion::Suspected);
        if admitted && is_over && rest == Rest::Nothing {
            // Others may have been without claims on what these Services have.
            rest = self.program_admitted(desired, progress)?;
        }
        if rest != Rest::Nothing {
            return Ok(rest);
        }
        let rest = match self.quarantine.next_suspicion() {
            Some(Suspicion::Suspected) => return Ok(Rest::Suspects),
            Some(Suspicion::Changed | Suspicion::Refused) => Rest::Retries,
            None => Rest::Nothing,
        };
        self.complete();
        Ok(rest)
    }

    fn program_admitted(
        &mut self,
        desired: &Dataplane,
        progress: &mut Progress<'_>,
    ) -> Result<Rest, Failure> {
        let admitted = self.quarantine.apply(desired, self.programmed.as_ref());
        match self.attempt(&admitted, AttemptScope::Part, progress)? {
            Attempt::Programmed(rest) => Ok(rest),
            Attempt::Refused(refusal) => self.isolate(*refusal, desired, progress),
        }
    }

    /// Records that the kernel holds `rules`, rendered from `admitted`. Only a part that the kernel
    /// has accepted begins a rebuild: tables that are opened on demand refuse the first one.
    fn advance(&mut self, admitted: &Dataplane, rules: B::Rules, completeness: Completeness) {
        self.completeness = completeness;
        if completeness == Completeness::Complete {
            self.programmed = Some(admitted.clone());
        }
        self.observed = Some(Rendered {
            dataplane: admitted.clone(),
            rules,
        });
    }

    /// Records that nothing is left to program.
    fn complete(&mut self) {
        self.completeness = Completeness::Complete;
        if let Some(observed) = &self.observed {
            self.programmed = Some(observed.dataplane.clone());
        }
    }

    fn observe(&mut self, progress: &mut Progress<'_>) -> Result<B::Rules, Failure> {
        let backend = &mut self.backend;
        progress
            .measure(Phase::Observe, || backend.observe())
            .map_err(|error: ObserveError| Failure::from(&error))
    }
}
