//! For how long watches have failed, for a metric, and whether what is known of nodes is old: a node that
//! is ready with a change then looks like one that never reported. Measured on the monotonic clock.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// What happened to a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchSignal {
    /// A list failed: nothing is heard until one is complete, however long that takes.
    ListFailed,
    /// The start of a watch failed: nothing is heard until it starts.
    Failed,
    /// A watch that had started ended with an error. Whether it starts again is not known yet.
    Interrupted,
    /// Something arrived after one of these.
    Works,
}

/// The failures of watches, by kind, and the time for which nodes could not be watched.
#[derive(Debug, Default)]
pub(super) struct WatchHealth {
    failures: BTreeMap<&'static str, Failures>,
    view: View,
}

/// Failures of a watch that follow one another.
#[derive(Clone, Copy, Debug)]
struct Failures {
    first: Instant,
    last: Instant,
}

/// Whether the operator hears of nodes and of their agents' reports.
#[derive(Debug, Default)]
struct View {
    /// Each watch of them that fails.
    failing: BTreeMap<&'static str, Outage>,
    /// Until when the reports arrive that could not arrive before.
    catching_up_until: Option<Instant>,
    /// From when on time does not count; absent while it does.
    stopped_at: Option<Instant>,
    /// The time that did not count and was not taken yet.
    unseen: Duration,
}

/// A watch that fails.
#[derive(Clone, Copy, Debug)]
struct Outage {
    /// When it failed first.
    first: Instant,
    /// When it failed last.
    last: Instant,
    /// Whether it has to list first: it says when it has.
    lists: bool,
}

/// A watch that has failed no more for so long works again. It is tried again after a minute at most, and
/// a request may be without an answer for a minute and a half. A quiet watch says nothing else.
const WORKS_AGAIN: Duration = Duration::from_secs(180);
/// How long agents may take at most to report after the API server answers again: they try at least every
/// minute. After a short failure they take no longer than that lasted.
const CATCHING_UP: Duration = Duration::from_secs(120);
/// The kinds that say how nodes are. Without the others, nodes are known as well as ever.
const OF_NODES: [&str; 2] = ["Node", "NodeProxy"];

// === impl WatchHealth ===

impl WatchHealth {
    /// Notes what happened to the watch of `kind` at `at`. Returns whether that changes whether nodes can
    /// be watched.
    pub(super) fn note(&mut self, kind: &'static str, signal: WatchSignal, at: Instant) -> bool {
        if signal != WatchSignal::Works {
            let failures = self.failures.entry(kind).or_insert(Failures {
                first: at,
                last: at,
            });
            if failures.ends() <= at {
                failures.first = at;
            }
            failures.last = at;
        }
        let was_blind = self.view.blind_until(at).is_some();
        if OF_NODES.contains(&kind) {
            self.view.note(kind, signal, at);
        }
        was_blind != self.view.blind_until(at).is_some()
    }

    /// Returns for how long each watch that failed has been failing at `now`.
    pub(super) fn failing(&self, now: Instant) -> impl Iterator<Item = (&'static str, Duration)> {
        self.failures
            .iter()
            .map(move |(kind, failures)| (*kind, failures.span(now)))
    }

    /// Returns until when nodes cannot be watched, unless their watch fails again or works before;
    /// `None` if they can.
    pub(super) fn blind_until(&self, now: Instant) -> Option<Instant> {
        self.view.blind_until(now)
    }

    /// Returns until when at least no time counts against a node, if none does at `now`.
    pub(super) fn stopped_until(&self, now: Instant) -> Option<Instant> {
        self.view.until(now).filter(|until| *until > now)
    }

    /// Returns for how long no time has counted against a node since the last call.
    pub(super) fn take_unseen(&mut self, now: Instant) -> Duration {
        let view = &mut self.view;
        view.settle(now);
        if let Some(stopped) = &mut view.stopped_at {
            view.unseen += now.saturating_duration_since(*stopped);
            *stopped = now;
        }
        std::mem::take(&mut view.unseen)
    }
}

// === impl View ===

impl View {
    fn note(&mut self, kind: &'static str, signal: WatchSignal, at: Instant) {
        self.settle(at);
        match signal {
            // The next attempt follows at once and says whether anything was missed.
            WatchSignal::Interrupted => {}
            WatchSignal::ListFailed | WatchSignal::Failed => {
                let outage = self.failing.entry(kind).or_insert(Outage {
                    first: at,
                    last: at,
                    lists: false,
                });
                outage.last = at;
                outage.lists |= signal == WatchSignal::ListFailed;
                self.stopped_at.get_or_insert(at);
            }
            WatchSignal::Works => {
                if let Some(outage) = self.failing.remove(kind) {
                    let missed = at.saturating_duration_since(outage.first);
                    let until = at + CATCHING_UP.min(missed);
                    self.catching_up_until = self.catching_up_until.max(Some(until));
                }
            }
        }
    }

    /// Ends what is over at `now`.
    fn settle(&mut self, now: Instant) {
        let Some(until) = self.until(now).filter(|until| *until <= now) else {
            return;
        };
        if let Some(stopped) = self.stopped_at.take() {
            self.unseen += until.saturating_duration_since(stopped);
        }
        self.failing.clear();
        self.catching_up_until = None;
    }

    fn blind_until(&self, now: Instant) -> Option<Instant> {
        let ends = self.failing.values().map(|outage| outage.ends(now));
        ends.max().filter(|until| *until > now)
    }

    fn until(&self, now: Instant) -> Option<Instant> {
        let ends = self.failing.values().map(|outage| outage.ends(now));
        ends.chain(self.catching_up_until).max()
    }
}

// === impl Outage ===

impl Outage {
    /// When it is over, as far as is known at `now`.
    fn ends(self, now: Instant) -> Instant {
        match self.lists {
            true => self.last.max(now) + WORKS_AGAIN,
            false => self.last + WORKS_AGAIN,
        }
    }
}

// === impl Failures ===

impl Failures {
    fn ends(&self) -> Instant {
        self.last + WORKS_AGAIN
    }

    fn span(&self, now: Instant) -> Duration {
        if self.ends() <= now {
            return Duration::ZERO;
        }
        self.last.saturating_duration_since(self.first)
    }
}
