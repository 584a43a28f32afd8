//! How to get from one table to another.

mod first;
mod group;
mod halves;
mod steps;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use backend::Size;
use dataplane::{Family, FrontendKey};
use netlink::nf_tables::{Bytes, Operation, Set, Transaction};

pub(crate) use self::halves::halves;
use self::steps::{add_elements, length_of_part, steps};
use crate::layout::{self, NEXT, SetName, TABLE};
use crate::table::{ChainWithRules, Table};

/// How many elements one transaction adds and removes at the most: about 20 ms of the nf_tables
/// lock, during which nobody else on the node can change a rule (measured: 0.5 million a second).
const ELEMENTS_A_TRANSACTION: usize = 10_000;

/// Transactions in order. A frontend's elements are all in one of them. In each, all that goes from a
/// set is one operation, and all that comes to it another.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    pub(crate) transactions: Vec<Transaction>,
}

/// Transactions on their way into a change.
struct Plan {
    family: Family,
    /// How many elements one of them has at the most.
    most: usize,
    transactions: Vec<Transaction>,
}

/// When packets begin to come to chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hooks {
    /// With the first transaction: nothing else serves.
    AtOnce,
    /// When all is there: until then, the other table serves.
    Last,
}

pub(crate) fn diff(family: Family, believed: &Table, wanted: &Table) -> Change {
    diff_in_parts(family, believed, wanted, ELEMENTS_A_TRANSACTION)
}

/// As [`diff`], with so many elements in a transaction at the most.
fn diff_in_parts(family: Family, believed: &Table, wanted: &Table, most: usize) -> Change {
    let mut plan = Plan {
        family,
        most,
        transactions: Vec::new(),
    };
    let next = believed.next.as_deref();
    let is_mended = !wanted.exists || can_be_mended(believed, wanted);
    let serves_itself = is_mended && believed.is_hooked();
    if next.is_some_and(Table::is_hooked) && !serves_itself {
        plan.move_back(believed, wanted);
    } else if believed.exists && !is_mended {
        plan.move_beside(next, wanted);
        plan.move_back(believed, wanted);
    } else {
        if next.is_some() {
            plan.delete(NEXT);
        }
        plan.mend(TABLE, believed, wanted, Hooks::AtOnce);
    }
    Change {
        transactions: plan.transactions,
    }
}

/// Whether every set and chain that both have is the same one. A set's shape and a chain's hook
/// cannot be changed, and neither can be replaced while rules refer to it. And whether packets that
/// come to it now find in its sets what new rules would look for: a set that is only to come is empty
/// until its last element is there.
fn can_be_mended(believed: &Table, wanted: &Table) -> bool {
    let is_used = believed.is_hooked();
    let sets = wanted.sets.iter().all(|(name, set)| {
        let other = believed.sets.get(name);
        let may_come = || !is_used || !SetName::FIXED.iter().any(|set| set.as_str() == &**name);
        other.map_or_else(may_come, |other| other.set == set.set)
    });
    let mut chains = wanted.chains.iter();
    let chains = Arc::ptr_eq(&believed.chains, &wanted.chains)
        || chains.all(|(name, chain)| {
            let other = believed.chains.get(name);
            other.is_none_or(|other| other.chain == chain.chain)
        });
    sets && chains
}

fn add_objects(believed: &Table, wanted: &Table, hooks: Hooks, transaction: &mut Transaction) {
    let operations = &mut transaction.operations;
    if wanted.exists && !believed.exists {
        operations.push(Operation::AddTable);
    }
    for (name, set) in &wanted.sets {
        if !believed.sets.contains_key(name) {
            operations.push(Operation::AddSet((*set.set).clone()));
        }
    }
    if Arc::ptr_eq(&believed.chains, &wanted.chains) {
        return;
    }
    let changed: Vec<_> = wanted
        .chains
        .iter()
        .filter(|(name, chain)| match believed.chains.get(*name) {
            Some(old) => !Arc::ptr_eq(old, chain) && old != *chain,
            None => hooks == Hooks::AtOnce || chain.chain.hook.is_none(),
        })
        .collect();
    add_chains(believed, &changed, transaction);
}

/// Lets packets come to the chains of `wanted` that are at hooks and not in `believed`.
fn add_hooks(believed: &Table, wanted: &Table, transaction: &mut Transaction) {
    let chains = wanted.chains.iter();
    let at_hooks: Vec<_> = chains
        .filter(|(name, chain)| chain.chain.hook.is_some() && !believed.chains.contains_key(*name))
        .collect();
    add_chains(believed, &at_hooks, transaction);
}

/// Makes the chains that are not there, and writes all of them anew.
fn add_chains(
    believed: &Table,
    chains: &[(&Arc<str>, &Arc<ChainWithRules>)],
    transaction: &mut Transaction,
) {
    let operations = &mut transaction.operations;
    // A rule may lead to any other chain, so all chains come before all rules.
    for (name, chain) in chains {
        match believed.chains.get(*name) {
            None => operations.push(Operation::AddChain(chain.chain.clone())),
            Some(_) => operations.push(Operation::FlushChain(Arc::clone(name))),
        }
    }
    for (name, chain) in chains {
        for rule in &chain.rules {
            operations.push(Operation::AddRule {
                chain: Arc::clone(name),
                rule: rule.clone(),
            });
        }
    }
}

