//! The elements that differ, in the order in which they are written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dataplane::{Family, FrontendKey, PersistentMap, Precedence};
use netlink::nf_tables::{Bytes, ElementData, Operation, Set, Transaction};
use nftables_model::RangePart;

use super::first::First;
use super::group::{Group, Owner, first_bytes};
use crate::chains::DISPATCH;
use crate::layout::{self, Keyed, SetName};
use crate::table::Table;

/// One element that differs.
pub(super) struct Step<'a> {
    pub(super) group: Group,
    pub(super) set: SetName,
    /// The part of the key after the frontend, up to four bytes.
    pub(super) rest: u32,
    pub(super) key: &'a Bytes,
    pub(super) before: Option<&'a ElementData>,
    pub(super) after: Option<&'a ElementData>,
}

/// Every element that differs, in the order of writing. The elements of a group are adjacent. After
/// each group, packets to frontends that are still to come pass unchanged.
pub(super) fn steps<'a>(family: Family, observed: &'a Table, desired: &'a Table) -> Vec<Step<'a>> {
    static NOTHING: PersistentMap<Bytes, ElementData> = PersistentMap::new();
    let mut steps = Vec::new();
    let first = First::of(desired);
    for (name, set) in &desired.sets {
        let old = observed.sets.get(name);
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
            let comes = difference.after.is_some();
            let (group, rest) = place(family, &first, set, difference.key, comes);
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
    put_off_gone(&mut steps);
    if rewrites_dispatch(observed, desired) {
        write_in_place_of_node_ports(family, observed, &mut steps);
    }
    if let Some(first) = steps.iter().map(|step| step.group.turn).min() {
        let with_rules = steps.iter_mut();
        let with_rules = with_rules.filter(|step| step.group.owner == Owner::Rules);
        with_rules.for_each(|step| step.group = Group::with_rules(first));
    }
    sort(&mut steps);
    steps
}

/// Whether rules that serve packets change the addresses at which node ports are looked up.
pub(super) fn rewrites_dispatch(observed: &Table, desired: &Table) -> bool {
    let [old, new] = [observed, desired].map(|table| table.chains.get(DISPATCH));
    old.is_some() && old != new
}

/// Moves frontends at addresses into the transaction of the rules if their protocol and port are those
/// of a node port: the new rules may no longer look it up at their address.
fn write_in_place_of_node_ports(family: Family, observed: &Table, steps: &mut [Step<'_>]) {
    let sets = [Keyed::NodePort.services(), Keyed::NodePort.refusals()];
    let sets = sets.map(|name| observed.sets.get(name.as_str()));
    let mut moved = None;
    let come = steps.iter_mut();
    for step in come.filter(|step| step.group.owner == Owner::Address) {
        let keyed = step.set.keyed();
        let frontend =
            keyed.and_then(|keyed| layout::parse_frontend(family, keyed, step.key.as_slice()));
        let Some(FrontendKey::Address { protocol, port, .. }) = frontend else {
            continue;
        };
        let node_port = FrontendKey::NodePort {
            family,
            protocol,
            port,
        };
        let key = layout::frontend(&node_port);
        let mut sets = sets.iter().flatten();
        if sets.any(|set| set.elements.get(&key).is_some()) {
            step.group = Group::with_rules(step.group.turn);
            moved = Some(step.group);
        }
    }
    // What these frontends rely on goes with them.
    if let Some(with_rules) = moved {
        let before = steps.iter_mut();
        let before = before.filter(|step| step.group.owner == Owner::Before);
        before.for_each(|step| step.group = with_rules);
    }
}

/// Moves frontends at addresses that are removed without replacement behind what may replace them. The
/// cost is that of a list if none is removed.
fn put_off_gone(steps: &mut [Step<'_>]) {
    let is_gone = |step: &&Step<'_>| step.group.owner == Owner::Address && step.after.is_none();
    let removed = steps.iter().filter(is_gone);
    let mut gone: BTreeSet<Group> = removed.map(|step| step.group).collect();
    if gone.is_empty() {
        return;
    }
    for step in steps.iter().filter(|step| step.after.is_some()) {
        gone.remove(&step.group);
    }
    let moved = steps.iter_mut().filter(|step| gone.contains(&step.group));
    moved.for_each(|step| step.group = step.group.gone());
}

/// The group of an element of `set` that is added (`comes`) or removed, and the part of its key
/// after the frontend.
fn place(
    family: Family,
    first: &First<'_>,
    set: SetName,
    key: &Bytes,
    comes: bool,
) -> (Group, u32) {
    let bytes = key.as_slice();
    let frontend = set
        .keyed()
        .and_then(|keyed| layout::parse_frontend(family, keyed, bytes));
    if let Some(frontend) = &frontend {
        let rest = first_bytes(layout::behind_frontend(frontend, bytes));
        let group = Group::of_frontend(first.turn_of(frontend), frontend);
        return (group, u32::from_be_bytes(rest));
    }
    let address = match set {
        SetName::ClusterIps => layout::parse_address(family, bytes),
        _ => None,
    };
    let group = match address {
        Some((address, _)) if comes => Group::behind_address(first.turn_at(address), address),
        Some((address, _)) => Group::ahead_of_address(address),
        // Numbers, and newly added addresses that accept node ports.
        None if comes && (set.is_numbers() || set == SetName::NodePortAddresses) => {
            Group::with_rules(Precedence::Ordinary)
        }
        None => {
            let (turn, owner) = match set {
                SetName::Hairpins if comes => (first.turn_of_hairpin(key), Owner::Before),
                // Frontends may rely on them until they are changed or removed. An address that no
                // longer accepts node ports may get frontends of its own.
                SetName::Hairpins | SetName::NodePortAddresses => {
                    (Precedence::Ordinary, Owner::After)
                }
                _ if set.is_numbers() => (Precedence::Ordinary, Owner::After),
                _ => (Precedence::Ordinary, Owner::Before),
            };
            Group::of_key(turn, owner, bytes)
        }
    };
    (group, 0)
}

fn sort(steps: &mut [Step<'_>]) {
    steps.sort_unstable_by(|a, b| {
        let within = || match a.group.owner {
            Owner::Rules | Owner::Before | Owner::After => (a.key, a.set).cmp(&(b.key, b.set)),
            Owner::Address | Owner::NodePort | Owner::Gone => {
                (a.set, a.rest, a.key).cmp(&(b.set, b.rest, b.key))
            }
        };
        a.group.cmp(&b.group).then_with(within)
    });
}

/// The steps of a transaction that was built from steps, in order.
pub(super) fn steps_of(family: Family, transaction: &Transaction) -> Vec<Step<'_>> {
    let nothing = Table::default();
    let first = First::of(&nothing);
    // A changed element is one that goes and one that comes, and both are one step.
    let mut elements: BTreeMap<(SetName, &Bytes), [Option<&ElementData>; 2]> = BTreeMap::new();
    for operation in &transaction.operations {
        match operation {
            Operation::AddElements { set, elements: new } => {
                if let Some(name) = SetName::parse(&set.name) {
                    for (key, data) in new {
                        elements.entry((name, key)).or_default()[1] = Some(data);
                    }
                }
            }
            Operation::DeleteElements { set, keys } => {
                if let Some(name) = SetName::parse(&set.name) {
                    for key in keys {
                        elements.entry((name, key)).or_default()[0] = Some(&ElementData::None);
                    }
                }
            }
            _ => {}
        }
    }
    let steps = elements.into_iter().map(|((set, key), [before, after])| {
        let (group, rest) = place(family, &first, set, key, after.is_some());
        Step {
            group,
            set,
            rest,
            key,
            before,
            after,
        }
    });
    let mut steps: Vec<_> = steps.collect();
    put_off_gone(&mut steps);
    sort(&mut steps);
    steps
}

/// How many of `steps` go into one transaction: at most `most` elements, and only whole groups.
pub(super) fn length_of_part(steps: &[Step<'_>], most: usize) -> usize {
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

/// How many of `steps` are written with the rules.
pub(super) fn length_with_rules(steps: &[Step<'_>]) -> usize {
    let with_rules = steps.iter();
    with_rules
        .take_while(|step| step.group.owner == Owner::Rules)
        .count()
}

/// Adds the steps set by set, since a message of a few elements costs the kernel as much as one of
/// a thousand. Removals come before additions: a changed element is one of each, since the kernel
/// cannot change one in place.
pub(super) fn add_elements(
    set_of: impl Fn(SetName) -> Option<Arc<Set>>,
    steps: &mut [Step<'_>],
    transaction: &mut Transaction,
) {
    let operations = &mut transaction.operations;
    steps.sort_by_key(|step| step.set);
    let sets = || {
        let sets = steps.chunk_by(|a, b| a.set == b.set);
        sets.filter_map(|steps| Some((set_of(steps.first()?.set)?, steps)))
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

/// Collects `items` without spare capacity: the elements of a whole cluster are kept until the last
/// transaction is committed.
fn exactly<T>(items: impl Iterator<Item = T> + Clone) -> Vec<T> {
    let mut all = Vec::with_capacity(items.clone().count());
    all.extend(items);
    all
}

// === impl Step ===

impl Step<'_> {
    /// Whether both steps belong to the same group.
    pub(super) fn is_with(&self, other: &Step<'_>) -> bool {
        let is_of_one_key = matches!(self.group.owner, Owner::Before | Owner::After);
        self.group == other.group && (!is_of_one_key || self.key == other.key)
    }

    pub(super) fn range_part(&self) -> RangePart {
        match self.set {
            _ if self.group.owner == Owner::Rules => RangePart::WithRules,
            _ if self.before.is_some() => RangePart::Replaced,
            SetName::Restrictions => RangePart::Entry,
            SetName::Sources(_) => RangePart::Range,
            _ => RangePart::Other,
        }
    }

    fn elements(&self) -> usize {
        usize::from(self.before.is_some()) + usize::from(self.after.is_some())
    }
}
