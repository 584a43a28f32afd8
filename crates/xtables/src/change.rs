//! Signpost's rules in a table, and steps from one state of them to another.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{BuiltIn, Rule, TableName};

/// Signpost's rules in a table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Held {
    /// Our chains, with their rules in order. A rule that is not of our making is `None`.
    pub chains: BTreeMap<Arc<str>, Vec<Option<Rule>>>,
    /// The rules of built-in chains that lead to a chain of Signpost, in order; `None` for such a
    /// rule with a match or option that Signpost never writes.
    pub entries: BTreeMap<BuiltIn, Vec<Option<Rule>>>,
}

/// One step: all of it takes effect at once, or nothing does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableChange {
    /// The table.
    pub table: TableName,
    /// Chains of Signpost that get exactly these rules, whether or not they existed. The chains that
    /// they lead to exist already, or are among them.
    pub chains: Vec<(Arc<str>, Arc<[Rule]>)>,
    /// For each of these built-in chains: Signpost's rules become exactly these, before those of
    /// other programs.
    pub entries: Vec<(BuiltIn, Vec<Rule>)>,
    /// Chains of Signpost to remove. No rule leads to them any more once the rest is done.
    pub removed: Vec<Arc<str>>,
}

// === impl TableChange ===

impl TableChange {
    /// A step that does nothing.
    pub fn new(table: TableName) -> TableChange {
        TableChange {
            table,
            chains: Vec::new(),
            entries: Vec::new(),
            removed: Vec::new(),
        }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.entries.is_empty() && self.removed.is_empty()
    }

    /// The same in two steps, the first of which is no worse a place to stop at than any end of a
    /// step: chains are in the order in which they can be written, and what enters them or goes comes
    /// after all of them. `None` where there is only one chain to write.
    pub fn halves(&self) -> Option<[TableChange; 2]> {
        let half = self.rules() / 2;
        let mut written = 0;
        let fits = |(_, rules): &&(Arc<str>, Arc<[Rule]>)| {
            written += rules.len();
            written <= half
        };
        let most = self.chains.len().checked_sub(1).filter(|most| *most > 0)?;
        let at = self.chains.iter().take_while(fits).count().clamp(1, most);
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

    /// How many rules it writes.
    pub fn rules(&self) -> usize {
        let chains = self.chains.iter().map(|(_, rules)| rules.len());
        let entries = self.entries.iter().map(|(_, rules)| rules.len());
        chains.sum::<usize>() + entries.sum::<usize>()
    }
}
