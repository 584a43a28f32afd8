//! One of our tables as a value: what the kernel holds, or should.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use dataplane::{Family, FrontendKey, PersistentMap, Target};
use netlink::nf_tables::{Bytes, Chain, ElementData, Rule, Set};

use crate::chains::NumberedChain;
use crate::layout::{self, Keyed, LOCAL_SLOTS, SetName};
use crate::render::{Retirement, Rooms};

/// A table with its chains, sets and elements. Copies share what they have in common. Two are equal
/// when a kernel holding either would list the same.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// Whether the table is there at all.
    pub(crate) exists: bool,
    /// Chains by name.
    pub(crate) chains: Arc<Chains>,
    /// Sets by name.
    pub(crate) sets: BTreeMap<Arc<str>, SetWithElements>,
    /// The frontends whose elements are written before all others. Of this the kernel knows
    /// nothing.
    pub(crate) first: BTreeSet<FrontendKey>,
    /// The [table beside it](layout::NEXT), where there is one. Never wanted; found where a change from
    /// a table of another form was cut short.
    pub(crate) next: Option<Arc<Table>>,
    /// Which chains nobody uses. Of this the kernel knows nothing.
    pub(crate) retirement: Arc<Retirement>,
    /// The Services that remember their clients by themselves. Of this the kernel knows no more than
    /// what the numbers of their frontends say.
    pub(crate) rooms: Rooms,
}

/// Chains by name.
pub(crate) type Chains = BTreeMap<Arc<str>, Arc<ChainWithRules>>;

/// A chain and what is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChainWithRules {
    pub(crate) chain: Chain,
    /// A rule that is not of our making is one without expressions: it equals none of ours.
    pub(crate) rules: Vec<Rule>,
}

/// A set and what is in it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SetWithElements {
    pub(crate) set: Arc<Set>,
    pub(crate) elements: Elements,
}

/// The elements of a set by key.
pub(crate) type Elements = PersistentMap<Bytes, ElementData>;

// === impl Table ===

impl Table {
    /// How many elements all sets have.
    pub fn elements(&self) -> usize {
        self.sets.values().map(|set| set.elements.len()).sum()
    }

    /// Where connections to a frontend are sent, whoever makes them.
    pub fn targets(&self, key: &FrontendKey) -> BTreeSet<Target> {
        let slots = |first| self.slots(key.family(), key, first);
        [0, LOCAL_SLOTS].into_iter().flat_map(slots).collect()
    }

    /// Whether packets come to any chain of it.
    pub(crate) fn is_hooked(&self) -> bool {
        let mut chains = self.chains.values();
        chains.any(|chain| chain.chain.hook.is_some())
    }

    /// The one of the two tables that packets come to: this one, if to any.
    pub(crate) fn serving(&self) -> &Table {
        match self.next.as_deref() {
            Some(next) if next.is_hooked() && !self.is_hooked() => next,
            _ => self,
        }
    }

    /// The numbered chains that are there.
    pub(crate) fn numbered_chains(&self) -> Vec<NumberedChain> {
        let names = self.chains.keys();
        names
            .filter_map(|name| NumberedChain::parse(name))
            .collect()
    }

    pub(crate) fn element(&self, set: SetName, key: &Bytes) -> Option<&ElementData> {
        self.sets.get(set.as_str())?.elements.get(key)
    }

    pub(crate) fn elements_mut(&mut self, set: SetName) -> Option<&mut Elements> {
        Some(&mut self.sets.get_mut(set.as_str())?.elements)
    }

    pub(crate) fn set_element(&mut self, set: SetName, key: Bytes, data: ElementData) {
        if let Some(elements) = self.elements_mut(set) {
            elements.ensure(key, data);
        }
    }

    pub(crate) fn remove_element(&mut self, set: SetName, key: &Bytes) -> bool {
        self.elements_mut(set)
            .is_some_and(|elements| elements.remove(key).is_some())
    }

    /// The endpoints in the slots of a frontend from `first` up to the first empty one.
    pub(crate) fn slots(&self, family: Family, key: &FrontendKey, first: u32) -> Vec<Target> {
        let (set, bytes) = (Keyed::of(key).endpoints(), layout::frontend(key));
        (first..)
            .map_while(
                |slot| match self.element(set, &layout::slot(bytes.clone(), slot)) {
                    Some(ElementData::Value(value)) => layout::parse_target(family, value),
                    _ => None,
                },
            )
            .collect()
    }
}

impl PartialEq for Table {
    fn eq(&self, other: &Table) -> bool {
        let Table {
            exists,
            chains,
            sets,
            first: _,
            next,
            retirement: _,
            rooms: _,
        } = self;
        (exists, chains, sets, next) == (&other.exists, &other.chains, &other.sets, &other.next)
    }
}

impl fmt::Display for Table {
    /// Chains and sets by name, elements by key; behind them, if there is one, the table beside.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let next = |f: &mut fmt::Formatter<'_>| match &self.next {
            Some(next) => write!(f, "table {}\n{next}", layout::NEXT),
            None => Ok(()),
        };
        if !self.exists {
            return next(f);
        }
        for chain in self.chains.values() {
            writeln!(f, "chain {}", chain.chain)?;
            for rule in &chain.rules {
                writeln!(f, "    {rule}")?;
            }
        }
        for set in self.sets.values() {
            writeln!(f, "set {}", set.set)?;
            for (key, data) in set.elements.sorted() {
                writeln!(f, "    {}", set.set.element(key, data))?;
            }
        }
        next(f)
    }
}
