//! Who of several operators acts: one state machine over a Lease, without a clock and without a network.
//!
//! Nobody compares clocks. A lease is over when its record has not changed for its whole duration by the observer's own
//! monotonic clock, counted from when the observer first saw that record.

use std::time::{Duration, Instant};

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// How long an unchanged lease holds.
    pub(crate) duration: Duration,
    /// How long its holder tries to renew it before it gives up. Less than the duration, so that it has stopped acting
    /// before anybody else starts.
    pub(crate) renewal: Duration,
    /// The time between two looks.
    pub(crate) retry: Duration,
}

/// What matters of a Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseRecord {
    /// Who holds it; empty after it was given back.
    pub(crate) holder: String,
    /// How long it holds.
    pub(crate) duration: Duration,
    /// Which writing of the lease this is: another one means that its holder lives.
    pub(crate) version: String,
}

/// One candidate's view of a lease.
#[derive(Clone, Debug)]
pub(crate) struct Election {
    identity: String,
    terms: Terms,
    seen: Option<(LeaseRecord, Instant)>,
    held_since: Option<Instant>,
}

/// What a candidate does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Write itself into the lease: it is free, over, or there is none.
    Acquire,
    /// Write the lease again: it is the holder.
    Renew,
    /// Look again after this time.
    Wait(Duration),
    /// Stop acting: it was the holder and can no longer be sure to be.
    StandDown,
}

// === impl Terms ===

impl Terms {
    /// Those of the Kubernetes control plane itself: two missed renewals are survived, and a dead leader is replaced
    /// within 17 seconds, during which nodes keep forwarding.
    pub(crate) const KUBERNETES: Self = Self {
        duration: Duration::from_secs(15),
        renewal: Duration::from_secs(10),
        retry: Duration::from_secs(2),
    };
}

// === impl Election ===

impl Election {
    /// A candidate of this name, which no other candidate has.
    pub(crate) const fn new(identity: String, terms: Terms) -> Self {
        Self {
            identity,
            terms,
            seen: None,
            held_since: None,
        }
    }

    /// Takes in the lease as it was read at `now`; nothing when there is none.
    pub(crate) fn observe(&mut self, lease: Option<LeaseRecord>, now: Instant) {
        self.seen = match (lease, self.seen.take()) {
            (None, _) => None,
            (Some(lease), Some((known, since))) if lease == known => Some((known, since)),
            (Some(lease), _) => Some((lease, now)),
        };
        let taken_away = self
            .seen
            .as_ref()
            .is_none_or(|(lease, _)| lease.holder != self.identity);
        if taken_away && self.held_since.is_some() {
            // Standing down is for good, so there is no way back from having lost it.
            self.terms.renewal = Duration::ZERO;
        }
    }

    /// Takes in that a write begun at `began` was accepted: it is the holder, and its time counts from before the write.
    pub(crate) fn accepted(&mut self, lease: LeaseRecord, began: Instant) {
        self.held_since = Some(began);
        self.seen = Some((lease, began));
    }

    /// How much longer it may act from `now` on without renewing.
    pub(crate) fn left(&self, now: Instant) -> Duration {
        let held = |since| {
            self.terms
                .renewal
                .saturating_sub(now.saturating_duration_since(since))
        };
        self.held_since.map_or(Duration::ZERO, held)
    }

    /// What to do at `now`, before anything else is read or written.
    pub(crate) fn step(&self, now: Instant) -> Step {
        if self.held_since.is_some() {
            return if self.left(now).is_zero() {
                Step::StandDown
            } else {
                Step::Renew
            };
        }
        match &self.seen {
            None => Step::Acquire,
            // Left by a process of the same name that did not live to give it back.
            Some((lease, _)) if lease.holder.is_empty() || lease.holder == self.identity => {
                Step::Acquire
            }
            Some((lease, since)) => {
                let over = lease
                    .duration
                    .saturating_sub(now.saturating_duration_since(*since));
                if over.is_zero() {
                    Step::Acquire
                } else {
                    Step::Wait(over.min(self.terms.retry))
                }
            }
        }
    }

    /// The time between two looks.
    pub(crate) const fn retry(&self) -> Duration {
        self.terms.retry
    }

    /// The name it goes by.
    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// How long a lease it writes holds.
    pub(crate) const fn duration(&self) -> Duration {
        self.terms.duration
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str, version: u32) -> LeaseRecord {
        LeaseRecord {
            holder: holder.into(),
            duration: Duration::from_secs(15),
            version: version.to_string(),
        }
    }

    fn candidate(name: &str) -> Election {
        Election::new(name.into(), Terms::KUBERNETES)
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn a_lease_that_is_absent_or_given_back_is_taken_at_once() {
        let start = Instant::now();
        let mut a = candidate("a");
        a.observe(None, start);
        assert_eq!(a.step(start), Step::Acquire);
        a.observe(Some(lease("", 4)), start);
        assert_eq!(a.step(start), Step::Acquire);
        assert_eq!(
            a.left(start),
            Duration::ZERO,
            "wanting it is not holding it"
        );
    }

    #[test]
    fn a_lease_that_is_renewed_is_never_taken() {
        let start = Instant::now();
        let mut b = candidate("b");
        for round in 0..100 {
            let now = start + seconds(10) * round;
            b.observe(Some(lease("a", round)), now);
            assert_eq!(b.step(now), Step::Wait(seconds(2)));
        }
    }

    #[test]
    fn a_lease_nobody_renews_is_taken_after_its_whole_duration_by_our_own_clock() {
        let start = Instant::now();
        let mut b = candidate("b");
        b.observe(Some(lease("a", 1)), start);
        b.observe(Some(lease("a", 1)), start + seconds(14));
        assert_eq!(b.step(start + seconds(14)), Step::Wait(seconds(1)));
        assert_eq!(b.step(start + seconds(15)), Step::Acquire);
    }

    #[test]
    fn a_holder_that_cannot_renew_stops_before_anybody_else_may_start() {
        let start = Instant::now();
        let (mut a, mut b) = (candidate("a"), candidate("b"));
        a.observe(None, start);
        a.accepted(lease("a", 1), start);
        b.observe(Some(lease("a", 1)), start);
        let mut both = 0;
        for second in 0..30 {
            let now = start + seconds(second);
            both += u32::from(!a.left(now).is_zero() && b.step(now) == Step::Acquire);
        }
        assert_eq!(both, 0);
        assert_eq!(a.step(start + seconds(9)), Step::Renew);
        assert_eq!(a.step(start + seconds(10)), Step::StandDown);
    }

    #[test]
    fn renewing_keeps_the_lease() {
        let start = Instant::now();
        let mut a = candidate("a");
        for round in 0..50 {
            let now = start + seconds(2) * round;
            a.accepted(lease("a", round), now);
            assert_eq!(a.step(now + seconds(2)), Step::Renew);
        }
    }

    #[test]
    fn a_holder_who_reads_another_name_stands_down_for_good() {
        let start = Instant::now();
        let mut a = candidate("a");
        a.accepted(lease("a", 1), start);
        a.observe(Some(lease("b", 2)), start + seconds(1));
        assert_eq!(a.step(start + seconds(1)), Step::StandDown);
        a.observe(Some(lease("", 3)), start + seconds(2));
        assert_eq!(a.step(start + seconds(2)), Step::StandDown);
    }

    #[test]
    fn a_lease_deleted_under_its_holder_is_lost() {
        let start = Instant::now();
        let mut a = candidate("a");
        a.accepted(lease("a", 1), start);
        a.observe(None, start + seconds(1));
        assert_eq!(a.step(start + seconds(1)), Step::StandDown);
    }
}
