//! Work that blocks its thread.

use std::future::pending;
use std::panic::resume_unwind;

use tokio::task::spawn_blocking;

/// Runs `work` on a thread where it may block, and returns its result. Does not block other tasks.
/// Work that has started continues if the caller stops waiting.
///
/// # Panics
///
/// If `work` panics.
pub async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        // The runtime is shutting down, and this task with it.
        Err(_) => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    #[should_panic(expected = "the work")]
    async fn a_panic_of_work_that_blocks_is_that_of_the_task_that_waits_for_it() {
        run_blocking(|| panic!("the work")).await
    }
}
