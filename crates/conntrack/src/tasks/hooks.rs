//! Keeps connections redirected while another program removes all tables.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dataplane::Family;
use reconciler::{Activity, Report};
use runtime::{CancellationToken, chain, run_blocking};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::info;

use crate::{KeepError, KeptHooks};

/// How long tables keep their names: a ruleset that was saved before can be loaded after that.
const NAMED_FOR: Duration = Duration::from_secs(600);
/// The pause after a kernel has refused. Most will always refuse.
const PAUSE: Duration = Duration::from_secs(60);

type Kept = BTreeMap<Family, KeptHooks>;

/// Keeps the hooks of conntrack and NAT while Signpost has rules on the node, until `stop` is
/// cancelled.
pub(super) async fn keep(
    mut report: watch::Receiver<Option<Arc<Report>>>,
    stop: CancellationToken,
) {
    let mut kept = Kept::new();
    let mut is_refused = false;
    loop {
        let serves = serves(report.borrow_and_update().as_deref());
        // The kernel waits for all processors when the owner of a table ends.
        let committing = run_blocking(move || match serves {
            true => commit(kept),
            false => {
                drop(kept);
                (Kept::new(), None)
            }
        });
        let refused;
        (kept, refused) = committing.await;
        let was_refused = std::mem::replace(&mut is_refused, refused.is_some());
        if let Some(error) = refused
            && !was_refused
        {
            info!(%error, "established connections may break if another program removes all tables of nf_tables");
        }
        let pause = match is_refused {
            true => PAUSE,
            false => NAMED_FOR,
        };
        // All arms are cancel safe: none of them consumes anything.
        tokio::select! {
            () = stop.cancelled() => break,
            changed = report.wait_for(|report| self::serves(report.as_deref()) != serves) => {
                if changed.is_err() {
                    break;
                }
            }
            () = sleep(pause), if serves => {}
        }
    }
    spawn_blocking(move || drop(kept));
}

/// Whether the kernel has rules of Signpost that redirect connections.
fn serves(report: Option<&Report>) -> bool {
    report.is_some_and(|report| {
        let mut families = report.families.iter();
        report.activity != Activity::Withdrawn && families.any(|family| family.programmed.is_some())
    })
}

/// Renews what is kept, and adds the families that are missing. Returns the last error.
fn commit(mut kept: Kept) -> (Kept, Option<String>) {
    let mut refused = None;
    for family in Family::ALL {
        match renewed(kept.remove(&family), family) {
            Ok(hooks) => {
                kept.insert(family, hooks);
            }
            Err(error) => refused = Some(format!("{family}: {}", chain(&error))),
        }
    }
    (kept, refused)
}

fn renewed(kept: Option<KeptHooks>, family: Family) -> Result<KeptHooks, KeepError> {
    match kept {
        Some(mut hooks) => hooks.renew().map(|()| hooks),
        None => KeptHooks::commit(family),
    }
}
