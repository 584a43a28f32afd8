//! How long nodes have been in their present state, measured on the operator's own clock. The
//! clocks of nodes are not compared with it.
//!
//! The observations are kept in memory only. An operator that starts counts what it finds as first
//! seen then; where that would put a rollout off, it goes by times that the API server wrote down,
//! too, and reads them by its own clock (`ClockOffset`).

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use crate::{
    clock_offset::ServerTime,
    fleet::{heartbeats::Heartbeats, node_progress::after},
    records::NodeProxyRecord,
};

/// The last observation of each node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observations {
    nodes: BTreeMap<String, (SpecId, Observation)>,
    /// The Leases that nodes have to renew to count as available.
    leases: BTreeMap<String, AwaitedLease>,
    /// Since when nodes have been lost.
    lost: BTreeMap<String, Timestamp>,
    syncs: Syncs,
}

/// The state of a node with its current spec, compared with its baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HealthSinceAssigned {
    /// Ready, and no worse than before.
    Healthy,
    /// Not ready or not yet ready.
    Unready,
    /// Worse than before: lost, or degraded for a new reason.
    Worse,
}

/// Since when a node has been in its present state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// Since this time: the node changed its state or its spec then.
    Changed(Timestamp),
    /// Since this time or earlier: the operator found the state when it started.
    Found(Timestamp),
}

/// The observation of one node with its current spec.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observation {
    health: HealthSinceAssigned,
    /// Since when the node has had this spec.
    pub(crate) assigned: Since,
    /// Since when the node has been in this state.
    pub(crate) since: Since,
    /// Whether the node has ever been [`HealthSinceAssigned::Healthy`] with this spec.
    pub(crate) was_healthy: bool,
    /// For how long since then nodes could not be watched.
    unwatched: Duration,
}

/// A Lease that a node has to renew.
#[derive(Clone, Debug)]
enum AwaitedLease {
    /// It still has this version.
    Unchanged(String),
    /// It was renewed.
    Renewed,
}

/// The UID of a node's `NodeProxy` and its generation: which spec it has.
type SpecId = (String, i64);

/// Whether this operator has evaluated the whole fleet at least once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Syncs {
    #[default]
    First,
    Later,
}

// === impl Observations ===

impl Observations {
    /// Records the state of the node of `proxy` at `now`; returns its observation with this spec.
    pub(crate) fn note(
        &mut self,
        proxy: &NodeProxyRecord,
        health: HealthSinceAssigned,
        now: Timestamp,
    ) -> Observation {
        let known = self
            .nodes
            .get(&proxy.name)
            .filter(|((uid, generation), _)| *uid == proxy.uid && *generation == proxy.generation)
            .map(|(_, observation)| *observation);
        if let Some(known) = known.filter(|known| known.health == health) {
            return known;
        }
        let since = match self.syncs {
            Syncs::First => Since::Found(now),
            Syncs::Later => Since::Changed(now),
        };
        let observation = Observation {
            health,
            assigned: known.map_or(since, |known| known.assigned),
            since,
            was_healthy: health == HealthSinceAssigned::Healthy
                || known.is_some_and(|known| known.was_healthy),
            unwatched: known.map_or(Duration::ZERO, |known| known.unwatched),
        };
        let spec_id = (proxy.uid.clone(), proxy.generation);
        self.leases.remove(&proxy.name);
        self.nodes
            .insert(proxy.name.clone(), (spec_id, observation));
        observation
    }

    /// Whether the node of `proxy` has ever been [`HealthSinceAssigned::Healthy`] with its present spec.
    pub(crate) fn was_healthy(&self, proxy: &NodeProxyRecord) -> bool {
        let known = self.nodes.get(&proxy.name);
        known.is_some_and(|((uid, generation), observation)| {
            (uid, *generation) == (&proxy.uid, proxy.generation) && observation.was_healthy
        })
    }

    /// Whether the Lease of `node`, now of this version, was renewed after the first call in its
    /// present state.
    pub(crate) fn has_renewed(&mut self, node: &str, version: Option<&str>) -> bool {
        let Some(version) = version else {
            return matches!(self.leases.get(node), Some(AwaitedLease::Renewed));
        };
        let unchanged = || AwaitedLease::Unchanged(version.to_owned());
        let lease = self.leases.entry(node.to_owned()).or_insert_with(unchanged);
        if matches!(lease, AwaitedLease::Unchanged(before) if before != version) {
            *lease = AwaitedLease::Renewed;
        }
        matches!(lease, AwaitedLease::Renewed)
    }

