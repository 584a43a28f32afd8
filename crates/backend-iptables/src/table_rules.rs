//! What one table of the kernel holds of ours.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use dataplane::PersistentMap;
use xtables::{BuiltIn, Held, Rule, Target};

use crate::names;
use crate::rules::{Chain, Rank};
use crate::tree::TreeChanges;

/// What one table holds of ours.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct TableRules {
    chains: PersistentMap<Arc<str>, Arc<Chain>>,
    /// How many rules those chains have.
    in_chains: usize,
    /// The rules by which packets come in from the kernel's own chains.
    pub(crate) entries: BTreeMap<BuiltIn, Vec<Rule>>,
}

/// The word for a rule that is not of our making.
const FOREIGN: &str = "not written by Signpost";

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
        let mut table = TableRules {
            entries: entries
                .map(|(at, held)| (at, rules(held).collect::<Vec<Rule>>()))
                .filter(|(_, rules)| !rules.is_empty())
                .collect(),
            ..TableRules::default()
        };
        for (name, chain) in held.chains.into_iter().map(chain) {
            table.insert(name, chain);
        }
        table
    }

    pub(crate) fn chains(&self) -> &PersistentMap<Arc<str>, Arc<Chain>> {
        &self.chains
    }

    /// How many rules there are, entries among them.
    pub(crate) fn count(&self) -> usize {
        self.in_chains + self.entries.values().map(Vec::len).sum::<usize>()
    }

    /// Puts `chain` in the place of what has this name. One that is the same stays shared.
    pub(crate) fn put(&mut self, name: Arc<str>, chain: Option<Chain>) {
        match chain {
            None => drop(self.remove(&name)),
            Some(chain) => {
                if self.chains.get(&name).is_none_or(|old| **old != chain) {
                    debug_assert!(
                        name.starts_with(names::PREFIX),
                        "{name} is not a chain of Signpost"
                    );
                    self.insert(name, Arc::new(chain));
                }
            }
        }
    }

    /// Makes the chains of a tree those of another.
    pub(crate) fn put_tree(&mut self, changes: TreeChanges) {
        for (name, chain) in changes {
            let chain = chain.map(|chain| Chain {
                rules: chain.rules.into(),
                services: chain.services,
                rank: Rank::Tree(Reverse(chain.depth)),
            });
            self.put(name, chain);
        }
    }

    pub(crate) fn insert(&mut self, name: Arc<str>, chain: Arc<Chain>) {
        self.in_chains += chain.rules.len();
        if let Some(old) = self.chains.insert(name, chain) {
            self.in_chains -= old.rules.len();
        }
    }

    /// Takes a chain out; `None` where there is none of this name.
    pub(crate) fn remove(&mut self, name: &Arc<str>) -> Option<Arc<Chain>> {
        let chain = self.chains.remove(name)?;
        self.in_chains -= chain.rules.len();
        Some(chain)
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

/// Whether a rule that was read from the kernel is one that Signpost never writes.
pub(crate) fn is_foreign(rule: &Rule) -> bool {
    rule.comment.as_deref() == Some(FOREIGN)
}
