//! Assigns packet marks to virtual servers.

mod bounds;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use dataplane::{PersistentMap, Protocol, Target};
use netlink::ipvs::VirtualServer;
use netlink::nf_tables::{Bytes, ElementData};

use self::bounds::Bound;
pub(crate) use self::bounds::LeavingServers;
use crate::layout::{MARKED_MASK, MARKS, SetName};
use crate::plan::{Owner, ServicePlan, VirtualServerSpec};
use crate::rules::{Rules, Server};
use crate::scheduler_tables::{self, Pages, table_of};

/// How many numbers there are. Number 0 has no virtual server.
const NUMBERS: u32 = !MARKED_MASK - 1;
/// How many of them may have owners: every virtual server may have to be replaced by one with
/// another number at the same time.
const MOST_OWNERS: usize = NUMBERS as usize / 2;
/// How many owners one namespace may have. The kernel keeps virtual servers in 256 lists, of which it
/// searches one for each new connection of any Service (`ip_vs_svc_fwm_hashkey`), and reading the
/// destinations takes a request for each virtual server, for which all changes wait.
const MOST_OWNERS_OF_A_NAMESPACE: usize = 1 << 15;

/// The numbers of marks and their owners. A number is reused only after all others, by when the
/// packets of its previous owner are gone, and not before the virtual server of that owner is.
#[derive(Debug, Clone)]
pub(crate) struct Allocation {
    owners: PersistentMap<Owner, OwnedMark>,
    /// How many owners there are and may be.
    servers: Bound,
    /// The tables of their schedulers, in [`Pages`].
    tables: Bound,
    leaving_servers: LeavingServers,
    /// The number that was assigned last.
    last: u32,
    /// Whether any number or table was released, or a virtual server is gone, since the last one was
    /// refused.
    has_more_room: bool,
}

/// What an owner has.
#[derive(Debug, Clone, Copy)]
struct OwnedMark {
    number: u32,
    table: Pages,
}

/// The owners of marks as read from the kernel, or as they are remembered.
pub(crate) struct Found(BTreeMap<Bytes, u32>);

/// The numbers of virtual servers without an owner. Those that choose alike among the same endpoints are
/// together, and there may be as many as a namespace may have: none is searched for.
#[derive(Default)]
struct OwnerlessServers(HashMap<(VirtualServer, BTreeSet<Target>), Vec<u32>>);

// === impl Allocation ===

impl Allocation {
    /// An allocation without owners, for a kernel that holds `rules`. Its numbers continue after those
    /// assigned for `rules` or found in it. Until owners keep their virtual servers, all of these leave.
    pub(crate) fn behind(rules: &Rules) -> Allocation {
        let numbers = rules.servers.iter().map(|(number, _)| *number);
        let mut leaving_servers = rules.allocation.leaving_servers.clone();
        for (number, server) in rules.servers.iter() {
            let owner = server.owner.as_ref();
            let namespace = owner.map(|owner| &owner.service.namespace);
            leaving_servers.add(*number, table_of(&server.server.scheduler), namespace);
        }
        Allocation {
            servers: rules.allocation.servers.emptied(),
            tables: rules.allocation.tables.emptied(),
            leaving_servers,
            ..Allocation::after(match rules.allocation.last {
                0 => numbers.max().unwrap_or(0),
                last => last,
            })
        }
    }

    /// An allocation without owners whose numbers continue after `last`.
    pub(crate) fn after(last: u32) -> Allocation {
        Allocation {
            last,
            ..Allocation::default()
        }
    }

    /// Sets which virtual servers leave now.
    pub(crate) fn set_leaving_servers(&mut self, leaving_servers: LeavingServers) {
        self.has_more_room |= leaving_servers.is_less_than(&self.leaving_servers);
        self.leaving_servers = leaving_servers;
    }

    /// The number of `owner`.
    pub(crate) fn get(&self, owner: &Owner) -> Option<u32> {
        self.owners.get(owner).map(|held| held.number)
    }

