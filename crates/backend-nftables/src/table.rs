//! One of Signpost's tables as a value, as observed or desired.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use dataplane::{Family, FrontendKey, PersistentMap, Target};
use netlink::nf_tables::{Bytes, ElementData, Transaction};
pub(crate) use nftables_model::{
    ChainWithRules, Chains, Elements, Flowtables, SetWithElements, Sets,
};
use nftables_model::{Contents, Refused, View};

use crate::chains::NumberedChain;
use crate::layout::{self, Keyed, LOCAL_SLOTS, SetName};
use crate::render::{AffinityMaps, Retirement, RoundRobinCounters};

/// A table with its chains, sets, elements and flowtables. Copies share what they have in common. Two tables
/// are equal if the kernel would list them identically.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// Whether the table exists.
    pub(crate) exists: bool,
    /// Chains by name.
    pub(crate) chains: Arc<Chains>,
    /// Sets by name.
    pub(crate) sets: Sets,
    /// Flowtables by name.
    pub(crate) flowtables: Flowtables,
    /// The frontends whose elements are written before all others. Not stored in the kernel.
    pub(crate) first: BTreeSet<FrontendKey>,
    /// The [table beside it](layout::NEXT), if any. Never desired; found where a change from a
    /// table of another form was cut short.
    pub(crate) next: Option<Arc<Table>>,
    /// Which chains are unused. Not stored in the kernel.
    pub(crate) retirement: Arc<Retirement>,
    /// The Services with a separate affinity map. The kernel stores this only as the numbers of
    /// their frontends.
    pub(crate) affinity_maps: AffinityMaps,
    /// The Service ports with a separate round-robin counter. The kernel stores this only as the
    /// numbers of their frontends.
    pub(crate) turns: RoundRobinCounters,
    /// The results of [`Table::slots`] for frontends with many slots, by frontend and first slot.
    /// Empty for a table that was read from the kernel.
    pub(crate) long_slots: PersistentMap<(FrontendKey, u32), Arc<[Target]>>,
}

/// The number of slots from which a table keeps a frontend's slots as a list, too: each lookup of a
/// slot by its key costs a microsecond, half as much as writing one.
const LONG: usize = 64;

// === impl Table ===

impl Table {
    /// The number of elements in all sets.
    pub fn elements(&self) -> usize {
        self.sets.values().map(|set| set.elements.len()).sum()
    }

    /// The endpoints that a frontend sends connections to, for any client.
    pub fn targets(&self, key: &FrontendKey) -> BTreeSet<Target> {
        let slots = |first| self.slots(key.family(), key, first);
        [0, LOCAL_SLOTS].into_iter().flat_map(slots).collect()
    }

    /// Whether packets reach rules of the table: it has a base chain, and not without rules.
    pub(crate) fn is_hooked(&self) -> bool {
        let mut chains = self.chains.values();
        chains.any(|chain| chain.chain.hook.is_some() && !chain.rules.is_empty())
    }

    /// Whether its rules were removed and then, unlike planned, not the table: an agent was killed
    /// in between, or the kernel refused.
    pub(crate) fn is_flushed(&self) -> bool {
        let mut chains = self.chains.values();
        let is_base = chains.any(|chain| chain.chain.hook.is_some());
        is_base && self.chains.values().all(|chain| chain.rules.is_empty())
    }

    /// The contents that the kernel stores, without the table beside it.
    fn contents(&self) -> Contents {
        Contents {
            exists: self.exists,
            chains: Arc::clone(&self.chains),
            sets: self.sets.clone(),
            flowtables: self.flowtables.clone(),
        }
    }

    /// The view that a simulated packet has of it.
    pub(crate) fn view(&self) -> View<'_> {
        View {
            chains: &self.chains,
            sets: &self.sets,
        }
    }

    /// Applies `transaction`, as a whole or not at all, to this table or the one beside it,
    /// depending on the table that the transaction names.
    pub fn replay(&mut self, transaction: &Transaction) -> Result<(), Refused> {
        self.replay_with_devices(transaction, |_| true)
    }

    /// The same in a network namespace that has the devices for which `has_device` is true.
    pub(crate) fn replay_with_devices(
        &mut self,
        transaction: &Transaction,
        has_device: impl Fn(&str) -> bool,
    ) -> Result<(), Refused> {
        let is_beside = &*transaction.table == layout::NEXT;
        let mut table = match is_beside {
            true => self.next.as_deref().cloned().unwrap_or_default(),
            false => self.clone(),
        };
        let mut contents = table.contents();
        contents.replay_with_devices(transaction, has_device)?;
        table.long_slots = PersistentMap::new();
        if !contents.exists {
            table = Table::default();
        }
        (table.exists, table.chains, table.sets) =
            (contents.exists, contents.chains, contents.sets);
        table.flowtables = contents.flowtables;
        match is_beside {
            true => self.next = table.exists.then(|| Arc::new(table)),
            false => {
                table.next = self.next.take();
                *self = table;
            }
        }
        Ok(())
    }

    /// The table that packets reach: this one, unless only the one beside it is hooked in.
    pub(crate) fn serving(&self) -> &Table {
        match self.next.as_deref() {
            Some(next) if next.is_hooked() && !self.is_hooked() => next,
            _ => self,
        }
    }

    /// The numbered chains of the table.
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

    /// Like [`Table::slots`]. Costs one lookup for a frontend with many slots in a rendered table.
    pub(crate) fn known_slots(&self, key: &FrontendKey, first: u32) -> Arc<[Target]> {
        match self.long_slots.get(&(*key, first)) {
            Some(slots) => Arc::clone(slots),
            None => self.slots(key.family(), key, first).into(),
        }
    }

    /// Records the current result of [`Table::slots`].
    pub(crate) fn note_slots(&mut self, key: &FrontendKey, first: u32, slots: &[Target]) {
        let place = (*key, first);
        match slots.len() >= LONG {
            true => drop(self.long_slots.insert(place, slots.into())),
            false => drop(self.long_slots.remove(&place)),
        }
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
            flowtables,
            first: _,
            next,
            retirement: _,
            affinity_maps: _,
            turns: _,
            long_slots: _,
        } = self;
        (exists, chains, sets, next) == (&other.exists, &other.chains, &other.sets, &other.next)
            && *flowtables == other.flowtables
    }
}

impl fmt::Display for Table {
    /// Prints chains, sets and flowtables by name and elements by key, then the table beside it, if any.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let next = |f: &mut fmt::Formatter<'_>| match &self.next {
            Some(next) => write!(f, "table {}\n{next}", layout::NEXT),
            None => Ok(()),
        };
        if !self.exists {
            return next(f);
        }
        self.contents().fmt(f)?;
        next(f)
    }
}
