//! Splits a transaction that is too large for the kernel.

use std::collections::BTreeMap;
use std::sync::Arc;

use dataplane::{Family, Precedence};
use netlink::nf_tables::{Operation, Set, Transaction};

use super::group::{Group, Owner};
use super::steps::{Step, add_elements, length_of_part, steps_of};
use crate::chains::DISPATCH;
use crate::layout::{self, SetName};

/// Splits `transaction` in two. The first has about half of the elements and all other operations.
/// Groups are not split, nor are rules and the elements that they look up, nor a transaction that
/// changes where node ports are looked up. Returns `None` for a
/// single group without other operations.
pub(crate) fn halves(family: Family, transaction: &Transaction) -> Option<[Transaction; 2]> {
    let mut steps = steps_of(family, transaction);
    let dispatch = Operation::FlushChain(layout::name(DISPATCH));
    if transaction.operations.contains(&dispatch) {
        for step in &mut steps {
            step.group = Group::with_rules(Precedence::Ordinary);
        }
    }
    let length = length_of_part(&steps, transaction.elements() / 2);
    let empty = || Transaction::new(transaction.family, Arc::clone(&transaction.table));
    let mut first = empty();
    let objects = transaction.operations.iter();
    first
        .operations
        .extend(objects.filter(|o| written_to(o).is_none()).cloned());
    let sets = transaction.operations.iter().filter_map(written_to);
    let sets: BTreeMap<SetName, &Arc<Set>> = sets
        .filter_map(|set| Some((SetName::parse(&set.name)?, set)))
        .collect();
    let set_of = |name| sets.get(&name).copied().cloned();
    let can_follow_rules = |step: &Step<'_>| step.group.owner != Owner::Rules;
    let (early, late) = match steps.split_at_mut(length) {
        // A single group: its objects first, its elements second.
        (all, []) if all.first().is_some_and(can_follow_rules) && !first.operations.is_empty() => {
            (&mut [][..], all)
        }
        (_, []) => return None,
        halves => halves,
    };
    let mut second = empty();
    add_elements(set_of, early, &mut first);
    add_elements(set_of, late, &mut second);
    Some([first, second])
}

/// The set whose elements `operation` adds or removes.
fn written_to(operation: &Operation) -> Option<&Arc<Set>> {
    match operation {
        Operation::AddElements { set, .. } | Operation::DeleteElements { set, .. } => Some(set),
        _ => None,
    }
}