    /// Gives `owner` the number that it had before, with such a table, unless it has one.
    pub(crate) fn keep(&mut self, owner: &Owner, number: u32, table: Pages) {
        if self.owners.get(owner).is_none() {
            self.owners
                .insert(owner.clone(), OwnedMark { number, table });
            let namespace = Some(&owner.port.service.namespace);
            self.servers.serving.add(namespace, 1);
            self.tables.serving.add(namespace, table.0);
            self.leaving_servers.remove(number);
        }
    }

    /// Releases and returns the number of `owner`. Its virtual server leaves, with its table of
    /// `tables`, if the kernel has it.
    pub(crate) fn release(
        &mut self,
        owner: &Owner,
        tables: impl Fn(u32) -> Option<Pages>,
    ) -> Option<u32> {
        let OwnedMark { number, table } = self.owners.remove(owner)?;
        let namespace = Some(&owner.port.service.namespace);
        self.servers.serving.subtract(namespace, 1);
        self.tables.serving.subtract(namespace, table.0);
        if let Some(table) = tables(number) {
            self.leaving_servers.add(number, table, namespace);
        }
        self.has_more_room = true;
        Some(number)
    }

    /// Returns the number of `owner`: the one it has, else a new one that `is_free` and that no virtual
    /// server has that leaves. Returns `None` if no number is left for it.
    pub(crate) fn number(&mut self, owner: &Owner, is_free: impl Fn(u32) -> bool) -> Option<u32> {
        if let Some(number) = self.get(owner) {
            return Some(number);
        }
        if !self.admits(&owner.port.service.namespace) {
            return None;
        }
        let number = self.next(is_free)?;
        self.keep(owner, number, Pages::default());
        Some(number)
    }

    /// Gives `owner` another number that `is_free`, and returns the previous one, whose virtual server
    /// leaves, with its table of `tables`, if the kernel has it. Returns `None` if there is no room for
    /// both, or no number is left.
    pub(crate) fn renew(
        &mut self,
        owner: &Owner,
        tables: impl Fn(u32) -> Option<Pages>,
        is_free: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let before = *self.owners.get(owner)?;
        let namespace = &owner.port.service.namespace;
        let leaves = tables(before.number);
        if let Some(table) = leaves
            && !self.admits_beside(namespace, table)
        {
            return None;
        }
        let number = self.next(is_free)?;
        self.owners
            .insert(owner.clone(), OwnedMark { number, ..before });
        if let Some(table) = leaves {
            self.leaving_servers
                .add(before.number, table, Some(namespace));
        }
        Some(before.number)
    }

    /// Gives the virtual server of `owner` such a table.
    pub(crate) fn set_table(&mut self, owner: &Owner, table: Pages) {
        let Some(held) = self.owners.get(owner).copied() else {
            return;
        };
        if held.table != table {
            let namespace = Some(&owner.port.service.namespace);
            self.tables.serving.subtract(namespace, held.table.0);
            self.tables.serving.add(namespace, table.0);
            self.has_more_room |= table < held.table;
            self.owners
                .insert(owner.clone(), OwnedMark { table, ..held });
        }
    }

    /// How much more the virtual server of `owner` takes with such a table.
    pub(crate) fn growth(&self, owner: &Owner, table: Pages) -> Pages {
        let held = self.owners.get(owner).map_or(0, |held| held.table.0);
        Pages(table.0.saturating_sub(held))
    }

    /// Whether there is room for another owner in `namespace`.
    pub(crate) fn admits(&self, namespace: &Arc<str>) -> bool {
        self.servers
            .admits(namespace, 1, self.leaving_servers.servers())
    }

    /// Whether there is room for tables in `namespace` to grow by so much.
    pub(crate) fn admits_table(&self, namespace: &Arc<str>, growth: Pages) -> bool {
        let leaving_servers = self.leaving_servers.tables();
        self.tables.admits(namespace, growth.0, leaving_servers)
    }

    /// Whether there is room for another virtual server in `namespace` beside one that leaves with such
    /// a table.
    fn admits_beside(&self, namespace: &Arc<str>, table: Pages) -> bool {
        let (servers, tables) = (
            self.leaving_servers.servers(),
            self.leaving_servers.tables(),
        );
        self.servers.admits_beside(namespace, 1, servers)
            && self.tables.admits_beside(namespace, table.0, tables)
    }

