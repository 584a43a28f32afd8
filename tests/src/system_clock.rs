//! The machine's clocks, for a loop that a test drives by itself.

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
