//! Since when nodes have been as they are, on the operator's own clock: the clocks of nodes and of the API server are
//! compared with nothing.
//!
//! This is memory, and an operator that starts has none. What it finds counts as seen then for the first time, so that a
//! verdict comes later and never earlier.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::records::NodeProxyRecord;

/// What was last seen of each node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sightings {
    nodes: BTreeMap<String, (Stamp, Sighting)>,
    rounds: Rounds,
}

/// How a node is with what it has, compared with its baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Ready, and no worse than before.
    Well,
    /// Not ready, or not yet.
    Unready,
    /// Worse than before: lost, or degraded for a reason that was not there.
    Worse,
}

/// Since when a node has been as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// Since then: it was otherwise before, or had something else.
    Changed(Timestamp),
    /// Since then or earlier: an operator that started then found it so.
    Found(Timestamp),
}

/// What was seen of one node with what it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sighting {
    shape: Shape,
    /// Since when it has been as it is.
    pub(crate) since: Since,
    /// Whether it has been [`Shape::Well`] with what it has.
    pub(crate) was_well: bool,
}

/// What a node was given: the identity of its `NodeProxy`, and the generation.
type Stamp = (String, i64);

/// Whether this operator has looked at the whole fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Rounds {
    #[default]
    First,
    Later,
}

// === impl Sightings ===

impl Sightings {
    /// Notes at `now` that the node of `proxy` has this shape with what it has; returns what is known of that.
    pub(crate) fn note(
        &mut self,
        proxy: &NodeProxyRecord,
        shape: Shape,
        now: Timestamp,
    ) -> Sighting {
        let known = self
            .nodes
            .get(&proxy.name)
            .filter(|((uid, generation), _)| *uid == proxy.uid && *generation == proxy.generation)
            .map(|(_, sighting)| *sighting);
        if let Some(known) = known.filter(|known| known.shape == shape) {
            return known;
        }
        let sighting = Sighting {
            shape,
            since: match self.rounds {
                Rounds::First => Since::Found(now),
                Rounds::Later => Since::Changed(now),
            },
            was_well: shape == Shape::Well || known.is_some_and(|known| known.was_well),
        };
        let stamp = (proxy.uid.clone(), proxy.generation);
        self.nodes.insert(proxy.name.clone(), (stamp, sighting));
        sighting
    }

    /// Ends a look at the whole fleet: forgets nodes that have nothing any more.
    pub(crate) fn close(&mut self, proxies: &BTreeMap<String, NodeProxyRecord>) {
        self.nodes.retain(|name, _| proxies.contains_key(name));
        self.rounds = Rounds::Later;
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
