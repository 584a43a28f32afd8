//! Computes the change from one table to another.

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
use nftables_model::{RangesAhead, ranges_ahead};

pub(crate) use self::halves::halves;
use self::steps::{
    Step, add_elements, length_of_part, length_with_rules, rewrites_dispatch, steps,
};
use crate::chains::ENTRANCES;
use crate::flowtable;
use crate::layout::{self, NEXT, SetName, TABLE};
use crate::table::{ChainWithRules, Table};

/// The most elements that one transaction adds and removes: about 20 ms of the nf_tables lock,
/// during which no other process on the node can change a rule (measured: 0.5 million a second).
const ELEMENTS_A_TRANSACTION: usize = 10_000;

/// Transactions in order. All elements of a frontend are in one of them, but for source ranges that come
/// ahead of [rules](nftables_model::ranges_ahead). In each transaction, at most one operation deletes
/// from a given set, and one adds to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    pub(crate) transactions: Vec<Transaction>,
}

/// The transactions of a change under construction.
struct Plan {
    family: Family,
    /// The most elements in one transaction.
    most: usize,
    transactions: Vec<Transaction>,
}

/// When base chains are added, so that packets reach the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hooks {
    /// With the first transaction: no other table serves.
    AtOnce,
    /// After everything else: until then, the other table serves.
    Last,
}

pub(crate) fn diff(family: Family, observed: &Table, desired: &Table) -> Change {
    diff_in_parts(family, observed, desired, ELEMENTS_A_TRANSACTION)
}

/// Like [`diff`], with at most `most` elements in a transaction.
fn diff_in_parts(family: Family, observed: &Table, desired: &Table, most: usize) -> Change {
    let mut plan = Plan {
        family,
        most,
        transactions: Vec::new(),
    };
    let nothing = Table::default();
    let (mut observed, mut next) = (observed, observed.next.as_deref());
    // What serves, or is to serve, is the other table.
    if let Some(flushed) = next.filter(|next| next.is_flushed()) {
        plan.delete(NEXT, flushed);
        next = None;
    } else if observed.is_flushed() && next.is_some_and(Table::is_hooked) {
        plan.delete(TABLE, observed);
        observed = &nothing;
    }
    let is_mended = !desired.exists || can_update_in_place(observed, desired);
    let serves_itself = is_mended && observed.is_hooked();
    if let Some(next) = next.filter(|next| next.is_hooked() && !serves_itself) {
        plan.move_back(observed, next, desired);
    } else if observed.exists && !is_mended {
        plan.move_beside(next, desired);
        plan.move_back(observed, desired, desired);
    } else {
        if let Some(next) = next {
            plan.delete(NEXT, next);
        }
        plan.mend(TABLE, observed, desired, Hooks::AtOnce);
    }
    Change {
        transactions: plan.transactions,
    }
}

/// Whether `observed` can be changed to `desired` in place. Every set, chain and flowtable in both must be
/// the same: the shape of a set and the hook of a chain cannot be changed, and neither can be replaced
/// while rules refer to it. If packets already reach the table, it must also have all fixed sets: a
/// new set is empty until its last element is added, and new rules would find nothing in it.
fn can_update_in_place(observed: &Table, desired: &Table) -> bool {
    let is_used = observed.is_hooked();
    let sets = desired.sets.iter().all(|(name, set)| {
        let other = observed.sets.get(name);
        let may_come = || !is_used || !SetName::FIXED.iter().any(|set| set.as_str() == &**name);
        other.map_or_else(may_come, |other| other.set == set.set)
    });
    let mut chains = desired.chains.iter();
    let chains = Arc::ptr_eq(&observed.chains, &desired.chains)
        || chains.all(|(name, chain)| {
            let other = observed.chains.get(name);
            other.is_none_or(|other| other.chain == chain.chain)
        });
    sets && chains && flowtable::is_same(observed, desired)
}

