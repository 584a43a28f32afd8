//! What the kernel should hold, from what the node should do.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use backend::Rendered;
use dataplane::{
    Affinity, Claims, Config, Dataplane, Family, Frontend, FrontendKey, FrontendKind,
    PersistentMap, Precedence, Target, TrafficPolicy,
};
use ipnet::IpNet;
use netlink::nf_tables::{Bytes, ElementData, Verdict};

use crate::chains::{self, ALLOW_SOURCES, Job, NumberedChain, Placement, REFUSE};
use crate::layout::{self, Keyed, LOCAL_SLOTS, SetName};
use crate::slots::arrange;
use crate::table::{ChainWithRules, SetWithElements, Table};

/// How many chains that remember clients may be there before those go that nothing leads to.
const LEARNING_CHAINS_KEPT: usize = 16;

/// Renders one family of `desired`. Where `from` is a dataplane's rules, only what differs from that
/// dataplane is looked at; in any case endpoints keep the slots they have in `from.rules`.
pub(crate) fn render(family: Family, desired: &Dataplane, from: &Rendered<Table>) -> Table {
    let incremental = !from.dataplane.services().is_empty();
    let mut table = if incremental {
        from.rules.clone()
    } else {
        Table::default()
    };
    table.exists = true;
    // A set of ranges stays once it is made, as numbered chains do.
    let kept_sets = from
        .rules
        .sets
        .keys()
        .filter_map(|name| SetName::parse(name));
    for name in SetName::FIXED.into_iter().chain(kept_sets) {
        add_set(family, name, &mut table);
    }
    let before = if incremental {
        from.dataplane.clone()
    } else {
        Dataplane::default()
    };
    let mut needed_chains = BTreeSet::new();
    render_memberships(family, desired, &before, &mut table);
    for difference in before.frontends().differences(desired.frontends()) {
        if difference.key.family() != family {
            continue;
        }
        let winner = |claims: &Claims<Arc<Frontend>>| Arc::clone(claims.winner().1);
        let after = difference.after.map(winner);
        match after.as_ref().map(|frontend| frontend.precedence) {
            Some(Precedence::First) => drop(table.first.insert(*difference.key)),
            Some(Precedence::Ordinary) | None => drop(table.first.remove(difference.key)),
        }
        let before = difference.before.map(winner);
        if before != after {
            place(
                family,
                difference.key,
                before.as_deref(),
                after.as_deref(),
                &from.rules,
                &mut table,
                &mut needed_chains,
            );
        }
    }
    table.chains = render_chains(
        family,
        desired.config(),
        &table,
        needed_chains,
        &from.rules,
        incremental && before.config() == desired.config(),
    );
    table
}

fn add_set(family: Family, name: SetName, table: &mut Table) {
    let at = layout::name(name.as_str());
    table.sets.entry(at).or_insert_with(|| SetWithElements {
        set: Arc::new(name.set(family)),
        elements: PersistentMap::default(),
    });
}

/// The chains of `table`, whose frontends lead to those `needed`. Where `before` was rendered for the
/// same configuration, only what it lacks is rendered; in any case a chain that is the same there is
/// shared with it.
fn render_chains(
    family: Family,
    config: &Config,
    table: &Table,
    mut needed: BTreeSet<NumberedChain>,
    before: &Table,
    is_same_config: bool,
) -> BTreeMap<Arc<str>, Arc<ChainWithRules>> {
    let surplus = surplus_learning_chains(before);
    // Numbered chains that are there stay.
    let kept = before.chains.iter();
    let kept = kept.filter(|(name, _)| !surplus.contains(*name));
    let mut chains = BTreeMap::new();
    let mut rendered = vec![chains::allow_sources(family, source_lengths(&table.sets))];
    if is_same_config {
        chains.extend(kept.map(|(name, chain)| (Arc::clone(name), Arc::clone(chain))));
        needed.retain(|chain| !chains.contains_key(&chain.name()));
    } else {
        let kept = kept.filter_map(|(name, _)| NumberedChain::parse(name));
        needed.extend(kept.flat_map(NumberedChain::closure));
        rendered.extend(chains::fixed(family, config));
    }
    rendered.extend(needed.into_iter().map(|chain| chain.render(family, config)));
    chains.extend(rendered.into_iter().map(|chain| {
        let same = before.chains.get(&chain.chain.name);
        let same = same.filter(|old| ***old == chain).cloned();
        let chain = same.unwrap_or_else(|| Arc::new(chain));
        (Arc::clone(&chain.chain.name), chain)
    }));
    chains
}

