//! Records the events of a walk, for traces.

use std::sync::Arc;

use backend::{Event, PacketPath};
use dataplane::{Node, Packet};
use netlink::nf_tables::{Bytes, Chain, ElementData, Set};

use super::{End, Memory, View, Walk};

/// The recorded events; `None` if nothing is recorded.
#[derive(Debug, Default)]
pub(super) struct Path(Option<Vec<Event>>);

/// Every way that `packet`, the first of its connection and of its client, may take on a node whose
/// kernel has the content of `view` for the packet's family: one for each number that may be drawn.
/// `run` leads the packet through the hooks.
pub fn paths(
    view: View<'_>,
    node: &Node,
    packet: &Packet,
    run: impl Fn(&mut Walk<'_>) -> End,
) -> Vec<PacketPath> {
    let mut paths = Vec::new();
    for number in 0.. {
        let mut memory = Memory::default();
        let mut walk = Walk::new(view, node, packet, &mut memory, number);
        walk.path = Path(Some(Vec::new()));
        let end = run(&mut walk);
        paths.push(PacketPath {
            outcome: walk.outcome(end),
            events: walk.path.0.take().unwrap_or_default(),
        });
        if number + 1 >= walk.drawn_below.unwrap_or(1) {
            break;
        }
    }
    paths
}

// === impl Path ===

impl Path {
    /// Records the event, if events are recorded.
    pub(super) fn note(&mut self, event: impl FnOnce() -> Event) {
        if let Some(events) = &mut self.0 {
            events.push(event());
        }
    }
}

/// The event of entering a chain at jump depth `depth`.
pub(super) fn entering(chain: &Chain, depth: usize) -> Event {
    let name = Arc::clone(&chain.name);
    match &chain.hook {
        Some(hook) => Event::Base {
            chain: name,
            hook: hook.to_string(),
        },
        None => Event::Chain { chain: name, depth },
    }
}

pub(super) fn found(set: &Set, key: &Bytes, data: &ElementData) -> Event {
    Event::Element(format!("{} {{ {} }}", set.name, set.element(key, data)))
}
