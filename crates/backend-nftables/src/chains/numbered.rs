//! The chains that there is one of for each number in use: of endpoints to choose from, of seconds to
//! remember one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dataplane::{Config, Family, Masquerade};
use netlink::nf_tables::{
    Chain, DataType, Expression, NatKind, NumberGenerator, Operator, Register, Rule, Verdict,
};

use super::affinity;
use super::rule_parts::{
    Address, after, load_address, load_frontend, local_source, mark, rule, verdict,
};
use crate::layout::{self, Keyed, LOCAL_SLOTS, Room, SOURCE_SEED};
use crate::table::ChainWithRules;

/// A chain for one number. It stays for a while after the last that led to it: kernels before 6.2
/// drop an element's hold on a chain late, and a transaction that removes a chain too early fails
/// whole (docs/decisions/0004).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NumberedChain {
    pub(crate) keyed: Keyed,
    pub(crate) placement: Placement,
    pub(crate) job: Job,
    /// How it is chosen where, if it is.
    pub(crate) draw: Draw,
    /// Of slots; for [`Job::Learn`], of seconds.
    pub(crate) number: u32,
    /// Where clients are remembered, if they are; the shared map otherwise.
    pub(crate) room: Room,
}

/// Whether a client's connections stay together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Placement {
    /// Each is placed by itself.
    Anew,
    /// Each goes where the last one went, while that is there.
    Sticky,
}

/// How one of the slots is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Draw {
    /// Each with the same probability.
    Random,
    /// One after the other.
    Turns(Counter),
    /// By the client's address.
    Source,
}

/// Where turns are counted: the kernel keeps the count in a rule, so that frontends with a count of
/// their own have chains of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Counter {
    /// With those of all others that have as many endpoints.
    Shared,
    /// In chains for one frontend, by its number: 1 to [`Counter::OWN`].
    Own(u16),
}

/// What a numbered chain does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Job {
    /// Chooses one of all endpoints.
    Balance,
    /// Asks for masquerade unless a pod of this node sent the packet, then the same.
    Cluster,
    /// Asks for masquerade, then the same.
    External,
    /// Chooses one of the endpoints of this node.
    Local,
    /// Remembers which endpoint a client was given.
    Learn,
}

// === impl NumberedChain ===

impl NumberedChain {
    pub(crate) fn name(self) -> Arc<str> {
        let keyed = self.keyed.prefix();
        let placement = self.placement.prefix();
        let draw = self.draw;
        let (job, number) = (self.job.name(), self.number);
        match self.room {
            Room::Shared => format!("{keyed}{placement}{draw}{job}-{number}"),
            Room::Reserved(room) => format!("{keyed}{placement}{draw}{job}-{number}-room-{room}"),
        }
        .into()
    }

    pub(crate) fn parse(name: &str) -> Option<NumberedChain> {
        let (keyed, rest) = match name.strip_prefix(Keyed::NodePort.prefix()) {
            Some(rest) => (Keyed::NodePort, rest),
            None => (Keyed::Address, name),
        };
        let (placement, rest) = match rest.strip_prefix(Placement::Sticky.prefix()) {
            Some(rest) => (Placement::Sticky, rest),
            None => (Placement::Anew, rest),
        };
        let (draw, rest) = Draw::split(rest)?;
        let (job, number) = rest.split_once('-')?;
        let job = Job::ALL.into_iter().find(|own| own.name() == job)?;
        if job == Job::Learn && (placement, draw) != (Placement::Anew, Draw::Random) {
            return None;
        }
        let (number, room) = match number.split_once("-room-") {
            Some((number, room)) => (number, Room::of(room.parse().ok()?)),
            None => (number, Room::Shared),
        };
        if room != Room::Shared && job != Job::Learn && placement == Placement::Anew {
            return None;
        }
        let number = number.parse().ok().filter(|number| *number > 0)?;
        let chain = NumberedChain {
            keyed,
            placement,
            job,
            draw,
            number,
            room,
        };
        // `lb-07` would parse to a chain of another name.
        (*chain.name() == *name).then_some(chain)
    }

    /// The chains it leads to, itself included, those first that others lead to.
    pub(crate) fn closure(self) -> impl Iterator<Item = NumberedChain> {
        let mut chains = vec![self];
        while let Some(next) = chains.last().and_then(|last| last.next()) {
            chains.push(next);
        }
        chains.into_iter().rev()
    }

    /// The chain it ends in, if it does.
    fn next(self) -> Option<NumberedChain> {
        match (self.job, self.placement) {
            (Job::Cluster | Job::External, _) => Some(NumberedChain {
                job: Job::Balance,
                ..self
            }),
            (Job::Balance | Job::Local, Placement::Sticky) => Some(NumberedChain {
                placement: Placement::Anew,
                room: Room::Shared,
                ..self
            }),
            (Job::Balance | Job::Local, Placement::Anew) | (Job::Learn, _) => None,
        }
    }

