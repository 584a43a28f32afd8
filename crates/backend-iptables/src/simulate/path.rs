//! Records the path of a packet, for traces.

use std::sync::Arc;

use backend::{Event, PacketPath};
use dataplane::{Node, Packet};
use xtables::{Rule, Target};

use super::{Memory, Walk};
use crate::rules::Rules;

/// The recorded events of a walk, if it is recorded.
#[derive(Debug, Default)]
pub(super) struct Path {
    events: Option<Vec<Event>>,
    /// The chain to which the walk has returned since the last event.
    back_in: Option<Event>,
}

/// Returns every path that `packet`, the first of its connection and of its client, may take on a
/// node whose kernel holds `rules` for the packet's family: one for each random match that may
/// match.
pub fn paths(rules: &Rules, node: &Node, packet: &Packet) -> Vec<PacketPath> {
    let mut paths = Vec::new();
    for number in 0.. {
        let mut memory = Memory::default();
        let mut walk = Walk::new(rules, node, packet, &mut memory, number);
        walk.path.events = Some(Vec::new());
        let outcome = walk.outcome();
        paths.push(PacketPath {
            events: walk.path.events.take().unwrap_or_default(),
            outcome,
        });
        if walk.draws <= number {
            break;
        }
    }
    paths
}

// === impl Path ===

impl Path {
    /// Records `event` if the walk is recorded.
    pub(super) fn note(&mut self, event: impl FnOnce() -> Event) {
        let Some(events) = &mut self.events else {
            return;
        };
        let event = event();
        // A return to a chain that immediately leads on to another one is not recorded.
        let is_step = matches!(event, Event::Base { .. } | Event::Chain { .. });
        events.extend(self.back_in.take().filter(|_| !is_step));
        events.push(event);
    }

    /// Notes that the walk continues with the next rule of this chain, or of a built-in one.
    pub(super) fn come_back(&mut self, to: Option<(&Arc<str>, usize)>) {
        self.back_in = to.map(|(name, depth)| entering(name, depth));
    }
}

/// The event of entering a chain at nesting level `depth`.
pub(super) fn entering(name: &Arc<str>, depth: usize) -> Event {
    Event::Chain {
        chain: Arc::clone(name),
        depth,
    }
}

/// Whether the rule has any match. A rule that every packet matches is recorded only by its effect.
pub(super) fn asks_something(rule: &Rule) -> bool {
    !rule.matches_same_packets(&Rule::always(Target::Accept))
}
