//! What one family of the kernel holds of ours.

use std::fmt;
use std::sync::Arc;

use dataplane::ServiceKey;
use xtables::{Rule, TableName};

use crate::table_rules::TableRules;
use crate::trees::Trees;

/// One family's rules. Two of them are equal when the kernel holds the same.
#[derive(Clone, Default)]
pub struct Rules {
    pub(crate) nat: TableRules,
    pub(crate) filter: TableRules,
    /// What the dispatching chains were made of; empty in rules that were read from the kernel. Says
    /// nothing that the chains do not say.
    pub(crate) trees: Trees,
    /// The same with nothing but what comes before all others, where it was rendered from nothing:
    /// a kernel without rules is given these first.
    pub(crate) first: Option<Arc<Rules>>,
}

/// One chain. Two are equal when their rules are.
#[derive(Debug, Clone)]
pub(crate) struct Chain {
    pub(crate) rules: Arc<[Rule]>,
    /// Whose rules they are; nobody's in particular where this is empty.
    pub(crate) services: Vec<ServiceKey>,
    pub(crate) rank: Rank,
}

/// When a chain is written, as against others of its table: what it leads to has a lower rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// Chooses an endpoint.
    Balance,
    /// Decides among those that choose.
    External,
    /// Decides who may come to those.
    Sources,
    /// Leads there: the deeper, the sooner.
    Tree(std::cmp::Reverse<usize>),
    /// The entrance of a tree.
    Entrance,
    /// Leads to those.
    Inner,
    /// Is led to by the kernel's own chains.
    Outer,
}

// === impl Rules ===

impl Rules {
    pub(crate) fn of(&self, table: TableName) -> &TableRules {
        match table {
            TableName::Nat => &self.nat,
            TableName::Filter => &self.filter,
        }
    }

    pub(crate) fn of_mut(&mut self, table: TableName) -> &mut TableRules {
        match table {
            TableName::Nat => &mut self.nat,
            TableName::Filter => &mut self.filter,
        }
    }

    /// How many rules a table has. Asked for after every change, so nothing is counted here.
    pub fn count(&self, table: TableName) -> usize {
        self.of(table).count()
    }
}

impl PartialEq for Rules {
    fn eq(&self, other: &Rules) -> bool {
        self.nat == other.nat && self.filter == other.filter
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Rules {
    /// As `iptables-save` prints them, chains in the order of their names.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for name in TableName::ALL {
            let table = self.of(name);
            if !table.chains().is_empty() || !table.entries.is_empty() {
                writeln!(f, "*{name}\n{table}COMMIT")?;
            }
        }
        Ok(())
    }
}

// === impl Chain ===

impl PartialEq for Chain {
    fn eq(&self, other: &Chain) -> bool {
        Arc::ptr_eq(&self.rules, &other.rules) || self.rules == other.rules
    }
}
