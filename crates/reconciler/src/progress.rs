//! The progress of one sync.

use std::time::{Duration, Instant, SystemTime};

use backend::{Receipt, Size};

use crate::{Clock, Phases, Reason};

/// A running sync: its reason and its cost so far.
pub(crate) struct Progress<'a> {
    pub(crate) clock: &'a dyn Clock,
    pub(crate) reason: Reason,
    pub(crate) started: SystemTime,
    pub(crate) began: Instant,
    pub(crate) phases: Phases,
    pub(crate) size: Size,
    pub(crate) transactions: usize,
    pub(crate) reread: Reread,
}

/// Whether a commit with unknown effect may be followed at once by reading the rules back and
/// another attempt. One such attempt per sync is enough to answer a concurrent change by another
/// program; a kernel that fails this way again is likely to keep failing for some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reread {
    Allowed,
    Taken,
}

/// A part of a sync that is timed separately.
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
            reread: Reread::Allowed,
        }
    }

    /// Does `work` and adds the time it took to `phase`.
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

    /// Allows each domain of the family its own attempt.
    pub(crate) fn allow_reread(&mut self) {
        self.reread = Reread::Allowed;
    }

    /// Returns `true` the first time, `false` after that.
    pub(crate) fn take_reread(&mut self) -> bool {
        std::mem::replace(&mut self.reread, Reread::Taken) == Reread::Allowed
    }

    pub(crate) fn took(&self) -> Duration {
        self.since(self.began)
    }

    fn since(&self, began: Instant) -> Duration {
        self.clock.now().saturating_duration_since(began)
    }
}
