//! The main loop of the operator that holds the lease: receive events, plan, write, repeat.

use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use runtime::{Heartbeat, chain, jitter::fraction};
use tokio::{
    sync::watch::Receiver,
    time::{sleep_until, timeout},
};
use tracing::{debug, info, warn};

use crate::{
    clock_offset::ClockOffset,
    fleet::{Action, Event, Fleet, ObjectChange, Plan},
    operator_metrics::{OperatorMetrics, WriteResult, seconds},
    records::Record,
    watches::{Events, watch},
    write_rate_limiter::{FailureRepetition, WriteRateLimiter},
    writes::{WriteError, Writer, Written},
};

/// The main loop and its collaborators.
#[derive(Debug)]
pub(crate) struct FleetLoop {
    /// Makes the writes.
    pub(crate) writer: Writer,
    /// The metrics it updates.
    pub(crate) metrics: OperatorMetrics,
    /// Reports liveness.
    pub(crate) heartbeat: Heartbeat,
    /// The offset of the API server's clock, as it was measured last.
    pub(crate) offset: Receiver<ClockOffset>,
}

/// How long events are collected before the fleet is evaluated, so that a thousand agents that
/// report within a second cause ten evaluations and not a thousand.
const SHORTEST_BATCH: Duration = Duration::from_millis(100);
/// The minimum of that time as a multiple of the duration of the last plan. A plan evaluates all
/// nodes: however often agents report, plans use at most a twentieth of a processor, unless
/// [`LONGEST_BATCH`] is shorter.
const BATCH_PER_PLAN: u32 = 19;
/// An edit of a profile waits no longer than this.
const LONGEST_BATCH: Duration = Duration::from_secs(1);
/// High enough that the round trip does not limit throughput, low enough that the API server can
/// serve other clients.
const WRITES_AT_ONCE: usize = 16;
/// The maximum number of writes per plan. Events received meanwhile, such as a pause or a rollback,
/// apply from the next plan on.
const WRITES_A_PLAN: usize = 256;

// === impl FleetLoop ===

impl FleetLoop {
    /// Watches and writes with `client`; agents renew their Leases in `namespace`. Never returns. May
    /// be dropped at any point: every write is valid on its own, and the next operator computes the
    /// rest.
    pub(crate) async fn run(self, client: &Client, namespace: &str) {
        let mut events = watch(client, namespace);
        let offset = *self.offset.borrow();
        warn_of_unusual(offset);
        let mut fleet = Fleet::new(offset);
        let mut rate_limiter = WriteRateLimiter::default();
        let mut requeue_at = None;
        let mut planning = Duration::ZERO;
        loop {
            self.heartbeat.idle();
            tokio::select! {
                // Both branches are cancel-safe: a stream keeps the items that were not taken, and
                // a timer holds nothing.
                received = events.next() => received.into_iter().for_each(|event| self.apply(&mut fleet, event)),
                () = pause(requeue_at) => {}
            }
            self.heartbeat.busy();
            let time = (planning * BATCH_PER_PLAN).clamp(SHORTEST_BATCH, LONGEST_BATCH);
            collect_events(&mut events, time, |event| self.apply(&mut fleet, event)).await;
            self.metrics.set_oldest_heartbeat(fleet.oldest_heartbeat());
            self.metrics
                .set_failing_watches(fleet.failing_watches(Instant::now()));
            let is_due = requeue_at.is_some_and(|requeue_at| requeue_at <= Timestamp::now());
            if !fleet.is_complete() || !(fleet.has_changes() || is_due) {
                continue;
            }
            let began = Instant::now();
            let plan = fleet.plan(Timestamp::now(), began);
            planning = began.elapsed();
            requeue_at = plan.requeue_at;
            let counts = plan.counts.clone();
            let requeue_writes_at = self.commit(plan, &mut fleet, &mut rate_limiter).await;
            requeue_at = [requeue_at, requeue_writes_at].into_iter().flatten().min();
            self.metrics
                .record_sync(&counts, seconds(Timestamp::now()), began.elapsed());
            self.metrics.set_statuses(fleet.profiles());
        }
    }

    /// Applies `event` to `fleet`, whose times are read by the clocks as they are now.
    fn apply(&self, fleet: &mut Fleet, event: Event) {
        let offset = *self.offset.borrow();
        if fleet.follow_clock(offset) {
            info!("the clock of the API server or the one of this machine was changed");
            warn_of_unusual(offset);
        }
        fleet.apply(event);
    }

