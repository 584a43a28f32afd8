//! When to search the flows of a family for stale ones, and for which. Pure.

use std::time::{Duration, Instant};

use dataplane::{Dataplane, Family, Protocol};

use crate::{Outcome, ProgrammedState, StaleCandidates, StaleFlows};

/// How long the first pass waits after a change that affects UDP. A packet that met the old rules
/// on another CPU just before they were replaced creates its flow just after; and endpoints are
/// rarely removed one at a time. A resolver that keeps its port queries a dead server meanwhile:
/// too briefly to notice.
const SETTLE: Duration = Duration::from_millis(10);
/// The same for TCP and SCTP, where only flows that were never answered can be stale. Nothing helps
/// a client before it retransmits its first packet: a SYN after one second (RFC 6298, section 2),
/// an INIT after three (`SCTP_RTO_INITIAL`, include/net/sctp/constants.h). All changes until then
/// share one pass.
const SETTLE_UNANSWERED: Duration = Duration::from_millis(600);
/// The pause after a pass, as a multiple of the pass's duration, up to [`PROMPT`]: the passes of a
/// family take a fiftieth of one CPU, however often endpoints change. For a dump, the kernel walks
/// all its buckets with bottom halves disabled, so packets wait for it, too: some 5 ms for 262,144
/// empty buckets, after which the next pass begins a quarter of a second later.
const PAUSE: u32 = 49;
/// The longest pause that only serves to reduce load: a client of a dead endpoint waits for it.
const PROMPT: Duration = Duration::from_secs(1);
/// The minimum pause as a multiple of the pass's duration: the passes of a family take at most a
/// tenth of one CPU, however large the table.
const LEAST_PAUSE: u32 = 9;
/// The pause after a first failure; it doubles with every further one.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The longest pause after a failure.
const LAST_RETRY: Duration = Duration::from_secs(60);

/// The scheduling state of one family.
#[derive(Debug)]
pub(crate) struct PassSchedule {
    /// The flows to check before no flow contradicts `programmed`.
    stale_candidates: StaleCandidates,
    /// The last known dataplane.
    programmed: Option<Dataplane>,
    /// When the next pass is due. `None` also while it is unknown what is programmed, because flows
    /// could only be judged by the previous dataplane.
    due: Option<Instant>,
    /// The end of the pause after the last pass.
    rested: Option<Instant>,
    failures: u32,
}

// === impl PassSchedule ===

impl PassSchedule {
    /// An agenda without any knowledge of the existing flows.
    pub(crate) fn new(family: Family) -> PassSchedule {
        PassSchedule {
            stale_candidates: StaleCandidates::everything(family),
            programmed: None,
            due: None,
            rested: None,
            failures: 0,
        }
    }

    /// Records what is known as of `now`.
    pub(crate) fn learn(&mut self, knowledge: ProgrammedState, now: Instant) {
        let programmed = match knowledge {
            ProgrammedState::Programmed(programmed) => programmed,
            ProgrammedState::Unknown => {
                self.stale_candidates.add_everything();
                self.due = None;
                return;
            }
        };
        if let Some(before) = &self.programmed {
            self.stale_candidates.add_step(before, &programmed);
        }
        self.programmed = Some(programmed);
        if !self.stale_candidates.is_empty() {
            let settled = now + settle(&self.stale_candidates);
            let due = self.rested.map_or(settled, |rested| rested.max(settled));
            // An urgent change does not wait for one that is not.
            self.due = Some(self.due.map_or(due, |before| before.min(due)));
        }
    }

    /// When the next pass is due; `None` until something changes.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns what to search for, if a pass is due.
    pub(crate) fn start(&mut self, now: Instant) -> Option<StaleFlows> {
        self.due.filter(|due| *due <= now)?;
        self.due = None;
        let programmed = self.programmed.as_ref()?;
        Some(StaleFlows::compile(&self.stale_candidates, programmed))
    }

    /// Records the outcome of the last started pass, which ended at `now` and took `took`. There
    /// was no call of [`learn`](PassSchedule::learn) in between.
    pub(crate) fn finish(&mut self, outcome: &Outcome, took: Duration, now: Instant) {
        let mut pause = (took * PAUSE).min(PROMPT).max(took * LEAST_PAUSE);
        match outcome {
            Outcome::Complete => {
                self.stale_candidates = StaleCandidates::none(self.stale_candidates.family());
                self.failures = 0;
            }
            Outcome::BudgetSpent | Outcome::Overtaken => self.failures = 0,
            Outcome::Failed(_) => {
                let doubled = FIRST_RETRY.saturating_mul(2u32.saturating_pow(self.failures));
                pause = pause.max(doubled.min(LAST_RETRY));
                self.failures = self.failures.saturating_add(1);
            }
        }
        self.rested = Some(now + pause);
        if !matches!(outcome, Outcome::Complete) {
            self.due = self.rested;
        }
    }
}

/// How long to wait for further changes before the pass for these doubts.
fn settle(stale_candidates: &StaleCandidates) -> Duration {
    let mut protocols = stale_candidates.protocols().iter();
    match protocols.any(|protocol| *protocol == Protocol::Udp) {
        true => SETTLE,
        false => SETTLE_UNANSWERED,
    }
}

#[cfg(test)]
mod tests;
