//! Figures about Services that the engine keeps for the status: the number of endpoints, and the
//! rejections.

use std::collections::BTreeSet;
use std::sync::Arc;

use dataplane::{Rejection, ServiceKey, ServiceRules, Target};

use super::Engine;

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

    pub(super) fn list_rejections(&self) -> Arc<[Rejection]> {
        let of_rules = self.rejected.values().flat_map(|rules| &rules.rejections);
        let mut rejections: Vec<Rejection> = self
            .catalog
            .rejections()
            .cloned()
            .chain(of_rules.cloned())
            .chain(self.dataplane.disputes().rejections())
            .collect();
        rejections.sort();
        rejections.into()
    }
}

fn endpoints(rules: &ServiceRules) -> usize {
    let mut targets: BTreeSet<Target> = BTreeSet::new();
    for (_, frontend) in &rules.frontends {
        targets.extend(frontend.cluster.iter().chain(&*frontend.local));
    }
    targets.len()
}
