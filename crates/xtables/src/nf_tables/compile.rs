//! Compiles a step to a transaction.

use std::collections::BTreeMap;
use std::sync::Arc;

use netlink::nf_tables::{Chain, Operation, Transaction};

use super::chains::{base_chain, table_name};
use super::encode::encode;
use crate::{BuiltIn, Family, Rule, TableChange};

/// Signpost's rules in a built-in chain that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Present {
    /// The rules in order.
    pub(super) entries: Vec<Entry>,
}

/// A rule of a built-in chain that leads to a chain of Signpost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its handle, unique in its table.
    pub(super) handle: u64,
    /// `None` for a rule with a match or option that Signpost never writes.
    pub(super) rule: Option<Rule>,
}

/// Compiles `change` to a transaction. `present` contains those of its built-in chains that exist.
/// The transaction has no operations if there is nothing to do.
pub(super) fn compile(
    change: &TableChange,
    family: Family,
    present: &BTreeMap<BuiltIn, Present>,
) -> Transaction {
    let mut transaction = Transaction::new(family, table_name(change.table).into());
    let operations = &mut transaction.operations;
    let makes_entries = change.entries.iter().any(|(_, rules)| !rules.is_empty());
    if makes_entries || !change.chains.is_empty() {
        operations.push(Operation::AddTable);
    }
    add_chains(change, family, operations);
    for (built_in, desired) in &change.entries {
        enter(
            change,
            *built_in,
            desired,
            family,
            present.get(built_in),
            operations,
        );
    }
    // Flush all removed chains before deleting any: they may lead to each other.
    let removed = |step: fn(Arc<str>) -> Operation| change.removed.iter().cloned().map(step);
    operations.extend(removed(Operation::FlushChain));
    operations.extend(removed(Operation::DeleteChain));
    if let [Operation::AddTable] = operations[..] {
        operations.clear();
    }
    transaction
}

/// Adds all chains before the first rule, because rules may lead to any of them.
fn add_chains(change: &TableChange, family: Family, operations: &mut Vec<Operation>) {
    for (name, _) in &change.chains {
        let chain = Chain {
            name: Arc::clone(name),
            hook: None,
        };
        operations.extend([
            Operation::AddChain(chain),
            Operation::FlushChain(Arc::clone(name)),
        ]);
    }
    for (chain, rules) in &change.chains {
        operations.extend(rules.iter().map(|rule| Operation::AddRule {
            chain: Arc::clone(chain),
            rule: encode(rule, family),
        }));
    }
}

/// Makes `desired` Signpost's rules in a built-in chain.
fn enter(
    change: &TableChange,
    built_in: BuiltIn,
    desired: &[Rule],
    family: Family,
    present: Option<&Present>,
    operations: &mut Vec<Operation>,
) {
    let entries = present.map_or(&[][..], |present| &present.entries);
    let held = entries.iter().map(|entry| entry.rule.as_ref());
    if held.eq(desired.iter().map(Some)) {
        return;
    }
    let base = base_chain(change.table, built_in);
    let chain = Arc::clone(&base.name);
    // Adding an existing chain would fail if another program created it with another priority.
    if present.is_none() {
        operations.push(Operation::AddChain(base));
    }
    operations.extend(entries.iter().map(|entry| Operation::DeleteRule {
        chain: Arc::clone(&chain),
        handle: entry.handle,
    }));
    // Each rule is inserted before the previously inserted one.
    operations.extend(desired.iter().rev().map(|rule| Operation::InsertRule {
        chain: Arc::clone(&chain),
        rule: encode(rule, family),
    }));
}
