//! The targets of a frontend's elements: numbers, which a few small maps resolve to chains.
//!
//! A verdict in a large map would be simpler. But each time an element is added whose verdict leads
//! to a chain, the kernel validates the table: it walks every verdict map that packets can reach,
//! element by element, once for each hook (`nft_setelem_validate`, net/netfilter/nf_tables_api.c).

use std::fmt;
use std::sync::Arc;

use netlink::nf_tables::{Bytes, ElementData, Verdict};

use nftables_model::{ALLOW_SOURCES, REFUSE, REFUSE_NODE_PORT};

use super::{ChainRole, Counter, NumberedChain, Placement, SlotChoice};
use crate::layout::{self, AffinityMap, Keyed, SetName};

/// The target that a number stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ChainId {
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

// === impl ChainId ===

impl ChainId {
    /// Returns the number of this target.
    pub(crate) fn number(self) -> u32 {
        let node_port = |keyed| match keyed {
            Keyed::Address => 0,
            Keyed::NodePort => NODE_PORT,
        };
        match self {
            ChainId::Accept => 0,
            ChainId::ExternalLocal(keyed) => node_port(keyed) | EXTERNAL_LOCAL << JOB,
            ChainId::Numbered(chain) => {
                let sticky = match chain.placement {
                    Placement::Independent => 0,
                    Placement::Sticky => STICKY,
                };
                let mut jobs = (EXTERNAL_LOCAL + 1..).zip(ChainRole::ALL);
                let role = jobs.find(|(_, role)| *role == chain.role);
                let role = role.map_or(0, |(number, _)| number);
                let affinity_map = u32::from(chain.affinity_map.number()) << ROOM;
                let slot_choice = draw_bits(chain.slot_choice, chain.number);
                node_port(chain.keyed) | sticky | role << JOB | affinity_map | slot_choice
            }
        }
    }

    /// Returns the target that `number` stands for, if any.
    pub(crate) fn parse(number: u32) -> Option<ChainId> {
        let keyed = match number & NODE_PORT {
            0 => Keyed::Address,
            _ => Keyed::NodePort,
        };
        let placement = match number & STICKY {
            0 => Placement::Independent,
            _ => Placement::Sticky,
        };
        let chain_id = match number >> JOB & 0xf {
            0 => ChainId::Accept,
            EXTERNAL_LOCAL => ChainId::ExternalLocal(keyed),
            role => {
                let (slot_choice, many) = parse_draw(number)?;
                ChainId::Numbered(NumberedChain {
                    keyed,
                    placement,
                    role: *ChainRole::ALL.get(usize::try_from(role - EXTERNAL_LOCAL - 1).ok()?)?,
                    slot_choice,
                    number: many,
                    affinity_map: AffinityMap::of(u8::try_from(number >> ROOM & ROOMS).ok()?),
                })
            }
        };
        (chain_id.number() == number).then_some(chain_id)
    }

    /// The value of an element with this target. nft shows its first part in decimal: the number of
    /// endpoints, or of seconds. Packets do not use that part.
    pub(crate) fn value(self) -> ElementData {
        let many = match self {
            ChainId::Numbered(chain) => u16::try_from(chain.number).unwrap_or(u16::MAX),
            ChainId::Accept | ChainId::ExternalLocal(_) => 0,
        };
        let value = Bytes::new().with(&many.to_be_bytes());
        ElementData::Value(value.with(&self.number().to_ne_bytes()))
    }