/// What is in our table and not wanted there: left by an older version of ours, or by a stranger.
fn delete_objects(believed: &Table, wanted: &Table, transaction: &mut Transaction) {
    let operations = &mut transaction.operations;
    let chains: Vec<_> = believed
        .chains
        .keys()
        .filter(|name| !wanted.chains.contains_key(*name))
        .collect();
    for chain in &chains {
        operations.push(Operation::FlushChain(Arc::clone(chain)));
    }
    // Sets before chains: a map's elements lead to chains.
    for set in believed.sets.keys() {
        if !wanted.sets.contains_key(set) {
            operations.push(Operation::DeleteSet(Arc::clone(set)));
        }
    }
    for chain in chains {
        operations.push(Operation::DeleteChain(Arc::clone(chain)));
    }
}

// === impl Plan ===

impl Plan {
    fn start(&self, table: &str) -> Transaction {
        Transaction::new(self.family, layout::name(table))
    }

    /// Removes a table with all that is in it.
    fn delete(&mut self, table: &str) {
        let mut transaction = self.start(table);
        transaction.operations.push(Operation::DeleteTable);
        self.transactions.push(transaction);
    }

    /// While a table of another form serves: makes the whole of `wanted` beside it, lets packets
    /// come there, and only then removes what served. In between packets pass both tables. One has
    /// redirected a connection before the other is asked, and what one refuses so does the other.
    fn move_beside(&mut self, next: Option<&Table>, wanted: &Table) {
        let nothing = Table::default();
        let believed = match next {
            // What was left when such a change was cut short.
            Some(next) if can_be_mended(next, wanted) => next,
            Some(_) => {
                self.delete(NEXT);
                &nothing
            }
            None => &nothing,
        };
        self.mend(NEXT, believed, wanted, Hooks::Last);
    }

    /// While the table beside serves: makes the same under the name that people know.
    fn move_back(&mut self, believed: &Table, wanted: &Table) {
        let nothing = Table::default();
        let believed = match believed.exists {
            true if !can_be_mended(believed, wanted) => {
                self.delete(TABLE);
                &nothing
            }
            _ => believed,
        };
        self.mend(TABLE, believed, wanted, Hooks::Last);
        self.delete(NEXT);
    }

    /// Makes what `believed` is in the kernel what is `wanted`, in place.
    fn mend(&mut self, name: &str, believed: &Table, wanted: &Table, hooks: Hooks) {
        // What goes whole goes as a table: element by element, kernels before 6.2 would refuse it.
        if !wanted.exists {
            if believed.exists {
                self.delete(name);
            }
            return;
        }
        let mut current = self.start(name);
        add_objects(believed, wanted, hooks, &mut current);
        let set_of = |name: SetName| Some(Arc::clone(&wanted.sets.get(name.as_str())?.set));
        let mut steps = steps(self.family, believed, wanted);
        let mut is_first = true;
        // What comes first neither waits for the rest nor fails with it.
        for mut turn in steps.chunk_by_mut(|a, b| a.group.turn == b.group.turn) {
            while !turn.is_empty() {
                let (part, rest) = turn.split_at_mut(length_of_part(turn, self.most));
                if !std::mem::take(&mut is_first) {
                    let start = self.start(name);
                    self.transactions
                        .push(std::mem::replace(&mut current, start));
                }
                add_elements(set_of, part, &mut current);
                turn = rest;
            }
        }
        let mut at_last = self.start(name);
        if hooks == Hooks::Last {
            add_hooks(believed, wanted, &mut at_last);
        }
        // What is not wanted goes by itself and last: kernels before 6.2 refuse to remove a chain that
        // an element led to a moment ago, and such a refusal must not take anything wanted with it.
        let mut unwanted = self.start(name);
        delete_objects(believed, wanted, &mut unwanted);
        let all = [current, at_last, unwanted].into_iter();
        let some = |transaction: &Transaction| !transaction.operations.is_empty();
        self.transactions.extend(all.filter(some));
    }
}

// === impl Change ===

impl Change {
    /// The transactions, in order.
    pub fn transactions(&self) -> &[Transaction] {
        &self.transactions
    }

    /// The same in two changes, one to be committed after the other. One transaction is halved as
    /// [`commit`](backend::Backend::commit) halves it where the kernel has no room for all of it;
    /// `None` where what it writes belongs together. Pure.
    pub fn halves(&self) -> Option<[Change; 2]> {
        let halves = match &self.transactions[..] {
            [] => return None,
            [one] => halves(one.family, one)?.map(|half| vec![half]),
            several => {
                let (first, second) = several.split_at(several.len() / 2);
                [first.to_vec(), second.to_vec()]
            }
        };
        Some(halves.map(|transactions| Change { transactions }))
    }

    /// The frontends whose elements are added or removed. Costs in proportion to the change.
    pub(crate) fn frontends(&self, family: Family) -> BTreeSet<FrontendKey> {
        let mut frontends = BTreeSet::new();
        for operation in self.transactions.iter().flat_map(|t| &t.operations) {
            let parse = |set: &Set, key: &Bytes| {
                let keyed = SetName::parse(&set.name)?.keyed()?;
                layout::parse_frontend(family, keyed, key.as_slice())
            };
            match operation {
                Operation::AddElements { set, elements } => {
                    frontends.extend(elements.iter().filter_map(|(key, _)| parse(set, key)));
                }
                Operation::DeleteElements { set, keys } => {
                    frontends.extend(keys.iter().filter_map(|key| parse(set, key)));
                }
                _ => {}
            }
        }
        frontends
    }
}

impl backend::Change for Change {
    fn size(&self) -> Size {
        let elements = self.transactions.iter().map(Transaction::elements).sum();
        let objects = self
            .transactions
            .iter()
            .flat_map(|transaction| &transaction.operations)
            .filter(|operation| {
                !matches!(
                    operation,
                    Operation::AddElements { .. } | Operation::DeleteElements { .. }
                )
            })
            .count();
        Size { elements, objects }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for transaction in &self.transactions {
            write!(f, "{transaction}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod prefix_tests;
#[cfg(test)]
mod tests;
