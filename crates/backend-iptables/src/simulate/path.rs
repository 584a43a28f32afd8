//! What a packet meets on its way, for people who ask where it went.

use std::sync::Arc;

use backend::{Event, Way};
use dataplane::{Node, Packet};
use xtables::{Rule, Target};

use super::{Memory, Walk};
use crate::rules::Rules;

/// What is written down of a walk, if anything is.
#[derive(Debug, Default)]
pub(super) struct Path {
    events: Option<Vec<Event>>,
    /// The chain it has come back to since the last of them.
    back_in: Option<Event>,
}

/// Every way that `packet`, the first of its connection and of its client, may take on a node whose
/// kernel holds `rules` for the packet's family: one for each rule that may match at random.
pub fn ways(rules: &Rules, node: &Node, packet: &Packet) -> Vec<Way> {
    let mut ways = Vec::new();
    for number in 0.. {
        let mut memory = Memory::default();
        let mut walk = Walk::new(rules, node, packet, &mut memory, number);
        walk.path.events = Some(Vec::new());
        let outcome = walk.outcome();
        ways.push(Way {
            events: walk.path.events.take().unwrap_or_default(),
            outcome,
        });
        if walk.draws <= number {
            break;
        }
    }
    ways
}

// === impl Path ===

impl Path {
    /// Writes down what `event` says, if anybody reads it.
    pub(super) fn note(&mut self, event: impl FnOnce() -> Event) {
        let Some(events) = &mut self.events else {
            return;
        };
        let event = event();
        // What leads on at once is not worth coming back for.
        let is_step = matches!(event, Event::Base { .. } | Event::Chain { .. });
        events.extend(self.back_in.take().filter(|_| !is_step));
        events.push(event);
    }

    /// It goes on with the next rule of this chain, or of one of the kernel.
    pub(super) fn come_back(&mut self, to: Option<(&Arc<str>, usize)>) {
        self.back_in = to.map(|(name, depth)| entering(name, depth));
    }
}

/// Into a chain that `depth` others have led to.
pub(super) fn entering(name: &Arc<str>, depth: usize) -> Event {
    Event::Chain {
        chain: Arc::clone(name),
        depth,
    }
}

/// Whether there are packets that the rule leaves alone. One that every packet matches says no more
/// than what it does.
pub(super) fn asks_something(rule: &Rule) -> bool {
    !rule.asks_the_same_as(&Rule::always(Target::Accept))
}