fn add_sets(observed: &Table, desired: &Table, transaction: &mut Transaction) {
    let operations = &mut transaction.operations;
    if desired.exists && !observed.exists {
        operations.push(Operation::AddTable);
    }
    for (name, set) in &desired.sets {
        if !observed.sets.contains_key(name) {
            operations.push(Operation::AddSet((*set.set).clone()));
        }
    }
    flowtable::add(observed, desired, transaction);
}

fn add_rules(observed: &Table, desired: &Table, hooks: Hooks, transaction: &mut Transaction) {
    if Arc::ptr_eq(&observed.chains, &desired.chains) {
        return;
    }
    let changed: Vec<_> = desired
        .chains
        .iter()
        .filter(|(name, _)| !flowtable::is_chain(name))
        .filter(|(name, chain)| match observed.chains.get(*name) {
            Some(old) => !Arc::ptr_eq(old, chain) && old != *chain,
            None => hooks == Hooks::AtOnce || chain.chain.hook.is_none(),
        })
        .collect();
    add_chains(observed, &changed, transaction);
}

/// Adds the base chains of `desired` that `observed` lacks.
fn add_hooks(observed: &Table, desired: &Table, transaction: &mut Transaction) {
    let chains = desired.chains.iter();
    let at_hooks: Vec<_> = chains
        .filter(|(name, _)| !flowtable::is_chain(name))
        .filter(|(name, chain)| chain.chain.hook.is_some() && !observed.chains.contains_key(*name))
        .collect();
    add_chains(observed, &at_hooks, transaction);
}

