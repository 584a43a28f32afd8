//! When the next sync is due.

mod check_backoff;

use std::time::{Duration, Instant};

use crate::{Reason, RepairedDrift};
use check_backoff::CheckBackoff;
pub(crate) use check_backoff::RepairSeries;

/// The delay of the first retry after a failure; it doubles with every further one. A lock that
/// another process holds, or a temporary shortage of memory, is usually gone within this order of
/// magnitude.
const FIRST_RETRY: Duration = Duration::from_millis(50);

/// The maximum length of the pause after a sync, otherwise as long as the sync, so that other
/// processes can have the kernel's locks at least half of the time. A longer sync, such as one
/// that loads everything, is not made up for.
const LONGEST_REST: Duration = Duration::from_millis(100);

/// How often to write and how often to check the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Periods {
    /// The minimum time between the end of one sync and the start of the next. Unless it is 0, a
    /// longer sync is followed by a pause of its own length, at most 100 ms.
    pub min_sync_period: Duration,
    /// The time between two periodic checks, and the maximum time between two attempts.
    pub sync_period: Duration,
}

/// Whether a change may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// It waits until `minSyncPeriod` has passed.
    Ordinary,
    /// It removes endpoints that still receive packets, so it does not wait for `minSyncPeriod`. A
    /// second urgent change within the same period waits.
    Urgent,
}

/// What follows a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FollowUp {
    /// Nothing before the periodic check.
    Settled,
    /// The rest of a large change, at once.
    Unfinished,
    /// Another attempt.
    Retry {
        /// How many attempts were made only because the previous one had failed. Attempts for new
        /// changes do not count: a burst of changes does not show how long the cause of the failure
        /// lasts.
        retries: u32,
    },
    /// The rest of a large change in one family or mode at once, and another attempt in another one.
    UnfinishedAndRetry {
        /// The same as for `Retry`.
        retries: u32,
    },
}

/// A sync that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// When it is due; may be in the past.
    pub at: Instant,
    /// Why it is due.
    pub reason: Reason,
}

/// Decides when syncs run. The first change after a quiet period is answered at once. Later
/// changes are gathered until `minSyncPeriod` has passed since the end of the last sync. A sync
/// answers every request made before it started, and no request is lost. No check for external
/// changes, which may concern another family, delays a change.
///
/// Nothing is due before the first change: there is no desired state to compare the kernel with.
#[derive(Debug, Clone)]
pub struct Schedule {
    periods: Periods,
    /// After how long the kernel is checked again, if sooner than `sync_period`: some changes come
    /// without a notification.
    check_period: Option<Duration>,
    changed: Option<Waiting>,
    drifted: Option<Instant>,
    check_backoff: CheckBackoff,
    requested: Option<Instant>,
    running: Option<Running>,
    last: Option<Last>,
    follow_up: FollowUp,
    /// When the wait for another attempt began.
    waits_since: Option<Instant>,
}

/// A change that no sync has answered yet.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    since: Instant,
    urgency: Urgency,
    /// When it would be due without the checks that have begun since and do not answer it.
    due_by: Option<Instant>,
}

/// A sync that has started.
#[derive(Debug, Clone, Copy)]
struct Running {
    reason: Reason,
    began: Instant,
    check_reason: DriftCheckReason,
    /// Whether it only checks: nothing has changed, and no external change was announced.
    is_routine: bool,
}

/// Whether a sync checks the kernel because another program may have changed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DriftCheckReason {
    ExternalChange,
    Other,
}

/// What is kept of the last syncs.
#[derive(Debug, Clone, Copy)]
struct Last {
    ended: Instant,
    took: Duration,
    /// When the last periodic check ended.
    checked: Instant,
    /// When the kernel was last checked for whatever reason.
    looked: Instant,
    /// Whether it ran without waiting for `minSyncPeriod`.
    jumped: bool,
}

// === impl Schedule ===

impl Schedule {
    /// A schedule on which nothing is due.
    pub fn new(periods: Periods) -> Schedule {
        Schedule {
            periods,
            check_period: None,
            changed: None,
            drifted: None,
            check_backoff: CheckBackoff::default(),
            requested: None,
            running: None,
            last: None,
            follow_up: FollowUp::Settled,
            waits_since: None,
        }
    }

    /// Sets the periods. They also apply to what is already waiting.
    pub fn set_periods(&mut self, periods: Periods) {
        self.periods = periods;
    }

    /// Records that the desired state has changed.
    pub fn changed(&mut self, now: Instant, urgency: Urgency) {
        let waiting = self.changed.get_or_insert(Waiting {
            since: now,
            urgency,
            due_by: None,
        });
        waiting.urgency = waiting.urgency.max(urgency);
    }

    /// Records that another program may have changed the kernel. The first repairs run at once. If
    /// the changes repeat, repairs become rarer, down to one every few seconds, until a quiet
    /// period has passed. After a check that found nothing, the next one waits in proportion to how
    /// long that check took.
    pub fn drifted(&mut self, now: Instant) {
        self.drifted.get_or_insert(now);
    }

