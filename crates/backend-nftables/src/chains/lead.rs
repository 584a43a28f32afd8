//! Where the elements of a frontend lead: to numbers, which a few small maps lead on to chains.
//!
//! A verdict in a large map would be simpler. But whenever one comes that leads to a chain, the kernel
//! validates the table: it walks every map of verdicts that a packet can come to, element by element,
//! once for each hook (`nft_setelem_validate`, net/netfilter/nf_tables_api.c).

use std::fmt;
use std::sync::Arc;

use netlink::nf_tables::{Bytes, ElementData, Verdict};

use super::{ALLOW_SOURCES, Job, NumberedChain, Placement};
use crate::layout::{self, Keyed, Room, SetName};

/// What a number stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lead {
    /// The packet goes on as it is.
    Accept,
    /// The chain that asks who it is from.
    ExternalLocal(Keyed),
    /// A numbered chain.
    Numbered(NumberedChain),
}

/// Where the parts of a number begin, lowest bit first: how many, where clients are remembered, of
/// what, where from.
const ROOM: u32 = 17;
const JOB: u32 = 24;
const STICKY: u32 = 1 << 28;
const NODE_PORT: u32 = 1 << 29;
const MOST: u32 = (1 << ROOM) - 1;
const ROOMS: u32 = (1 << 5) - 1;
/// The job of the chain that asks who a packet is from. Those of numbered chains come behind it.
const EXTERNAL_LOCAL: u32 = 1;

// === impl Lead ===

impl Lead {
    /// Its number.
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
                node_port(chain.keyed) | sticky | job << JOB | room | chain.number.min(MOST)
            }
        }
    }

    /// What `number` stands for, if for anything.
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
            job => Lead::Numbered(NumberedChain {
                keyed,
                placement,
                job: *Job::ALL.get(usize::try_from(job - EXTERNAL_LOCAL - 1).ok()?)?,
                number: number & MOST,
                room: Room::of(u8::try_from(number >> ROOM & ROOMS).ok()?),
            }),
        };
        (lead.number() == number).then_some(lead)
    }

    /// The value that leads there. nft shows its first part in decimal: how many endpoints, or seconds;
    /// packets have no use for it.
    pub(crate) fn value(self) -> ElementData {
        let many = match self {
            Lead::Numbered(chain) => u16::try_from(chain.number).unwrap_or(u16::MAX),
            Lead::Accept | Lead::ExternalLocal(_) => 0,
        };
        let value = Bytes::new().with(&many.to_be_bytes());
        ElementData::Value(value.with(&self.number().to_ne_bytes()))
    }

    /// Where an element of `set` leads.
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

    /// What becomes of a packet with its number.
    pub(crate) fn verdict(self) -> Verdict {
        match self {
            Lead::Accept => Verdict::Accept,
            Lead::ExternalLocal(keyed) => Verdict::Goto(external_local(keyed)),
            Lead::Numbered(chain) => Verdict::Goto(chain.name()),
        }
    }

    /// The map in which its number is looked up.
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

    /// The key under which it is looked up there.
    pub(crate) fn key(self) -> Bytes {
        Bytes::new().with(&self.number().to_ne_bytes())
    }

    /// Those that are always there.
    pub(crate) const FIXED: [Lead; 3] = [
        Lead::Accept,
        Lead::ExternalLocal(Keyed::Address),
        Lead::ExternalLocal(Keyed::NodePort),
    ];
}

impl fmt::Display for Lead {
    /// The chain, or `accept`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.verdict() {
            Verdict::Goto(chain) => f.write_str(&chain),
            verdict => verdict.fmt(f),
        }
    }
}

/// The chain that a packet is led to which finds an element in `set`.
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

/// The chain that asks who a packet to a frontend with external policy Local is from.
pub(crate) fn external_local(keyed: Keyed) -> Arc<str> {
    format!("{}external-local", keyed.prefix()).into()
}

/// The chain that refuses. No name may be one of nft's own words, or nft could not read its own listing.
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
                        leads.extend([1, 300, 86_400].map(|number| {
                            Lead::Numbered(NumberedChain {
                                keyed,
                                placement,
                                job,
                                number,
                                room: Room::of(room),
                            })
                        }));
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
