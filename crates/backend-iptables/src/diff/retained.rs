//! Copies of chains in table nat, for frontends that stop using a chain while it changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use xtables::{Rule, Target};

use super::between::is_of;
use crate::fixed_chains::{NODE_PORTS, SERVICES};
use crate::names;
use crate::rules::{Chain, Rank};
use crate::table_rules::{self, TableRules};
use crate::trees::{TreeName, Trees};

/// The rank of a copy that leads to no, one or two further copies: endpoints, the chain shared by
/// external frontends, source ranges.
const RANKS: [Rank; 3] = [Rank::Balance, Rank::External, Rank::Sources];

/// Copies of chains of table nat.
struct Copies<'a> {
    observed: &'a TableRules,
    /// The results of [`Copies::copy`], by the name of the original.
    known: BTreeMap<Arc<str>, Option<(Arc<str>, usize)>>,
    /// `observed` with the copies.
    retained: TableRules,
}

/// The trees that lead to Service ports, and the chains at their entrances.
const ENTRANCES: [(TreeName, &str); 2] = [
    (TreeName::Services, SERVICES),
    (TreeName::NodePorts, NODE_PORTS),
];

/// Returns table nat as `observed`, except that some frontends lead to copies of their chains:
/// those that will lead elsewhere, or be removed, while a chain they lead to changes. The chains of
/// a Service port are written before the rules that lead to them. Without copies, a frontend that
/// moves to another Service, or whose source ranges and policy change together, would combine its
/// old entry with new chains, which is neither the old state nor the new one. The cost is
/// proportional to the difference.
pub(super) fn retain(observed: &TableRules, desired: &TableRules, trees: &Trees) -> TableRules {
    let mut copies = Copies {
        observed,
        known: BTreeMap::new(),
        retained: observed.clone(),
    };
    for difference in observed.chains().differences(desired.chains()) {
        let name = difference.key;
        let mut entrances = ENTRANCES.into_iter();
        let tree = entrances.find(|(tree, entrance)| **name == **entrance || is_of(name, *tree));
        let (Some((tree, _)), Some(before)) = (tree, difference.before) else {
            continue;
        };
        let mut copied_rule = |rule: &Rule| {
            let chain = left_chain(rule, tree, trees)?;
            let is_changing = changes(chain, observed, desired, RANKS.len());
            let (copy, _) = is_changing.then(|| copies.copy(chain)).flatten()?;
            Some(led_to(rule, copy))
        };
        let copied: Vec<Option<Rule>> = before.rules.iter().map(&mut copied_rule).collect();
        if copied.iter().all(Option::is_none) || before.rules.iter().any(table_rules::is_foreign) {
            continue;
        }
        let rules = copied.into_iter().zip(before.rules.iter());
        let chain = Chain {
            rules: rules
                .map(|(copied, rule)| copied.unwrap_or_else(|| rule.clone()))
                .collect(),
            services: before.services.clone(),
            rank: Rank::Inner,
        };
        copies.retained.put(Arc::clone(name), Some(chain));
    }
    copies.retained
}

/// The chain of a Service port that a rule of a tree leads to, if its frontend will no longer lead
/// there.
fn left_chain<'a>(rule: &'a Rule, tree: TreeName, trees: &Trees) -> Option<&'a Arc<str>> {
    let chain = rule.leads_to()?;
    let key = tree.key_of(rule)?;
    let after = trees.get(tree)?.get(&key);
    let stays = after.is_some_and(|entry| entry.rule.leads_to() == Some(chain));
    (!stays && !is_of(chain, tree)).then_some(chain)
}

/// Whether a chain, or one reachable from it within `depth` steps, exists before and after but
/// differs.
fn changes(name: &Arc<str>, observed: &TableRules, desired: &TableRules, depth: usize) -> bool {
    let Some(before) = observed.chains().get(name) else {
        return false;
    };
    let after = desired.chains().get(name);
    let mut next = before.rules.iter().filter_map(Rule::leads_to);
    after.is_some_and(|after| after != before)
        || depth > 0 && next.any(|name| changes(name, observed, desired, depth - 1))
}

/// Returns the same rule with another target chain.
fn led_to(rule: &Rule, chain: Arc<str>) -> Rule {
    let target = match rule.target {
        Target::Jump(_) => Target::Jump(chain),
        _ => Target::Goto(chain),
    };
    Rule {
        target,
        ..rule.clone()
    }
}

// === impl Copies ===

impl Copies<'_> {
    /// Retains a copy of a chain and of the chains it leads to. Returns its name and the length of
    /// the longest path behind it. Returns `None` if another program has made that path longer than
    /// Signpost does.
    fn copy(&mut self, name: &Arc<str>) -> Option<(Arc<str>, usize)> {
        if let Some(known) = self.known.get(name) {
            return known.clone();
        }
        // A chain that leads to itself was not written by Signpost.
        self.known.insert(Arc::clone(name), None);
        let copied = self.copy_anew(name);
        self.known.insert(Arc::clone(name), copied.clone());
        copied
    }

    fn copy_anew(&mut self, name: &Arc<str>) -> Option<(Arc<str>, usize)> {
        let original = Arc::clone(self.observed.chains().get(name)?);
        let mut behind = 0;
        let mut rules = Vec::with_capacity(original.rules.len());
        for rule in original.rules.iter() {
            rules.push(match rule.leads_to() {
                _ if table_rules::is_foreign(rule) => return None,
                None => rule.clone(),
                Some(next) => {
                    let (next, length) = self.copy(next)?;
                    behind = behind.max(length + 1);
                    led_to(rule, next)
                }
            });
        }
        let rank = *RANKS.get(behind)?;
        let name = names::of_copy(&rules);
        let chain = Chain {
            rules: rules.into(),
            services: original.services.clone(),
            rank,
        };
        self.retained.put(Arc::clone(&name), Some(chain));
        Some((name, behind))
    }
}