    /// No renewal of the Lease of `node` matters any more.
    pub(crate) fn await_no_renewal(&mut self, node: &str) {
        self.leases.remove(node);
    }

    /// Whether a node for which [`Self::has_renewed`] was false has renewed its Lease since. Each
    /// renewal matters once: a node that is not evaluated any more costs no further plan.
    pub(crate) fn renewal_matters(&mut self, heartbeats: &Heartbeats) -> bool {
        let mut matters = false;
        for (node, lease) in &mut self.leases {
            if let AwaitedLease::Unchanged(before) = lease
                && heartbeats
                    .lease_version(node)
                    .is_some_and(|version| version != before)
            {
                *lease = AwaitedLease::Renewed;
                matters = true;
            }
        }
        matters
    }

    /// Records that `node` is lost at `now`.
    pub(crate) fn note_lost(&mut self, node: &str, now: Timestamp) {
        self.lost.entry(node.to_owned()).or_insert(now);
    }

    /// Records that `node` is not lost.
    pub(crate) fn note_contact(&mut self, node: &str) {
        self.lost.remove(node);
    }

    /// Returns since when `node` has been lost.
    pub(crate) fn lost_since(&self, node: &str) -> Option<Timestamp> {
        self.lost.get(node).copied()
    }

    /// Returns since when the node of `proxy` has had its spec, if the operator knows.
    pub(crate) fn assigned_since(&self, proxy: &NodeProxyRecord) -> Option<Timestamp> {
        let ((uid, generation), known) = self.nodes.get(&proxy.name)?;
        let is_same = *uid == proxy.uid && *generation == proxy.generation;
        is_same.then(|| known.assigned.time())
    }

    /// Returns for how long nodes could not be watched since the node of `proxy` got its spec.
    pub(crate) fn unwatched(&self, proxy: &NodeProxyRecord) -> Duration {
        let known = self.nodes.get(&proxy.name);
        let known = known
            .filter(|((uid, generation), _)| *uid == proxy.uid && *generation == proxy.generation);
        known.map_or(Duration::ZERO, |(_, observation)| observation.unwatched)
    }

    /// Has the grace period of a node that is worse than before begin anew.
    pub(crate) fn restart_grace(&mut self, node: &str, now: Timestamp) {
        if let Some((_, known)) = self.nodes.get_mut(node)
            && known.health == HealthSinceAssigned::Worse
        {
            known.since = match known.since {
                Since::Changed(_) => Since::Changed(now),
                Since::Found(_) => Since::Found(now),
            };
        }
    }

    /// Leaves out of all durations a time for which nodes could not be watched.
    pub(crate) fn exclude_unwatched(&mut self, span: Duration) {
        if span.is_zero() {
            return;
        }
        for (_, known) in self.nodes.values_mut() {
            known.assigned = known.assigned.later(span);
            known.since = known.since.later(span);
            known.unwatched += span;
        }
        for since in self.lost.values_mut() {
            *since = after(*since, span);
        }
    }

    /// Ends one evaluation of the whole fleet: removes nodes that no longer have a `NodeProxy`.
    pub(crate) fn end_sync(&mut self, proxies: &BTreeMap<String, NodeProxyRecord>) {
        self.nodes.retain(|name, _| proxies.contains_key(name));
        self.leases.retain(|name, _| proxies.contains_key(name));
        self.lost.retain(|name, _| proxies.contains_key(name));
        self.syncs = Syncs::Later;
    }
}

// === impl Observation ===

impl Observation {
    /// Returns the start of a state that the node has been in `since`. A state that the operator found
    /// when it started has lasted since the API server has `written` it down, less the time for which
    /// nodes could not be watched.
    pub(crate) fn start(&self, since: Since, written: Option<ServerTime>) -> Timestamp {
        match (since, written) {
            (Since::Found(found), Some(written)) => found.min(after(written.own(), self.unwatched)),
            _ => since.time(),
        }
    }
}

// === impl Since ===

impl Since {
    fn later(self, span: Duration) -> Self {
        match self {
            Self::Changed(time) => Self::Changed(after(time, span)),
            Self::Found(time) => Self::Found(after(time, span)),
        }
    }

    /// The time.
    pub(crate) const fn time(self) -> Timestamp {
        match self {
            Self::Changed(time) | Self::Found(time) => time,
        }
    }
}
