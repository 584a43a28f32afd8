//! How a sync of one family ends: its record, and what the status keeps of it.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use backend::Backend;

use super::switch::Ended;
use super::{FamilyReconciler, Rest};
use crate::progress::Progress;
use crate::status::{Failing, Pace};
use crate::{DriftByProgram, Failure, FamilySync, Outcome, Reason, RepairedDrift};

impl<B: Backend> FamilyReconciler<B> {
    /// Records a failure of work that began at `started`. `retries` is 1 if the work only repeated
    /// what had failed, otherwise 0.
    pub(super) fn fail(&mut self, failure: Failure, started: SystemTime, retries: u32) {
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
    pub(super) fn conclude(&mut self, ended_as: Ended, progress: &Progress<'_>) -> Arc<FamilySync> {
        let now = progress.clock.wall_time();
        let took = progress.took();
        let ended = progress.clock.now();
        let began = self.unfinished.take().unwrap_or(progress.began);
        let mut repaired_drift = None;
        if progress.transactions > 0 {
            self.last_receipt = Some(now);
        }
        let outcome = match ended_as.result {
            Ok(rest @ (Rest::Another(_) | Rest::Suspects)) => {
                self.unfinished = Some(began);
                if rest == Rest::Suspects {
                    // What the kernel refuses is no failure of the others.
                    self.failing = None;
                }
                Outcome::Partial
            }
            Ok(rest @ (Rest::Nothing | Rest::Retries)) => {
                self.unfinished = (rest == Rest::Retries).then_some(ended);
                self.failing = None;
                self.pace = Pace::of(ended.saturating_duration_since(began));
                self.last_success = Some(now);
                self.programmed_since.get_or_insert(now);
                repaired_drift = self.repair(ended);
                match progress.transactions {
                    0 => Outcome::Unchanged,
                    _ => Outcome::Committed,
                }
            }
            Err(failure) => {
                self.unfinished = (ended_as.left != Rest::Nothing).then_some(began);
                if ended_as.has_waited {
                    Outcome::Partial
                } else {
                    let retry = u32::from(progress.reason == Reason::Retry);
                    self.fail(failure.clone(), progress.started, retry);
                    Outcome::Failed(failure)
                }
            }
        };
        self.count += 1;
        let chosen = &self.mode_domains[self.position(self.chosen)].domain;
        let sync = Arc::new(FamilySync {
            family: self.family,
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
            quarantined: chosen.quarantined(),
            unsupported_fields: Arc::clone(chosen.unsupported_fields()),
        });
        self.syncs.push(Arc::clone(&sync));
        sync
    }

    /// Records that the kernel holds the desired state, so what was found is repaired. Returns the
    /// change repaired last.
    fn repair(&mut self, ended: Instant) -> Option<RepairedDrift> {
        let mut last = None;
        for mode_domain in &mut self.mode_domains {
            let Some(repaired_drift) = mode_domain.domain.take_repaired(ended) else {
                continue;
            };
            self.drifts += 1;
            let mut drift_by_program = self.drift_by_program.to_vec();
            DriftByProgram::add(&mut drift_by_program, &repaired_drift);
            self.drift_by_program = drift_by_program.into();
            self.last_repaired_drift = Some(repaired_drift.clone());
            last = Some(repaired_drift);
        }
        last
    }
}
