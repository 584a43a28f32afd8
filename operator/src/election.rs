//! Leader election: which of several operators is active. A state machine over a Lease that uses
//! neither a clock nor the network.
//!
//! Clocks of different machines are never compared. A lease has expired when its record has not
//! changed for its whole duration on the observer's own clock, counted from when the observer first
//! read that record. That clock never goes back, and goes on while the machine is suspended.

use std::time::Duration;

use crate::boot_time::BootTime;

/// The time limits of the election, as Kubernetes' own programs call them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ElectionTimeouts {
    /// How long a lease is valid without renewal.
    pub(crate) lease_duration: Duration,
    /// How long the holder tries to renew the lease before it gives up. Less than `lease_duration`, so
    /// that the holder has stopped acting before another operator starts.
    pub(crate) renew_deadline: Duration,
    /// The interval between two reads of the lease.
    pub(crate) retry_period: Duration,
}

/// The fields of a Lease that the election uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseRecord {
    /// The identity of the holder; empty after a release.
    pub(crate) holder: String,
    /// How long the lease is valid without renewal.
    pub(crate) duration: Duration,
    /// The resource version of the Lease. A changed version means that the holder is alive.
    pub(crate) version: String,
}

/// One candidate's view of a lease.
#[derive(Clone, Debug)]
pub(crate) struct Election {
    identity: String,
    timeouts: ElectionTimeouts,
    seen: Option<(LeaseRecord, BootTime)>,
    held_since: Option<BootTime>,
}

/// The next action of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Write itself into the lease: there is none, or it is free or has expired.
    Acquire,
    /// Renew the lease as its holder.
    Renew,
    /// Read the lease again after this time.
    Wait(Duration),
    /// Stop acting: it was the holder and may have lost the lease.
    StandDown,
}

// === impl ElectionTimeouts ===

impl ElectionTimeouts {
    /// The values of the Kubernetes control plane: the lease survives two missed renewals, and a
    /// dead leader is replaced within 17 seconds, during which nodes keep forwarding.
    pub(crate) const KUBERNETES: Self = Self {
        lease_duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(2),
    };
}

// === impl Election ===

impl Election {
    /// Creates a candidate with this identity, which must be unique among candidates.
    pub(crate) const fn new(identity: String, timeouts: ElectionTimeouts) -> Self {
        Self {
            identity,
            timeouts,
            seen: None,
            held_since: None,
        }
    }

    /// Records the lease as read at `now`; `None` means that it does not exist.
    pub(crate) fn observe(&mut self, lease: Option<LeaseRecord>, now: BootTime) {
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
            // Standing down is final: a candidate that has lost the lease must not return to
            // acting.
            self.timeouts.renew_deadline = Duration::ZERO;
        }
    }

    /// Records that a write begun at `began` was accepted. The candidate is now the holder, and its
    /// time counts from the start of the write.
    pub(crate) fn accepted(&mut self, lease: LeaseRecord, began: BootTime) {
        self.held_since = Some(began);
        self.seen = Some((lease, began));
    }

    /// Returns how much longer the holder may act without a renewal, counted from `now`.
    pub(crate) fn time_left(&self, now: BootTime) -> Duration {
        let held = |since| {
            self.timeouts
                .renew_deadline
                .saturating_sub(now.saturating_duration_since(since))
        };
        self.held_since.map_or(Duration::ZERO, held)
    }

    /// Returns the next action at `now`.
    pub(crate) fn step(&self, now: BootTime) -> Step {
        if self.held_since.is_some() {
            return if self.time_left(now).is_zero() {
                Step::StandDown
            } else {
                Step::Renew
            };
        }
        match &self.seen {
            None => Step::Acquire,
            // A process of the same identity held the lease and ended without releasing it.
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
                    Step::Wait(over.min(self.timeouts.retry_period))
                }
            }
        }
    }

    /// The interval between two reads of the lease.
    pub(crate) const fn retry_period(&self) -> Duration {
        self.timeouts.retry_period
    }

    /// The identity of this candidate.
    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// The duration it writes into the lease.
    pub(crate) const fn lease_duration(&self) -> Duration {
        self.timeouts.lease_duration
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
        Election::new(name.into(), ElectionTimeouts::KUBERNETES)
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn a_lease_that_is_absent_or_given_back_is_taken_at_once() {
        let start = BootTime::now();
        let mut a = candidate("a");
        a.observe(None, start);
        assert_eq!(a.step(start), Step::Acquire);
        a.observe(Some(lease("", 4)), start);
        assert_eq!(a.step(start), Step::Acquire);
        assert_eq!(
            a.time_left(start),
            Duration::ZERO,
            "wanting it is not holding it"
        );
    }

    #[test]
    fn a_lease_that_is_renewed_is_never_taken() {
        let start = BootTime::now();
        let mut b = candidate("b");
        for sync in 0..100 {
            let now = start + seconds(10) * sync;
            b.observe(Some(lease("a", sync)), now);
            assert_eq!(b.step(now), Step::Wait(seconds(2)));
        }
    }

    #[test]
    fn a_lease_that_is_not_renewed_is_taken_after_its_whole_duration_by_the_candidates_clock() {
        let start = BootTime::now();
        let mut b = candidate("b");
        b.observe(Some(lease("a", 1)), start);
        b.observe(Some(lease("a", 1)), start + seconds(14));
        assert_eq!(b.step(start + seconds(14)), Step::Wait(seconds(1)));
        assert_eq!(b.step(start + seconds(15)), Step::Acquire);
    }

    #[test]
    fn a_holder_that_cannot_renew_stops_before_another_candidate_may_start() {
        let start = BootTime::now();
        let (mut a, mut b) = (candidate("a"), candidate("b"));
        a.observe(None, start);
        a.accepted(lease("a", 1), start);
        b.observe(Some(lease("a", 1)), start);
        let mut both = 0;
        for second in 0..30 {
            let now = start + seconds(second);
            both += u32::from(!a.time_left(now).is_zero() && b.step(now) == Step::Acquire);
        }
        assert_eq!(both, 0);
        assert_eq!(a.step(start + seconds(9)), Step::Renew);
        assert_eq!(a.step(start + seconds(10)), Step::StandDown);
    }

    #[test]
    fn renewing_keeps_the_lease() {
        let start = BootTime::now();
        let mut a = candidate("a");
        for sync in 0..50 {
            let now = start + seconds(2) * sync;
            a.accepted(lease("a", sync), now);
            assert_eq!(a.step(now + seconds(2)), Step::Renew);
        }
    }

    #[test]
    fn a_holder_who_reads_another_name_stands_down_for_good() {
        let start = BootTime::now();
        let mut a = candidate("a");
        a.accepted(lease("a", 1), start);
        a.observe(Some(lease("b", 2)), start + seconds(1));
        assert_eq!(a.step(start + seconds(1)), Step::StandDown);
        a.observe(Some(lease("", 3)), start + seconds(2));
        assert_eq!(a.step(start + seconds(2)), Step::StandDown);
    }

    #[test]
    fn a_lease_deleted_under_its_holder_is_lost() {
        let start = BootTime::now();
        let mut a = candidate("a");
        a.accepted(lease("a", 1), start);
        a.observe(None, start + seconds(1));
        assert_eq!(a.step(start + seconds(1)), Step::StandDown);
    }
}
