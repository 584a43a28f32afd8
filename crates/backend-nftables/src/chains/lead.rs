//! The targets of a frontend's elements: numbers, which a few small maps resolve to chains.
//!
//! A verdict in a large map would be simpler. But each time an element is added whose verdict leads
//! to a chain, the kernel validates the table: it walks every verdict map that packets can reach,
//! element by element, once for each hook (`nft_setelem_validate`, net/netfilter/nf_tables_api.c).

use std::fmt;
use std::sync::Arc;

use netlink::nf_tables::{Bytes, ElementData, Verdict};

use super::{ALLOW_SOURCES, Counter, Draw, Job, NumberedChain, Placement};
use crate::layout::{self, Keyed, Room, SetName};

/// The target that a number stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lead {
    /// The packet passes unchanged.
    Accept,
    /// The chain that checks the packet's source.
    ExternalLocal(Keyed),
    /// A numbered chain.
    Numbered(NumberedChain),
}

/// The bit offsets of the parts of a number, lowest first: number of endpoints, affinity map, draw,
/// job; then two flags.
const ROOM: u32 = 17;
const DRAW: u32 = 22;
const JOB: u32 = 24;
const STICKY: u32 = 1 << 28;
const NODE_PORT: u32 = 1 << 29;
const MOST: u32 = (1 << ROOM) - 1;
const ROOMS: u32 = (1 << 5) - 1;
const DRAWS: u32 = 3;
/// Values of the draw. A frontend with a separate counter has the counter's number in the upper
/// bits of the number of endpoints and in the top bits.
const OWN_TURNS: u32 = 1;
const SOURCE: u32 = 2;
const SHARED_TURNS: u32 = 3;
const COUNTER: u32 = 10;
const COUNTER_TOP: u32 = 30;
const COUNTER_LOW_BITS: u32 = ROOM - COUNTER;
/// The job of the chain that checks a packet's source. The jobs of numbered chains follow it.
const EXTERNAL_LOCAL: u32 = 1;

// === impl Lead ===

impl Lead {
    /// Returns the number of this target.
    pub(crate) fn number(self) -> u32 {
        let node_port = |keyed| match keyed {
            Keyed::Address => 0,
            Keyed::NodePort => NODE_PORT,
        };
        match self {
            Lead::Accept => 0,
            Lead::ExternalLocal(keyed) => node_port(keyed) | EXTERNAL_LOCAL << JOB,
            Lead::Numbered(chain) => {
                let sticky = match chain.placement {
                    Placement::Anew => 0,
                    Placement::Sticky => STICKY,
                };
                let mut jobs = (EXTERNAL_LOCAL + 1..).zip(Job::ALL);
                let job = jobs.find(|(_, job)| *job == chain.job);
                let job = job.map_or(0, |(number, _)| number);
                let room = u32::from(chain.room.number()) << ROOM;
                let draw = draw_bits(chain.draw, chain.number);
                node_port(chain.keyed) | sticky | job << JOB | room | draw
            }
        }
    }

    /// Returns the target that `number` stands for, if any.
    pub(crate) fn parse(number: u32) -> Option<Lead> {
        let keyed = match number & NODE_PORT {
            0 => Keyed::Address,
            _ => Keyed::NodePort,
        };
        let placement = match number & STICKY {
            0 => Placement::Anew,
            _ => Placement::Sticky,
        };
        let lead = match number >> JOB & 0xf {
            0 => Lead::Accept,
            EXTERNAL_LOCAL => Lead::ExternalLocal(keyed),
            job => {
                let (draw, many) = parse_draw(number)?;
                Lead::Numbered(NumberedChain {
                    keyed,
                    placement,
                    job: *Job::ALL.get(usize::try_from(job - EXTERNAL_LOCAL - 1).ok()?)?,
                    draw,
                    number: many,
                    room: Room::of(u8::try_from(number >> ROOM & ROOMS).ok()?),
                })
            }
        };
        (lead.number() == number).then_some(lead)
    }

    /// The value of an element with this target. nft shows its first part in decimal: the number of
    /// endpoints, or of seconds. Packets do not use that part.
    pub(crate) fn value(self) -> ElementData {
        let many = match self {
            Lead::Numbered(chain) => u16::try_from(chain.number).unwrap_or(u16::MAX),
            Lead::Accept | Lead::ExternalLocal(_) => 0,
        };
        let value = Bytes::new().with(&many.to_be_bytes());
        ElementData::Value(value.with(&self.number().to_ne_bytes()))
    }

    /// The target of an element of `set`.
    pub(crate) fn of(set: SetName, data: &ElementData) -> Option<Lead> {
        match (set, data) {
            (
                SetName::Services
                | SetName::ShortCircuits
                | SetName::Locals
                | SetName::Affinities
                | SetName::NodePorts
                | SetName::NodePortShortCircuits
                | SetName::NodePortLocals
                | SetName::NodePortAffinities,
                ElementData::Value(value),
            ) => {
                let number = value.as_slice().get(4..8)?.try_into().ok()?;
                Lead::parse(u32::from_ne_bytes(number))
            }
            _ => None,
        }
    }

