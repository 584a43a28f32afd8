//! The path of a packet through a backend's rules.

use std::fmt;
use std::sync::Arc;

use dataplane::{Target, Verdict as Outcome};

/// One path that a packet may take through rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketPath {
    /// The steps, in order.
    pub events: Vec<Event>,
    /// The outcome at the end, with at most one choice.
    pub outcome: Outcome,
}

/// A step on the path of a packet. Rules that do not match, or that only load a value to compare,
/// are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A base chain is entered.
    Base {
        /// Its name.
        chain: Arc<str>,
        /// Its hook and priority, as nft prints them.
        hook: String,
    },
    /// A chain is entered by a jump.
    Chain {
        /// Its name.
        chain: Arc<str>,
        /// Its depth: the number of chains on the jump stack above it.
        depth: usize,
    },
    /// A lookup finds this element: `services { 10.96.0.10 . tcp . 80 : 2 . 0x03000002 }`.
    Element(String),
    /// A random number below `modulus` is drawn.
    Draw {
        /// The number of possible values.
        modulus: u32,
    },
    /// The packet's mark is set to this value.
    Mark(u32),
    /// The packet's destination is rewritten to this target.
    Redirect(Target),
    /// The packet's source is rewritten to an address of this node.
    Masquerade,
    /// The client's entry in this affinity map is added or deleted.
    Learn(Arc<str>),
    /// The packet is accepted at this hook.
    Accept,
    /// The packet is dropped.
    Drop,
    /// The packet is rejected.
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
