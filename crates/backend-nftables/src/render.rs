//! Renders the table for a node from its dataplane.

mod affinity_maps;
mod plan;
mod retirement;
mod table_builder;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;

use backend::Rendered;
use dataplane::{
    Affinity, Claims, Config, Dataplane, Difference, Family, Frontend, FrontendKey, Hairpin,
    Precedence, Target,
};
use ipnet::IpNet;
use netlink::nf_tables::{Bytes, ElementData};

pub(crate) use self::affinity_maps::AffinityMaps;
use self::affinity_maps::Assignment;
use self::plan::{NeededChains, NoEndpointAction, Plan};
pub(crate) use self::retirement::Retirement;
use self::retirement::retire;
use self::table_builder::TableBuilder;
pub(crate) use self::turns::RoundRobinCounters;
use crate::chains::{self, ChainId, Counter, NumberedChain};
use crate::layout::{self, AffinityMap, Keyed, LOCAL_SLOTS, SetName};
use crate::slots;
use crate::table::{Chains, SetWithElements, Table};

/// The differences between two dataplanes in one family.
struct Differences<'a> {
    frontends: Vec<Difference<'a, FrontendKey, Claims<Arc<Frontend>>>>,
    cluster_ips: Vec<Difference<'a, IpAddr, Claims<()>>>,
    hairpins: Vec<Difference<'a, Hairpin, NonZeroUsize>>,
}

/// Renders one family of `desired`. If `from` has a dataplane, processes only the differences from
/// it. Endpoints keep the slots they have in `from.rules` in any case.
pub(crate) fn render(family: Family, desired: &Dataplane, from: &Rendered<Table>) -> Table {
    let incremental = !from.dataplane.services().is_empty();
    let nothing = Dataplane::default();
    let before = if incremental {
        &from.dataplane
    } else {
        &nothing
    };
    let differences = Differences::between(before, desired, family);
    // Fixed chains contain the node's own address.
    let is_same_config = incremental
        && before.config() == desired.config()
        && before.node().address(family) == desired.node().address(family);
    // The previous change removed the elements that led to them.
    let surplus = from.rules.retirement.retired();
    if is_same_config && differences.is_empty() && surplus.is_empty() {
        return from.rules.clone();
    }
    let mut table_builder = TableBuilder::of(if incremental {
        from.rules.clone()
    } else {
        Table::default()
    });
    // Sets of ranges and affinity maps are kept once created, as numbered chains are.
    let kept_sets = from.rules.sets.keys();
    let kept_sets = kept_sets.filter_map(|name| SetName::parse(name));
    for name in SetName::FIXED.into_iter().chain(kept_sets) {
        table_builder.add_set(family, name);
    }
    // The rules of kept chains need their affinity maps, which another program may have removed.
    if !incremental {
        for chain in from.rules.numbered_chains() {
            table_builder.add_set(family, chain.keyed.clients(chain.affinity_map));
        }
    }
    // A start writes nothing if nothing differs, but adds affinity maps to a table of an older
    // version.
    let has_affinity_maps = from
        .rules
        .sets
        .contains_key(SetName::FullAffinityMaps.as_str());
    let keeps_affinity_maps = !incremental && has_affinity_maps;
    if !incremental {
        table_builder.table.affinity_maps = affinity_maps::read(family, &from.rules, desired);
        table_builder.table.turns = RoundRobinCounters::read(family, &from.rules, desired);
    }
    let mut assignment = Assignment::new(family, desired);
    let mut needed_chains = NeededChains::new();
    render_memberships(&differences, &mut table_builder);
    if !is_same_config {
        render_node_port_addresses(
            family,
            before.config(),
            desired.config(),
            &mut table_builder,
        );
    }
    for difference in differences.frontends {
        let winner = |claims: &Claims<Arc<Frontend>>| Arc::clone(claims.winner().1);
        let after = difference.after.map(winner);
        let owner = difference.after.map(|claims| claims.winner().0);
        let affinity_map = match after.as_ref().zip(owner) {
            Some((frontend, service)) if frontend.affinity != Affinity::None => {
                let affinity_maps = &mut table_builder.table.affinity_maps;
                match keeps_affinity_maps
                    && affinity_maps::is_in_shared(&from.rules, difference.key)
                {
                    true => AffinityMap::Shared,
                    false => assignment.map_of(affinity_maps, service),
                }
            }
            _ => AffinityMap::Shared,
        };
        let first = &mut table_builder.table.first;
        match after.as_ref().map(|frontend| frontend.precedence) {
            Some(Precedence::First) => drop(first.insert(*difference.key)),
            Some(Precedence::Ordinary) | None => drop(first.remove(difference.key)),
        }
        let before = difference.before.map(winner);
        // A counter is taken and released with the elements that lead to it, not when another Service
        // merely claims the address.
        if before != after {
            let turns = &mut table_builder.table.turns;
            let counter = turns.counter(difference.key, after.as_deref());
            place(
                difference.key,
                before.as_deref(),
                after.as_deref(),
                (affinity_map, counter),
                &from.rules,
                &mut table_builder,
                &mut needed_chains,
            );
        }
    }
    let mut table = table_builder.finish();
    table.turns.forget_shared();
    table.exists = true;
    let (chains, numbered) = render_chains(
        family,
        desired,
        &table,
        needed_chains,
        &from.rules,
        surplus,
        is_same_config,
    );
    table.chains = chains;
    if !Arc::ptr_eq(&table.chains, &from.rules.chains) {
        render_numbers(numbered, &mut table);
    }
    retire(&from.rules, &mut table);
    table
}

