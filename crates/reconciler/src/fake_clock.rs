//! A clock that tests set.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::Clock;

/// A clock that stands still until it is told to go on. Clones show the same time.
#[derive(Debug, Clone)]
pub(crate) struct FakeClock {
    zero: Instant,
    elapsed: Arc<Mutex<Duration>>,
}

impl FakeClock {
    pub(crate) fn new() -> FakeClock {
        FakeClock {
            zero: Instant::now(),
            elapsed: Arc::default(),
        }
    }

    pub(crate) fn advance(&self, by: Duration) {
        *self.elapsed.lock().unwrap_or_else(PoisonError::into_inner) += by;
    }

    /// Time since the clock was made.
    pub(crate) fn elapsed(&self) -> Duration {
        *self.elapsed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The moment this long after the clock was made.
    pub(crate) fn at(&self, elapsed: Duration) -> Instant {
        self.zero + elapsed
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Instant {
        self.at(self.elapsed())
    }

    fn wall_time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000) + self.elapsed()
    }
}
