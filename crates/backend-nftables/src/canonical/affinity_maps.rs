//! The canonical numbers of affinity maps (rooms) and round-robin counters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dataplane::Family;
use netlink::nf_tables::{ElementData, Expression, Verdict};

use crate::chains::{ChainId, Counter, NumberedChain, SlotChoice};
use crate::layout::{AffinityMap, Keyed, SetName};
use crate::table::{ChainWithRules, SetWithElements, Table};

/// New numbers, by the order of the frontends that use them.
struct Order {
    numbers: BTreeMap<u8, u8>,
    /// The affinity maps in use.
    used: BTreeSet<SetName>,
    /// The numbers of counters.
    counters: BTreeMap<u16, u16>,
}

/// Renumbers the affinity maps and counters of `table` by the order of frontends, and removes the
/// affinity maps that no frontend uses.
pub(super) fn put_in_order(table: &mut Table, family: Family) {
    let order = Order::of(table, family);
    for name in SetName::FIXED {
        let Some(elements) = table.elements_mut(name) else {
            continue;
        };
        *elements = elements
            .iter()
            .map(|(key, data)| match (name.is_numbers(), data) {
                (true, ElementData::Verdict(Verdict::Goto(chain))) => {
                    match NumberedChain::parse(chain) {
                        Some(chain) => {
                            let chain_id = ChainId::Numbered(order.chain(chain));
                            (chain_id.key(), ElementData::Verdict(chain_id.verdict()))
                        }
                        None => (key.clone(), data.clone()),
                    }
                }
                _ => match ChainId::of(name, data) {
                    Some(ChainId::Numbered(chain)) => {
                        let chain_id = ChainId::Numbered(order.chain(chain));
                        (key.clone(), chain_id.value())
                    }
                    _ => (key.clone(), data.clone()),
                },
            })
            .collect();
    }
    let chains = table.chains.values().map(|chain| {
        let chain = order.rules(chain);
        (Arc::clone(&chain.chain.name), Arc::new(chain))
    });
    table.chains = Arc::new(chains.collect());
    let sets = std::mem::take(&mut table.sets).into_iter();
    table.sets = sets
        .filter_map(|(name, set)| order.set(name, set))
        .collect();
}

// === impl Order ===

impl Order {
    fn of(table: &Table, family: Family) -> Order {
        let (mut numbers, mut used) = (BTreeMap::new(), BTreeSet::new());
        for keyed in Keyed::ALL {
            let set = keyed.affinities();
            let elements = table.sets.get(set.as_str()).into_iter();
            for (_, data) in elements.flat_map(|set| set.elements.sorted()) {
                if let Some(ChainId::Numbered(NumberedChain {
                    affinity_map: AffinityMap::Reserved(affinity_map),
                    ..
                })) = ChainId::of(set, data)
                {
                    let next = u8::try_from(numbers.len() + 1).unwrap_or(u8::MAX);
                    numbers.entry(affinity_map).or_insert(next);
                    used.insert(keyed.clients(AffinityMap::of(affinity_map)));
                }
            }
        }
        let users: BTreeMap<_, _> = table.counters(family).collect();
        let mut counters = BTreeMap::new();
        for number in users.into_values() {
            let next = u16::try_from(counters.len() + 1).unwrap_or(u16::MAX);
            counters.entry(number).or_insert(next);
        }
        Order {
            numbers,
            used,
            counters,
        }
    }

    fn affinity_map(&self, affinity_map: AffinityMap) -> AffinityMap {
        let number = self.numbers.get(&affinity_map.number());
        number.map_or(affinity_map, |number| AffinityMap::of(*number))
    }

    fn chain(&self, chain: NumberedChain) -> NumberedChain {
        NumberedChain {
            affinity_map: self.affinity_map(chain.affinity_map),
            slot_choice: self.slot_choice(chain.slot_choice),
            ..chain
        }
    }

    fn slot_choice(&self, slot_choice: SlotChoice) -> SlotChoice {
        match slot_choice {
            SlotChoice::RoundRobin(Counter::Own(number)) => {
                let number = self.counters.get(&number).copied().unwrap_or(number);
                SlotChoice::RoundRobin(Counter::Own(number))
            }
            other => other,
        }
    }

    fn chain_name(&self, name: &mut Arc<str>) {
        if let Some(chain) = NumberedChain::parse(name) {
            *name = self.chain(chain).name();
        }
    }

    /// Returns the set under its new number, or `None` for an unused affinity map.
    fn set(&self, name: Arc<str>, mut set: SetWithElements) -> Option<(Arc<str>, SetWithElements)> {
        let (keyed, affinity_map) = match SetName::parse(&name) {
            Some(SetName::ClientsIn(affinity_map)) => (Keyed::Address, affinity_map),
            Some(SetName::NodePortClientsIn(affinity_map)) => (Keyed::NodePort, affinity_map),
            _ => return Some((name, set)),
        };
        let is_used = self
            .used
            .contains(&keyed.clients(AffinityMap::of(affinity_map)));
        let affinity_map = self.affinity_map(AffinityMap::of(affinity_map));
        if !is_used {
            return None;
        }
        let mut renamed = (*set.set).clone();
        renamed.name = keyed.clients(affinity_map).as_str().into();
        set.set = Arc::new(renamed);
        Some((Arc::clone(&set.set.name), set))
    }

    fn set_name(&self, name: &mut Arc<str>) {
        let renamed = match SetName::parse(name) {
            Some(SetName::ClientsIn(affinity_map)) => {
                Keyed::Address.clients(self.affinity_map(AffinityMap::of(affinity_map)))
            }
            Some(SetName::NodePortClientsIn(affinity_map)) => {
                Keyed::NodePort.clients(self.affinity_map(AffinityMap::of(affinity_map)))
            }
            _ => return,
        };
        *name = renamed.as_str().into();
    }

    fn rules(&self, chain: &ChainWithRules) -> ChainWithRules {
        let mut chain = chain.clone();
        self.chain_name(&mut chain.chain.name);
        for expression in chain
            .rules
            .iter_mut()
            .flat_map(|rule| &mut rule.expressions)
        {
            match expression {
                Expression::LookupValue { set, .. } | Expression::Learn { set, .. } => {
                    self.set_name(set);
                }
                Expression::Immediate(Verdict::Goto(chain)) => self.chain_name(chain),
                _ => {}
            }
        }
        chain
    }
}
