//! Which marks owners keep, and which they get.

use std::collections::BTreeSet;
use std::sync::Arc;

use dataplane::{PersistentMap, ServiceKey};

use super::Draft;
use crate::allocation::{lost, misleading, outdated};
use crate::plan::{Owner, ServicePlan};
use crate::rules::{Rules, Server};

impl Draft<'_> {
    /// Lets owners keep the marks that are known, so that these count before any is given out. Where
    /// another virtual server is to take the place of one, gives them another mark as long as there is
    /// room for both. Returns the numbers of all of these: those that still have an owner change where
    /// they are.
    pub(super) fn keep_marks(&mut self, plans: &[(&ServiceKey, ServicePlan)]) -> BTreeSet<u32> {
        let owners = || plans.iter().flat_map(|(_, plan)| plan.needs.keys());
        for owner in owners() {
            let known = match &mut self.found {
                Some(found) => found.take(owner),
                None => self.near.allocation.get(owner),
            };
            if let Some(number) = known {
                self.rules.allocation.keep(owner, number);
            }
        }
        let known = |owner: &Owner| self.rules.allocation.get(owner);
        let plans = plans.iter().map(|(_, plan)| plan);
        let mut replaced = misleading(self.near, known, plans.clone());
        replaced.extend(lost(self.near, known, plans.clone()));
        replaced.extend(outdated(self.near, known, plans));
        for owner in owners() {
            let number = self.rules.allocation.get(owner);
            if number.is_some_and(|number| replaced.contains(&number)) {
                self.renew(owner);
            }
        }
        replaced
    }

    fn renew(&mut self, owner: &Owner) {
        let near = self.near;
        let has = |number: u32| near.servers.get(&number).is_some();
        let is_free = is_free(&self.rules.servers, near, &self.reserved);
        if let Some(before) = self.rules.allocation.renew(owner, has, is_free) {
            self.remove_server(before);
        }
    }

    /// Returns the number of `owner`, a new one if it has none.
    pub(super) fn number(&mut self, owner: &Owner) -> Option<u32> {
        let is_free = is_free(&self.rules.servers, self.near, &self.reserved);
        self.rules.allocation.number(owner, is_free)
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
