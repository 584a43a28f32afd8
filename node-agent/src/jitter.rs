//! Pauses that vary between nodes.

use std::time::Duration;

/// Returns 0.9 to 1.1 times `pause`, so that agents that started together drift apart.
pub(crate) fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.9 + fraction() / 5.0)
}

/// Returns a fraction from 0 up to, but not including, 1. It is taken from the clock, so that it
/// varies between nodes.
pub(crate) fn fraction() -> f64 {
    let nanoseconds = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos());
    f64::from(nanoseconds % 1000) / 1000.0
}

/// Returns half of `pause` to all of it, by `fraction`, so that agents that fail together do not
/// return together.
pub(crate) fn spread(pause: Duration, fraction: f64) -> Duration {
    pause.mul_f64(0.5 + fraction / 2.0)
}
