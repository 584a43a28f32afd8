//! Scans for other service proxies on this node, from time to time.

use std::sync::Arc;
use std::time::Duration;

use crds::event;
use foreign_proxy::virtual_servers::{IdleRemoval, Remaining};
use foreign_proxy::{Ending, ForeignProxyScan, Found, Scanner, finding};
use handover::ServingState;
use runtime::{CancellationToken, chain, run_blocking};
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use events::{Announcement, EventObject, Events};

use crate::foreign_proxies::ForeignProxies;
use crate::latest::changed;

/// The time between two scans while another proxy is present, and after another program has changed
/// nf_tables. A scan asks the kernel for a dozen objects by name. A proxy that changes its rules
/// all the time does not cause more frequent scans.
const SOON: Duration = Duration::from_secs(10);
/// The time between two scans while no other proxy is present. The agent receives no notifications
/// of changes to legacy tables and to devices.
const LATEST: Duration = Duration::from_secs(30);

/// Scans periodically and after another program has changed nf_tables, and announces newly found
/// proxies, until `stop` is cancelled.
pub(crate) async fn watch(
    proxies: Arc<ForeignProxies>,
    serving_state: Receiver<ServingState>,
    events: Events,
    stop: CancellationToken,
) {
    let mut before = Found::default();
    let mut others = proxies.changes();
    let mut scanner = Scanner::default();
    let mut removal = IdleRemoval::default();
    loop {
        let scanned = Instant::now();
        // This scan may miss changes from here on.
        others.mark_unchanged();
        let is_serving = *serving_state.borrow() == ServingState::Serving;
        let running = run_blocking(move || {
            let mut scan = scanner.observe();
            if is_serving && commit_idle_removal(&scan, &mut removal) == Progress::Complete {
                scan = scanner.observe();
            }
            (scanner, removal, scan)
        });
        let scan;
        (scanner, removal, scan) = running.await;
        if let ForeignProxyScan::Seen(found, _) = &scan {
            if found.rules.keys().any(|m| !before.rules.contains_key(m)) {
                events.announce(Announcement {
                    regarding: EventObject::Node,
                    reason: event::FOREIGN_PROXY,
                    note: finding(&scan).map_or_else(String::new, |f| f.message),
                });
            }
            before = found.clone();
        }
        let found_nothing = matches!(&scan, ForeignProxyScan::Seen(found, _) if found.is_nothing());
        let latest = if found_nothing { LATEST } else { SOON };
        proxies.post_scan(scan);
        // Both arms are cancel safe.
        tokio::select! {
            () = stop.cancelled() => return,
            () = next_scan(&mut others, scanned, latest) => {}
        }
    }
}

/// Whether the last virtual server of kube-proxy has just been removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Complete,
    Incomplete,
}

/// Removes those virtual servers of kube-proxy that a takeover has ended, and that are idle by now.
fn commit_idle_removal(scan: &ForeignProxyScan, removal: &mut IdleRemoval) -> Progress {
    let ForeignProxyScan::Seen(found, _) = scan else {
        return Progress::Incomplete;
    };
    if found.ending != Ending::Pending {
        return Progress::Incomplete;
    }
    match removal.commit() {
        Ok(remaining) if remaining == Remaining::default() => {
            info!("the last virtual server of kube-proxy is removed");
            Progress::Complete
        }
        Ok(_) => Progress::Incomplete,
        Err(error) => {
            warn!(error = %chain(&error), "virtual servers of kube-proxy are not removed; the next scan tries again");
            Progress::Incomplete
        }
    }
}

/// Waits until the next scan is due: `latest` after the last one, or `SOON` after it if another
/// program changes nf_tables. Cancel safe: a scan follows in any case.
async fn next_scan(others: &mut Receiver<()>, scanned: Instant, latest: Duration) {
    let changed = async {
        changed(others).await;
        sleep_until(scanned + SOON).await;
    };
    tokio::select! {
        () = changed => {}
        () = sleep_until(scanned + latest) => {}
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::*;

    /// Without changes, scans are rare. A proxy that starts to use nf_tables is found soon, and one
    /// that changes its rules all the time does not cause more frequent scans.
    #[tokio::test(start_paused = true)]
    async fn what_others_change_is_looked_at_soon_and_no_more_often_than_that() {
        let (sender, mut others) = watch::channel(());
        let looked_after = async |others: &mut watch::Receiver<()>| {
            let scanned = Instant::now();
            next_scan(others, scanned, LATEST).await;
            scanned.elapsed()
        };
        assert_eq!(looked_after(&mut others).await, LATEST);
        sender.send_replace(());
        assert_eq!(looked_after(&mut others).await, SOON);
        let late = async {
            sleep_until(Instant::now() + 2 * SOON).await;
            sender.send_replace(());
        };
        let (after, ()) = tokio::join!(looked_after(&mut others), late);
        assert_eq!(after, 2 * SOON);
    }
}
