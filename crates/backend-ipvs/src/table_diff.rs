//! Computes the transactions from one table to another.

mod halves;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use dataplane::{Family, FrontendKey};
use netlink::nf_tables::{Bytes, ElementData, Operation, Set, Transaction};
use nftables_model::{
    Contents, RangePart, RangesAhead, frontend, name, parse_address, parse_frontend, ranges_ahead,
};

pub(crate) use self::halves::halves;
use crate::chains::{DISPATCH, ENTRANCES};
use crate::layout::{SetName, TABLE};

/// The most elements that one transaction adds and removes.
const ELEMENTS_A_TRANSACTION: usize = 10_000;

/// Elements that must be written together have equal groups. Groups are written in this order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    /// Elements that new rules look up or that lead to new chains: added in the same transaction as
    /// these.
    WithRules,
    /// Elements that frontends rely on.
    Before(SetName, Bytes),
    /// The frontends at an address that are added or changed, or an address that becomes a cluster IP.
    /// A packet to a cluster IP without a frontend is refused, so the address comes after its
    /// frontends.
    Address(IpAddr, AtAddress),
    /// A node port.
    NodePort(FrontendKey),
    /// An address that ceases to be a cluster IP, or a frontend there that is removed without
    /// replacement. By then, what is to serve or to refuse its packets does so.
    Gone(IpAddr, Option<FrontendKey>),
    /// Elements that removed frontends relied on.
    After(SetName, Bytes),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum AtAddress {
    Frontend(FrontendKey),
    ClusterIp,
}

/// An element that differs.
struct Difference<'a> {
    group: Group,
    set: SetName,
    key: &'a Bytes,
    before: Option<&'a ElementData>,
    after: Option<&'a ElementData>,
}

/// Computes the transactions, in order. All elements of a frontend are in one of them, but for source
/// ranges that come ahead of [rules](nftables_model::ranges_ahead).
pub(crate) fn diff(family: Family, observed: &Contents, desired: &Contents) -> Vec<Transaction> {
    let mut most = ELEMENTS_A_TRANSACTION;
    let start = || Transaction::new(family, name(TABLE));
    let mut first = start();
    if !desired.exists {
        // Deletes the table: kernels before 6.2 would refuse to delete element by element.
        return match observed.exists {
            true => Transaction::removal(family, &name(TABLE)).into(),
            false => Vec::new(),
        };
    }
    let nothing = Contents::default();
    let observed = match can_update_in_place(observed, desired) {
        true => observed,
        // In one transaction, so that everything is served throughout.
        false => {
            first.operations.push(Operation::DeleteTable);
            most = usize::MAX;
            &nothing
        }
    };
    add_sets(observed, desired, &mut first);
    let mut differences = differences(family, observed, desired);
    let set_of = |set: SetName| Some(Arc::clone(&desired.sets.get(set.as_str())?.set));
    let mut transactions = vec![first];
    let ahead = match observed.exists {
        true => ranges_ahead(&observed.chains, &desired.chains, &ENTRANCES),
        false => RangesAhead::Nowhere,
    };
    let is_with = |a: &Difference<'_>, b: &Difference<'_>| a.group == b.group;
    let ahead = ahead.take(&mut differences, is_with, Difference::range_part);
    for part in parts(&ahead, most) {
        add_elements(set_of, part, transactions.last_mut());
        transactions.push(start());
    }
    if let Some(current) = transactions.last_mut() {
        add_rules(observed, desired, current);
    }
    let mut rest = &differences[..];
    if rewrites_dispatch(observed, desired) {
        // These are not divided if the kernel lacks memory, so there is nothing else with them.
        let (with_rules, others) = rest.split_at(length_with_rules(rest));
        add_elements(set_of, with_rules, transactions.last_mut());
        transactions.push(start());
        rest = others;
    }
    for part in parts(rest, most) {
        add_elements(set_of, part, transactions.last_mut());
        transactions.push(start());
    }
    let mut undesired = start();
    delete_objects(observed, desired, &mut undesired);
    transactions.push(undesired);
    some(transactions)
}

/// Divides `differences` into parts of at most `most`, and only between groups.
fn parts<'a, 'b>(differences: &'a [Difference<'b>], most: usize) -> Vec<&'a [Difference<'b>]> {
    let mut parts = Vec::new();
    let mut rest = differences;
    while !rest.is_empty() {
        let mut length = 0;
        for group in rest.chunk_by(|a, b| a.group == b.group) {
            if length > 0 && length + group.len() > most {
                break;
            }
            length += group.len();
        }
        let (part, others) = rest.split_at(length);
        parts.push(part);
        rest = others;
    }
    parts
}

fn some(transactions: Vec<Transaction>) -> Vec<Transaction> {
    let all = transactions.into_iter();
    all.filter(|transaction| !transaction.operations.is_empty())
        .collect()
}