    /// Whether owners that were refused a number may ask again. Answers once.
    pub(crate) fn take_more_room(&mut self) -> bool {
        std::mem::take(&mut self.has_more_room)
    }

    fn next(&mut self, is_free: impl Fn(u32) -> bool) -> Option<u32> {
        let number = (0..NUMBERS)
            .map(|step| (self.last + step) % NUMBERS + 1)
            .find(|number| !self.leaving_servers.contains(*number) && is_free(*number))?;
        self.last = number;
        Some(number)
    }
}

impl Default for Allocation {
    fn default() -> Allocation {
        Allocation {
            owners: PersistentMap::default(),
            servers: Bound::new(MOST_OWNERS, MOST_OWNERS_OF_A_NAMESPACE),
            tables: Bound::new(scheduler_tables::MOST.0, scheduler_tables::MOST.0),
            leaving_servers: LeavingServers::default(),
            last: 0,
            has_more_room: false,
        }
    }
}

// === impl Found ===

impl Found {
    /// Reads the owners in `rules`. Where an owner has two numbers, as after a change that was cut
    /// short, the table is right and what is remembered is not.
    pub(crate) fn read(rules: &Rules) -> Found {
        let named = rules.table.sets.get(SetName::Owners.as_str());
        let named = named.into_iter().flat_map(|set| set.elements.sorted());
        let all = rules.owners();
        let all = all.sorted().into_iter().chain(named);
        let owner = |(key, data): (&Bytes, &ElementData)| match data {
            ElementData::Value(hash) => Some((hash.clone(), number_in(key)?)),
            _ => None,
        };
        Found(all.filter_map(owner).collect())
    }

    /// The number of `owner`.
    pub(crate) fn get(&self, owner: &Owner) -> Option<u32> {
        self.0.get(&owner.hash()).copied()
    }

    /// Removes and returns the number of `owner`, so that it is used only once.
    pub(crate) fn take(&mut self, owner: &Owner) -> Option<u32> {
        self.0.remove(&owner.hash())
    }

    /// Gives owners without a number the virtual servers in `rules` that have no owner, have just the
    /// endpoints that an owner needs, and choose as it does. An agent that starts after another
    /// program has removed the table knows no more about them. Their connections go on, and the
    /// endpoints are the right ones, whichever Service had them. Owners of UDP come last: a destination
    /// of theirs is removed at once, which would end connections of TCP.
    pub(crate) fn adopt<'a>(
        &mut self,
        rules: &Rules,
        plans: impl Iterator<Item = &'a ServicePlan>,
    ) {
        let owned: BTreeSet<u32> = self.numbers().collect();
        let ownerless = rules
            .servers
            .iter()
            .filter(|(number, _)| !owned.contains(number));
        let mut ownerless = OwnerlessServers::of(ownerless);
        if ownerless.0.is_empty() {
            return;
        }
        let mut needs: Vec<_> = plans.flat_map(|plan| &plan.needs).collect();
        needs.sort_by_key(|(owner, _)| owner.port.protocol == Protocol::Udp);
        for (owner, need) in needs {
            if self.get(owner).is_some() {
                continue;
            }
            if let Some(number) = ownerless.take(need) {
                self.0.insert(owner.hash(), number);
            }
        }
    }

    /// The numbers that have an owner.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.0.values().copied()
    }
}

// === impl OwnerlessServers ===

impl OwnerlessServers {
    /// Those of `servers`, which are in any order.
    fn of<'a>(servers: impl Iterator<Item = (&'a u32, &'a Arc<Server>)>) -> OwnerlessServers {
        let mut servers: Vec<_> = servers.collect();
        // Their numbers are taken from the end.
        servers.sort_by_key(|(number, _)| Reverse(**number));
        let mut ownerless = OwnerlessServers::default();
        for (number, server) in servers {
            let alike = (server.server.clone(), server.open().collect());
            ownerless.0.entry(alike).or_default().push(*number);
        }
        ownerless
    }

    /// Removes and returns the lowest number of those that are just as `need` says.
    fn take(&mut self, need: &VirtualServerSpec) -> Option<u32> {
        let alike = (need.server.clone(), need.chosen.iter().copied().collect());
        self.0.get_mut(&alike)?.pop()
    }
}

