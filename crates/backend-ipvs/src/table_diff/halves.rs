//! Splits a transaction that is too large for the kernel.

use std::collections::BTreeMap;
use std::sync::Arc;

use dataplane::Family;
use netlink::nf_tables::{Bytes, ElementData, Operation, Set, Transaction};

use super::{Difference, Group, add_elements, group, put_off_gone, sort};
use crate::chains::DISPATCH;
use crate::layout::SetName;

/// Splits `transaction` in two. The first has about half of the elements and all other operations.
/// Groups are not split, nor are rules and the elements that they look up, nor a transaction that
/// changes where node ports are looked up. Returns `None` for a
/// single group without other operations, and for a table that is replaced.
pub(crate) fn halves(transaction: &Transaction) -> Option<[Transaction; 2]> {
    let family = transaction.family;
    let operations = &transaction.operations;
    if operations.contains(&Operation::DeleteTable) {
        return None;
    }
    let mut differences = differences_of(family, operations);
    if operations.contains(&Operation::FlushChain(nftables_model::name(DISPATCH))) {
        for difference in &mut differences {
            difference.group = Group::WithRules;
        }
    }
    put_off_gone(&mut differences);
    sort(&mut differences);
    let empty = || Transaction::new(transaction.family, Arc::clone(&transaction.table));
    let (mut first, mut second) = (empty(), empty());
    let objects = operations.iter();
    let objects = objects.filter(|operation| written_to(operation).is_none());
    first.operations.extend(objects.cloned());
    let length = half(&differences);
    let (early, late) = match differences.split_at(length) {
        // A single group: its objects first, its elements second.
        (all, [])
            if all.first().is_some_and(|one| one.group != Group::WithRules)
                && !first.operations.is_empty() =>
        {
            (&all[..0], all)
        }
        (_, []) => return None,
        halves => halves,
    };
    let set_of = |name: SetName| {
        let mut sets = operations.iter().filter_map(written_to);
        sets.find(|set| *set.name == *name.as_str()).cloned()
    };
    add_elements(set_of, early, Some(&mut first));
    add_elements(set_of, late, Some(&mut second));
    Some([first, second])
}

/// The number of elements in the leading groups that are about half of all, and at least one group.
fn half(elements: &[Difference<'_>]) -> usize {
    let mut length = 0;
    for group in elements.chunk_by(|a, b| a.group == b.group) {
        if length > 0 && length + group.len() > elements.len() / 2 {
            break;
        }
        length += group.len();
    }
    length
}

/// The elements that the operations add and remove: a changed one is removed and added. What a
/// removed one held does not matter.
fn differences_of(family: Family, operations: &[Operation]) -> Vec<Difference<'_>> {
    let mut found: BTreeMap<(SetName, &Bytes), [Option<&ElementData>; 2]> = BTreeMap::new();
    for operation in operations {
        let Some(set) = written_to(operation).and_then(|set| SetName::parse(&set.name)) else {
            continue;
        };
        match operation {
            Operation::DeleteElements { keys, .. } => {
                for key in keys {
                    found.entry((set, key)).or_default()[0] = Some(&ElementData::None);
                }
            }
            Operation::AddElements { elements, .. } => {
                for (key, data) in elements {
                    found.entry((set, key)).or_default()[1] = Some(data);
                }
            }
            _ => {}
        }
    }
    let found = found.into_iter();
    let differences = found.map(|((set, key), [before, after])| Difference {
        group: group(family, set, key, after.is_some()),
        set,
        key,
        before,
        after,
    });
    differences.collect()
}

/// The set whose elements `operation` adds or removes.
fn written_to(operation: &Operation) -> Option<&Arc<Set>> {
    match operation {
        Operation::AddElements { set, .. } | Operation::DeleteElements { set, .. } => Some(set),
        _ => None,
    }
}
