//! Signpost's rules in a table, and the steps that change them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{BuiltIn, Rule, TableName};

/// Signpost's rules in a table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnRules {
    /// Signpost's chains, with their rules in order. `None` is a rule of a form that Signpost never
    /// writes.
    pub chains: BTreeMap<Arc<str>, Vec<Option<Rule>>>,
    /// The rules of built-in chains that lead to a chain of Signpost, in order. `None` is such a
    /// rule with a match or option that Signpost never writes.
    pub entries: BTreeMap<BuiltIn, Vec<Option<Rule>>>,
}

/// One step: it takes effect whole and at once, or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableChange {
    /// The table.
    pub table: TableName,
    /// Chains of Signpost that get exactly these rules, whether or not they existed. Every chain
    /// that the rules lead to exists already or is in this list.
    pub chains: Vec<(Arc<str>, Arc<[Rule]>)>,
    /// Built-in chains with the rules that Signpost shall have in each, before those of other
    /// programs.
    pub entries: Vec<(BuiltIn, Vec<Rule>)>,
    /// Chains of Signpost to remove. After the rest of the step, no rule leads to them.
    pub removed: Vec<Arc<str>>,
}

/// How often the chains of a step are halved in search of a place to split it: 32 looks at most.
const FINEST_PLACES: u32 = 5;

// === impl TableChange ===

impl TableChange {
    /// A step that changes nothing.
    pub fn new(table: TableName) -> TableChange {
        TableChange {
            table,
            chains: Vec::new(),
            entries: Vec::new(),
            removed: Vec::new(),
        }
    }

    /// Whether the step changes nothing.
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.entries.is_empty() && self.removed.is_empty()
    }

    /// Splits the step in two where it `may_end` after that many of its chains, which is tried at
    /// about the half and then at a few other places. The table is as consistent after the first as
    /// after any step: the chains are in the order in which they can be written, and entries and
    /// removals are all in the second. `None` if there are fewer than two chains to write, or if it may
    /// end at none of the places.
    pub fn halves(&self, may_end: impl Fn(usize) -> bool) -> Option<[TableChange; 2]> {
        let half = self.rules() / 2;
        let mut written = 0;
        let fits = |(_, rules): &&(Arc<str>, Arc<[Rule]>)| {
            written += rules.len();
            written <= half
        };
        let most = self.chains.len().checked_sub(1).filter(|most| *most > 0)?;
        let middle = self.chains.iter().take_while(fits).count();
        let at = places(middle, most).find(|at| may_end(*at))?;
        let (first, second) = self.chains.split_at(at);
        let first = TableChange {
            chains: first.to_vec(),
            ..TableChange::new(self.table)
        };
        let second = TableChange {
            chains: second.to_vec(),
            ..self.clone()
        };
        Some([first, second])
    }

    /// The number of rules that the step writes.
    pub fn rules(&self) -> usize {
        let chains = self.chains.iter().map(|(_, rules)| rules.len());
        let entries = self.entries.iter().map(|(_, rules)| rules.len());
        chains.sum::<usize>() + entries.sum::<usize>()
    }
}

/// Places from 1 to `most`, of which there is at least one: `middle`, and then the half of all, the quarters,
/// and so on. Not every one, since a look at each may take long.
fn places(middle: usize, most: usize) -> impl Iterator<Item = usize> {
    let finest = FINEST_PLACES.min(most.ilog2() + 1);
    let finer = (1..=finest).flat_map(move |level| {
        let parts = (1..1_usize << level).step_by(2);
        parts.map(move |part| (most * part) >> level)
    });
    std::iter::once(middle)
        .chain(finer)
        .map(move |place| place.clamp(1, most))
}
