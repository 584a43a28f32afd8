//! A table without its history.

use std::collections::BTreeSet;
use std::sync::Arc;

use dataplane::Family;
use netlink::nf_tables::{ElementData, Verdict};

use crate::chains::{self, NumberedChain};
use crate::layout::{self, Keyed, LOCAL_SLOTS, SetName};
use crate::render::source_lengths;
use crate::table::Table;

impl Table {
    /// The same table arranged as if it had been rendered at once: endpoints in order, and no chain
    /// for a number that nothing has, no set for a length of prefix that nobody has. Equal for
    /// tables that treat packets the same.
    #[must_use]
    pub fn canonical(&self, family: Family) -> Table {
        let mut table = self.clone();
        let mut used = BTreeSet::new();
        for set in self.sets.values() {
            for (_, data) in set.elements.iter() {
                if let ElementData::Verdict(Verdict::Goto(chain)) = data {
                    used.extend(
                        NumberedChain::parse(chain)
                            .into_iter()
                            .flat_map(NumberedChain::closure),
                    );
                }
            }
        }
        let chains = Arc::make_mut(&mut table.chains);
        chains
            .retain(|name, _| NumberedChain::parse(name).is_none_or(|chain| used.contains(&chain)));
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
            for key in frontends {
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
        table
    }
}