    /// Records that an operator requested a sync.
    pub fn requested(&mut self, now: Instant) {
        self.requested.get_or_insert(now);
    }

    /// The delay of the next attempt after this many failures.
    pub(crate) fn retry_delay(&self, failures: u32) -> Duration {
        retry_delay(failures, self.periods.sync_period)
    }

    /// The time between two periodic checks.
    pub(crate) fn sync_period(&self) -> Duration {
        self.periods.sync_period
    }

    /// The recent repairs, if there are so many that the next one has to wait.
    pub(crate) fn held_back(&self) -> Option<&RepairSeries> {
        self.check_backoff.held_back().map(|(series, _)| series)
    }

    /// When [`calm`](Schedule::calm) ends that, if nothing happens until then.
    pub(crate) fn calm_at(&self) -> Option<Instant> {
        let (_, at) = self.check_backoff.held_back()?;
        let undisturbed = self.drifted.is_none() && self.running.is_none();
        undisturbed.then_some(at)
    }

    /// Forgets repairs that are long past.
    pub(crate) fn calm(&mut self, now: Instant) {
        if self.calm_at().is_some_and(|at| at <= now) {
            self.check_backoff.forgive(now);
        }
    }

    /// The next sync, as far as is known now. `None` while one runs: the next time depends on when
    /// and how that sync ends.
    pub fn due(&self) -> Option<Due> {
        let mut candidates = self.candidates();
        let first = candidates.iter().map(|due| due.at).min()?;
        candidates.retain(|due| due.at == first);
        candidates.into_iter().max_by_key(|due| due.reason)
    }

    /// Starts a sync if one is due. It covers everything that is due, but a change that waits while
    /// the kernel is checked for external changes; of several reasons it returns the one that does
    /// the most.
    pub fn start(&mut self, now: Instant) -> Option<Reason> {
        let candidates = self.candidates();
        let due = candidates.iter().filter(|due| due.at <= now);
        let reason = due.map(|due| due.reason).max()?;
        let of_change = candidates
            .iter()
            .filter(|due| due.reason == Reason::Changed);
        let change_is_due = of_change.map(|due| due.at).min();
        if let Some(last) = &mut self.last {
            // The rest of a large change does not wait, and is not counted as an urgent change.
            let is_overdue = self
                .changed
                .and_then(|waiting| waiting.due_by)
                .is_some_and(|due_by| due_by <= now);
            last.jumped = !self.follow_up.is_unfinished()
                && !is_overdue
                && now < last.earliest_next(self.periods);
        }
        // Every sync compares with the current desired state, so it answers a change whatever its
        // reason, except `Drift`: only families whose rules may have changed have such a sync. Only
        // some reasons check the kernel, and only `Requested` and `Startup` answer a request.
        match &mut self.changed {
            Some(waiting) if reason == Reason::Drift => {
                waiting.due_by = change_is_due;
            }
            changed => *changed = None,
        }
        let check_reason = match reason.checks_kernel() && self.drifted.take().is_some() {
            true => DriftCheckReason::ExternalChange,
            false => DriftCheckReason::Other,
        };
        if matches!(reason, Reason::Requested | Reason::Startup) {
            self.requested = None;
        }
        self.running = Some(Running {
            reason,
            began: now,
            check_reason,
            is_routine: reason == Reason::Drift
                && check_reason == DriftCheckReason::Other
                && self.changed.is_none(),
        });
        Some(reason)
    }

    /// Records the end of the sync that was started last, and what it has repaired.
    pub fn finish(&mut self, now: Instant, follow_up: FollowUp, repaired: &[&RepairedDrift]) {
        let running = self.running.take();
        let checked = match self.last {
            Some(last) if !running.is_some_and(|running| running.reason.is_periodic()) => {
                last.checked
            }
            _ => now,
        };
        let looked = match self.last {
            Some(last) if !running.is_some_and(|running| running.reason.checks_kernel()) => {
                last.looked
            }
            _ => now,
        };
        if let Some(running) = running {
            self.check_backoff.forgive(running.began);
            if !repaired.is_empty() {
                self.check_backoff.repaired(repaired, running.began, now);
            } else if running.check_reason == DriftCheckReason::ExternalChange
                && !follow_up.is_unfinished()
            {
                self.check_backoff.found_nothing(running.began, now);
            }
        }
        let began = running.map_or(now, |running| running.began);
        let found_nothing = running.is_some_and(|running| running.is_routine)
            && repaired.is_empty()
            && follow_up == FollowUp::Settled;
        self.last = match self.last {
            // No change waits for a check that found nothing.
            Some(last) if found_nothing => Some(Last { looked, ..last }),
            last => Some(Last {
                ended: now,
                took: now.saturating_duration_since(began),
                checked,
                looked,
                jumped: last.is_some_and(|last| last.jumped),
            }),
        };
        // The rest of a large change restarts no wait: there may be one part after the other.
        self.waits_since = follow_up.retries().map(|retries| {
            let leaves_out = |it: Running| matches!(it.reason, Reason::Continued | Reason::Drift);
            let goes_on = self.follow_up.is_unfinished()
                && self.follow_up.retries() == Some(retries)
                && running.is_some_and(leaves_out);
            self.waits_since.filter(|_| goes_on).unwrap_or(now)
        });
        self.follow_up = follow_up;
    }