    /// Makes the writes of `plan` and applies their results to `fleet`. Returns when to plan again
    /// for the remaining writes.
    async fn commit(
        &self,
        plan: Plan,
        fleet: &mut Fleet,
        rate_limiter: &mut WriteRateLimiter,
    ) -> Option<Timestamp> {
        let (due, next) = rate_limiter.take_due(plan.actions, Instant::now());
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
            self.metrics.count_write(&action, result(&written));
            match written {
                Ok(Written::Applied(event)) => {
                    warn_of_unknown_fields(&event, fleet);
                    let failures = rate_limiter.succeeded(&action, Instant::now());
                    log(&action, &event, failures);
                    self.apply(fleet, event);
                }
                Ok(Written::Conflict) => {
                    let (kind, name) = action.object();
                    let version = action.version();
                    debug!(
                        kind,
                        name, version, "did not write the object: it has changed since the plan"
                    );
                    rate_limiter.conflicted(&action, Instant::now());
                }
                Err(error) => {
                    let error = chain(&error).to_string();
                    match rate_limiter.failed(&action, &error, Instant::now(), fraction()) {
                        FailureRepetition::New => {
                            warn!(error, "unable to write the object; retrying with backoff")
                        }
                        FailureRepetition::Repeated => {
                            debug!(error, "still unable to write the object")
                        }
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
        // The next write may have waited for one of these, and the deferred writes are due now. A
        // plan with nothing to do costs nothing.
        [after_writes, next].into_iter().flatten().min()
    }
}

fn result(written: &Result<Written, WriteError>) -> WriteResult {
    match written {
        Ok(Written::Applied(Event::Reported { unknown_fields, .. }))
            if !unknown_fields.is_empty() =>
        {
            WriteResult::partial
        }
        Ok(Written::Applied(_)) => WriteResult::success,
        Ok(Written::Conflict) => WriteResult::conflict,
        Err(_) => WriteResult::failure,
    }
}

fn warn_of_unusual(offset: ClockOffset) {
    if let Some(seconds_ahead) = offset.unusual() {
        warn!(
            seconds_ahead,
            "the clock of the API server differs from the one of this machine: correct the wrong one"
        );
    }
}

/// Warns once of the fields of a profile's status that the API server does not know.
fn warn_of_unknown_fields(event: &Event, fleet: &Fleet) {
    if let Event::Reported {
        record,
        unknown_fields,
    } = event
        && !unknown_fields.is_empty()
        && !fleet.has_unknown_fields(record.name(), unknown_fields)
    {
        warn!(
            profile = record.name(),
            fields = ?unknown_fields,
            "the CustomResourceDefinition of ProxyProfile is older than this operator: the status is written without these fields"
        );
    }
}

/// Logs that `action` succeeded after this many consecutive failures, with the result `event`.
fn log(action: &Action, event: &Event, failures: u32) {
    if failures > 0 {
        let (kind, name) = action.object();
        info!(
            kind,
            name, failures, "wrote the object after repeated failures"
        );
    }
    match action {
        Action::Assign { node, spec, .. } => {
            info!(node, profile = spec.profile_name, config = %spec.config_hash, mode = %spec.config.mode, "assigned the node its configuration");
        }
        Action::Delete { node, .. } => match event {
            Event::Proxy(ObjectChange::Applied(rest)) => warn!(
                node,
                finalizers = ?rest.pending_finalizers,
                "the NodeProxy stays until other programs remove these finalizers from it"
            ),
            _ => info!(
                node,
                "deleted the NodeProxy: its Node is gone, no profile applies to it, or no agent runs there"
            ),
        },
        Action::MarkUnknown { node, .. } => warn!(
            node,
            "the agent of this node has stopped renewing its Lease"
        ),
        Action::UpdateStatus { profile, .. } => debug!(profile, "updated the profile's status"),
    }
}

/// Applies all events received within `time`. A watch buffers one event and produces the next only
/// after its connection task has run, so this waits for events that have not arrived yet.
async fn collect_events(events: &mut Events, time: Duration, mut take: impl FnMut(Event)) {
    let taking = async {
        while let Some(event) = events.next().await {
            take(event);
        }
    };
    // The timeout only interrupts a wait, so no event is lost.
    timeout(time, taking).await.ok();
}

/// Waits until `requeue_at`, or forever if there is none.
async fn pause(requeue_at: Option<Timestamp>) {
    let Some(requeue_at) = requeue_at else {
        return std::future::pending().await;
    };
    let left = Duration::try_from(requeue_at.duration_since(Timestamp::now())).unwrap_or_default();
    sleep_until(tokio::time::Instant::now() + left).await;
}

#[cfg(test)]
mod tests;