    /// The verdict on a packet with this target.
    pub(crate) fn verdict(self) -> Verdict {
        match self {
            Lead::Accept => Verdict::Accept,
            Lead::ExternalLocal(keyed) => Verdict::Goto(external_local(keyed)),
            Lead::Numbered(chain) => Verdict::Goto(chain.name()),
        }
    }

    /// The map that contains its number.
    pub(crate) fn map(self) -> SetName {
        match self {
            Lead::Accept | Lead::ExternalLocal(_) => SetName::ServiceChains,
            Lead::Numbered(chain) => match chain.job {
                Job::Cluster | Job::External => SetName::ServiceChains,
                Job::Balance | Job::Local => SetName::LocalChains,
                Job::Learn => SetName::LearningChains,
            },
        }
    }

    /// Its key in that map.
    pub(crate) fn key(self) -> Bytes {
        Bytes::new().with(&self.number().to_ne_bytes())
    }

    /// The targets that exist in every table.
    pub(crate) const FIXED: [Lead; 3] = [
        Lead::Accept,
        Lead::ExternalLocal(Keyed::Address),
        Lead::ExternalLocal(Keyed::NodePort),
    ];
}

/// The draw and the number of endpoints, as parts of a number.
fn draw_bits(draw: Draw, many: u32) -> u32 {
    match draw {
        Draw::Random => many.min(MOST),
        Draw::Source => SOURCE << DRAW | many.min(MOST),
        Draw::Turns(Counter::Shared) => SHARED_TURNS << DRAW | many.min(MOST),
        Draw::Turns(Counter::Own(counter)) => {
            let counter = u32::from(counter);
            let low = counter & ((1 << COUNTER_LOW_BITS) - 1);
            let counter = low << COUNTER | counter >> COUNTER_LOW_BITS << COUNTER_TOP;
            OWN_TURNS << DRAW | counter | many.min(Counter::MOST_ENDPOINTS)
        }
    }
}

fn parse_draw(number: u32) -> Option<(Draw, u32)> {
    let many = number & MOST;
    Some(match number >> DRAW & DRAWS {
        SOURCE => (Draw::Source, many),
        SHARED_TURNS => (Draw::Turns(Counter::Shared), many),
        OWN_TURNS => {
            let counter = many >> COUNTER | number >> COUNTER_TOP << COUNTER_LOW_BITS;
            let counter = Counter::own(u16::try_from(counter).ok()?)?;
            (Draw::Turns(counter), many & Counter::MOST_ENDPOINTS)
        }
        _ => (Draw::Random, many),
    })
}

impl fmt::Display for Lead {
    /// Prints the chain, or `accept`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.verdict() {
            Verdict::Goto(chain) => f.write_str(&chain),
            verdict => verdict.fmt(f),
        }
    }
}

/// The chain that receives packets which match an element in `set`.
pub(crate) fn chain_behind(set: SetName, data: &ElementData) -> Option<Arc<str>> {
    let verdict = match set {
        SetName::Restrictions => return Some(layout::name(ALLOW_SOURCES)),
        SetName::Refusals => return Some(refuse(Keyed::Address)),
        SetName::NodePortRefusals => return Some(refuse(Keyed::NodePort)),
        _ => Lead::of(set, data)?.verdict(),
    };
    match verdict {
        Verdict::Goto(chain) | Verdict::Jump(chain) => Some(chain),
        Verdict::Accept | Verdict::Drop | Verdict::Return => None,
    }
}

/// The name of the chain that checks the source of a packet to a frontend with external policy
/// Local.
pub(crate) fn external_local(keyed: Keyed) -> Arc<str> {
    format!("{}external-local", keyed.prefix()).into()
}

/// The name of the chain that refuses packets. It must not be a keyword of nft, or nft could not
/// read its own listing.
pub(crate) fn refuse(keyed: Keyed) -> Arc<str> {
    format!("{}refuse", keyed.prefix()).into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_lead_has_a_number_of_its_own() {
        let mut leads = Lead::FIXED.to_vec();
        for keyed in [Keyed::Address, Keyed::NodePort] {
            for placement in [Placement::Anew, Placement::Sticky] {
                for job in Job::ALL {
                    for room in [0, 1, Room::RESERVED] {
                        let numbered = |draw, number| {
                            Lead::Numbered(NumberedChain {
                                keyed,
                                placement,
                                job,
                                draw,
                                number,
                                room: Room::of(room),
                            })
                        };
                        for draw in [Draw::Random, Draw::Source, Draw::Turns(Counter::Shared)] {
                            leads.extend([1, 300, 86_400].map(|number| numbered(draw, number)));
                        }
                        for counter in [1, 127, 128, Counter::OWN] {
                            let draw = Draw::Turns(Counter::Own(counter));
                            leads.extend([1, 1_023].map(|number| numbered(draw, number)));
                        }
                    }
                }
            }
        }
        let numbers: BTreeSet<_> = leads.iter().map(|lead| lead.number()).collect();
        assert_eq!(numbers.len(), leads.len());
        for lead in leads {
            assert_eq!(Lead::parse(lead.number()), Some(lead));
        }
        assert_eq!(Lead::parse(7), None, "seven of nothing");
    }
}