/// Creates missing chains and rewrites the rules of all `chains`.
fn add_chains(
    observed: &Table,
    chains: &[(&Arc<str>, &Arc<ChainWithRules>)],
    transaction: &mut Transaction,
) {
    let operations = &mut transaction.operations;
    // A rule may refer to any chain, so all chains come before all rules.
    for (name, chain) in chains {
        match observed.chains.get(*name) {
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

/// Deletes objects in Signpost's table that are not desired: left by an older version, or added by
/// another program.
fn delete_objects(observed: &Table, desired: &Table, transaction: &mut Transaction) {
    let operations = &mut transaction.operations;
    let chains: Vec<_> = match Arc::ptr_eq(&observed.chains, &desired.chains) {
        true => Vec::new(),
        false => observed
            .chains
            .keys()
            .filter(|name| !desired.chains.contains_key(*name))
            .collect(),
    };
    for chain in &chains {
        operations.push(Operation::FlushChain(Arc::clone(chain)));
    }
    // Sets before chains: the elements of a map refer to chains.
    for set in observed.sets.keys() {
        if !desired.sets.contains_key(set) {
            operations.push(Operation::DeleteSet(Arc::clone(set)));
        }
    }
    for chain in chains {
        operations.push(Operation::DeleteChain(Arc::clone(chain)));
    }
    flowtable::delete(observed, desired, transaction);
}

// === impl Plan ===

impl Plan {
    fn start(&self, table: &str) -> Transaction {
        Transaction::new(self.family, layout::name(table))
    }

    /// Deletes the table of this name, which holds `contents`, after its rules: without them, no
    /// packet notices in which order the kernel removes the rest.
    fn delete(&mut self, table: &str, contents: &Table) {
        let mut chains = contents.chains.values();
        let flush = chains.any(|chain| !chain.rules.is_empty());
        let steps = flush.then_some(Operation::FlushTable);
        for step in steps.into_iter().chain([Operation::DeleteTable]) {
            let mut transaction = self.start(table);
            transaction.operations.push(step);
            self.transactions.push(transaction);
        }
    }

    /// Replaces a table of another form while it serves: builds all of `desired` beside it, hooks
    /// that in, and only then removes the old table. In between packets traverse both tables. The
    /// second one does not process connections that the first has redirected, and both refuse the
    /// same packets.
    fn move_beside(&mut self, next: Option<&Table>, desired: &Table) {
        let nothing = Table::default();
        let observed = match next {
            // Left by such a change that was cut short.
            Some(next) if can_update_in_place(next, desired) => next,
            Some(next) => {
                self.delete(NEXT, next);
                &nothing
            }
            None => &nothing,
        };
        self.mend(NEXT, observed, desired, Hooks::Last);
    }

    /// Rebuilds the table under its usual name while the table beside it, `next`, serves.
    fn move_back(&mut self, observed: &Table, next: &Table, desired: &Table) {
        let nothing = Table::default();
        let observed = match observed.exists {
            true if !can_update_in_place(observed, desired) => {
                self.delete(TABLE, observed);
                &nothing
            }
            _ => observed,
        };
        self.mend(TABLE, observed, desired, Hooks::Last);
        self.delete(NEXT, next);
    }

    /// Changes `observed` to `desired`, in place.
    fn mend(&mut self, name: &str, observed: &Table, desired: &Table, hooks: Hooks) {
        // To remove everything, delete the table: kernels before 6.2 would refuse to delete element
        // by element.
        if !desired.exists {
            if observed.exists {
                self.delete(name, observed);
            }
            return;
        }
        let mut current = self.start(name);
        add_sets(observed, desired, &mut current);
        let set_of = |name: SetName| Some(Arc::clone(&desired.sets.get(name.as_str())?.set));
        let mut steps = steps(self.family, observed, desired);
        // No packet reaches a table whose hooks come last: there, ranges come with their frontends.
        let ahead = match hooks {
            Hooks::AtOnce if observed.exists => {
                ranges_ahead(&observed.chains, &desired.chains, &ENTRANCES)
            }
            Hooks::AtOnce | Hooks::Last => RangesAhead::Nowhere,
        };
        let mut ahead = ahead.take(&mut steps, Step::is_with, Step::range_part);
        let mut ahead = &mut ahead[..];
        while !ahead.is_empty() {
            let (part, rest) = ahead.split_at_mut(length_of_part(ahead, self.most));
            add_elements(set_of, part, &mut current);
            let start = self.start(name);
            self.transactions
                .push(std::mem::replace(&mut current, start));
            ahead = rest;
        }
        add_rules(observed, desired, hooks, &mut current);
        let mut is_first = true;
        // These are not divided if the kernel lacks memory, so there is nothing else with them.
        let mut alone = rewrites_dispatch(observed, desired).then(|| length_with_rules(&steps));
        // Frontends of the first turn neither wait for the rest nor fail with it.
        for mut turn in steps.chunk_by_mut(|a, b| a.group.turn == b.group.turn) {
            while !turn.is_empty() {
                let length = alone.take();
                let length = length.unwrap_or_else(|| length_of_part(turn, self.most));
                let (part, rest) = turn.split_at_mut(length);
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
            add_hooks(observed, desired, &mut at_last);
        }
        // Undesired objects are removed after those that serve, in a separate transaction: kernels
        // before 6.2 refuse to delete a chain that an element referred to a moment ago, and such a
        // refusal must not affect what serves.
        let mut undesired = self.start(name);
        delete_objects(observed, desired, &mut undesired);
        // After an undesired flowtable, which may have one of the devices: the kernel refuses a second.
        let devices = flowtable::devices(observed, desired).into_iter();
        let devices = devices.map(|operation| Transaction {
            operations: vec![operation],
            ..self.start(name)
        });
        let devices: Vec<_> = devices.collect();
        // After the devices: `flowtable` says what happens to a connection that is added before.
        let mut adding = self.start(name);
        add_chains(observed, &flowtable::chains(observed, desired), &mut adding);
        let all = [current, at_last, undesired].into_iter();
        let all = all.chain(devices).chain([adding]);
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

    /// Splits the change in two, to be committed in order. A single transaction is split as
    /// [`commit`](backend::Backend::commit) splits one that is too large for the kernel. Returns
    /// `None` if it cannot be split. Pure.
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

    /// The frontends whose elements are added or removed. The cost is proportional to the change.
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
mod range_tests;
#[cfg(test)]
mod tests;
