//! Waits for states with a deadline.

use std::env;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// The polling interval: short compared with the expected waiting time, long compared with the cost
/// of a poll.
const PAUSE: Duration = Duration::from_millis(50);

/// How many times slower than a normal machine this one is: a whole number in
/// `SIGNPOST_TESTS_SLOWNESS`, 1 by default. An emulated machine needs more.
static SLOWNESS: LazyLock<u32> = LazyLock::new(|| {
    let given = env::var("SIGNPOST_TESTS_SLOWNESS").ok();
    given.map_or(1, |number| {
        let parsed = number.parse().ok().filter(|number| *number > 0);
        parsed.expect("SIGNPOST_TESTS_SLOWNESS is a whole number above 0")
    })
});

/// Returns how long this machine may take for what a normal machine does within `deadline`.
pub fn patience(deadline: Duration) -> Duration {
    deadline * *SLOWNESS
}

/// Returns how many of `count` generated cases this machine has time for: fewer if it is slow. All
/// of them run on a normal one.
pub fn affordable(count: usize) -> usize {
    let slowness = usize::try_from(*SLOWNESS).unwrap_or(usize::MAX);
    count.div_ceil(slowness)
}

/// Polls `poll` until it returns a value. Fails if `poll` fails, or after [`patience`] with
/// `deadline`; `what` describes the expected state in the error.
pub fn wait_for<T>(
    what: &str,
    deadline: Duration,
    mut poll: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = patience(deadline);
    let end = Instant::now() + deadline;
    loop {
        if let Some(seen) = poll()? {
            return Ok(seen);
        }
        if Instant::now() >= end {
            bail!("waited {deadline:?} in vain for {what}");
        }
        thread::sleep(PAUSE);
    }
}
