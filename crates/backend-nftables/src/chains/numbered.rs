//! The chains that exist once for each number in use: the number of endpoints to choose from, or
//! the seconds for which a client is remembered.

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
use crate::layout::{self, AffinityMap, Keyed, LOCAL_SLOTS, SOURCE_SEED};
use crate::table::ChainWithRules;

/// A chain for one number. It outlives the last element that led to it: kernels before 6.2 release
/// an element's reference to a chain late, and a transaction that deletes the chain too early fails
/// as a whole (docs/decisions/0004).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NumberedChain {
    pub(crate) keyed: Keyed,
    pub(crate) placement: Placement,
    pub(crate) role: ChainRole,
    /// How the chain chooses a slot, if it does.
    pub(crate) slot_choice: SlotChoice,
    /// The number of slots; for [`ChainRole::Learn`], of seconds.
    pub(crate) number: u32,
    /// The affinity map of the chain's clients; [`AffinityMap::Shared`] without affinity.
    pub(crate) affinity_map: AffinityMap,
}

/// Whether a client's connections go to the same endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Placement {
    /// Each connection gets an endpoint independently.
    Independent,
    /// Each connection goes to the client's previous endpoint while that exists.
    Sticky,
}

/// How one of the slots is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SlotChoice {
    /// At random, each with the same probability.
    Random,
    /// Round robin.
    RoundRobin(Counter),
    /// By a hash of the client's address.
    Source,
}

/// Where a round-robin count is kept. The kernel keeps it in a rule, so a Service port with a
/// separate counter needs separate chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Counter {
    /// In a chain shared by all other frontends with the same number of endpoints.
    Shared,
    /// In chains for the frontends of one Service port, by number: 1 to [`Counter::OWN`].
    Own(u16),
}

/// What a numbered chain does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ChainRole {
    /// Chooses one of all endpoints.
    Balance,
    /// Marks the packet for masquerade unless a pod of this node sent it, then balances.
    Cluster,
    /// Marks the packet for masquerade, then balances.
    External,
    /// Chooses one of the endpoints of this node.
    Local,
    /// Stores a client's endpoint.
    Learn,
}