/// Adds the elements that map the numbers of these chains, and of fixed ones, to the chains.
fn render_numbers(numbered: BTreeSet<NumberedChain>, table: &mut Table) {
    let numbered = numbered.into_iter().map(ChainId::Numbered);
    for chain_id in ChainId::FIXED.into_iter().chain(numbered) {
        let verdict = ElementData::Verdict(chain_id.verdict());
        table.set_element(chain_id.map(), chain_id.key(), verdict);
    }
}

/// Renders the chains of `table`, whose frontends need the chains `needed`. If `before` was
/// rendered for the same configuration, only missing chains are rendered. Chains that are equal in
/// `before` are shared with it, and so is the whole collection if all are. Also returns the numbered chains
/// that were rendered: thousands of others cost a change nothing.
fn render_chains(
    family: Family,
    desired: &Dataplane,
    table: &Table,
    needed: NeededChains,
    before: &Table,
    surplus: &BTreeSet<Arc<str>>,
    is_same_config: bool,
) -> (Arc<Chains>, BTreeSet<NumberedChain>) {
    let config = desired.config();
    let needed = needed.into_iter().flat_map(NumberedChain::closure);
    let mut needed: BTreeSet<NumberedChain> = needed.collect();
    let mut chains = Chains::new();
    let mut rendered = Vec::new();
    // Existing numbered chains stay unless they have been unused for a while.
    if is_same_config {
        let is_kept = |name: &Arc<str>| before.chains.contains_key(name) && !surplus.contains(name);
        needed.retain(|chain| !is_kept(&chain.name()));
        // Sets are never removed from one rendering to the next, so an equal number means the same
        // sets.
        let same_sets = table.sets.len() == before.sets.len();
        if needed.is_empty() && surplus.is_empty() && same_sets {
            return (Arc::clone(&before.chains), needed);
        }
        chains.clone_from(&before.chains);
        for name in surplus {
            chains.remove(name);
        }
    } else {
        let kept = before.chains.keys();
        let kept = kept.filter(|name| !surplus.contains(*name));
        let kept = kept.filter_map(|name| NumberedChain::parse(name));
        needed.extend(kept.flat_map(NumberedChain::closure));
        rendered.extend(chains::fixed(family, desired.node(), config));
    }
    rendered.push(chains::allow_sources(family, source_lengths(&table.sets)));
    rendered.extend(needed.iter().map(|chain| chain.render(family, config)));
    chains.extend(rendered.into_iter().map(|chain| {
        let same = before.chains.get(&chain.chain.name);
        let same = same.filter(|old| ***old == chain).cloned();
        let chain = same.unwrap_or_else(|| Arc::new(chain));
        (Arc::clone(&chain.chain.name), chain)
    }));
    (Arc::new(chains), needed)
}

/// The prefix lengths that have a set of ranges, in order.
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

/// Renders the sets that hold no frontends and depend on the Services.
fn render_memberships(differences: &Differences<'_>, table_builder: &mut TableBuilder) {
    for difference in &differences.cluster_ips {
        let key = layout::address(*difference.key);
        table_builder.member(SetName::ClusterIps, key, difference.after.is_some());
    }
    for difference in &differences.hairpins {
        let key = layout::hairpin(difference.key);
        table_builder.member(SetName::Hairpins, key, difference.after.is_some());
    }
}

/// Renders the set that holds no frontends and depends on the configuration.
fn render_node_port_addresses(
    family: Family,
    before: &Config,
    desired: &Config,
    table_builder: &mut TableBuilder,
) {
    // Loopback addresses never accept node ports: replies to a redirected packet would be martians.
    let addresses = |config: &Config| -> BTreeSet<IpAddr> {
        let list = config.node_ports.of(family).into_iter().flatten();
        list.copied().filter(|a| !a.is_loopback()).collect()
    };
    let (old, new) = (addresses(before), addresses(desired));
    for address in old.symmetric_difference(&new) {
        let key = layout::address(*address);
        let is_member = new.contains(address);
        table_builder.member(SetName::NodePortAddresses, key, is_member);
    }
}

