//! Signpost's rules in one table of the kernel.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use dataplane::PersistentMap;
use xtables::{BuiltIn, OwnRules, Rule, Target};

use crate::names;
use crate::rules::{Chain, Rank};
use crate::tree::TreeChanges;

/// How deep nf_tables accepts chains nested below a built-in chain, which is the sixteenth of
/// `NFT_JUMP_STACK_SIZE`; `-g` counts as `-j` does. It refuses a change that leads deeper (EMLINK).
pub(crate) const MOST_NESTED: usize = 15;

/// Signpost's rules in one table.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct TableRules {
    chains: PersistentMap<Arc<str>, Arc<Chain>>,
    /// The number of rules in those chains.
    in_chains: usize,
    /// The jumps from built-in chains.
    pub(crate) entries: BTreeMap<BuiltIn, Vec<Rule>>,
}

/// The comment that stands for a rule which Signpost did not write.
const FOREIGN: &str = "not written by Signpost";

// === impl TableRules ===

impl TableRules {
    /// Converts rules that were read from the kernel.
    pub(crate) fn observed(held: OwnRules) -> TableRules {
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

    /// The number of rules, including the jumps from built-in chains.
    pub(crate) fn count(&self) -> usize {
        self.in_chains + self.entries.values().map(Vec::len).sum::<usize>()
    }

    /// How deep chains are nested below a built-in chain. The cost is proportional to all rules that are
    /// reached.
    pub(crate) fn nesting(&self) -> usize {
        let mut known = HashMap::new();
        let entries = self.entries.values();
        let depths = entries.map(|rules| self.nesting_behind(rules, &mut known));
        depths.max().unwrap_or(0)
    }

    /// How many chains are nested behind `rules`, where all of some chains is `known`.
    fn nesting_behind(&self, rules: &[Rule], known: &mut HashMap<Arc<str>, usize>) -> usize {
        let targets = rules.iter().filter_map(Rule::leads_to);
        let depths = targets.map(|name| {
            if let Some(depth) = known.get(name) {
                return *depth;
            }
            // For one that leads back to itself there is no end.
            known.insert(Arc::clone(name), usize::MAX);
            let chain = self.chains.get(name);
            let behind = chain.map_or(0, |chain| self.nesting_behind(&chain.rules, known));
            let depth = behind.saturating_add(1);
            known.insert(Arc::clone(name), depth);
            depth
        });
        depths.max().unwrap_or(0)
    }

    /// Replaces the chain of this name with `chain`. An equal chain stays shared.
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

    /// Applies changes of a tree's chains.
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

    /// Gives the chain of this name these rules, as the kernel does.
    pub(crate) fn write(&mut self, name: &Arc<str>, rules: &Arc<[Rule]>) {
        let chain = Chain {
            rules: Arc::clone(rules),
            services: Vec::new(),
            rank: Rank::Inner,
        };
        self.insert(Arc::clone(name), Arc::new(chain));
    }

    pub(crate) fn insert(&mut self, name: Arc<str>, chain: Arc<Chain>) {
        self.in_chains += chain.rules.len();
        if let Some(old) = self.chains.insert(name, chain) {
            self.in_chains -= old.rules.len();
        }
    }

    /// Removes a chain. Returns `None` if it does not exist.
    pub(crate) fn remove(&mut self, name: &Arc<str>) -> Option<Arc<Chain>> {
        let chain = self.chains.remove(name)?;
        self.in_chains -= chain.rules.len();
        Some(chain)
    }
}

impl fmt::Debug for TableRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
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

/// A rule that equals none of Signpost's.
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
