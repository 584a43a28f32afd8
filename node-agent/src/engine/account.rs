//! Figures about Services that the engine keeps for the status: the number of endpoints, and the
//! rejections.

use std::collections::HashSet;
use std::sync::Arc;

use dataplane::{ServiceKey, ServiceRules, Target};

use super::Engine;
use super::rejections::Rejections;

impl Engine {
    /// Updates the figures about Services for one that changed.
    pub(super) fn account(
        &mut self,
        key: &ServiceKey,
        before: Option<&ServiceRules>,
        after: Option<Arc<ServiceRules>>,
    ) {
        self.endpoints -= before.map_or(0, endpoints);
        self.endpoints += after.as_deref().map_or(0, endpoints);
        let rules = [before, after.as_deref()];
        let [rejected_before, rejected] = rules.map(|rules| rules.map(|r| &r.rejections[..]));
        self.rejections_changed |=
            rejected_before.unwrap_or_default() != rejected.unwrap_or_default();
        match after {
            Some(rules) if !rules.rejections.is_empty() => {
                self.rejected.insert(key.clone(), rules);
            }
            _ => drop(self.rejected.remove(key)),
        }
    }

    pub(super) fn list_rejections(&self) -> Arc<Rejections> {
        Arc::new(Rejections::new(
            self.catalog.faults().cloned().collect(),
            self.rejected.values().cloned().collect(),
            self.dataplane.disputes().clone(),
        ))
    }
}

fn endpoints(rules: &ServiceRules) -> usize {
    // All addresses of a Service port share its lists. A thousand addresses cost no more than one.
    let mut seen = HashSet::new();
    let lists = rules
        .frontends
        .iter()
        .flat_map(|(_, f)| [&f.cluster, &f.local]);
    let distinct = lists.filter(|list| seen.insert(Arc::as_ptr(list)));
    let mut targets: Vec<Target> = distinct.flat_map(|list| list.iter().copied()).collect();
    // Frontends are sorted by port, lists by address, and nearly all lists have one port: this order
    // is nearly that of the lists, and sorting keeps runs.
    targets.sort_by_key(|target| (target.port, target.address));
    targets.dedup();
    targets.len()
}
