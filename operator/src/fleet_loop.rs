//! The loop of the operator that holds the lease: hear, plan, write, and again.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use futures::{FutureExt, StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use runtime::{Heartbeat, chain};
use tokio::time::{sleep, sleep_until};
use tracing::{debug, info, warn};

use crate::{
    fleet::{Action, Fleet, Plan},
    operator_metrics::OperatorMetrics,
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

/// The writes that failed, each with how often in a row and when it may be tried again.
#[derive(Debug, Default)]
struct Postponed(BTreeMap<Key, (u32, Instant)>);

/// What is written, by kind and name of the object.
type Key = (&'static str, String);

/// Time for more to be heard before the fleet is looked at, so that a thousand agents that report in a second make ten
/// rounds and not a thousand.
const GATHER: Duration = Duration::from_millis(100);
/// Enough that the round trip does not count, few enough that the API server serves others as well.
const WRITES_AT_ONCE: usize = 16;
/// How many writes are made by one plan. What has been heard meanwhile, a pause or a rollback, counts from the next.
const WRITES_A_PLAN: usize = 256;
/// A write that was refused is tried again after this time, and then after twice as long each time up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

// === impl FleetLoop ===

impl FleetLoop {
    /// Watches and writes with `client`. Never returns; may be dropped at any point, since what is written is what should
    /// be, and whoever comes next finds out the rest.
    pub(crate) async fn run(self, client: &Client) {
        let mut events = watch(client);
        let mut fleet = Fleet::default();
        let mut postponed = Postponed::default();
        let mut wake = None;
        loop {
            self.heartbeat.idle();
            tokio::select! {
                // Both arms lose nothing when dropped: a stream keeps what was not taken, a timer holds nothing.
                heard = events.next() => heard.into_iter().for_each(|event| fleet.apply(event)),
                () = pause(wake) => {}
            }
            self.heartbeat.busy();
            gather(&mut events, &mut fleet).await;
            if !fleet.is_complete() {
                continue;
            }
            let began = Instant::now();
            let plan = fleet.plan(Timestamp::now());
            wake = plan.wake;
            let counts = plan.counts.clone();
            let rewake = self.commit(plan, &mut fleet, &mut postponed).await;
            wake = [wake, rewake].into_iter().flatten().min();
            self.metrics
                .round(&counts, seconds(Timestamp::now()), began.elapsed());
        }
    }

    /// Carries out `plan`, and tells `fleet` what came of it. Returns when to plan again for what was left.
    async fn commit(
        &self,
        plan: Plan,
        fleet: &mut Fleet,
        postponed: &mut Postponed,
    ) -> Option<Timestamp> {
        let now = Instant::now();
        postponed.forget_all_but(&plan.actions);
        let (due, waiting): (Vec<Action>, Vec<Action>) = plan
            .actions
            .into_iter()
            .partition(|action| postponed.due(action).is_none_or(|due| due <= now));
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
                    tell(&action);
                    postponed.succeeded(&action);
                    event.into_iter().for_each(|event| fleet.apply(event));
                }
                Err(error) => {
                    warn!(error = %chain(&error), "unable to write");
                    postponed.failed(&action, Instant::now());
                }
            }
        }
        let after_writes = (due_count > 0).then(Timestamp::now);
        let next = waiting
            .iter()
            .filter_map(|action| postponed.due(action))
            .chain(postponed.next())
            .min();
        let next = next.and_then(|due| {
            let left =
                SignedDuration::try_from(due.saturating_duration_since(Instant::now())).ok()?;
            Timestamp::now().checked_add(left).ok()
        });
        // What was written may be what the next write waited for: a look that finds nothing to do costs nothing.
        [after_writes, next].into_iter().flatten().min()
    }
}

fn tell(action: &Action) {
    match action {
        Action::Stamp { node, spec, .. } => {
            info!(node, profile = spec.profile_name, config = %spec.config_hash, mode = %spec.config.mode, "stamped");
        }
        Action::Remove { node, .. } => info!(
            node,
            "removed: its node is gone, or no profile decides for it"
        ),
        Action::Report { profile, .. } => debug!(profile, "reported"),
    }
}

/// Takes in everything that is heard for a little while.
async fn gather(events: &mut Events, fleet: &mut Fleet) {
    sleep(GATHER).await;
    while let Some(Some(event)) = events.next().now_or_never() {
        fleet.apply(event);
    }
}

/// Until `wake`, or for ever.
async fn pause(wake: Option<Timestamp>) {
    let Some(wake) = wake else {
        return std::future::pending().await;
    };
    let left = Duration::try_from(wake.duration_since(Timestamp::now())).unwrap_or_default();
    sleep_until(tokio::time::Instant::now() + left).await;
}

#[allow(
    clippy::cast_precision_loss,
    reason = "microseconds since 1970 are exact in a double until the year 2255"
)]
fn seconds(time: Timestamp) -> f64 {
    time.as_microsecond() as f64 / 1e6
}

// === impl Postponed ===

impl Postponed {
    fn key(action: &Action) -> Key {
        let (kind, name) = action.object();
        (kind, name.to_owned())
    }

    fn due(&self, action: &Action) -> Option<Instant> {
        self.0.get(&Self::key(action)).map(|(_, due)| *due)
    }

    fn next(&self) -> Option<Instant> {
        self.0.values().map(|(_, due)| *due).min()
    }

    fn succeeded(&mut self, action: &Action) {
        self.0.remove(&Self::key(action));
    }

    fn failed(&mut self, action: &Action, now: Instant) {
        let entry = self.0.entry(Self::key(action)).or_insert((0, now));
        let pause = FIRST_PAUSE
            .saturating_mul(1 << entry.0.min(6))
            .min(LONGEST_PAUSE);
        *entry = (entry.0 + 1, now + pause);
    }

    /// What no longer needs to be written need not be waited for.
    fn forget_all_but(&mut self, actions: &[Action]) {
        let keys: BTreeSet<Key> = actions.iter().map(Self::key).collect();
        self.0.retain(|key, _| keys.contains(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removal(node: &str) -> Action {
        Action::Remove {
            node: node.into(),
            uid: "1".into(),
        }
    }

    #[test]
    fn a_write_that_keeps_failing_is_tried_less_and_less_often_and_one_that_is_not_needed_is_forgotten()
     {
        let (mut postponed, now) = (Postponed::default(), Instant::now());
        let pauses: Vec<u64> = (0..9)
            .map(|_| {
                postponed.failed(&removal("n1"), now);
                postponed
                    .due(&removal("n1"))
                    .map_or(0, |due| due.duration_since(now).as_secs())
            })
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(
            postponed.due(&removal("n2")),
            None,
            "others are not held up"
        );
        postponed.forget_all_but(&[removal("n2")]);
        assert_eq!(postponed.next(), None);
    }
}
