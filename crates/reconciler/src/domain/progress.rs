//! What has happened so far in a round.

use std::time::{Duration, Instant, SystemTime};

use backend::{Receipt, Size};

use crate::{Clock, Phases, Reason};

/// One round while it runs: what it was for, what it has cost.
pub(crate) struct Progress<'a> {
    pub(crate) clock: &'a dyn Clock,
    pub(crate) reason: Reason,
    pub(crate) started: SystemTime,
    pub(crate) began: Instant,
    pub(crate) phases: Phases,
    pub(crate) size: Size,
    pub(crate) transactions: usize,
    pub(crate) second_look: SecondLook,
}

/// Whether a commit with unknown effect may be followed by a look at the kernel and another try at
/// once. One is enough to answer a change made behind our back; a kernel that says so again will
/// say so for some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SecondLook {
    Allowed,
    Taken,
}

/// A part of a round whose time is counted.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Phase {
    Observe,
    Render,
    Diff,
    Commit,
}

impl<'a> Progress<'a> {
    pub(crate) fn new(reason: Reason, clock: &'a dyn Clock) -> Progress<'a> {
        Progress {
            clock,
            reason,
            started: clock.wall_time(),
            began: clock.now(),
            phases: Phases::default(),
            size: Size::default(),
            transactions: 0,
            second_look: SecondLook::Allowed,
        }
    }

    /// Does `work` and counts its time.
    pub(crate) fn measure<T>(&mut self, phase: Phase, work: impl FnOnce() -> T) -> T {
        let began = self.clock.now();
        let done = work();
        let took = self.since(began);
        let phases = &mut self.phases;
        *match phase {
            Phase::Observe => &mut phases.observe,
            Phase::Render => &mut phases.render,
            Phase::Diff => &mut phases.diff,
            Phase::Commit => &mut phases.commit,
        } += took;
        done
    }

    /// Counts a change that took effect.
    pub(crate) fn count(&mut self, size: Size, receipt: Receipt) {
        self.size.elements += size.elements;
        self.size.objects += size.objects;
        self.transactions += receipt.transactions;
    }

    /// Whether to look again, this once.
    pub(crate) fn take_second_look(&mut self) -> bool {
        std::mem::replace(&mut self.second_look, SecondLook::Taken) == SecondLook::Allowed
    }

    pub(crate) fn took(&self) -> Duration {
        self.since(self.began)
    }

    fn since(&self, began: Instant) -> Duration {
        self.clock.now().saturating_duration_since(began)
    }
}