/// Of the chains that remember clients for so and so many seconds there could be one for each second
/// of a day. Once they are many, those go that nothing leads to; that was committed before, not just
/// now.
fn surplus_learning_chains(rules: &Table) -> BTreeSet<Arc<str>> {
    let learns =
        |name: &&Arc<str>| NumberedChain::parse(name).is_some_and(|chain| chain.job == Job::Learn);
    let mut learning: BTreeSet<Arc<str>> = rules.chains.keys().filter(learns).cloned().collect();
    if learning.len() <= LEARNING_CHAINS_KEPT {
        return BTreeSet::new();
    }
    for set in [SetName::Affinities, SetName::NodePortAffinities] {
        let elements = rules.sets.get(set.as_str()).map(|set| set.elements.iter());
        for (_, data) in elements.into_iter().flatten() {
            if let ElementData::Verdict(Verdict::Goto(chain)) = data {
                learning.remove(chain);
            }
        }
    }
    learning
}

/// The lengths of prefixes that there is a set of ranges for, in order.
pub(crate) fn source_lengths(
    sets: &BTreeMap<Arc<str>, SetWithElements>,
) -> impl DoubleEndedIterator<Item = u8> + use<> {
    let lengths: BTreeSet<u8> = sets
        .keys()
        .filter_map(|name| match SetName::parse(name) {
            Some(SetName::Sources(bits)) => Some(bits),
            _ => None,
        })
        .collect();
    lengths.into_iter()
}

/// The sets that are not about frontends.
fn render_memberships(family: Family, desired: &Dataplane, before: &Dataplane, table: &mut Table) {
    for difference in before.cluster_ips().differences(desired.cluster_ips()) {
        if Family::of(*difference.key) == family {
            let key = layout::address(*difference.key);
            member(table, SetName::ClusterIps, key, difference.after.is_some());
        }
    }
    for difference in before.hairpins().differences(desired.hairpins()) {
        if Family::of(difference.key.address) == family {
            let key = layout::hairpin(difference.key);
            member(table, SetName::Hairpins, key, difference.after.is_some());
        }
    }
    // Loopback never accepts node ports: replies to a redirected packet would be martians.
    let addresses = |dataplane: &Dataplane| -> BTreeSet<IpAddr> {
        let list = dataplane.config().node_ports.of(family);
        let list = list.into_iter().flatten();
        list.copied().filter(|a| !a.is_loopback()).collect()
    };
    let (old, new) = (addresses(before), addresses(desired));
    for address in old.symmetric_difference(&new) {
        let key = layout::address(*address);
        member(
            table,
            SetName::NodePortAddresses,
            key,
            new.contains(address),
        );
    }
}

fn member(table: &mut Table, set: SetName, key: Bytes, is_member: bool) {
    if is_member {
        table.set_element(set, key, ElementData::None);
    } else {
        table.remove_element(set, &key);
    }
}

/// Puts the elements of one frontend in the place of those it had.
fn place(
    family: Family,
    key: &FrontendKey,
    before: Option<&Frontend>,
    frontend: Option<&Frontend>,
    near: &Table,
    table: &mut Table,
    chains: &mut BTreeSet<NumberedChain>,
) {
    let (keyed, bytes) = (Keyed::of(key), layout::frontend(key));
    let plan = frontend.map_or_else(Plan::default, |frontend| Plan::of(keyed, frontend));
    let is_sticky = plan.affinity.is_some();
    for (set, verdict) in [
        (keyed.services(), plan.service),
        (keyed.short_circuits(), plan.short_circuit),
        (keyed.locals(), plan.local),
        (keyed.refusals(), plan.refusal),
        (keyed.affinities(), plan.affinity),
    ] {
        set_verdict(table, set, bytes, verdict);
    }
    if keyed == Keyed::Address {
        let ranges = |frontend: Option<&Frontend>| {
            frontend
                .map(|frontend| Arc::clone(&frontend.source_ranges))
                .unwrap_or_default()
        };
        place_ranges(family, bytes, &ranges(before), &ranges(frontend), table);
    }
    chains.extend(plan.chains.into_iter().flat_map(NumberedChain::closure));
    for (first, targets) in [(0, plan.targets), (LOCAL_SLOTS, plan.local_targets)] {
        let before = near.slots(family, key, first);
        let remembered = if is_sticky { targets } else { &[] };
        place_sticky(keyed, bytes, first, &before, remembered, table);
        let mut slots = first..;
        for target in arrange(&before, targets) {
            let Some(slot) = slots.next() else { break };
            let value = ElementData::Value(layout::target(&target));
            table.set_element(keyed.endpoints(), layout::slot(bytes, slot), value);
        }
        for slot in slots {
            if !table.remove_element(keyed.endpoints(), &layout::slot(bytes, slot)) {
                break;
            }
        }
    }
}

fn set_verdict(table: &mut Table, set: SetName, key: Bytes, verdict: Option<Verdict>) {
    match verdict {
        Some(verdict) => table.set_element(set, key, ElementData::Verdict(verdict)),
        None => drop(table.remove_element(set, &key)),
    }
}

