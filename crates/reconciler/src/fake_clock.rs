//! A clock that tests set.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::Clock;

/// A clock that advances only on request. Clones share the time.
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

    /// The time since the clock was created.
    pub(crate) fn elapsed(&self) -> Duration {
        *self.elapsed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The moment this long after the clock was created.
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
