//! How to get from one table to another.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use backend::Size;
use dataplane::{Family, FrontendKey, Hairpin, Precedence};
use netlink::nf_tables::{Bytes, ElementData, Operation, Set, Transaction};

use crate::layout::{self, SetName, TABLE, nft_family};
use crate::table::Table;

/// How many elements one transaction adds and removes at the most: about 20 ms of the nf_tables
/// lock, during which nobody else on the node can change a rule (measured: 0.5 million a second).
const ELEMENTS_A_TRANSACTION: usize = 10_000;

/// Transactions in order. A frontend's elements are all in one of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    pub(crate) transactions: Vec<Transaction>,
    pub(crate) frontends: BTreeSet<FrontendKey>,
}

/// One element to add or remove.
enum Step<'a> {
    Add(SetName, Bytes, &'a ElementData),
    Delete(SetName, Bytes),
}

pub(crate) fn diff(family: Family, believed: &Table, wanted: &Table) -> Change {
    let mut frontends = BTreeSet::new();
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
    let (mut turn, mut elements) = (Precedence::First, 0);
    for (group, steps) in steps(family, believed, wanted) {
        frontends.extend(group.frontend);
        // What comes first neither waits for the rest nor fails with it.
        let is_next_turn = std::mem::replace(&mut turn, group.turn) != group.turn;
        let is_full = elements + steps.len() > ELEMENTS_A_TRANSACTION;
        if elements > 0 && (is_full || is_next_turn) {
            transactions.push(std::mem::replace(&mut current, start()));
            elements = 0;
        }
        elements += steps.len();
        add_steps(wanted, steps, &mut current);
    }
    // What is not wanted goes by itself and last: kernels before 6.2 refuse to remove a chain that an
    // element led to a moment ago, and such a refusal must not take anything wanted with it.
    let mut last = start();
    delete_objects(believed, wanted, &mut last);
    let some = |transaction: &Transaction| !transaction.operations.is_empty();
    transactions.extend([current, last].into_iter().filter(some));
    Change {
        transactions,
        frontends,
    }
}

/// Whether every set and chain that both have is the same one. A set's shape and a chain's hook
/// cannot be changed, and neither can be replaced while rules refer to it.
fn can_be_mended(believed: &Table, wanted: &Table) -> bool {
    let sets = wanted.sets.iter().all(|(name, set)| {
        let other = believed.sets.get(name);
        other.is_none_or(|other| other.set == set.set)
    });
    let chains = wanted.chains.iter().all(|(name, chain)| {
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

/// What belongs together, a frontend's elements or one that is no frontend's, in the order in which
/// it is written.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    turn: Precedence,
    frontend: Option<FrontendKey>,
    rest: Bytes,
}

fn steps<'a>(
    family: Family,
    believed: &Table,
    wanted: &'a Table,
) -> BTreeMap<Group, Vec<Step<'a>>> {
    let mut groups: BTreeMap<Group, Vec<Step<'a>>> = BTreeMap::new();
    let empty = dataplane::PersistentMap::default();
    let beside_first = beside_first(wanted);
    for (name, set) in &wanted.sets {
        let Some(name) = SetName::parse(name) else {
            continue;
        };
        let old = believed
            .sets
            .get(name.as_str())
            .map_or(&empty, |old| &old.elements);
        for difference in old.differences(&set.elements) {
            let frontend = name
                .keyed()
                .and_then(|keyed| layout::parse_frontend(family, keyed, difference.key.as_slice()));
            let (rest, is_first) = match &frontend {
                Some(frontend) => (Bytes::new(), wanted.first.contains(frontend)),
                None => (*difference.key, beside_first.contains(difference.key)),
            };
            let turn = match is_first {
                true => Precedence::First,
                false => Precedence::Ordinary,
            };
            let group = Group {
                turn,
                frontend,
                rest,
            };
            let steps = groups.entry(group).or_default();
            if difference.before.is_some() {
                steps.push(Step::Delete(name, *difference.key));
            }
            // Borrowed from the set itself: the difference borrows from both sides.
            if let Some(data) = set.elements.get(difference.key) {
                steps.push(Step::Add(name, *difference.key, data));
            }
        }
    }
    groups
}

/// The elements that are no frontend's and belong to those that come first: their addresses, as
/// cluster IPs, and their endpoints, as hairpins.
fn beside_first(wanted: &Table) -> BTreeSet<Bytes> {
    let mut keys = BTreeSet::new();
    for key in &wanted.first {
        if let FrontendKey::Address { address, .. } = key {
            keys.insert(layout::address(*address));
        }
        keys.extend(wanted.targets(key).into_iter().map(|target| {
            layout::hairpin(&Hairpin {
                address: target.address,
                protocol: key.protocol(),
                port: target.port,
            })
        }));
    }
    keys
}

/// Removals before additions: a changed element is one of each, and the kernel knows no third way.
fn add_steps(wanted: &Table, steps: Vec<Step<'_>>, transaction: &mut Transaction) {
    let mut deletions: BTreeMap<SetName, Vec<Bytes>> = BTreeMap::new();
    let mut additions: BTreeMap<SetName, Vec<(Bytes, ElementData)>> = BTreeMap::new();
    for step in steps {
        match step {
            Step::Delete(set, key) => deletions.entry(set).or_default().push(key),
            Step::Add(set, key, data) => {
                additions.entry(set).or_default().push((key, data.clone()));
            }
        }
    }
    for (set, keys) in deletions {
        let Some(set) = set_of(wanted, set) else {
            continue;
        };
        transaction
            .operations
            .push(Operation::DeleteElements { set, keys });
    }
    for (set, elements) in additions {
        let Some(set) = set_of(wanted, set) else {
            continue;
        };
        transaction
            .operations
            .push(Operation::AddElements { set, elements });
    }
}

fn set_of(table: &Table, name: SetName) -> Option<Arc<Set>> {
    let set = table.sets.get(name.as_str())?;
    Some(Arc::clone(&set.set))
}

// === impl Change ===

impl Change {
    /// The transactions, in order.
    pub fn transactions(&self) -> &[Transaction] {
        &self.transactions
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