/// Replaces the elements of one frontend.
fn place(
    key: &FrontendKey,
    before: Option<&Frontend>,
    frontend: Option<&Frontend>,
    (affinity_map, counter): (AffinityMap, Counter),
    near: &Table,
    table_builder: &mut TableBuilder,
    chains: &mut NeededChains,
) {
    let (family, keyed, bytes) = (key.family(), Keyed::of(key), layout::frontend(key));
    let plan = frontend.map_or_else(Plan::default, |frontend| {
        Plan::of(keyed, frontend, affinity_map, counter, chains)
    });
    if affinity_map != AffinityMap::Shared {
        table_builder.add_set(family, keyed.clients(affinity_map));
    }
    let is_sticky = plan.affinity.is_some();
    let was_sticky = before.is_some_and(|frontend| frontend.affinity != Affinity::None);
    for (set, chain_id) in [
        (keyed.services(), plan.service),
        (keyed.short_circuits(), plan.short_circuit),
        (keyed.locals(), plan.local),
        (keyed.affinities(), plan.affinity),
    ] {
        match chain_id {
            Some(chain_id) => table_builder.set(set, bytes.clone(), chain_id.value()),
            None => table_builder.remove(set, &bytes),
        }
    }
    let (refuses, rejects) = (
        plan.no_endpoint_action.is_some(),
        plan.no_endpoint_action == Some(NoEndpointAction::Reject),
    );
    table_builder.member(keyed.refusals(), bytes.clone(), refuses);
    table_builder.member(keyed.rejects(), bytes.clone(), rejects);
    if keyed == Keyed::Address {
        let ranges = |frontend: Option<&Frontend>| {
            frontend
                .map(|frontend| Arc::clone(&frontend.source_ranges))
                .unwrap_or_default()
        };
        place_ranges(
            family,
            &bytes,
            &ranges(before),
            &ranges(frontend),
            table_builder,
        );
    }
    for (first, targets) in [(0, plan.targets), (LOCAL_SLOTS, plan.local_targets)] {
        let slots_before = near.known_slots(key, first);
        let remembered = if is_sticky { targets } else { &[] };
        let remembered_before = if was_sticky { &slots_before[..] } else { &[] };
        place_sticky(
            keyed,
            &bytes,
            first,
            remembered_before,
            remembered,
            table_builder,
        );
        let after = slots::fill(plan.scheduler, &slots_before, targets);
        table_builder.table.note_slots(key, first, &after);
        let mut slots = first..;
        let known = slots_before.iter().map(Some).chain(std::iter::repeat(None));
        for ((target, known), slot) in after.iter().zip(known).zip(&mut slots) {
            if known == Some(target) && table_builder.keeps_what_stays() {
                continue;
            }
            let value = ElementData::Value(layout::target(target));
            table_builder.set(keyed.endpoints(), layout::slot(bytes.clone(), slot), value);
        }
        for slot in slots.take(slots_before.len().saturating_sub(after.len())) {
            table_builder.remove(keyed.endpoints(), &layout::slot(bytes.clone(), slot));
        }
    }
}

/// Replaces the source ranges of one frontend.
fn place_ranges(
    family: Family,
    frontend: &Bytes,
    before: &[IpNet],
    ranges: &[IpNet],
    table_builder: &mut TableBuilder,
) {
    table_builder.member(SetName::Restrictions, frontend.clone(), !ranges.is_empty());
    let desired: BTreeSet<&IpNet> = ranges.iter().collect();
    for range in before.iter().filter(|range| !desired.contains(range)) {
        let set = SetName::Sources(range.prefix_len());
        table_builder.remove(set, &layout::source(frontend.clone(), range));
    }
    for range in ranges {
        let set = SetName::Sources(range.prefix_len());
        table_builder.add_set(family, set);
        table_builder.set(
            set,
            layout::source(frontend.clone(), range),
            ElementData::None,
        );
    }
}

/// Gives every endpoint of a frontend with affinity its affinity slot.
fn place_sticky(
    keyed: Keyed,
    frontend: &Bytes,
    first: u32,
    before: &[Target],
    remembered: &[Target],
    table_builder: &mut TableBuilder,
) {
    let slot = |target: &Target| first + layout::sticky_slot(target);
    let sticky: BTreeMap<u32, Target> = remembered
        .iter()
        .map(|target| (slot(target), *target))
        .collect();
    for slot in before.iter().map(slot) {
        if !sticky.contains_key(&slot) {
            table_builder.remove(keyed.endpoints(), &layout::slot(frontend.clone(), slot));
        }
    }
    for (slot, target) in sticky {
        let value = ElementData::Value(layout::target(&target));
        table_builder.set(
            keyed.endpoints(),
            layout::slot(frontend.clone(), slot),
            value,
        );
    }
}

// === impl Differences ===

impl<'a> Differences<'a> {
    fn between(before: &'a Dataplane, after: &'a Dataplane, family: Family) -> Differences<'a> {
        let mut frontends = before.frontends().differences(after.frontends());
        frontends.retain(|difference| difference.key.family() == family);
        let mut cluster_ips = before.cluster_ips().differences(after.cluster_ips());
        cluster_ips.retain(|difference| Family::of(*difference.key) == family);
        let mut hairpins = before.hairpins().differences(after.hairpins());
        hairpins.retain(|difference| Family::of(difference.key.address) == family);
        Differences {
            frontends,
            cluster_ips,
            hairpins,
        }
    }

    fn is_empty(&self) -> bool {
        self.frontends.is_empty() && self.cluster_ips.is_empty() && self.hairpins.is_empty()
    }
}

#[cfg(test)]
mod tests;