/// Whether `observed` can be changed to `desired` in place: every set and chain in both must be the
/// same, since the shape of a set and the hook of a chain cannot be changed.
fn can_update_in_place(observed: &Contents, desired: &Contents) -> bool {
    let sets = desired.sets.iter().all(|(name, set)| {
        let other = observed.sets.get(name);
        other.is_none_or(|other| other.set == set.set)
    });
    let mut chains = desired.chains.iter();
    let chains = Arc::ptr_eq(&observed.chains, &desired.chains)
        || chains.all(|(name, chain)| {
            let other = observed.chains.get(name);
            other.is_none_or(|other| other.chain == chain.chain)
        });
    sets && chains
}

fn add_sets(observed: &Contents, desired: &Contents, transaction: &mut Transaction) {
    let operations = &mut transaction.operations;
    if !observed.exists {
        operations.push(Operation::AddTable);
    }
    let new = desired
        .sets
        .iter()
        .filter(|(name, _)| !observed.sets.contains_key(*name));
    operations.extend(new.map(|(_, set)| Operation::AddSet((*set.set).clone())));
}

fn add_rules(observed: &Contents, desired: &Contents, transaction: &mut Transaction) {
    let operations = &mut transaction.operations;
    if Arc::ptr_eq(&observed.chains, &desired.chains) {
        return;
    }
    let changed = desired.chains.iter();
    let changed: Vec<_> = changed
        .filter(|(name, chain)| {
            let old = observed.chains.get(*name);
            old.is_none_or(|old| !Arc::ptr_eq(old, chain) && old != *chain)
        })
        .collect();
    // A rule may refer to any chain, so all chains come before all rules.
    operations.extend(changed.iter().map(
        |(name, chain)| match observed.chains.contains_key(*name) {
            true => Operation::FlushChain(Arc::clone(name)),
            false => Operation::AddChain(chain.chain.clone()),
        },
    ));
    for (name, chain) in changed {
        operations.extend(chain.rules.iter().map(|rule| Operation::AddRule {
            chain: Arc::clone(name),
            rule: rule.clone(),
        }));
    }
}

/// Deletes objects that are not desired: left by an older version, or added by another program.
fn delete_objects(observed: &Contents, desired: &Contents, transaction: &mut Transaction) {
    let chains: Vec<_> = match Arc::ptr_eq(&observed.chains, &desired.chains) {
        true => Vec::new(),
        false => {
            let names = observed.chains.keys();
            names
                .filter(|name| !desired.chains.contains_key(*name))
                .collect()
        }
    };
    let flushed = chains
        .iter()
        .map(|name| Operation::FlushChain(Arc::clone(name)));
    let sets = observed.sets.keys();
    let sets = sets.filter(|name| !desired.sets.contains_key(*name));
    let deleted = chains
        .iter()
        .map(|name| Operation::DeleteChain(Arc::clone(name)));
    let flowtables = observed.flowtables.keys();
    let flowtables = flowtables.filter(|name| !desired.flowtables.contains_key(*name));
    let operations = flushed
        .chain(sets.map(|name| Operation::DeleteSet(Arc::clone(name))))
        .chain(deleted)
        .chain(flowtables.map(|name| Operation::DeleteFlowtable(Arc::clone(name))));
    transaction.operations.extend(operations);
}

fn differences<'a>(
    family: Family,
    observed: &'a Contents,
    desired: &'a Contents,
) -> Vec<Difference<'a>> {
    static NOTHING: nftables_model::Elements = nftables_model::Elements::new();
    let mut all = Vec::new();
    for (name, set) in &desired.sets {
        let old = observed
            .sets
            .get(name)
            .map_or(&NOTHING, |old| &old.elements);
        let Some(set_name) = SetName::parse(name) else {
            continue;
        };
        all.extend(
            old.differences(&set.elements)
                .into_iter()
                .map(|difference| Difference {
                    group: group(family, set_name, difference.key, difference.after.is_some()),
                    set: set_name,
                    key: difference.key,
                    before: difference.before,
                    after: difference.after,
                }),
        );
    }
    put_off_gone(&mut all);
    if rewrites_dispatch(observed, desired) {
        write_in_place_of_node_ports(family, observed, &mut all);
    }
    sort(&mut all);
    all
}

/// Whether rules that serve packets change the addresses at which node ports are looked up.
fn rewrites_dispatch(observed: &Contents, desired: &Contents) -> bool {
    let [old, new] = [observed, desired].map(|contents| contents.chains.get(DISPATCH));
    old.is_some() && old != new
}

