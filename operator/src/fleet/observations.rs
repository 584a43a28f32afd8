//! How long nodes have been in their present state, measured on the operator's own clock. The
//! clocks of nodes are not compared with it.
//!
//! The observations are kept in memory only. An operator that starts counts what it finds as first
//! seen then; where that would put a rollout off, it goes by times of the API server, too.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::records::NodeProxyRecord;

/// The last observation of each node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observations {
    nodes: BTreeMap<String, (Stamp, Observation)>,
    syncs: Rounds,
}

/// The state of a node with its current spec, compared with its baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Ready, and no worse than before.
    Well,
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
    shape: Shape,
    /// Since when the node has had this spec.
    pub(crate) given: Since,
    /// Since when the node has been in this state.
    pub(crate) since: Since,
    /// Whether the node has ever been [`Shape::Well`] with this spec.
    pub(crate) was_well: bool,
}

/// The UID of a node's `NodeProxy`, and its generation.
type Stamp = (String, i64);

/// Whether this operator has evaluated the whole fleet at least once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Rounds {
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
        shape: Shape,
        now: Timestamp,
    ) -> Observation {
        let known = self
            .nodes
            .get(&proxy.name)
            .filter(|((uid, generation), _)| *uid == proxy.uid && *generation == proxy.generation)
            .map(|(_, observation)| *observation);
        if let Some(known) = known.filter(|known| known.shape == shape) {
            return known;
        }
        let since = match self.syncs {
            Rounds::First => Since::Found(now),
            Rounds::Later => Since::Changed(now),
        };
        let observation = Observation {
            shape,
            given: known.map_or(since, |known| known.given),
            since,
            was_well: shape == Shape::Well || known.is_some_and(|known| known.was_well),
        };
        let stamp = (proxy.uid.clone(), proxy.generation);
        self.nodes.insert(proxy.name.clone(), (stamp, observation));
        observation
    }

    /// Ends one evaluation of the whole fleet: removes nodes that no longer have a `NodeProxy`.
    pub(crate) fn close(&mut self, proxies: &BTreeMap<String, NodeProxyRecord>) {
        self.nodes.retain(|name, _| proxies.contains_key(name));
        self.syncs = Rounds::Later;
    }
}

// === impl Since ===

impl Since {
    /// The time.
    pub(crate) const fn time(self) -> Timestamp {
        match self {
            Self::Changed(time) | Self::Found(time) => time,
        }
    }
}
