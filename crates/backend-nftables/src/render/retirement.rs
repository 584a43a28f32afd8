//! Removes numbered chains that nothing leads to.
//!
//! A user who steps through numbers of endpoints, or through timeouts, would otherwise leave a
//! chain for each on every node, permanently. First the number of such a chain is removed, then,
//! one change later, the chain: kernels before 6.2 refuse to delete a chain that an element led to
//! a moment ago.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::chains::{ChainId, NumberedChain};
use crate::layout::SetName;
use crate::table::Table;

/// Up to this many chains, fixed ones included, no search for unused ones is made.
const UNASKED: usize = 96;

/// The sets whose elements lead to numbered chains.
const LEADING: [SetName; 8] = [
    SetName::Services,
    SetName::ShortCircuits,
    SetName::Locals,
    SetName::Affinities,
    SetName::NodePorts,
    SetName::NodePortShortCircuits,
    SetName::NodePortLocals,
    SetName::NodePortAffinities,
];

/// The known use of chains.
#[derive(Debug, Clone, Default)]
pub(crate) struct Retirement {
    /// The names of chains whose numbers have been removed.
    retired: BTreeSet<Arc<str>>,
    /// How many chains were in use at the last search.
    used: usize,
}

// === impl Retirement ===

impl Retirement {
    /// The chains that the next change removes.
    pub(super) fn retired(&self) -> &BTreeSet<Arc<str>> {
        &self.retired
    }

    /// Whether there are enough chains to justify a search of every frontend: twice as many as were
    /// in use last time, so that the cost of a search and the interval between searches grow
    /// together.
    fn is_due(&self, chains: usize) -> bool {
        chains > UNASKED.max(2 * self.used)
    }
}

/// Removes from `table` the numbers of chains that no frontend leads to, neither in `table` nor in
/// `before`, the table in the kernel.
pub(super) fn retire(before: &Table, table: &mut Table) {
    let mut retirement = Retirement {
        retired: BTreeSet::new(),
        used: before.retirement.used,
    };
    if retirement.is_due(table.chains.len()) {
        let mut unused: BTreeSet<_> = table.numbered_chains().into_iter().collect();
        let mut forget = |leading: &Table| {
            for used in led_to(leading).into_iter().flat_map(NumberedChain::closure) {
                unused.remove(&used);
            }
            unused.len()
        };
        retirement.used = table.chains.len() - forget(table);
        forget(before);
        for chain in unused {
            let chain_id = ChainId::Numbered(chain);
            table.remove_element(chain_id.map(), &chain_id.key());
            retirement.retired.insert(chain.name());
        }
    }
    table.retirement = Arc::new(retirement);
}

/// The chains that elements of frontends lead to.
fn led_to(table: &Table) -> BTreeSet<NumberedChain> {
    let sets = LEADING.into_iter().filter_map(|set| {
        let elements = &table.sets.get(set.as_str())?.elements;
        Some((set, elements))
    });
    let leads = sets.flat_map(|(set, elements)| {
        let leads = elements.iter();
        leads.filter_map(move |(_, data)| ChainId::of(set, data))
    });
    leads
        .filter_map(|chain_id| match chain_id {
            ChainId::Numbered(chain) => Some(chain),
            ChainId::Accept | ChainId::ExternalLocal(_) => None,
        })
        .collect()
}