#[cfg(test)]
thread_local! {
    /// How many names this thread has parsed.
    pub(crate) static PARSED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

// === impl NumberedChain ===

impl NumberedChain {
    pub(crate) fn name(self) -> Arc<str> {
        let keyed = self.keyed.prefix();
        let placement = self.placement.prefix();
        let slot_choice = self.slot_choice;
        let (role, number) = (self.role.name(), self.number);
        match self.affinity_map {
            AffinityMap::Shared => format!("{keyed}{placement}{slot_choice}{role}-{number}"),
            AffinityMap::Reserved(affinity_map) => {
                format!("{keyed}{placement}{slot_choice}{role}-{number}-room-{affinity_map}")
            }
        }
        .into()
    }

    pub(crate) fn parse(name: &str) -> Option<NumberedChain> {
        #[cfg(test)]
        PARSED.with(|parsed| parsed.set(parsed.get() + 1));
        let (keyed, rest) = match name.strip_prefix(Keyed::NodePort.prefix()) {
            Some(rest) => (Keyed::NodePort, rest),
            None => (Keyed::Address, name),
        };
        let (placement, rest) = match rest.strip_prefix(Placement::Sticky.prefix()) {
            Some(rest) => (Placement::Sticky, rest),
            None => (Placement::Independent, rest),
        };
        let (slot_choice, rest) = SlotChoice::split(rest)?;
        let (role, number) = rest.split_once('-')?;
        let role = ChainRole::ALL.into_iter().find(|own| own.name() == role)?;
        if role == ChainRole::Learn
            && (placement, slot_choice) != (Placement::Independent, SlotChoice::Random)
        {
            return None;
        }
        let (number, affinity_map) = match number.split_once("-room-") {
            Some((number, affinity_map)) => (number, AffinityMap::of(affinity_map.parse().ok()?)),
            None => (number, AffinityMap::Shared),
        };
        if affinity_map != AffinityMap::Shared
            && role != ChainRole::Learn
            && placement == Placement::Independent
        {
            return None;
        }
        let number = number.parse().ok().filter(|number| *number > 0)?;
        let chain = NumberedChain {
            keyed,
            placement,
            role,
            slot_choice,
            number,
            affinity_map,
        };
        // `lb-07` would parse to a chain of another name.
        (*chain.name() == *name).then_some(chain)
    }

    /// The chains reachable from this one, itself included, targets first.
    pub(crate) fn closure(self) -> impl Iterator<Item = NumberedChain> {
        let mut chains = vec![self];
        while let Some(next) = chains.last().and_then(|last| last.next()) {
            chains.push(next);
        }
        chains.into_iter().rev()
    }

    /// The chain that this one ends with a goto to, if any.
    fn next(self) -> Option<NumberedChain> {
        match (self.role, self.placement) {
            (ChainRole::Cluster | ChainRole::External, _) => Some(NumberedChain {
                role: ChainRole::Balance,
                ..self
            }),
            (ChainRole::Balance | ChainRole::Local, Placement::Sticky) => Some(NumberedChain {
                placement: Placement::Independent,
                affinity_map: AffinityMap::Shared,
                ..self
            }),
            (ChainRole::Balance | ChainRole::Local, Placement::Independent)
            | (ChainRole::Learn, _) => None,
        }
    }

    pub(crate) fn render(self, family: Family, config: &Config) -> ChainWithRules {
        let mut rules = match (self.role, self.placement) {
            (ChainRole::External, _) => vec![mark(config)],
            (ChainRole::Cluster, _) => mark_cluster(family, config).into_iter().collect(),
            (ChainRole::Balance, Placement::Sticky) => {
                affinity::return_to_endpoint(family, self.keyed, self.affinity_map, 0)
            }
            (ChainRole::Local, Placement::Sticky) => {
                affinity::return_to_endpoint(family, self.keyed, self.affinity_map, LOCAL_SLOTS)
            }
            (ChainRole::Balance, Placement::Independent) => self.choose(family, 0),
            (ChainRole::Local, Placement::Independent) => self.choose(family, LOCAL_SLOTS),
            (ChainRole::Learn, _) => {
                let timeout = Duration::from_secs(self.number.into());
                affinity::remember(family, self.keyed, self.affinity_map, timeout)
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

    /// Sends the packet to a chosen slot, or to the first one if that fails. A commit that removes
    /// the last slot can fall between a packet's lookup of this chain and its lookup of the slot:
    /// nf_tables reads the current generation at each lookup, not once per packet. Without the
    /// second rule such a packet would leave for the cluster IP itself.
    fn choose(self, family: Family, offset: u32) -> Vec<Rule> {
        let choice = |modulus, slot_choice: SlotChoice| {
            let (mut expressions, end) = load_frontend(family, self.keyed);
            expressions.extend(slot_choice.load(family, modulus, offset, end));
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
        let mut rules = vec![choice(self.number, self.slot_choice)];
        if self.number > 1 {
            rules.push(choice(1, SlotChoice::Random));
        }
        rules
    }
}

// === impl SlotChoice ===

impl SlotChoice {
    /// Splits off the draw at the start of a chain's name. Returns it with the rest of the name.
    fn split(name: &str) -> Option<(SlotChoice, &str)> {
        if let Some(rest) = name.strip_prefix("source-") {
            return Some((SlotChoice::Source, rest));
        }
        let Some(rest) = name.strip_prefix("turns-") else {
            return Some((SlotChoice::Random, name));
        };
        let numbered = rest.split_once('-').and_then(|(number, rest)| {
            let counter = Counter::own(number.parse().ok()?)?;
            Some((SlotChoice::RoundRobin(counter), rest))
        });
        Some(numbered.unwrap_or((SlotChoice::RoundRobin(Counter::Shared), rest)))
    }

    /// Loads a number below `modulus`, plus `offset`, into `to`. Overwrites the registers after
    /// `to`.
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
            SlotChoice::Random => count(NumberGenerator::Random),
            SlotChoice::RoundRobin(_) => count(NumberGenerator::Incremental),
            SlotChoice::Source => {
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

impl fmt::Display for SlotChoice {
    /// Prints the part of a chain's name that follows the placement.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SlotChoice::Random => Ok(()),
            SlotChoice::RoundRobin(Counter::Shared) => f.write_str("turns-"),
            SlotChoice::RoundRobin(Counter::Own(number)) => write!(f, "turns-{number}-"),
            SlotChoice::Source => f.write_str("source-"),
        }
    }
}

// === impl Counter ===

impl Counter {
    /// How many Service ports of a family may have a separate counter.
    pub(crate) const OWN: u16 = (1 << 9) - 1;
    /// How many endpoints such a port may have.
    pub(crate) const MOST_ENDPOINTS: u32 = (1 << 10) - 1;

    /// Whether a port with this many endpoints may have one.
    pub(crate) fn suits(endpoints: usize) -> bool {
        u32::try_from(endpoints).is_ok_and(|endpoints| endpoints <= Counter::MOST_ENDPOINTS)
    }

    /// The separate counter of this number; `None` if the number is out of range.
    pub(crate) fn own(number: u16) -> Option<Counter> {
        (1..=Counter::OWN)
            .contains(&number)
            .then_some(Counter::Own(number))
    }
}

// === impl ChainRole ===

impl ChainRole {
    pub(super) const ALL: [ChainRole; 5] = [
        ChainRole::Balance,
        ChainRole::Cluster,
        ChainRole::External,
        ChainRole::Local,
        ChainRole::Learn,
    ];

    /// The part of the names of chains with this job.
    pub(crate) fn name(self) -> &'static str {
        match self {
            ChainRole::Balance => "lb",
            ChainRole::Cluster => "cluster",
            ChainRole::External => "external",
            ChainRole::Local => "local",
            ChainRole::Learn => "learn",
        }
    }
}

// === impl Placement ===

impl Placement {
    /// The prefix of the names of chains with this placement.
    fn prefix(self) -> &'static str {
        match self {
            Placement::Independent => "",
            Placement::Sticky => "sticky-",
        }
    }
}

/// Marks the packets to a cluster IP that need masquerade. Returns `None` if none do.
fn mark_cluster(family: Family, config: &Config) -> Option<Rule> {
    let mut expressions = match config.masquerade {
        Masquerade::All => Vec::new(),
        Masquerade::NonLocal => local_source(family, config, Operator::NotEqual)?,
    };
    expressions.extend(mark(config).expressions);
    Some(rule(expressions))
}
