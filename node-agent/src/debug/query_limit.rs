//! A limit on how many expensive answers are computed at the same time.

use std::sync::Arc;

use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// One for a user, one for a program that polls. Each answer may hold a copy of all rules in the
/// kernel, and programming needs the CPU, too.
const AT_ONCE: usize = 2;

/// Hands out permits to compute expensive answers.
#[derive(Debug, Clone)]
pub(super) struct QueryLimit(Arc<Semaphore>);

/// Permission to compute one expensive answer. It is released when dropped, or when the work is
/// done.
#[derive(Debug)]
pub(super) struct Permit(OwnedSemaphorePermit);

/// Why no answer was computed.
#[derive(Debug, Error)]
pub(super) enum PermitError {
    /// The limit of concurrent answers is reached.
    #[error("{AT_ONCE} requests are being answered, which is the limit; try again")]
    Taken,
    /// The task that computes it panicked or was cancelled.
    #[error("unable to answer")]
    Failed(#[source] tokio::task::JoinError),
}

// === impl QueryLimit ===

impl QueryLimit {
    pub(super) fn new() -> QueryLimit {
        QueryLimit(Arc::new(Semaphore::new(AT_ONCE)))
    }

    /// Takes a permit without waiting.
    pub(super) fn take(&self) -> Result<Permit, PermitError> {
        let permit = Arc::clone(&self.0).try_acquire_owned();
        permit.map(Permit).map_err(|_| PermitError::Taken)
    }
}

// === impl Permit ===

impl Permit {
    /// Runs `work` on a blocking thread. Work that has started continues, and keeps its permit, even
    /// if the client disconnects.
    pub(super) async fn spend<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PermitError> {
        let Permit(permit) = self;
        let work = move || {
            let done = work();
            drop(permit);
            done
        };
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(PermitError::Failed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use super::*;

    /// Returns work that signals its start and ends on request.
    fn held() -> (impl FnOnce() + Send + 'static, Receiver<()>, Sender<()>) {
        let ((begun, beginning), (end, ending)) = (channel(), channel());
        let work = move || {
            let _ = begun.send(());
            let _ = ending.recv();
        };
        (work, beginning, end)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn one_more_is_reported_to_ask_again_and_a_permit_is_over_when_its_work_is() {
        let limit = QueryLimit::new();
        let mut held_up = Vec::new();
        for _ in 0..AT_ONCE {
            let (work, beginning, end) = held();
            let permit = limit.take().expect("it is free");
            let asking = tokio::spawn(permit.spend(work));
            let begun = beginning.recv_timeout(Duration::from_secs(10));
            begun.expect("it has its permit");
            // The client disconnects.
            asking.abort();
            assert!(asking.await.is_err_and(|error| error.is_cancelled()));
            held_up.push(end);
        }
        let refused = limit.take().expect_err("all permits are taken");
        assert!(matches!(refused, PermitError::Taken), "{refused}");

        held_up.clear();
        let answered = tokio::time::timeout(Duration::from_secs(10), async {
            while limit.take().is_err() {
                tokio::task::yield_now().await;
            }
        });
        answered.await.expect("a permit is free again");
    }
}