    /// The target of an element of `set`.
    pub(crate) fn of(set: SetName, data: &ElementData) -> Option<ChainId> {
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
                ChainId::parse(u32::from_ne_bytes(number))
            }
            _ => None,
        }
    }

    /// The verdict on a packet with this target.
    pub(crate) fn verdict(self) -> Verdict {
        match self {
            ChainId::Accept => Verdict::Accept,
            ChainId::ExternalLocal(keyed) => Verdict::Goto(external_local(keyed)),
            ChainId::Numbered(chain) => Verdict::Goto(chain.name()),
        }
    }

    /// The map that contains its number.
    pub(crate) fn map(self) -> SetName {
        match self {
            ChainId::Accept | ChainId::ExternalLocal(_) => SetName::ServiceChains,
            ChainId::Numbered(chain) => match chain.role {
                ChainRole::Cluster | ChainRole::External => SetName::ServiceChains,
                ChainRole::Balance | ChainRole::Local => SetName::LocalChains,
                ChainRole::Learn => SetName::LearningChains,
            },
        }
    }

    /// Its key in that map.
    pub(crate) fn key(self) -> Bytes {
        Bytes::new().with(&self.number().to_ne_bytes())
    }

    /// The targets that exist in every table.
    pub(crate) const FIXED: [ChainId; 3] = [
        ChainId::Accept,
        ChainId::ExternalLocal(Keyed::Address),
        ChainId::ExternalLocal(Keyed::NodePort),
    ];
}

/// The draw and the number of endpoints, as parts of a number.
fn draw_bits(slot_choice: SlotChoice, many: u32) -> u32 {
    match slot_choice {
        SlotChoice::Random => many.min(MOST),
        SlotChoice::Source => SOURCE << DRAW | many.min(MOST),
        SlotChoice::RoundRobin(Counter::Shared) => SHARED_TURNS << DRAW | many.min(MOST),
        SlotChoice::RoundRobin(Counter::Own(counter)) => {
            let counter = u32::from(counter);
            let low = counter & ((1 << COUNTER_LOW_BITS) - 1);
            let counter = low << COUNTER | counter >> COUNTER_LOW_BITS << COUNTER_TOP;
            OWN_TURNS << DRAW | counter | many.min(Counter::MOST_ENDPOINTS)
        }
    }
}

fn parse_draw(number: u32) -> Option<(SlotChoice, u32)> {
    let many = number & MOST;
    Some(match number >> DRAW & DRAWS {
        SOURCE => (SlotChoice::Source, many),
        SHARED_TURNS => (SlotChoice::RoundRobin(Counter::Shared), many),
        OWN_TURNS => {
            let counter = many >> COUNTER | number >> COUNTER_TOP << COUNTER_LOW_BITS;
            let counter = Counter::own(u16::try_from(counter).ok()?)?;
            (
                SlotChoice::RoundRobin(counter),
                many & Counter::MOST_ENDPOINTS,
            )
        }
        _ => (SlotChoice::Random, many),
    })
}

impl fmt::Display for ChainId {
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
        _ => ChainId::of(set, data)?.verdict(),
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
fn refuse(keyed: Keyed) -> Arc<str> {
    layout::name(match keyed {
        Keyed::Address => REFUSE,
        Keyed::NodePort => REFUSE_NODE_PORT,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_lead_has_a_number_of_its_own() {
        let mut leads = ChainId::FIXED.to_vec();
        for keyed in [Keyed::Address, Keyed::NodePort] {
            for placement in [Placement::Independent, Placement::Sticky] {
                for role in ChainRole::ALL {
                    for affinity_map in [0, 1, AffinityMap::RESERVED] {
                        let numbered = |slot_choice, number| {
                            ChainId::Numbered(NumberedChain {
                                keyed,
                                placement,
                                role,
                                slot_choice,
                                number,
                                affinity_map: AffinityMap::of(affinity_map),
                            })
                        };
                        for slot_choice in [
                            SlotChoice::Random,
                            SlotChoice::Source,
                            SlotChoice::RoundRobin(Counter::Shared),
                        ] {
                            leads.extend(
                                [1, 300, 86_400].map(|number| numbered(slot_choice, number)),
                            );
                        }
                        for counter in [1, 127, 128, Counter::OWN] {
                            let slot_choice = SlotChoice::RoundRobin(Counter::Own(counter));
                            leads.extend([1, 1_023].map(|number| numbered(slot_choice, number)));
                        }
                    }
                }
            }
        }
        let numbers: BTreeSet<_> = leads.iter().map(|chain_id| chain_id.number()).collect();
        assert_eq!(numbers.len(), leads.len());
        for chain_id in leads {
            assert_eq!(ChainId::parse(chain_id.number()), Some(chain_id));
        }
        assert_eq!(ChainId::parse(7), None, "seven of nothing");
    }
}
