//! What time it is, as whoever runs the loop says it is.

use std::time::{Instant, SystemTime};

/// The only way in which this crate learns the time, so that tests can say what it is.
pub trait Clock {
    /// Monotonic time: what intervals are measured by.
    fn now(&self) -> Instant;

    /// The time of day: what people are shown, and what trigger times are compared with.
    fn wall_time(&self) -> SystemTime;
}
