//! Renders the rules for a node from its dataplane.

mod marks;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use backend::Rendered;
use dataplane::{
    Config, Dataplane, Difference, Family, Frontend, FrontendKey, PersistentMap, ServiceKey,
};
use ipnet::IpNet;
use netlink::nf_tables::{Bytes, ElementData, Verdict};
use netlink::route::Presence;
use nftables_model::{
    ChainWithRules, Chains, Contents, SetWithElements, address, allow_sources, frontend, hairpin,
    name, source, sticky_slot, target,
};

use crate::allocation::{Allocation, Found};
use crate::chains;
use crate::chains::affinity::AffinityGroup;
use crate::idle::IdleTimeouts;
use crate::layout::{MARKS, SetName, fields_of};
use crate::missing_schedulers::MissingSchedulers;
use crate::plan::{FrontendPlan, NoEndpointAction, Owner, ServicePlan, VirtualServerSpec};
use crate::rules::{Rules, Server, lead};
use crate::scheduler_tables::WithoutTable;

/// Whether something is added or removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Comes,
    Leaves,
}

/// Rules under construction.
struct Draft<'a> {
    family: Family,
    rules: Rules,
    /// The rules that the kernel holds meanwhile.
    near: &'a Rules,
    /// The owners of marks as found, if the previous dataplane is unknown.
    found: Option<Found>,
    /// The numbers that these owners have.
    reserved: BTreeSet<u32>,
    /// The affinity groups that a virtual server has joined or left. There may be thousands of others.
    regrouped: BTreeSet<AffinityGroup>,
}

/// Renders one family of `desired`, for a kernel that lacks `missing`. If `from` holds the rules of a
/// dataplane with the same configuration, for such a kernel, processes only the differences from it.
/// Owners keep the marks they have in `from.rules` in any case.
pub(crate) fn render(
    family: Family,
    desired: &Dataplane,
    from: &Rendered<Rules>,
    missing: &MissingSchedulers,
) -> Rules {
    let is_known = !from.dataplane.services().is_empty();
    let is_same_config = is_known
        && from.dataplane.config() == desired.config()
        && from.dataplane.node().address(family) == desired.node().address(family)
        && from.rules.missing_schedulers == *missing;
    let nothing = Dataplane::default();
    let before = match is_same_config {
        true => &from.dataplane,
        false => &nothing,
    };
    let mut draft = Draft::of(family, from, is_known, is_same_config);
    draft.rules.missing_schedulers = missing.clone();
    draft.add_sets();
    if !is_same_config {
        draft.render_node_port_addresses(desired.config());
    }
    let of_family = |address: &IpAddr| Family::of(*address) == family;
    for difference in before.cluster_ips().differences(desired.cluster_ips()) {
        if of_family(difference.key) {
            let key = address(*difference.key);
            draft.member(SetName::ClusterIps, key, difference.after.is_some());
        }
    }
    for difference in before.hairpins().differences(desired.hairpins()) {
        if of_family(&difference.key.address) {
            let key = hairpin(difference.key);
            draft.member(SetName::Hairpins, key, difference.after.is_some());
        }
    }
    let frontends = before.frontends().differences(desired.frontends());
    let mut services: BTreeSet<ServiceKey> = BTreeSet::new();
    for Difference { key, before, after } in frontends {
        if key.family() != family {
            continue;
        }
        let winners = [before, after].map(|claims| claims.map(|claims| claims.winner()));
        services.extend(
            winners
                .into_iter()
                .flatten()
                .map(|(service, _)| service.clone()),
        );
        if let [Some((_, frontend)), None] = winners {
            draft.remove(key, frontend);
        }
    }
    draft.place_services(before, desired, &services);
    draft.finish(desired, is_same_config)
}

// === impl Draft ===

