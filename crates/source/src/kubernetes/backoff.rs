//! The wait before the next request to an API server after a failure.

use std::time::Duration;

/// The first wait, before jitter. After an API server has lost its watch history, every agent of a
/// cluster lists again; spread over this time, a thousand agents send one request per millisecond.
const FIRST: Duration = Duration::from_secs(1);
/// The longest wait, before jitter. After the API server returns, a change made during its absence
/// arrives within at most 1.5 times this. The API server resumes most watches from memory.
const LONGEST: Duration = Duration::from_secs(4);

/// Waits that double with every failure in a row.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

// === impl Backoff ===

impl Backoff {
    /// Returns the wait after one more failure.
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

/// Returns a wait between 0.5 and 1.5 times `wait`, so that agents which lost their connections
/// together do not reconnect together.
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
