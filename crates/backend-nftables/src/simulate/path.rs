//! What a packet meets on its way, for people who ask where it went.

use std::fmt;
use std::sync::Arc;

use dataplane::{Node, Packet, Target, Verdict as Outcome};

use netlink::nf_tables::{Bytes, Chain, ElementData, Set};

use super::{Memory, Walk};
use crate::table::Table;

/// One way that a packet may take through a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// What it meets, in order.
    pub events: Vec<Event>,
    /// Where it ends; with one choice at the most.
    pub outcome: Outcome,
}

/// Something that a packet meets. Rules that do not match, or only load what they ask about, are
/// not mentioned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A chain at a hook.
    Base {
        /// Its name.
        chain: Arc<str>,
        /// The hook and priority, as nft prints them.
        hook: String,
    },
    /// A chain that another one leads to.
    Chain {
        /// Its name.
        chain: Arc<str>,
        /// How many chains led here, one after the other.
        depth: usize,
    },
    /// An element that was looked up and found: `services { 10.96.0.10 . tcp . 80 : goto lb-2 }`.
    Element(String),
    /// A number below `modulus` is drawn.
    Draw {
        /// How many numbers there are.
        modulus: u32,
    },
    /// The packet's mark becomes this.
    Mark(u32),
    /// Its destination becomes this.
    Redirect(Target),
    /// Its source becomes an address of this node.
    Masquerade,
    /// A client's endpoint is remembered, or is no more, in this map.
    Learn(Arc<str>),
    /// It is let through this hook.
    Accept,
    /// It disappears.
    Drop,
    /// It is refused.
    Reject,
}

/// What is written down of a walk, if anything is.
#[derive(Debug, Default)]
pub(super) struct Path(Option<Vec<Event>>);

/// Every way that `packet`, the first of its connection and of its client, may take on a node whose
/// kernel holds `table` for the packet's family: one for each number that may be drawn on it.
pub fn ways(table: &Table, node: &Node, packet: &Packet) -> Vec<Way> {
    let mut ways = Vec::new();
    for number in 0.. {
        let mut memory = Memory::default();
        let mut walk = Walk::new(table, node, packet, &mut memory, number);
        walk.path = Path(Some(Vec::new()));
        let outcome = walk.outcome();
        ways.push(Way {
            events: walk.path.0.take().unwrap_or_default(),
            outcome,
        });
        if number + 1 >= walk.drawn_below.unwrap_or(1) {
            break;
        }
    }
    ways
}

// === impl Path ===

impl Path {
    /// Writes down what `event` says, if anybody reads it.
    pub(super) fn note(&mut self, event: impl FnOnce() -> Event) {
        if let Some(events) = &mut self.0 {
            events.push(event());
        }
    }
}

// === impl Event ===

impl Event {
    /// Into a chain that `depth` others have led to.
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
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Base { chain, hook } => write!(f, "{chain} ({hook})"),
            Event::Chain { chain, .. } => f.write_str(chain),
            Event::Element(element) => f.write_str(element),
            Event::Draw { modulus } => write!(f, "a number below {modulus} is drawn"),
            Event::Mark(mark) => write!(f, "mark {mark:#x}"),
            Event::Redirect(target) => write!(f, "dnat to {target}"),
            Event::Masquerade => f.write_str("masquerade"),
            Event::Learn(map) => write!(f, "{map} is written to"),
            Event::Accept => f.write_str("accept"),
            Event::Drop => f.write_str("drop"),
            Event::Reject => f.write_str("reject"),
        }
    }
}
