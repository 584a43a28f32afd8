//! The machine's clocks, for an agent loop that a test runs itself.

use std::time::{Instant, SystemTime};

use reconciler::Clock;

/// The machine's clocks.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn wall_time(&self) -> SystemTime {
        SystemTime::now()
    }
}
