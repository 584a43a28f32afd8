//! When a node that is ready with a change counts as available.

use std::time::Duration;

use crds::profile::rollout::Rollout;
use jiff::Timestamp;

use crate::fleet::{
    node_progress::after,
    observations::{Observation, Observations},
    profile_node::ProfileNode,
};

/// The operator has to see a renewal of the node's Lease in the last part of `minReady`, of this
/// length, or later. It may see it 15 s late, so the agent lived 50 s before the end or later; the
/// node controller, too, needs 50 s to notice that a node is gone.
const RENEWAL_WINDOW: Duration = Duration::from_secs(35);
/// How long after `minReady` the operator waits for the renewal. Without one, the agent counts as
/// silent within 60 s: 80 s after the last renewal, and at the next list. A rollout has to go on
/// if the Leases cannot be listed.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(75);

/// How long a node whose agent has not tried a connection through its new rules yet stays on trial
/// at least. The agent does so once it is ready, and reports a failure after half a minute; a node
/// without endpoints of the API server's Service never can.
const CONNECTION_TEST_TIME: Duration = Duration::from_secs(35);

// === impl ProfileNode ===

impl ProfileNode<'_> {
    /// Returns until when the node, which has been `seen` to be ready, has to stay so for the next
    /// decision; `None` if it counts as available.
    ///
    /// What a newly started operator found has been so since the agent's last report, which the API
    /// server wrote down.
    pub(super) fn min_ready_until(
        &self,
        seen: Observation,
        rollout: &Rollout,
        observations: &mut Observations,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let proxy = self.proxy?;
        let start = seen.start(seen.since, proxy.reported_at);
        let min_ready = rollout.min_ready.duration();
        let min_ready = if self.awaits_connection() {
            min_ready.max(CONNECTION_TEST_TIME)
        } else {
            min_ready
        };
        let end = after(start, min_ready);
        let remaining = (now < end).then_some(end);
        let has_lease = proxy.renews_lease() && !self.is_handed_back();
        let first_part = min_ready.checked_sub(RENEWAL_WINDOW).filter(|_| has_lease);
        let Some(first_part) = first_part else {
            return remaining;
        };
        let last_part = after(start, first_part);
        if now < last_part {
            return Some(last_part);
        }
        let latest = after(end, RENEWAL_TIMEOUT);
        if now >= latest {
            observations.await_no_renewal(self.name());
            return remaining;
        }
        let lease = self.heartbeats.lease_version(self.name());
        let has_renewed = observations.has_renewed(self.name(), lease);
        remaining.or_else(|| (!has_renewed).then_some(latest))
    }
}
