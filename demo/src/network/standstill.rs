//! How long the machine stood still, while clients wait for answers.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

/// The time between two looks at the clock.
const INTERVAL: Duration = Duration::from_millis(20);

/// A thread that only looks at the clock. The host of a virtual machine may suspend it for seconds, and other
/// programs may have its processors: then this thread runs as late as the clients do, without any
/// packet.
#[derive(Debug)]
pub(super) struct StandstillWatch {
    /// Dropped to end the thread.
    end: Sender<()>,
    thread: JoinHandle<Duration>,
}

// === impl StandstillWatch ===

impl StandstillWatch {
    /// Begins to look at the clock.
    pub(super) fn start() -> StandstillWatch {
        let (end, ended) = channel();
        let thread = thread::spawn(move || {
            let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
            loop {
                let received = ended.recv_timeout(INTERVAL);
                let now = Instant::now();
                longest = longest.max(lateness(now.duration_since(last)));
                last = now;
                if received != Err(RecvTimeoutError::Timeout) {
                    return longest;
                }
            }
        });
        StandstillWatch { end, thread }
    }

    /// Ends, and returns the longest time for which the thread did not run although it was due.
    pub(super) fn finish(self) -> Result<Duration> {
        drop(self.end);
        let longest = self.thread.join();
        longest.map_err(|_| anyhow!("the thread that looks at the clock panicked"))
    }
}

/// For how long the thread did not run although it was due, if it ran `after` its last look.
fn lateness(after: Duration) -> Duration {
    after.saturating_sub(INTERVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_time_after_the_next_look_was_due_counts() {
        let three = Duration::from_secs(3);
        assert_eq!(lateness(INTERVAL + three), three);
        assert_eq!(lateness(INTERVAL / 2), Duration::ZERO);
    }

    #[test]
    fn a_machine_that_runs_does_not_stand_still_for_long() {
        let (watch, began) = (StandstillWatch::start(), Instant::now());
        thread::sleep(5 * INTERVAL);
        let longest = watch.finish().expect("it runs");
        assert!(longest < began.elapsed(), "{longest:?}");
    }
}