/// The numbers in `rules` that their owners must not keep. Such a virtual server gets additional
/// endpoints and, until the table is updated, would send a frontend to them that is moving to
/// another virtual server.
pub(crate) fn misleading<'a>(
    rules: &Rules,
    known: impl Fn(&Owner) -> Option<u32>,
    plans: impl Iterator<Item = &'a ServicePlan> + Clone,
) -> BTreeSet<u32> {
    let frontends = plans.clone().flat_map(|plan| &plan.frontends);
    let served = frontends.filter(|plan| !plan.leads.is_empty());
    let left = served.flat_map(|plan| {
        let leads = rules.leads(&plan.key);
        leads.filter_map(|(set, number)| {
            let mut desired = plan.leads.iter();
            let stays = desired.any(|(to, owner)| *to == set && known(owner) == Some(number));
            (!stays).then_some(number)
        })
    });
    let left: BTreeSet<u32> = left.collect();
    let needs = plans.flat_map(|plan| &plan.needs);
    let misleading = needs.filter_map(|(owner, need)| {
        let number = known(owner).filter(|number| left.contains(number))?;
        let open: BTreeSet<_> = rules.servers.get(&number)?.open().collect();
        let gets_more = need.chosen.iter().any(|target| !open.contains(target));
        gets_more.then_some(number)
    });
    misleading.collect()
}

/// The numbers of virtual servers that another program has removed. Packets are sent to them, and
/// IPVS refuses packets to a virtual server that has no destination yet: so another one takes its
/// place, and packets are sent there once it is complete. Not with affinity, which remembers the mark:
/// its clients keep their endpoints, and new ones are refused for that moment.
pub(crate) fn lost<'a>(
    rules: &Rules,
    known: impl Fn(&Owner) -> Option<u32>,
    plans: impl Iterator<Item = &'a ServicePlan>,
) -> BTreeSet<u32> {
    let needs = plans.flat_map(|plan| &plan.needs);
    let needs = needs.filter(|(_, need)| need.remembered.is_none());
    let numbers = needs.filter_map(|(owner, _)| known(owner));
    numbers
        .filter(|number| rules.servers.get(number).is_none())
        .collect()
}

/// The numbers in `rules` of virtual servers whose destinations change, and whose scheduler is a
/// hash. IPVS fills a hash table in the order of its list, in which a later addition comes first
/// (`ip_vs_sh.c`, `ip_vs_mh.c`): after a change, nodes with different pasts would place a client
/// differently. So another virtual server takes its place, made in one order on every node.
pub(crate) fn outdated<'a>(
    rules: &Rules,
    known: impl Fn(&Owner) -> Option<u32>,
    plans: impl Iterator<Item = &'a ServicePlan>,
) -> BTreeSet<u32> {
    let needs = plans.flat_map(|plan| &plan.needs);
    let outdated = needs.filter_map(|(owner, need)| {
        if !need.is_replaced_by_change(owner) {
            return None;
        }
        let number = known(owner)?;
        let held = rules.servers.get(&number)?;
        let is_so = held.server != need.server || held.destinations != need.destinations(None);
        is_so.then_some(number)
    });
    outdated.collect()
}

/// The number of a packet mark, if the mark belongs to a virtual server.
pub(crate) fn number_of(mark: u32) -> Option<u32> {
    let number = mark & !MARKS.mask();
    let is_own = MARKS.mark(number).is_some_and(|own| own.value() == mark);
    (is_own && number != 0).then_some(number)
}

/// The number in a key of the map of owners.
pub(crate) fn number_in(key: &Bytes) -> Option<u32> {
    number_of(u32::from_ne_bytes(key.as_slice().try_into().ok()?))
}

#[cfg(test)]
mod tests;
