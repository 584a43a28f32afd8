//! The canonical form of a table, independent of how the table came about.

mod affinity_maps;

use std::collections::BTreeSet;
use std::sync::Arc;

use dataplane::{Family, FrontendKey};
use netlink::nf_tables::ElementData;

use crate::chains::{self, ChainId, NumberedChain, SlotChoice};
use crate::layout::{self, Keyed, LOCAL_SLOTS, SetName};
use crate::render::source_lengths;
use crate::table::Table;

impl Table {
    /// Returns the same table in canonical form: endpoints sorted unless a hash chooses among them,
    /// affinity maps and counters numbered by the order of frontends, no chain for an unused
    /// number, and no set for an unused prefix length or affinity map. Equal for tables that treat
    /// packets the same.
    #[must_use]
    pub fn canonical(&self, family: Family) -> Table {
        let mut table = self.clone();
        let mut used = BTreeSet::new();
        for (name, set) in &self.sets {
            let Some(name) = SetName::parse(name) else {
                continue;
            };
            for (_, data) in set.elements.iter() {
                if let Some(ChainId::Numbered(chain)) = ChainId::of(name, data) {
                    used.extend(chain.closure());
                }
            }
        }
        let chains = Arc::make_mut(&mut table.chains);
        chains
            .retain(|name, _| NumberedChain::parse(name).is_none_or(|chain| used.contains(&chain)));
        for unused in self
            .chains
            .keys()
            .filter(|name| !chains.contains_key(*name))
        {
            if let Some(chain_id) = NumberedChain::parse(unused).map(ChainId::Numbered)
                && let Some(numbers) = table.sets.get_mut(chain_id.map().as_str())
            {
                numbers.elements.remove(&chain_id.key());
            }
        }
        table.sets.retain(|name, set| {
            let may_go = matches!(SetName::parse(name), Some(SetName::Sources(_)));
            !(may_go && set.elements.is_empty())
        });
        let allow_sources = chains::allow_sources(family, source_lengths(&table.sets));
        let name = Arc::clone(&allow_sources.chain.name);
        if chains.contains_key(&name) {
            chains.insert(name, Arc::new(allow_sources));
        }
        for keyed in [Keyed::Address, Keyed::NodePort] {
            let name = keyed.endpoints();
            let Some(set) = self.sets.get(name.as_str()) else {
                continue;
            };
            let frontends: BTreeSet<_> = set
                .elements
                .iter()
                .filter_map(|(key, _)| layout::parse_frontend(family, keyed, key.as_slice()))
                .collect();
            // The slots of hashed frontends depend only on the endpoints, and packets can observe
            // their order.
            let frontends = frontends.into_iter();
            for key in frontends.filter(|key| !self.is_hashed(key)) {
                for first in [0, LOCAL_SLOTS] {
                    let mut targets = self.slots(family, &key, first);
                    targets.sort();
                    for (slot, target) in (first..).zip(targets) {
                        let key = layout::slot(layout::frontend(&key), slot);
                        table.set_element(name, key, ElementData::Value(layout::target(&target)));
                    }
                }
            }
        }
        affinity_maps::put_in_order(&mut table, family);
        table
    }

    /// Whether the client's address chooses the slot of a frontend.
    fn is_hashed(&self, key: &FrontendKey) -> bool {
        let (keyed, bytes) = (Keyed::of(key), layout::frontend(key));
        let sets = [keyed.services(), keyed.short_circuits(), keyed.locals()];
        sets.into_iter().any(|set| {
            let chain_id = self.element(set, &bytes);
            let chain_id = chain_id.and_then(|data| ChainId::of(set, data));
            matches!(chain_id, Some(ChainId::Numbered(chain)) if chain.slot_choice == SlotChoice::Source)
        })
    }
}
