//! Pauses that differ from node to node.

use std::time::Duration;

/// Between nine and eleven tenths of it, so that agents that started together drift apart.
pub(crate) fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.9 + fraction() / 5.0)
}

/// A part of one, another one on each node: from 0 up to, but not including, 1.
pub(crate) fn fraction() -> f64 {
    let nanoseconds = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos());
    f64::from(nanoseconds % 1000) / 1000.0
}

/// A part of `pause`, from half of it to all: agents that fail together come back one by one.
pub(crate) fn spread(pause: Duration, fraction: f64) -> Duration {
    pause.mul_f64(0.5 + fraction / 2.0)
}
