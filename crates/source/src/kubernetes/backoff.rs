//! How long to wait before asking an API server again.

use std::time::Duration;

/// The first wait, before jitter. After an API server forgot its history, every agent of a cluster
/// has to list again: spread over this much, a thousand of them are a request a millisecond.
const FIRST: Duration = Duration::from_secs(1);
/// The longest wait, before jitter. A change made while the API server was away arrives at most
/// this (and half as much again) after it is back; it resumes most watches from memory.
const LONGEST: Duration = Duration::from_secs(4);

/// Waits that double while nothing gets better.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

// === impl Backoff ===

impl Backoff {
    /// The wait after one more failure.
    pub(super) fn next(&mut self) -> Duration {
        let wait = FIRST
            .saturating_mul(1 << self.failures.min(10))
            .min(LONGEST);
        self.failures += 1;
        jittered(wait)
    }

    /// Forgets all failures.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Between half of `wait` and half as much again, so that agents which were cut off together do
/// not come back together.
pub(super) fn jittered(wait: Duration) -> Duration {
    wait.mul_f64(0.5 + fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_start_over_after_success() {
        let mut backoff = Backoff::default();
        for _ in 0..100 {
            let wait = backoff.next();
            assert!(wait >= FIRST / 2 && wait <= LONGEST * 3 / 2, "{wait:?}");
        }
        let wait = backoff.next();
        assert!(wait >= LONGEST / 2, "{wait:?}");
        backoff.reset();
        let wait = backoff.next();
        assert!(wait <= FIRST * 3 / 2, "{wait:?}");
    }

    #[test]
    fn t75_a_thousand_agents_do_not_come_back_at_once() {
        let mut waits: Vec<Duration> = (0..1000).map(|_| Backoff::default().next()).collect();
        waits.sort_unstable();
        let busiest = waits
            .iter()
            .map(|start| {
                let end = *start + Duration::from_millis(100);
                waits
                    .iter()
                    .filter(|wait| (*start..end).contains(wait))
                    .count()
            })
            .max();
        assert!(busiest < Some(200), "{busiest:?} of 1000 within 100 ms");
    }
}
