//! Which marks owners keep, which they get, and for whose schedulers there is room.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

use dataplane::{PersistentMap, Scheduler, ServiceKey};

use super::Draft;
use crate::allocation::{lost, misleading, outdated};
use crate::plan::{Owner, ServicePlan, VirtualServerSpec, scheduler_name, virtual_server};
use crate::rules::{Rules, Server};
use crate::scheduler_tables::{Replacement, table_of};

impl Draft<'_> {
    /// Lets owners keep the marks that are known, with the tables that their virtual servers have, so
    /// that these count before any is given out, and decides on their schedulers. Where another virtual
    /// server is to take the place of one, gives them another mark as long as there is room for both.
    /// Returns the numbers of all of these: those that still have an owner change where they are.
    pub(super) fn keep_marks(&mut self, plans: &mut [(&ServiceKey, ServicePlan)]) -> BTreeSet<u32> {
        for owner in plans.iter().flat_map(|(_, plan)| plan.needs.keys()) {
            let known = match &mut self.found {
                Some(found) => found.take(owner),
                None => self.near.allocation.get(owner),
            };
            if let Some(number) = known {
                let table = self.near.table_of(number).unwrap_or_default();
                self.rules.allocation.keep(owner, number, table);
            }
        }
        // Twice: one may leave room for another one before it. Which of them are hashes must be known
        // before any is replaced.
        for _ in 0..2 {
            let needs = plans.iter_mut().flat_map(|(_, plan)| &mut plan.needs);
            for (owner, need) in needs {
                self.fit(owner, need);
            }
        }
        let known = |owner: &Owner| self.rules.allocation.get(owner);
        let plans = plans.iter().map(|(_, plan)| plan);
        let mut replaced = misleading(self.near, known, plans.clone());
        replaced.extend(lost(self.near, known, plans.clone()));
        replaced.extend(outdated(self.near, known, plans.clone()));
        for owner in plans.flat_map(|plan| plan.needs.keys()) {
            let number = self.rules.allocation.get(owner);
            if number.is_some_and(|number| replaced.contains(&number)) {
                self.renew(owner);
            }
        }
        replaced
    }

    fn renew(&mut self, owner: &Owner) {
        let near = self.near;
        let tables = |number| near.table_of(number);
        let is_free = is_free(&self.rules.servers, near, &self.reserved);
        if let Some(before) = self.rules.allocation.renew(owner, tables, is_free) {
            self.remove_server(before);
        }
    }

    /// Returns the number of `owner`, a new one if it has none.
    pub(super) fn number(&mut self, owner: &Owner) -> Option<u32> {
        let is_free = is_free(&self.rules.servers, self.near, &self.reserved);
        self.rules.allocation.number(owner, is_free)
    }

    /// Gives what `owner` needs the scheduler that it asks for, or the nearest one for whose table there
    /// is room, and returns the latter. Changes nothing of an owner without a number.
    pub(super) fn fit(
        &mut self,
        owner: &Owner,
        need: &mut VirtualServerSpec,
    ) -> Option<Replacement> {
        let allocation = &mut self.rules.allocation;
        allocation.get(owner)?;
        let missing = &self.rules.missing_schedulers;
        let table = |scheduler: Scheduler| table_of(&scheduler_name(scheduler));
        let namespace = &owner.port.service.namespace;
        let least_refused = Cell::new(None);
        let has_room = |scheduler| {
            let table = table(scheduler);
            let is_admitted = allocation.admits_table(namespace, allocation.growth(owner, table));
            if !is_admitted {
                let least = least_refused.get().unwrap_or(table);
                least_refused.set(Some(least.min(table)));
            }
            is_admitted
        };
        let asked = missing.used(need.asked);
        let used = missing.used_of(need.asked, has_room);
        allocation.set_table(owner, table(used));
        need.server = virtual_server(used);
        least_refused.get().map(|least| Replacement {
            asked,
            used,
            growth: allocation.growth(owner, least),
        })
    }
}

/// Whether a number belongs to no virtual server that is desired, is in the kernel or has been found.
fn is_free(
    desired: &PersistentMap<u32, Arc<Server>>,
    near: &Rules,
    reserved: &BTreeSet<u32>,
) -> impl Fn(u32) -> bool {
    let is_held = |map: &PersistentMap<u32, _>, number| map.get(&number).is_some();
    move |number| {
        !is_held(desired, number) && !is_held(&near.servers, number) && !reserved.contains(&number)
    }
}