/// How many of `differences` are written with the rules.
fn length_with_rules(differences: &[Difference<'_>]) -> usize {
    let all = differences.iter();
    all.take_while(|difference| difference.group == Group::WithRules)
        .count()
}

/// Moves frontends at addresses into the transaction of the rules if their protocol and port are those
/// of a node port: the new rules may no longer look it up at their address.
fn write_in_place_of_node_ports(
    family: Family,
    observed: &Contents,
    differences: &mut [Difference<'_>],
) {
    let sets = [
        SetName::NodePorts,
        SetName::NodePortShortCircuits,
        SetName::NodePortLocals,
        SetName::NodePortRefusals,
    ];
    let sets = sets.map(|name| observed.sets.get(name.as_str()));
    let mut are_moved = false;
    for difference in differences.iter_mut() {
        let Some(FrontendKey::Address { protocol, port, .. }) = difference.at_address() else {
            continue;
        };
        let key = frontend(&FrontendKey::NodePort {
            family,
            protocol,
            port,
        });
        let mut sets = sets.iter().flatten();
        if sets.any(|set| set.elements.get(&key).is_some()) {
            difference.group = Group::WithRules;
            are_moved = true;
        }
    }
    // What these frontends rely on goes with them.
    if are_moved {
        let before = differences.iter_mut();
        let before = before.filter(|difference| matches!(difference.group, Group::Before(..)));
        before.for_each(|difference| difference.group = Group::WithRules);
    }
}

fn sort(differences: &mut [Difference<'_>]) {
    differences.sort_by(|a, b| (&a.group, a.set, a.key).cmp(&(&b.group, b.set, b.key)));
}

/// Moves frontends at addresses that are removed without replacement after the node ports.
fn put_off_gone(differences: &mut [Difference<'_>]) {
    let come = differences.iter().filter(|other| other.after.is_some());
    let come: BTreeSet<FrontendKey> = come.filter_map(Difference::at_address).collect();
    for difference in differences {
        if let Some(frontend @ FrontendKey::Address { address, .. }) = difference.at_address()
            && !come.contains(&frontend)
        {
            difference.group = Group::Gone(address, Some(frontend));
        }
    }
}

/// The group of an element of `set` that is added (`comes`) or removed.
fn group(family: Family, set: SetName, key: &Bytes, comes: bool) -> Group {
    let fields = set.fields();
    let frontend = fields.and_then(|fields| parse_frontend(family, fields, key.as_slice()));
    let address = match set {
        SetName::ClusterIps => parse_address(family, key.as_slice()),
        _ => None,
    };
    let with_rules = [
        SetName::NodePortAddresses,
        SetName::ReturnChains,
        SetName::LearningChains,
    ];
    if comes && with_rules.contains(&set) {
        return Group::WithRules;
    }
    match (frontend, address) {
        (Some(frontend @ FrontendKey::Address { address, .. }), _) => {
            Group::Address(address, AtAddress::Frontend(frontend))
        }
        (Some(frontend), _) => Group::NodePort(frontend),
        (None, Some((address, _))) if comes => Group::Address(address, AtAddress::ClusterIp),
        (None, Some((address, _))) => Group::Gone(address, None),
        (None, None) if comes => Group::Before(set, key.clone()),
        (None, None) => Group::After(set, key.clone()),
    }
}

/// Adds a part to a transaction. Removals come before additions: a changed element is one of each,
/// since the kernel cannot change one in place.
fn add_elements(
    set_of: impl Fn(SetName) -> Option<Arc<Set>>,
    part: &[Difference<'_>],
    transaction: Option<&mut Transaction>,
) {
    let mut gone: BTreeMap<SetName, Vec<Bytes>> = BTreeMap::new();
    let mut new: BTreeMap<SetName, Vec<(Bytes, ElementData)>> = BTreeMap::new();
    for difference in part {
        if difference.before.is_some() {
            gone.entry(difference.set)
                .or_default()
                .push(difference.key.clone());
        }
        if let Some(data) = difference.after {
            let element = (difference.key.clone(), data.clone());
            new.entry(difference.set).or_default().push(element);
        }
    }
    let gone = gone.into_iter();
    let gone = gone.filter_map(|(set, keys)| {
        Some(Operation::DeleteElements {
            set: set_of(set)?,
            keys,
        })
    });
    let new = new.into_iter().filter_map(|(set, elements)| {
        Some(Operation::AddElements {
            set: set_of(set)?,
            elements,
        })
    });
    if let Some(transaction) = transaction {
        transaction.operations.extend(gone.chain(new));
    }
}

// === impl Difference ===

impl Difference<'_> {
    /// The frontend at an address that the element belongs to.
    fn at_address(&self) -> Option<FrontendKey> {
        match self.group {
            Group::Address(_, AtAddress::Frontend(frontend)) => Some(frontend),
            _ => None,
        }
    }

    fn range_part(&self) -> RangePart {
        match self.set {
            _ if self.group == Group::WithRules => RangePart::WithRules,
            _ if self.before.is_some() => RangePart::Replaced,
            SetName::Restrictions => RangePart::Entry,
            SetName::Sources(_) => RangePart::Range,
            _ => RangePart::Other,
        }
    }
}

#[cfg(test)]
mod range_tests;
#[cfg(test)]
mod tests;
