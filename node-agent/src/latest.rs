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
