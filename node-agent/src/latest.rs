//! Values of which a task reads the latest, never a queue. Each has one task that posts it.

use std::future::pending;

use tokio::sync::watch;

/// Posts a value. Wakes readers if it differs.
pub(crate) fn post<T: PartialEq>(posted: &watch::Sender<T>, value: T) {
    posted.send_if_modified(|posted| {
        let changed = *posted != value;
        *posted = value;
        changed
    });
}

/// Waits for the next value. Waits for ever if no task posts any more: it is one that this process
/// does not run, or the process ends. Cancel safe.
pub(crate) async fn changed<T>(posted: &mut watch::Receiver<T>) {
    if posted.changed().await.is_err() {
        pending().await
    }
}

/// Waits until the value is one that `is_it` accepts, like [`changed`].
pub(crate) async fn wait_for<T>(posted: &mut watch::Receiver<T>, is_it: impl FnMut(&T) -> bool) {
    if posted.wait_for(is_it).await.is_err() {
        pending().await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    /// The last task that posts a value ends before those that read it, when the agent stops. Then a
    /// heartbeat would be sent, or a condition taken for met.
    #[tokio::test(start_paused = true)]
    async fn a_value_that_no_task_posts_any_more_is_no_reason_to_go_on() {
        let (posted, mut latest) = watch::channel(0);
        post(&posted, 1);
        changed(&mut latest).await;
        drop(posted);
        let a_day = Duration::from_secs(86_400);
        assert!(timeout(a_day, changed(&mut latest)).await.is_err());
        let is_two = wait_for(&mut latest, |value| *value == 2);
        assert!(timeout(a_day, is_two).await.is_err());
        wait_for(&mut latest, |value| *value == 1).await;
    }
}
