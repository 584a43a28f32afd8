//! Pauses that vary, between processes and between objects of one.

use std::time::Duration;

/// Returns 0.9 to 1.1 times `pause`, so that processes that started together drift apart.
pub fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.9 + fraction() / 5.0)
}

/// Returns a random fraction from 0 up to, but not including, 1. A clock would not do: one with a
/// coarse resolution has the same nanoseconds each time.
pub fn fraction() -> f64 {
    fastrand::f64()
}

/// Returns half of `pause` to all of it, by `fraction`, so that requests that fail together do not
/// return together.
pub fn spread(pause: Duration, fraction: f64) -> Duration {
    pause.mul_f64(0.5 + fraction / 2.0)
}
