//! The path of a packet through a backend's rules.

use std::fmt;
use std::sync::Arc;

use dataplane::{Target, Verdict as Outcome};

/// One path that a packet may take through rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// What it meets, in order.
    pub events: Vec<Event>,
    /// Where it ends; with one choice at the most.
    pub outcome: Outcome,
}

/// A step on the path of a packet. Rules that do not match, or only load what they compare, are
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
    /// A chain that another one jumps to.
    Chain {
        /// Its name.
        chain: Arc<str>,
        /// The number of chains above it.
        depth: usize,
    },
    /// An element that was looked up and found: `services { 10.96.0.10 . tcp . 80 : 2 . 0x03000002 }`.
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
    /// A client's endpoint is added to this map, or removed from it.
    Learn(Arc<str>),
    /// This hook accepts it.
    Accept,
    /// It is dropped.
    Drop,
    /// It is rejected.
    Reject,
}

// === impl Event ===

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
