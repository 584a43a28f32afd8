//! The loop of the operator that holds the lease: hear, plan, write, and again.

use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use runtime::{Heartbeat, chain};
use tokio::time::{sleep_until, timeout};
use tracing::{debug, info, warn};

use crate::{
    fleet::{Action, Event, Fleet, Plan},
    operator_metrics::{OperatorMetrics, seconds},
    pace::{Novelty, Pace},
    watches::{Events, watch},
    writes::Writer,
};

/// What the loop works with.
#[derive(Debug)]
pub(crate) struct FleetLoop {
    /// How it writes.
    pub(crate) writer: Writer,
    /// What it counts.
    pub(crate) metrics: OperatorMetrics,
    /// How it says that it gets on.
    pub(crate) heartbeat: Heartbeat,
}

/// Time for more to be heard before the fleet is looked at, so that a thousand agents that report in a second make ten
/// rounds and not a thousand.
const GATHER: Duration = Duration::from_millis(100);
/// How many times as long as the last plan that time is at the least. A plan looks at all nodes: however often agents
/// report, plans take a twentieth of a processor, and more only where [`LONGEST_GATHER`] is less than that.
const GATHER_FOR_A_PLAN: u32 = 19;
/// An edited profile waits for no longer than this.
const LONGEST_GATHER: Duration = Duration::from_secs(1);
/// Enough that the round trip does not count, few enough that the API server serves others as well.
const WRITES_AT_ONCE: usize = 16;
/// How many writes are made by one plan. What has been heard meanwhile, a pause or a rollback, counts from the next.
const WRITES_A_PLAN: usize = 256;

// === impl FleetLoop ===

impl FleetLoop {
    /// Watches and writes with `client`; agents have their Leases in `namespace`. Never returns; may be dropped at any
    /// point, since what is written is what should be, and whoever comes next finds out the rest.
    pub(crate) async fn run(self, client: &Client, namespace: &str) {
        let mut events = watch(client, namespace);
        let mut fleet = Fleet::default();
        let mut pace = Pace::default();
        let mut wake = None;
        let mut planning = Duration::ZERO;
        loop {
            self.heartbeat.idle();
            tokio::select! {
                // Both arms lose nothing when dropped: a stream keeps what was not taken, a timer holds nothing.
                heard = events.next() => heard.into_iter().for_each(|event| fleet.apply(event)),
                () = pause(wake) => {}
            }
            self.heartbeat.busy();
            let time = (planning * GATHER_FOR_A_PLAN).clamp(GATHER, LONGEST_GATHER);
            gather(&mut events, time, |event| fleet.apply(event)).await;
            self.metrics.heard(fleet.oldest_heartbeat());
            let is_due = wake.is_some_and(|wake| wake <= Timestamp::now());
            if !fleet.is_complete() || !(fleet.has_news() || is_due) {
                continue;
            }
            let began = Instant::now();
            let plan = fleet.plan(Timestamp::now());
            planning = began.elapsed();
            wake = plan.wake;
            let counts = plan.counts.clone();
            let rewake = self.commit(plan, &mut fleet, &mut pace).await;
            wake = [wake, rewake].into_iter().flatten().min();
            self.metrics
                .round(&counts, seconds(Timestamp::now()), began.elapsed());
            self.metrics.statuses(fleet.profiles());
        }
    }

    /// Carries out `plan`, and tells `fleet` what came of it. Returns when to plan again for what was left.
    async fn commit(&self, plan: Plan, fleet: &mut Fleet, pace: &mut Pace) -> Option<Timestamp> {
        let (due, next) = pace.take_due(plan.actions, Instant::now());
        let due_count = due.len();
        let writes = due
            .into_iter()
            .take(WRITES_A_PLAN)
            .map(|action| async move {
                let written = self.writer.commit(&action).await;
                (action, written)
            });
        let mut writes = stream::iter(writes).buffer_unordered(WRITES_AT_ONCE);
        while let Some((action, written)) = writes.next().await {
            self.heartbeat.beat();
            self.metrics.wrote(&action, written.is_ok());
            match written {
                Ok(event) => {
                    let failures = pace.succeeded(&action, Instant::now());
                    if let Some(event) = event {
                        tell(&action, failures);
                        fleet.apply(event);
                    }
                }
                Err(error) => {
                    let error = chain(&error).to_string();
                    match pace.failed(&action, &error, Instant::now()) {
                        Novelty::New => {
                            warn!(error, "unable to write the object; retrying with backoff")
                        }
                        Novelty::Known => debug!(error, "still unable to write the object"),
                    }
                }
            }
        }
        let after_writes = (due_count > 0).then(Timestamp::now);
        let next = next.and_then(|due| {
            let left =
                SignedDuration::try_from(due.saturating_duration_since(Instant::now())).ok()?;
            Timestamp::now().checked_add(left).ok()
        });
        // What was written may be what the next write waited for, and what was not has a turn now: a look that finds
        // nothing to do costs nothing.
        [after_writes, next].into_iter().flatten().min()
    }
}

/// Says that `action` was carried out, after it had failed this often in a row.
fn tell(action: &Action, failures: u32) {
    if failures > 0 {
        let (kind, name) = action.object();
        info!(
            kind,
            name, failures, "wrote the object after repeated failures"
        );
    }
    match action {
        Action::Stamp { node, spec, .. } => {
            info!(node, profile = spec.profile_name, config = %spec.config_hash, mode = %spec.config.mode, "assigned the node its configuration");
        }
        Action::Remove { node, .. } => info!(
            node,
            "deleted the NodeProxy: its Node is gone, or no profile applies to it"
        ),
        Action::Silence { node, .. } => warn!(
            node,
            "the agent of this node has stopped renewing its Lease"
        ),
        Action::Report { profile, .. } => debug!(profile, "updated the profile's status"),
    }
}

/// Takes in everything that is heard within `time`. A watch has one event at a time, and the next once the task
/// of its connection has run: an event that is not there yet is waited for.
async fn gather(events: &mut Events, time: Duration, mut take: impl FnMut(Event)) {
    let taking = async {
        while let Some(event) = events.next().await {
            take(event);
        }
    };
    // What the end of the time interrupts is a wait, and nothing is lost by it.
    timeout(time, taking).await.ok();
}

/// Until `wake`, or for ever.
async fn pause(wake: Option<Timestamp>) {
    let Some(wake) = wake else {
        return std::future::pending().await;
    };
    let left = Duration::try_from(wake.duration_since(Timestamp::now())).unwrap_or_default();
    sleep_until(tokio::time::Instant::now() + left).await;
}

#[cfg(test)]
mod tests;
