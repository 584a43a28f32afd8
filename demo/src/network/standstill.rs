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
                longest = longest.max(now.duration_since(last).saturating_sub(INTERVAL));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_runs_does_not_stand_still_for_long() {
        let (watch, began) = (StandstillWatch::start(), Instant::now());
        thread::sleep(5 * INTERVAL);
        let longest = watch.finish().expect("it runs");
        assert!(longest < began.elapsed(), "{longest:?}");
    }
}
