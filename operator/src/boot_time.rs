//! Times on a clock that goes on while the machine is suspended.
//!
//! [`std::time::Instant`] is CLOCK_MONOTONIC on Linux, which stands still then: the holder of a
//! lease would not notice that its time is over.

use std::{ops::Add, time::Duration};

use rustix::time::{ClockId, clock_gettime};

/// A time on CLOCK_BOOTTIME of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BootTime {
    since_boot: Duration,
}

// === impl BootTime ===

impl BootTime {
    /// The boot of the machine.
    #[cfg(test)]
    pub(crate) const START: Self = Self {
        since_boot: Duration::ZERO,
    };

    /// The present time.
    pub(crate) fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        // Neither is negative, and nanoseconds are less than a second.
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        let nanoseconds = u32::try_from(now.tv_nsec).unwrap_or_default();
        Self {
            since_boot: Duration::new(seconds, nanoseconds),
        }
    }

    /// Returns the time from `earlier` to this one; zero if it is not earlier.
    pub(crate) const fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.since_boot.saturating_sub(earlier.since_boot)
    }
}

impl Add<Duration> for BootTime {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self {
            since_boot: self.since_boot.saturating_add(span),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// `/proc/uptime` counts the time of a suspension.
    #[test]
    fn it_is_the_time_since_the_boot_that_the_kernel_says() {
        let before = BootTime::now();
        let uptime = fs::read_to_string("/proc/uptime").expect("the kernel is Linux");
        let uptime = uptime.split_whitespace().next().map(str::parse::<f64>);
        let uptime = uptime.and_then(Result::ok).expect("a number of seconds");
        let passed = BootTime::now().saturating_duration_since(before);
        let difference = uptime - before.since_boot.as_secs_f64();
        // The kernel writes hundredths of a second.
        assert!(
            (-0.02..passed.as_secs_f64() + 0.02).contains(&difference),
            "{uptime} s and {before:?}"
        );
    }
}
