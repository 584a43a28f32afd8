//! How to get from one table to another.

mod first;
mod group;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use backend::Size;
use dataplane::{Family, FrontendKey, PersistentMap, Precedence};
use netlink::nf_tables::{Bytes, ElementData, Operation, Set, Transaction};

use self::first::First;
use self::group::{Group, Owner, first_bytes};
use crate::layout::{self, SetName, TABLE, nft_family};
use crate::table::Table;

/// How many elements one transaction adds and removes at the most: about 20 ms of the nf_tables
/// lock, during which nobody else on the node can change a rule (measured: 0.5 million a second).
const ELEMENTS_A_TRANSACTION: usize = 10_000;

/// Transactions in order. A frontend's elements are all in one of them. In each, all that goes from a
/// set is one operation, and all that comes to it another.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    pub(crate) transactions: Vec<Transaction>,
}

/// One element that differs.
struct Step<'a> {
    group: Group,
    set: SetName,
    /// What is behind the frontend in the key, as far as four bytes go.
    rest: u32,
    key: &'a Bytes,
    before: Option<&'a ElementData>,
    after: Option<&'a ElementData>,
}

pub(crate) fn diff(family: Family, believed: &Table, wanted: &Table) -> Change {
    diff_in_parts(family, believed, wanted, ELEMENTS_A_TRANSACTION)
}

/// As [`diff`], with so many elements in a transaction at the most.
fn diff_in_parts(family: Family, believed: &Table, wanted: &Table, most: usize) -> Change {
    let mut transactions = Vec::new();
    let start = || Transaction::new(nft_family(family), layout::name(TABLE));
    let mut current = start();
    // What goes whole goes as a table: element by element, kernels before 6.2 would refuse it.
    let rebuilt = believed.exists && !(wanted.exists && can_be_mended(believed, wanted));
    let nothing = Table::default();
    let believed = if rebuilt {
        current.operations.push(Operation::DeleteTable);
        &nothing
    } else {
        believed
    };
    add_objects(believed, wanted, &mut current);
    let mut steps = steps(family, believed, wanted);
    let mut is_first = true;
    // What comes first neither waits for the rest nor fails with it.
    for mut turn in steps.chunk_by_mut(|a, b| a.group.turn == b.group.turn) {
        while !turn.is_empty() {
            let (part, rest) = turn.split_at_mut(length_of_part(turn, most));
            if !std::mem::take(&mut is_first) {
                transactions.push(std::mem::replace(&mut current, start()));
            }
            add_elements(wanted, part, &mut current);
            turn = rest;
        }
    }
    // What is not wanted goes by itself and last: kernels before 6.2 refuse to remove a chain that an
    // element led to a moment ago, and such a refusal must not take anything wanted with it.
    let mut last = start();
    delete_objects(believed, wanted, &mut last);
    let some = |transaction: &Transaction| !transaction.operations.is_empty();
    transactions.extend([current, last].into_iter().filter(some));
    Change { transactions }
}

/// Whether every set and chain that both have is the same one. A set's shape and a chain's hook
/// cannot be changed, and neither can be replaced while rules refer to it.
fn can_be_mended(believed: &Table, wanted: &Table) -> bool {
    let sets = wanted.sets.iter().all(|(name, set)| {
        let other = believed.sets.get(name);
        other.is_none_or(|other| other.set == set.set)
    });
    let mut chains = wanted.chains.iter();
    let chains = Arc::ptr_eq(&believed.chains, &wanted.chains)
        || chains.all(|(name, chain)| {
            let other = believed.chains.get(name);
            other.is_none_or(|other| other.chain == chain.chain)
        });
    sets && chains
}

