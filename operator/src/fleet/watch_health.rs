//! For how long watches have failed, for a metric, and whether what is known of nodes is old: a node that
//! is ready with a change then looks like one that never reported. Measured on the monotonic clock.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// What happened to a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchSignal {
    /// A list failed: no event arrives until one is complete, however long that takes.
    ListFailed,
    /// The start of a watch failed: no event arrives until it starts.
    Failed,
    /// A watch that had started ended with an error. Whether it starts again is not known yet.
    Interrupted,
    /// An event or a list arrived after one of these.
    Recovered,
}

/// The failures of watches, by kind, and the time for which nodes could not be watched.
#[derive(Debug, Default)]
pub(super) struct WatchHealth {
    failures: BTreeMap<&'static str, WatchFailures>,
    node_watches: NodeWatches,
}

/// Failures of a watch that follow one another.
#[derive(Clone, Copy, Debug)]
struct WatchFailures {
    first: Instant,
    last: Instant,
}

/// The watches of nodes and of their agents' reports.
#[derive(Debug, Default)]
struct NodeWatches {
    /// Those that fail.
    failing: BTreeMap<&'static str, FailingWatch>,
    /// Until when the reports arrive that could not arrive before.
    catching_up_until: Option<Instant>,
    /// From when on no time counts against a node; absent while it does.
    suspended_at: Option<Instant>,
    /// The time that did not count and was not taken yet.
    unwatched: Duration,
}

/// A watch that fails.
#[derive(Clone, Copy, Debug)]
struct FailingWatch {
    /// When it failed first.
    first: Instant,
    /// When it failed last.
    last: Instant,
    /// Whether it has to list first: it reports when it has.
    must_list: bool,
}

/// A watch that has failed no more for so long works again. It is tried again after a minute at most, and
/// a request may be without an answer for a minute and a half. A quiet watch sends nothing that would show it earlier.
const RECOVERED_AFTER: Duration = Duration::from_secs(180);
/// How long agents may take at most to report after the API server answers again: they try at least every
/// minute. After a short failure they take no longer than that lasted.
const LONGEST_CATCH_UP: Duration = Duration::from_secs(120);
/// The kinds that report the state of nodes. Failures of others do not affect what is known of nodes.
const NODE_KINDS: [&str; 2] = ["Node", "NodeProxy"];

// === impl WatchHealth ===

impl WatchHealth {
    /// Notes what happened to the watch of `kind` at `at`. Returns whether that changes whether nodes can
    /// be watched.
    pub(super) fn note(&mut self, kind: &'static str, signal: WatchSignal, at: Instant) -> bool {
        if signal != WatchSignal::Recovered {
            let failures = self.failures.entry(kind).or_insert(WatchFailures {
                first: at,
                last: at,
            });
            if failures.ends() <= at {
                failures.first = at;
            }
            failures.last = at;
        }
        let was_stale = self.node_watches.stale_until(at).is_some();
        if NODE_KINDS.contains(&kind) {
            self.node_watches.note(kind, signal, at);
        }
        was_stale != self.node_watches.stale_until(at).is_some()
    }

    /// Returns for how long each watch that failed has been failing at `now`.
    pub(super) fn failing(&self, now: Instant) -> impl Iterator<Item = (&'static str, Duration)> {
        self.failures
            .iter()
            .map(move |(kind, failures)| (*kind, failures.span(now)))
    }

    /// Returns until when nodes cannot be watched, unless their watch fails again or works before;
    /// `None` if they can.
    pub(super) fn stale_until(&self, now: Instant) -> Option<Instant> {
        self.node_watches.stale_until(now)
    }

    /// Returns until when at least no time counts against a node, if none does at `now`.
    pub(super) fn suspended_until(&self, now: Instant) -> Option<Instant> {
        self.node_watches.until(now).filter(|until| *until > now)
    }

    /// Returns for how long no time has counted against a node since the last call.
    pub(super) fn take_unwatched(&mut self, now: Instant) -> Duration {
        let node_watches = &mut self.node_watches;
        node_watches.end_what_is_over(now);
        if let Some(suspended) = &mut node_watches.suspended_at {
            node_watches.unwatched += now.saturating_duration_since(*suspended);
            *suspended = now;
        }
        std::mem::take(&mut node_watches.unwatched)
    }
}

// === impl NodeWatches ===

impl NodeWatches {
    fn note(&mut self, kind: &'static str, signal: WatchSignal, at: Instant) {
        self.end_what_is_over(at);
        match signal {
            // The next attempt follows at once and says whether anything was missed.
            WatchSignal::Interrupted => {}
            WatchSignal::ListFailed | WatchSignal::Failed => {
                let watch = self.failing.entry(kind).or_insert(FailingWatch {
                    first: at,
                    last: at,
                    must_list: false,
                });
                watch.last = at;
                watch.must_list |= signal == WatchSignal::ListFailed;
                self.suspended_at.get_or_insert(at);
            }
            WatchSignal::Recovered => {
                if let Some(watch) = self.failing.remove(kind) {
                    let missed = at.saturating_duration_since(watch.first);
                    let until = at + LONGEST_CATCH_UP.min(missed);
                    self.catching_up_until = self.catching_up_until.max(Some(until));
                }
            }
        }
    }

    /// Ends what is over at `now`.
    fn end_what_is_over(&mut self, now: Instant) {
        let Some(until) = self.until(now).filter(|until| *until <= now) else {
            return;
        };
        if let Some(suspended) = self.suspended_at.take() {
            self.unwatched += until.saturating_duration_since(suspended);
        }
        self.failing.clear();
        self.catching_up_until = None;
    }

    fn stale_until(&self, now: Instant) -> Option<Instant> {
        let ends = self.failing.values().map(|watch| watch.ends(now));
        ends.max().filter(|until| *until > now)
    }

    fn until(&self, now: Instant) -> Option<Instant> {
        let ends = self.failing.values().map(|watch| watch.ends(now));
        ends.chain(self.catching_up_until).max()
    }
}

// === impl FailingWatch ===

impl FailingWatch {
    /// When it is over, as far as is known at `now`.
    fn ends(self, now: Instant) -> Instant {
        match self.must_list {
            true => self.last.max(now) + RECOVERED_AFTER,
            false => self.last + RECOVERED_AFTER,
        }
    }
}

// === impl WatchFailures ===

impl WatchFailures {
    fn ends(&self) -> Instant {
        self.last + RECOVERED_AFTER
    }

    fn span(&self, now: Instant) -> Duration {
        if self.ends() <= now {
            return Duration::ZERO;
        }
        self.last.saturating_duration_since(self.first)
    }
}
