//! Halves of a transaction that is more than the kernel takes at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use dataplane::Family;
use netlink::nf_tables::{Operation, Set, Transaction};

use super::steps::{add_elements, length_of_part, steps_of};
use crate::layout::SetName;

/// The same in two transactions, the first with about half of the elements and everything that is no
/// element. What belongs together stays together; `None` where all of it does.
pub(crate) fn halves(family: Family, transaction: &Transaction) -> Option<[Transaction; 2]> {
    let mut steps = steps_of(family, transaction);
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
    let (early, late) = match steps.split_at_mut(length) {
        // One group alone, and what it needs.
        (all, []) if !all.is_empty() && !first.operations.is_empty() => (&mut [][..], all),
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
