//! Waiting for a state that comes by itself.

use std::env;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Between two looks. Short against what is waited for, long against what a look costs.
const PAUSE: Duration = Duration::from_millis(50);

/// How many times slower than a machine that runs its own instructions this one is: a whole number
/// in `SIGNPOST_TESTS_SLOWNESS`, 1 unless given. An emulated machine needs more.
static SLOWNESS: LazyLock<u32> = LazyLock::new(|| {
    let given = env::var("SIGNPOST_TESTS_SLOWNESS").ok();
    given.map_or(1, |number| {
        let parsed = number.parse().ok().filter(|number| *number > 0);
        parsed.expect("SIGNPOST_TESTS_SLOWNESS is a whole number above 0")
    })
});

/// How long this machine may take for what any other does within `deadline`.
pub fn patience(deadline: Duration) -> Duration {
    deadline * *SLOWNESS
}

/// Looks until there is something to see, and returns it. Fails when `look` does, and when nothing
/// was seen before [`patience`] with `deadline` has ended; `what` says in the error what was waited for.
pub fn wait_for<T>(
    what: &str,
    deadline: Duration,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = patience(deadline);
    let end = Instant::now() + deadline;
    loop {
        if let Some(seen) = look()? {
            return Ok(seen);
        }
        if Instant::now() >= end {
            bail!("waited {deadline:?} in vain for {what}");
        }
        thread::sleep(PAUSE);
    }
}
