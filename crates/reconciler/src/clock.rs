//! The time, supplied by the caller of the loop.

use std::time::{Instant, SystemTime};

/// The machine's clocks.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock;

/// The only source of time in this crate, so that tests can set it.
pub trait Clock {
    /// Monotonic time, for intervals.
    fn now(&self) -> Instant;

    /// The time of day, for display and for comparison with trigger times.
    fn wall_time(&self) -> SystemTime;
}

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn wall_time(&self) -> SystemTime {
        SystemTime::now()
    }
}