    pub(crate) fn render(self, family: Family, config: &Config) -> ChainWithRules {
        let mut rules = match (self.job, self.placement) {
            (Job::External, _) => vec![mark(config)],
            (Job::Cluster, _) => mark_cluster(family, config).into_iter().collect(),
            (Job::Balance, Placement::Sticky) => {
                affinity::return_to_endpoint(family, self.keyed, self.room, 0)
            }
            (Job::Local, Placement::Sticky) => {
                affinity::return_to_endpoint(family, self.keyed, self.room, LOCAL_SLOTS)
            }
            (Job::Balance, Placement::Anew) => self.choose(family, 0),
            (Job::Local, Placement::Anew) => self.choose(family, LOCAL_SLOTS),
            (Job::Learn, _) => {
                let timeout = Duration::from_secs(self.number.into());
                affinity::remember(family, self.keyed, self.room, timeout)
            }
        };
        rules.extend(self.next().map(|next| verdict(Verdict::Goto(next.name()))));
        ChainWithRules {
            chain: Chain {
                name: self.name(),
                hook: None,
            },
            rules,
        }
    }

    /// One slot, and in a rule behind that the first slot. A commit that takes the last slot away can
    /// fall between a packet's lookup of this chain and its lookup of the slot: nf_tables asks for
    /// the current generation at each lookup, not once a packet. Such a packet gets the first
    /// endpoint, where otherwise it would leave for the cluster IP itself.
    fn choose(self, family: Family, offset: u32) -> Vec<Rule> {
        let choice = |modulus, draw: Draw| {
            let (mut expressions, end) = load_frontend(family, self.keyed);
            expressions.extend(draw.load(family, modulus, offset, end));
            expressions.extend([
                Expression::LookupValue {
                    set: layout::name(self.keyed.endpoints().as_str()),
                    from: Register(0),
                    to: Register(0),
                },
                Expression::Nat {
                    kind: NatKind::Destination,
                    family,
                    address: Register(0),
                    port: after(Register(0), DataType::address(family).width()),
                },
            ]);
            rule(expressions)
        };
        let mut rules = vec![choice(self.number, self.draw)];
        if self.number > 1 {
            rules.push(choice(1, Draw::Random));
        }
        rules
    }
}

// === impl Draw ===

impl Draw {
    /// The draw that a chain's name begins with, and the rest of the name.
    fn split(name: &str) -> Option<(Draw, &str)> {
        if let Some(rest) = name.strip_prefix("source-") {
            return Some((Draw::Source, rest));
        }
        let Some(rest) = name.strip_prefix("turns-") else {
            return Some((Draw::Random, name));
        };
        let numbered = rest.split_once('-').and_then(|(number, rest)| {
            let counter = Counter::own(number.parse().ok()?)?;
            Some((Draw::Turns(counter), rest))
        });
        Some(numbered.unwrap_or((Draw::Turns(Counter::Shared), rest)))
    }

    /// Loads a number below `modulus`, plus `offset`. What lies behind `to` is overwritten.
    fn load(self, family: Family, modulus: u32, offset: u32, to: Register) -> Vec<Expression> {
        let count = |generator| {
            vec![Expression::Numgen {
                generator,
                modulus,
                offset,
                to,
            }]
        };
        match self {
            Draw::Random => count(NumberGenerator::Random),
            Draw::Turns(_) => count(NumberGenerator::Incremental),
            Draw::Source => {
                let source = after(to, 4);
                let length = match family {
                    Family::Ipv4 => 4,
                    Family::Ipv6 => 16,
                };
                vec![
                    load_address(family, Address::Source, source),
                    Expression::Hash {
                        from: source,
                        length,
                        modulus,
                        seed: SOURCE_SEED,
                        offset,
                        to,
                    },
                ]
            }
        }
    }
}

impl fmt::Display for Draw {
    /// What the names of chains with it begin with, behind the placement.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Draw::Random => Ok(()),
            Draw::Turns(Counter::Shared) => f.write_str("turns-"),
            Draw::Turns(Counter::Own(number)) => write!(f, "turns-{number}-"),
            Draw::Source => f.write_str("source-"),
        }
    }
}

// === impl Counter ===

impl Counter {
    /// How many frontends of a family may have a counter of their own.
    pub(crate) const OWN: u16 = (1 << 9) - 1;
    /// How many endpoints such a frontend may have.
    pub(crate) const MOST_ENDPOINTS: u32 = (1 << 10) - 1;

    /// The counter of this number.
    pub(crate) fn own(number: u16) -> Option<Counter> {
        (1..=Counter::OWN)
            .contains(&number)
            .then_some(Counter::Own(number))
    }
}

// === impl Job ===

impl Job {
    pub(super) const ALL: [Job; 5] = [
        Job::Balance,
        Job::Cluster,
        Job::External,
        Job::Local,
        Job::Learn,
    ];

    /// What is in the name of every chain with it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Job::Balance => "lb",
            Job::Cluster => "cluster",
            Job::External => "external",
            Job::Local => "local",
            Job::Learn => "learn",
        }
    }
}

// === impl Placement ===

impl Placement {
    /// What the names of chains with it begin with.
    fn prefix(self) -> &'static str {
        match self {
            Placement::Anew => "",
            Placement::Sticky => "sticky-",
        }
    }
}

/// Marks what reaches a cluster IP and is to be masqueraded, if anything is.
fn mark_cluster(family: Family, config: &Config) -> Option<Rule> {
    let mut expressions = match config.masquerade {
        Masquerade::All => Vec::new(),
        Masquerade::NonLocal => local_source(family, config, Operator::NotEqual)?,
    };
    expressions.extend(mark(config).expressions);
    Some(rule(expressions))
}