    /// Sets after how long the kernel is checked again; `None` leaves that to the periodic check.
    pub fn set_check_period(&mut self, period: Option<Duration>) {
        self.check_period = period;
    }

    /// One candidate sync for each pending cause, each at its own time.
    fn candidates(&self) -> Vec<Due> {
        if self.running.is_some() {
            return Vec::new();
        }
        let Some(last) = self.last else {
            // Everything else waits for the first desired state.
            let first = self.changed.map(|waiting| Due {
                at: waiting.since,
                reason: Reason::Startup,
            });
            return first.into_iter().collect();
        };
        let sync_period = self.periods.sync_period;
        let earliest = last.earliest_next(self.periods);
        // What follows a large change at once could otherwise keep these waiting until its end.
        let is_unfinished = self.follow_up.is_unfinished();
        let not_before = match is_unfinished {
            true => last.ended,
            false => earliest,
        };
        let mut candidates = vec![Due {
            at: (last.checked + sync_period).max(not_before),
            reason: Reason::Timer,
        }];
        // Not between failed attempts.
        let checks = is_unfinished || self.follow_up == FollowUp::Settled;
        if let Some(period) = self.check_period.filter(|_| checks) {
            let at = self.check_backoff.earliest(last.looked + period);
            candidates.push(Due {
                at: at.max(not_before),
                reason: Reason::Drift,
            });
        }
        let mut ask = |at: Instant, reason| candidates.push(Due { at, reason });
        if let Some(waiting) = self.changed {
            let at = match waiting.urgency {
                Urgency::Urgent if !last.jumped => waiting.since,
                Urgency::Urgent | Urgency::Ordinary => waiting.since.max(earliest),
            };
            let at = waiting.due_by.map_or(at, |due_by| due_by.min(at));
            ask(at, Reason::Changed);
        }
        if let Some(since) = self.drifted {
            ask(self.check_backoff.earliest(since), Reason::Drift);
        }
        if let Some(since) = self.requested {
            ask(since.max(not_before), Reason::Requested);
        }
        let waits_since = self.waits_since.unwrap_or(last.ended);
        let retries = self.follow_up.retries();
        let retry = retries.map(|retries| waits_since + retry_delay(retries, sync_period));
        match (is_unfinished, retry) {
            (false, None) => {}
            (false, Some(at)) => ask(at.max(earliest), Reason::Retry),
            // No pause: a large change uses the kernel's locks no longer at a time than a small
            // one. A change that arrived meanwhile is programmed in all families.
            (true, retry) => {
                let reason = match self.changed {
                    Some(_) => Reason::Changed,
                    None if retry.is_some_and(|at| at <= last.ended) => Reason::Retry,
                    None => Reason::Continued,
                };
                ask(last.ended, reason);
            }
        }
        candidates
    }
}

// === impl FollowUp ===

impl FollowUp {
    fn is_unfinished(self) -> bool {
        match self {
            FollowUp::Settled | FollowUp::Retry { .. } => false,
            FollowUp::Unfinished | FollowUp::UnfinishedAndRetry { .. } => true,
        }
    }

    fn retries(self) -> Option<u32> {
        match self {
            FollowUp::Settled | FollowUp::Unfinished => None,
            FollowUp::Retry { retries } | FollowUp::UnfinishedAndRetry { retries } => Some(retries),
        }
    }
}

// === impl Last ===

impl Last {
    /// When the next sync that is not urgent may start.
    fn earliest_next(&self, periods: Periods) -> Instant {
        let rest = match periods.min_sync_period {
            Duration::ZERO => Duration::ZERO,
            least => least.max(self.took.min(LONGEST_REST)),
        };
        self.ended + rest
    }
}

/// Doubles with every retry, up to `longest`.
fn retry_delay(retries: u32, longest: Duration) -> Duration {
    2u32.checked_pow(retries)
        .and_then(|factor| FIRST_RETRY.checked_mul(factor))
        .map_or(longest, |delay| delay.min(longest))
}

// === impl Reason ===

impl Reason {
    /// Whether a sync for this reason verifies the kernel even if its last known state is the
    /// desired one.
    pub(crate) fn checks_kernel(self) -> bool {
        match self {
            Reason::Retry | Reason::Continued | Reason::Changed => false,
            Reason::Drift | Reason::Timer | Reason::Requested | Reason::Startup => true,
        }
    }

    /// Whether a sync for this reason does everything that the periodic check does.
    pub(crate) fn is_periodic(self) -> bool {
        match self {
            Reason::Retry | Reason::Continued | Reason::Changed | Reason::Drift => false,
            Reason::Timer | Reason::Requested | Reason::Startup => true,
        }
    }
}

#[cfg(test)]
mod tests;