/// Puts the source ranges of one frontend in the place of those it had.
fn place_ranges(
    family: Family,
    frontend: Bytes,
    before: &[IpNet],
    ranges: &[IpNet],
    table: &mut Table,
) {
    let restricted = (!ranges.is_empty()).then(|| Verdict::Goto(layout::name(ALLOW_SOURCES)));
    set_verdict(table, SetName::Restrictions, frontend, restricted);
    for range in before.iter().filter(|range| !ranges.contains(range)) {
        let set = SetName::Sources(range.prefix_len());
        table.remove_element(set, &layout::source(frontend, range));
    }
    for range in ranges {
        let set = SetName::Sources(range.prefix_len());
        add_set(family, set, table);
        table.set_element(set, layout::source(frontend, range), ElementData::None);
    }
}

/// Gives every endpoint the slot that clients are remembered by, where they are.
fn place_sticky(
    keyed: Keyed,
    frontend: Bytes,
    first: u32,
    before: &[Target],
    remembered: &[Target],
    table: &mut Table,
) {
    let slot = |target: &Target| first + layout::sticky_slot(target);
    let sticky: BTreeMap<u32, Target> = remembered
        .iter()
        .map(|target| (slot(target), *target))
        .collect();
    for slot in before.iter().map(slot) {
        if !sticky.contains_key(&slot) {
            table.remove_element(keyed.endpoints(), &layout::slot(frontend, slot));
        }
    }
    for (slot, target) in sticky {
        let value = ElementData::Value(layout::target(&target));
        table.set_element(keyed.endpoints(), layout::slot(frontend, slot), value);
    }
}

/// The elements of one frontend, before its endpoints have slots.
#[derive(Default)]
struct Plan<'a> {
    service: Option<Verdict>,
    short_circuit: Option<Verdict>,
    local: Option<Verdict>,
    refusal: Option<Verdict>,
    affinity: Option<Verdict>,
    chains: Vec<NumberedChain>,
    targets: &'a [Target],
    local_targets: &'a [Target],
}

impl<'a> Plan<'a> {
    fn of(keyed: Keyed, frontend: &'a Frontend) -> Plan<'a> {
        let refuse = || {
            Some(if frontend.has_endpoints {
                Verdict::Drop
            } else {
                Verdict::Goto(layout::name(REFUSE))
            })
        };
        // An address that refuses must not be looked up as a node port of someone else's next.
        let ends_here = (keyed == Keyed::Address).then_some(Verdict::Accept);
        let mut chains = Vec::new();
        let mut goto_numbered = |placement, job, number| {
            (number > 0).then(|| {
                let chain = NumberedChain {
                    keyed,
                    placement,
                    job,
                    number,
                };
                chains.push(chain);
                Verdict::Goto(chain.name())
            })
        };
        let (placement, affinity) = match frontend.affinity {
            Affinity::None => (Placement::Anew, None),
            Affinity::ClientIp { timeout } => {
                let seconds = u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX);
                let learn = goto_numbered(Placement::Anew, Job::Learn, seconds);
                (Placement::Sticky, learn)
            }
        };
        let mut goto = |job, targets: &[Target]| {
            let number = u32::try_from(targets.len()).unwrap_or(u32::MAX);
            goto_numbered(placement, job, number)
        };
        let plan = match (frontend.kind, frontend.policy) {
            (FrontendKind::ClusterIp, policy) => {
                let targets = match policy {
                    TrafficPolicy::Cluster => &*frontend.cluster,
                    TrafficPolicy::Local => &*frontend.local,
                };
                Plan {
                    service: goto(Job::Cluster, targets),
                    targets,
                    ..Plan::default()
                }
            }
            (_, TrafficPolicy::Cluster) => Plan {
                service: goto(Job::External, &frontend.cluster),
                targets: &frontend.cluster,
                ..Plan::default()
            },
            (_, TrafficPolicy::Local) => {
                let short_circuit = goto(Job::Balance, &frontend.cluster);
                let local = goto(Job::Local, &frontend.local);
                let any = short_circuit.is_some() || local.is_some();
                let chain = format!("{}external-local", keyed.prefix());
                Plan {
                    service: any.then(|| Verdict::Goto(chain.into())),
                    short_circuit,
                    local,
                    targets: &frontend.cluster,
                    local_targets: &frontend.local,
                    ..Plan::default()
                }
            }
        };
        let nothing_for_strangers = match (frontend.is_external(), frontend.policy) {
            (true, TrafficPolicy::Local) => plan.local.is_none(),
            _ => plan.service.is_none(),
        };
        Plan {
            service: plan.service.or(ends_here),
            refusal: nothing_for_strangers.then(refuse).flatten(),
            affinity,
            chains,
            ..plan
        }
    }
}
