//! What one family of the kernel holds of ours.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use dataplane::{PersistentMap, ServiceKey};
use xtables::{BuiltIn, Held, Rule, TableName, Target};

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

/// What one table holds of ours.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct TableRules {
    pub(crate) chains: PersistentMap<Arc<str>, Arc<Chain>>,
    /// The rules by which packets come in from the kernel's own chains.
    pub(crate) entries: BTreeMap<BuiltIn, Vec<Rule>>,
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

/// The word for a rule that is not of our making.
const FOREIGN: &str = "not of our making";

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

    /// How many rules a table has.
    pub fn count(&self, table: TableName) -> usize {
        let table = self.of(table);
        let chains = table.chains.iter().map(|(_, chain)| chain.rules.len());
        let entries = table.entries.values().map(Vec::len);
        chains.sum::<usize>() + entries.sum::<usize>()
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
            if !table.chains.is_empty() || !table.entries.is_empty() {
                writeln!(f, "*{name}\n{table}COMMIT")?;
            }
        }
        Ok(())
    }
}

// === impl TableRules ===

impl TableRules {
    /// What was read from the kernel.
    pub(crate) fn observed(held: Held) -> TableRules {
        let rules = |rules: Vec<Option<Rule>>| rules.into_iter().map(|r| r.unwrap_or_else(foreign));
        let chain = |(name, held): (Arc<str>, Vec<Option<Rule>>)| {
            let chain = Chain {
                rules: rules(held).collect(),
                services: Vec::new(),
                rank: Rank::Inner,
            };
            (name, Arc::new(chain))
        };
        let entries = held.entries.into_iter();
        TableRules {
            chains: held.chains.into_iter().map(chain).collect(),
            entries: entries
                .map(|(at, held)| (at, rules(held).collect::<Vec<Rule>>()))
                .filter(|(_, rules)| !rules.is_empty())
                .collect(),
        }
    }
}

impl fmt::Display for TableRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, _) in self.chains.sorted() {
            writeln!(f, ":{name} - [0:0]")?;
        }
        for (at, rules) in &self.entries {
            for rule in rules {
                writeln!(f, "-A {at} {rule}")?;
            }
        }
        for (name, chain) in self.chains.sorted() {
            for rule in chain.rules.iter() {
                writeln!(f, "-A {name} {rule}")?;
            }
        }
        Ok(())
    }
}

/// Equals none of ours.
fn foreign() -> Rule {
    Rule {
        comment: Some(FOREIGN.into()),
        ..Rule::always(Target::Return)
    }
}

// === impl Chain ===

impl PartialEq for Chain {
    fn eq(&self, other: &Chain) -> bool {
        Arc::ptr_eq(&self.rules, &other.rules) || self.rules == other.rules
    }
}
