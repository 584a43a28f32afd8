//! Numbered chains that nothing leads to any more.
//!
//! A client of the API that steps through numbers of endpoints, or through timeouts, would leave a
//! chain for each behind, on every node and for good. First the number of such a chain goes, then, a
//! change later, the chain: kernels before 6.2 refuse to remove one that an element led to a moment
//! ago.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::chains::{Lead, NumberedChain};
use crate::layout::SetName;
use crate::table::Table;

/// So many chains may be there, fixed ones included, before a look at which of them are used.
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

/// What is known of the use of chains.
#[derive(Debug, Clone, Default)]
pub(crate) struct Retirement {
    /// By name. They have no number any more.
    retired: BTreeSet<Arc<str>>,
    /// How many chains were in use when that was last asked.
    used: usize,
}

// === impl Retirement ===

impl Retirement {
    /// The chains that go with the next change.
    pub(super) fn retired(&self) -> &BTreeSet<Arc<str>> {
        &self.retired
    }

    /// Whether there are so many chains that it is worth a look at every frontend. That there have to
    /// be twice as many as were used makes such looks as rare as their cost is high.
    fn is_due(&self, chains: usize) -> bool {
        chains > UNASKED.max(2 * self.used)
    }
}

/// Takes the numbers of those chains out of `table` that no frontend leads to in it, nor in what is
/// `before` it in the kernel.
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
            let lead = Lead::Numbered(chain);
            table.remove_element(lead.map(), &lead.key());
            retirement.retired.insert(chain.name());
        }
    }
    table.retirement = Arc::new(retirement);
}

/// The chains that elements of frontends lead to, each once.
fn led_to(table: &Table) -> BTreeSet<NumberedChain> {
    let sets = LEADING.into_iter().filter_map(|set| {
        let elements = &table.sets.get(set.as_str())?.elements;
        Some((set, elements))
    });
    let leads = sets.flat_map(|(set, elements)| {
        let leads = elements.iter();
        leads.filter_map(move |(_, data)| Lead::of(set, data))
    });
    leads
        .filter_map(|lead| match lead {
            Lead::Numbered(chain) => Some(chain),
            Lead::Accept | Lead::ExternalLocal(_) => None,
        })
        .collect()
}