fn add_objects(believed: &Table, wanted: &Table, transaction: &mut Transaction) {
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
        .filter(|(name, chain)| {
            let old = believed.chains.get(*name);
            old.is_none_or(|old| !Arc::ptr_eq(old, chain) && old != *chain)
        })
        .collect();
    // A rule may lead to any other chain, so all chains come before all rules.
    for (name, chain) in &changed {
        match believed.chains.get(*name) {
            None => operations.push(Operation::AddChain(chain.chain.clone())),
            Some(_) => operations.push(Operation::FlushChain(Arc::clone(name))),
        }
    }
    for (name, chain) in changed {
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
    if believed.exists && !wanted.exists {
        operations.push(Operation::DeleteTable);
    }
}

/// Every element that differs, in the order in which it is written: what belongs together is
/// together, and after any of it, a packet to a frontend that is still to come is left as it is.
fn steps<'a>(family: Family, believed: &'a Table, wanted: &'a Table) -> Vec<Step<'a>> {
    static NOTHING: PersistentMap<Bytes, ElementData> = PersistentMap::new();
    let mut steps = Vec::new();
    let first = First::of(wanted);
    for (name, set) in &wanted.sets {
        let old = believed.sets.get(name);
        let old = old.map_or(&NOTHING, |old| &old.elements);
        let differences = old.differences(&set.elements);
        if differences.is_empty() {
            continue;
        }
        let Some(set) = SetName::parse(name) else {
            continue;
        };
        steps.reserve_exact(differences.len());
        for difference in differences {
            let key = difference.key.as_slice();
            let comes = difference.after.is_some();
            let frontend = set
                .keyed()
                .and_then(|keyed| layout::parse_frontend(family, keyed, key));
            let address = match set {
                SetName::ClusterIps => layout::parse_address(family, key),
                _ => None,
            };
            let (group, rest) = match (&frontend, address) {
                (Some(frontend), _) => (
                    Group::of_frontend(first.turn_of(frontend), frontend),
                    u32::from_be_bytes(first_bytes(layout::behind_frontend(frontend, key))),
                ),
                // What is addressed to a cluster IP and has no frontend is refused.
                (None, Some((address, _))) if comes => {
                    (Group::behind_address(first.turn_at(address), address), 0)
                }
                (None, Some((address, _))) => {
                    (Group::ahead_of_address(first.turn_at(address), address), 0)
                }
                (None, None) => {
                    let (turn, owner) = match set {
                        SetName::Hairpins if comes => {
                            (first.turn_of_hairpin(difference.key), Owner::Before)
                        }
                        SetName::Hairpins => (Precedence::Ordinary, Owner::After),
                        _ => (Precedence::Ordinary, Owner::Before),
                    };
                    (Group::of_key(turn, owner, key), 0)
                }
            };
            steps.push(Step {
                group,
                set,
                rest,
                key: difference.key,
                before: difference.before,
                after: difference.after,
            });
        }
    }
    // With whatever comes first comes what the rules of the same transaction rely on: numbers, and,
    // where these rules look for them, the addresses that accept node ports.
    if let Some(first) = steps.iter().map(|step| step.group.turn).min() {
        let with_rules = steps.iter_mut().filter(|step| {
            let opens = step.set == SetName::NodePortAddresses && step.after.is_some();
            opens || step.set.is_numbers()
        });
        with_rules.for_each(|step| step.group.turn = first);
    }
    steps.sort_unstable_by(|a, b| {
        let within = || match a.group.owner {
            Owner::Before | Owner::After => (a.key, a.set).cmp(&(b.key, b.set)),
            Owner::Address | Owner::NodePort => (a.set, a.rest, a.key).cmp(&(b.set, b.rest, b.key)),
        };
        a.group.cmp(&b.group).then_with(within)
    });
    steps
}

/// How many of `steps` go into one transaction: `most` elements at the most, and none of a group
/// without the others.
fn length_of_part(steps: &[Step<'_>], most: usize) -> usize {
    let (mut length, mut elements) = (0, 0);
    for group in steps.chunk_by(Step::is_with) {
        elements += group.iter().map(Step::elements).sum::<usize>();
        if length > 0 && elements > most {
            break;
        }
        length += group.len();
    }
    length
}

/// Set by set, as a message of a few elements costs the kernel as much as one of a thousand.
/// Removals before additions: a changed element is one of each, and the kernel knows no third way.
fn add_elements(wanted: &Table, steps: &mut [Step<'_>], transaction: &mut Transaction) {
    let operations = &mut transaction.operations;
    steps.sort_by_key(|step| step.set);
    let sets = || {
        let sets = steps.chunk_by(|a, b| a.set == b.set);
        sets.filter_map(|steps| Some((set_of(wanted, steps.first()?.set)?, steps)))
    };
    for (set, steps) in sets() {
        let gone = steps.iter().filter(|step| step.before.is_some());
        let keys = exactly(gone.map(|step| step.key.clone()));
        if !keys.is_empty() {
            operations.push(Operation::DeleteElements { set, keys });
        }
    }
    for (set, steps) in sets() {
        let new = steps
            .iter()
            .filter_map(|step| Some((step.key, step.after?)));
        let elements = exactly(new.map(|(key, data)| (key.clone(), data.clone())));
        if !elements.is_empty() {
            operations.push(Operation::AddElements { set, elements });
        }
    }
}

/// All of `items`, in no more memory than they need: those of a whole cluster are kept until the last
/// transaction is over.
fn exactly<T>(items: impl Iterator<Item = T> + Clone) -> Vec<T> {
    let mut all = Vec::with_capacity(items.clone().count());
    all.extend(items);
    all
}

fn set_of(table: &Table, name: SetName) -> Option<Arc<Set>> {
    let set = table.sets.get(name.as_str())?;
    Some(Arc::clone(&set.set))
}

// === impl Step ===

impl Step<'_> {
    /// Whether both belong together.
    fn is_with(&self, other: &Step<'_>) -> bool {
        let is_frontends = matches!(self.group.owner, Owner::Address | Owner::NodePort);
        self.group == other.group && (is_frontends || self.key == other.key)
    }

    fn elements(&self) -> usize {
        usize::from(self.before.is_some()) + usize::from(self.after.is_some())
    }
}

// === impl Change ===

impl Change {
    /// The transactions, in order.
    pub fn transactions(&self) -> &[Transaction] {
        &self.transactions
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
