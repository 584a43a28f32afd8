//! Waiting for a state that comes by itself.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Between two looks. Short against what is waited for, long against what a look costs.
const PAUSE: Duration = Duration::from_millis(50);

/// Looks until there is something to see, and returns it. Fails when `look` does, and when nothing
/// was seen before `deadline` has passed; `what` says in the error what was waited for.
pub fn wait_for<T>(
    what: &str,
    deadline: Duration,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
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