impl<'a> Draft<'a> {
    fn of(
        family: Family,
        from: &'a Rendered<Rules>,
        is_known: bool,
        is_same_config: bool,
    ) -> Draft<'a> {
        let near = &from.rules;
        let found = (!is_known).then(|| Found::read(near));
        let reserved = found.iter().flat_map(Found::numbers).collect();
        let rules = match is_same_config {
            true => near.clone(),
            false => Rules {
                allocation: Allocation::behind(near),
                ..Rules::default()
            },
        };
        Draft {
            family,
            rules,
            near,
            found,
            reserved,
            regrouped: BTreeSet::new(),
        }
    }

    /// Sets of source ranges and affinity maps are kept once created.
    fn add_sets(&mut self) {
        let near = self.near.table.sets.keys();
        let kept = near.filter_map(|name| SetName::parse(name));
        for name in SetName::FIXED.into_iter().chain(kept) {
            self.add_set(name);
        }
    }

    fn add_set(&mut self, name: SetName) {
        if !self.rules.table.sets.contains_key(name.as_str()) {
            let set = Arc::new(name.set(self.family));
            let elements = PersistentMap::default();
            let set_name = Arc::clone(&set.name);
            let sets = &mut self.rules.table.sets;
            sets.insert(set_name, SetWithElements { set, elements });
        }
    }

    fn put(&mut self, set: SetName, key: Bytes, data: Option<ElementData>) {
        if let Some(set) = self.rules.table.sets.get_mut(set.as_str()) {
            match data {
                Some(data) => set.elements.ensure(key, data),
                None => drop(set.elements.remove(&key)),
            }
        }
    }

    fn member(&mut self, set: SetName, key: Bytes, is_member: bool) {
        self.put(set, key, is_member.then_some(ElementData::None));
    }

    /// Adds the addresses that accept node ports. Loopback addresses never do: replies to a
    /// redirected packet would be martians.
    fn render_node_port_addresses(&mut self, config: &Config) {
        let listed = config.node_ports.of(self.family).into_iter().flatten();
        for open in listed.filter(|address| !address.is_loopback()) {
            self.member(SetName::NodePortAddresses, address(*open), true);
        }
    }

    /// Updates the virtual servers and frontends of each of `services`.
    fn place_services(
        &mut self,
        before: &Dataplane,
        desired: &Dataplane,
        services: &BTreeSet<ServiceKey>,
    ) {
        let (family, missing) = (self.family, self.rules.missing_schedulers.clone());
        let plan = |service| (service, ServicePlan::of(desired, service, family, &missing));
        let mut plans: Vec<_> = services.iter().map(plan).collect();
        if let Some(found) = &mut self.found {
            found.adopt(self.near, plans.iter().map(|(_, plan)| plan));
        }
        self.place_plans(before, &mut plans);
        // Services without a mark or table may find some now. One at a time: what is left is for one
        // of them, and the others need not be planned again. None is placed twice: one that gets a mark
        // and lacks a table was refused it just then, and no other leaves any meanwhile.
        if !self.rules.allocation.take_more_room() {
            return;
        }
        let unmarked = self.rules.unmarked.clone();
        for (service, _) in unmarked.iter() {
            if self.rules.allocation.admits(&service.namespace) && !services.contains(service) {
                let new = ServicePlan::of(desired, service, family, &missing);
                self.place_plans(before, &mut [(service, new)]);
            }
        }
        let without_table = self.rules.without_table.clone();
        for (service, waiting) in without_table.iter() {
            let allocation = &self.rules.allocation;
            let is_admitted =
                allocation.admits_table(&service.namespace, waiting.replacement.growth);
            if is_admitted && !services.contains(service) {
                let new = ServicePlan::of(desired, service, family, &missing);
                self.place_plans(before, &mut [(service, new)]);
            }
        }
    }

    /// Gives what `plans` need their marks, virtual servers and elements, and removes what their
    /// Services no longer need.
    fn place_plans(&mut self, before: &Dataplane, plans: &mut [(&ServiceKey, ServicePlan)]) {
        for (service, new) in plans.iter() {
            self.release(before, service, new);
        }
        let replaced = self.keep_marks(plans);
        for (service, new) in plans {
            let mut numbers = BTreeMap::new();
            let mut replacements = BTreeMap::new();
            for (owner, need) in &mut new.needs {
                let Some(number) = self.number(owner) else {
                    continue;
                };
                numbers.insert(owner, number);
                if let Some(replacement) = self.fit(owner, need) {
                    replacements.insert(owner, replacement);
                }
                let before = self.near.servers.get(&number);
                let server = Server {
                    server: need.server.clone(),
                    destinations: match need.is_replaced_by_change(owner)
                        && !replaced.contains(&number)
                    {
                        true => need.destinations(None),
                        false => need.destinations(before.map(|server| &**server)),
                    },
                    owner: Some(owner.port.clone()),
                };
                self.rules.servers.ensure(number, Arc::new(server));
                self.set_affinity(number, owner, need, Direction::Comes);
                let key = mark_key(number);
                let hash = ElementData::Value(owner.hash());
                self.put(SetName::Owners, key, Some(hash));
            }
            let first = |is_so: &dyn Fn(&Owner) -> bool| {
                let leads = |plan: &&FrontendPlan| plan.leads.iter().any(|(_, owner)| is_so(owner));
                new.frontends.iter().find(leads).map(|plan| plan.key)
            };
            match first(&|owner| !numbers.contains_key(owner)) {
                Some(frontend) => self.rules.unmarked.ensure((*service).clone(), frontend),
                None => drop(self.rules.unmarked.remove(service)),
            }
            // The one that waits for least may get it first.
            let least = replacements.values().min_by_key(|one| one.growth);
            let frontend = first(&|owner| replacements.contains_key(owner));
            match frontend.zip(least.copied()) {
                Some((frontend, replacement)) => {
                    let held = WithoutTable {
                        frontend,
                        replacement,
                    };
                    self.rules.without_table.ensure((*service).clone(), held);
                }
                None => drop(self.rules.without_table.remove(service)),
            }
            for plan in &new.frontends {
                let before = before.frontends().get(&plan.key);
                let before = before.map(|claims| &**claims.winner().1);
                let leads = plan.leads.iter();
                let leads = leads.map(|(set, owner)| (*set, numbers.get(owner).copied()));
                self.place(plan, before, &leads.collect::<Vec<_>>());
            }
        }
    }

    /// Removes what `service` no longer needs, and what its virtual servers have by their affinity.
    fn release(&mut self, before: &Dataplane, service: &ServiceKey, new: &ServicePlan) {
        let missing = &self.rules.missing_schedulers;
        let old = ServicePlan::of(before, service, self.family, missing);
        for (owner, need) in &old.needs {
            let Some(number) = self.rules.allocation.get(owner) else {
                continue;
            };
            self.set_affinity(number, owner, need, Direction::Leaves);
            if !new.needs.contains_key(owner) {
                self.forget(owner);
            }
        }
    }

    /// Removes the mark and the virtual server of `owner`.
    fn forget(&mut self, owner: &Owner) {
        let tables = |number| self.near.table_of(number);
        if let Some(number) = self.rules.allocation.release(owner, tables) {
            self.remove_server(number);
        }
    }

    fn remove_server(&mut self, number: u32) {
        self.rules.servers.remove(&number);
        self.put(SetName::Owners, mark_key(number), None);
    }

    /// Adds or removes the affinity elements of a virtual server.
    fn set_affinity(
        &mut self,
        number: u32,
        owner: &Owner,
        need: &VirtualServerSpec,
        place: Direction,
    ) {
        let Some(timeout) = need.remembered else {
            return;
        };
        let group = AffinityGroup::of(&owner.port.service.namespace, timeout);
        let comes = |data| (place == Direction::Comes).then_some(data);
        let mark = mark_key(number);
        let value = mark.clone().with(&group.number().to_ne_bytes());
        self.put(
            SetName::Affinities,
            mark.clone(),
            comes(ElementData::Value(value)),
        );
        for to in need.chosen.iter() {
            let key = mark.clone().with(&sticky_slot(to).to_ne_bytes());
            self.put(SetName::Slots, key, comes(ElementData::Value(target(to))));
        }
        let groups = &mut self.rules.affinity_groups;
        let count = groups.get(&group).copied().unwrap_or_default();
        let count = match place {
            Direction::Comes => count + 1,
            Direction::Leaves => count.saturating_sub(1),
        };
        match count {
            0 => drop(groups.remove(&group)),
            count => drop(groups.insert(group, count)),
        }
        self.regrouped.insert(group);
    }

    /// Adds the numbers of affinity groups that have come into use, and removes those of groups that
    /// no longer are. Returns both.
    fn place_affinity_groups(&mut self) -> Vec<(AffinityGroup, Direction)> {
        let mut changed = Vec::new();
        for group in std::mem::take(&mut self.regrouped) {
            let key = Bytes::new().with(&group.number().to_ne_bytes());
            let numbers = self.rules.table.sets.get(SetName::ReturnChains.as_str());
            let is_placed = numbers.is_some_and(|set| set.elements.get(&key).is_some());
            let place = match self.rules.affinity_groups.get(&group).is_some() {
                is_used if is_used == is_placed => continue,
                true => Direction::Comes,
                false => Direction::Leaves,
            };
            if place == Direction::Comes {
                self.add_set(group.clients());
            }
            let lead = |chain: String| {
                let verdict = Verdict::Goto(name(&chain));
                (place == Direction::Comes).then_some(ElementData::Verdict(verdict))
            };
            let (return_chain, learn_chain) = (group.return_chain(), group.learn_chain());
            self.put(SetName::ReturnChains, key.clone(), lead(return_chain));
            self.put(SetName::LearningChains, key, lead(learn_chain));
            changed.push((group, place));
        }
        changed
    }

    /// Replaces the elements of one frontend.
    fn place(
        &mut self,
        plan: &FrontendPlan,
        before: Option<&Frontend>,
        leads: &[(SetName, Option<u32>)],
    ) {
        let bytes = frontend(&plan.key);
        let fields = fields_of(&plan.key);
        for set in SetName::MARKS {
            if set.fields() == Some(fields) {
                let found = leads.iter().find(|(other, _)| *other == set);
                let number = found.and_then(|(_, number)| *number);
                self.put(set, bytes.clone(), number.map(lead));
            }
        }
        // Without a mark, as when all are taken, it is treated as if its endpoints were on other
        // nodes.
        let is_short = leads.iter().any(|(_, number)| number.is_none());
        let action = plan
            .no_endpoint_action
            .or(is_short.then_some(NoEndpointAction::Drop));
        let [refusals, rejects] = match &plan.key {
            FrontendKey::Address { .. } => [SetName::Refusals, SetName::Rejects],
            FrontendKey::NodePort { .. } => [SetName::NodePortRefusals, SetName::NodePortRejects],
        };
        self.member(refusals, bytes.clone(), action.is_some());
        self.member(
            rejects,
            bytes.clone(),
            action == Some(NoEndpointAction::Reject),
        );
        let old = before.map_or(&[][..], |frontend| &frontend.source_ranges);
        self.place_ranges(&plan.key, old, &plan.frontend.source_ranges);
    }

    /// Removes the elements of a frontend that no Service has any more.
    fn remove(&mut self, key: &FrontendKey, before: &Frontend) {
        let bytes = frontend(key);
        let sets = SetName::FIXED.into_iter();
        for set in sets.filter(|set| set.fields() == Some(fields_of(key))) {
            self.put(set, bytes.clone(), None);
        }
        self.place_ranges(key, &before.source_ranges, &[]);
    }

    fn place_ranges(&mut self, key: &FrontendKey, before: &[IpNet], ranges: &[IpNet]) {
        if matches!(key, FrontendKey::NodePort { .. }) {
            return;
        }
        let bytes = frontend(key);
        self.member(SetName::Restrictions, bytes.clone(), !ranges.is_empty());
        // Both are sorted: a load balancer may have 20,000 for each of its ports.
        let is_gone = |range: &&IpNet| ranges.binary_search(range).is_err();
        for range in before.iter().filter(is_gone) {
            let set = SetName::Sources(range.prefix_len());
            self.member(set, source(bytes.clone(), range), false);
        }
        for range in ranges {
            let set = SetName::Sources(range.prefix_len());
            self.add_set(set);
            self.member(set, source(bytes.clone(), range), true);
        }
    }

    /// Returns the rules with their chains.
    fn finish(mut self, desired: &Dataplane, is_same_config: bool) -> Rules {
        let regrouped = self.place_affinity_groups();
        let near = &self.near.table;
        let table = &mut self.rules.table;
        table.exists = true;
        self.rules.delivery = Presence::Whole;
        self.rules.idle = IdleTimeouts::asked(&desired.config().ipvs_timeouts);
        self.rules.drain_limit = desired.config().ipvs_timeouts.drain;
        let same_sets = table.sets.len() == near.sets.len();
        if is_same_config && same_sets && regrouped.is_empty() {
            table.chains = Arc::clone(&near.chains);
            return self.rules;
        }
        let mut chains = match is_same_config {
            true => Chains::clone(&near.chains),
            false => Chains::new(),
        };
        let mut rendered = vec![allow(self.family, &lengths_of(table))];
        if !is_same_config {
            rendered.extend(chains::fixed(self.family, desired.node(), desired.config()));
        }
        for (group, place) in regrouped {
            match place {
                Direction::Comes => rendered.extend(group.chains(self.family)),
                Direction::Leaves => {
                    chains.remove(&*group.return_chain());
                    chains.remove(&*group.learn_chain());
                }
            }
        }
        let rendered = rendered.into_iter();
        chains.extend(rendered.map(|chain| (Arc::clone(&chain.chain.name), Arc::new(chain))));
        table.chains = match !is_same_config && *near.chains == chains {
            true => Arc::clone(&near.chains),
            false => Arc::new(chains),
        };
        self.rules
    }
}

/// The prefix lengths that have a set of ranges.
pub(crate) fn lengths_of(table: &Contents) -> BTreeSet<u8> {
    let sets = table.sets.keys().filter_map(|name| SetName::parse(name));
    let lengths = sets.filter_map(|set| match set {
        SetName::Sources(bits) => Some(bits),
        _ => None,
    });
    lengths.collect()
}

/// The chain that drops packets from outside the source ranges of these lengths.
pub(crate) fn allow(family: Family, lengths: &BTreeSet<u8>) -> ChainWithRules {
    allow_sources(family, lengths.iter().copied(), |bits| {
        SetName::Sources(bits).as_str()
    })
}

/// The key of a mark in the map of owners.
pub(crate) fn mark_key(number: u32) -> Bytes {
    let mark = MARKS.mark(number).map_or(0, |mark| mark.value());
    Bytes::new().with(&mark.to_ne_bytes())
}

#[cfg(test)]
mod tests;
