//! When to look at the flows of a family, and for what. Pure.

use std::time::{Duration, Instant};

use dataplane::{Dataplane, Family, Protocol};

use crate::{Doubts, Knowledge, Outcome, Watchlist};

/// How long after a change of UDP its first pass waits. A packet that met the old rules on another
/// CPU just before they were replaced makes its flow just after; and an endpoint rarely goes alone.
/// A resolver that keeps its port asks a dead server meanwhile: too short to notice.
const SETTLE: Duration = Duration::from_millis(10);
/// The same of TCP and SCTP, of which only flows that were never answered can be stale: nothing
/// helps a client before it sends its first packet again, a SYN after one second (RFC 6298, section 2), an
/// INIT after three (`SCTP_RTO_INITIAL`, include/net/sctp/constants.h). What happens until then
/// shares one pass.
const SETTLE_UNANSWERED: Duration = Duration::from_millis(600);
/// A pass is followed by a pause of this many times what it took, as long as that is within
/// [`PROMPT`]: a fiftieth of one CPU goes into passes of a family, however often endpoints change. The
/// kernel walks all its buckets for a list, with bottom halves off, so that packets wait for it too:
/// some 5 ms for 262,144 empty ones, after which the next pass begins a quarter of a second later.
const PAUSE: u32 = 49;
/// A client of a dead endpoint does not wait for longer than this only so that less is done.
const PROMPT: Duration = Duration::from_secs(1);
/// But a pause is never less than this many times what the pass took: a tenth of one CPU at most goes
/// into passes of a family, however large the table.
const LEAST_PAUSE: u32 = 9;
/// The pause after a first failure; it doubles with every further one.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The longest pause after a failure.
const LAST_RETRY: Duration = Duration::from_secs(60);

/// What one family has coming.
#[derive(Debug)]
pub(crate) struct Agenda {
    /// What has to be looked at before no flow is at odds with `programmed`.
    doubts: Doubts,
    /// What is programmed, as last known.
    programmed: Option<Dataplane>,
    /// When to look; `None` also while it is not known what is programmed, because flows could only be
    /// judged by what was programmed before.
    due: Option<Instant>,
    /// The end of the pause after the last pass.
    rested: Option<Instant>,
    failures: u32,
}

// === impl Agenda ===

impl Agenda {
    /// Nothing is known of what flows there are.
    pub(crate) fn new(family: Family) -> Agenda {
        Agenda {
            doubts: Doubts::everything(family),
            programmed: None,
            due: None,
            rested: None,
            failures: 0,
        }
    }

    /// Takes in what is known as of `now`.
    pub(crate) fn learn(&mut self, knowledge: Knowledge, now: Instant) {
        let programmed = match knowledge {
            Knowledge::Programmed(programmed) => programmed,
            Knowledge::Unknown => {
                self.doubts.add_everything();
                self.due = None;
                return;
            }
        };
        if let Some(before) = &self.programmed {
            self.doubts.add_step(before, &programmed);
        }
        self.programmed = Some(programmed);
        if !self.doubts.is_empty() {
            let settled = now + settle(&self.doubts);
            let due = self.rested.map_or(settled, |rested| rested.max(settled));
            // What is urgent does not wait for what is not.
            self.due = Some(self.due.map_or(due, |before| before.min(due)));
        }
    }

    /// When there is something to do next; `None`: when something changes.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// What to look for, if it is time to.
    pub(crate) fn start(&mut self, now: Instant) -> Option<Watchlist> {
        self.due.filter(|due| *due <= now)?;
        self.due = None;
        let programmed = self.programmed.as_ref()?;
        Some(Watchlist::compile(&self.doubts, programmed))
    }

    /// The pass that was started last ended at `now`, and took this long. Nothing was learnt
    /// meanwhile.
    pub(crate) fn finish(&mut self, outcome: &Outcome, took: Duration, now: Instant) {
        let mut pause = (took * PAUSE).min(PROMPT).max(took * LEAST_PAUSE);
        match outcome {
            Outcome::Complete => {
                self.doubts = Doubts::none(self.doubts.family());
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

/// How long what is in doubt is given to settle.
fn settle(doubts: &Doubts) -> Duration {
    let mut protocols = doubts.protocols().iter();
    match protocols.any(|protocol| *protocol == Protocol::Udp) {
        true => SETTLE,
        false => SETTLE_UNANSWERED,
    }
}

#[cfg(test)]
mod tests;
