//! Signpost's rules of one family in the kernel.

use std::fmt;
use std::sync::Arc;

use dataplane::ServiceKey;
use xtables::{Rule, TableName};

use crate::client_lists::ClientLists;
use crate::table_rules::TableRules;
use crate::trees::Trees;

/// The rules of one family. Equal if the kernel holds the same rules.
#[derive(Clone, Default)]
pub struct Rules {
    pub(crate) nat: TableRules,
    pub(crate) filter: TableRules,
    /// The trees from which the dispatching chains were made; empty for rules that were read from
    /// the kernel. They contain no more than the chains do.
    pub(crate) trees: Trees,
    /// The rules with only the Services that come first, if they were rendered from nothing: a
    /// kernel without rules gets these first.
    pub(crate) first: Option<Arc<Rules>>,
    /// Which Service ports have lists of clients; empty for rules that were read from the kernel.
    /// Determines chains.
    pub(crate) client_lists: ClientLists,
}

/// A chain. Equal if the rules are equal.
#[derive(Debug, Clone)]
pub(crate) struct Chain {
    pub(crate) rules: Arc<[Rule]>,
    /// The Services whose rules they are; empty for shared rules.
    pub(crate) services: Vec<ServiceKey>,
    pub(crate) rank: Rank,
}

/// The order in which chains of a table are written: a chain has a higher rank than those it leads
/// to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// Chooses an endpoint.
    Balance,
    /// Decides between chains that choose an endpoint.
    External,
    /// Decides which sources may reach those.
    Sources,
    /// Part of a tree that leads there: deeper chains first.
    Tree(std::cmp::Reverse<usize>),
    /// The entrance of a tree.
    Entrance,
    /// Leads to entrances.
    Inner,
    /// Entered from a built-in chain.
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

    /// The number of rules of a table. Called after every change, so it is kept, not counted.
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
    /// Prints as `iptables-save` does, with chains sorted by name.
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
