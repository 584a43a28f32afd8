//! What the engine keeps to tell of Services: how many endpoints they have, and what of them could
//! not be honoured.

use std::collections::BTreeSet;
use std::sync::Arc;

use dataplane::{ObjectKind, ObjectName, Rejection, ServiceKey, ServiceRules, Target};

use super::Engine;

impl Engine {
    /// Keeps what is told about Services in step with one that changed.
    pub(super) fn account(
        &mut self,
        key: &ServiceKey,
        before: Option<&ServiceRules>,
        after: Option<Arc<ServiceRules>>,
    ) {
        self.endpoints -= before.map_or(0, endpoints);
        self.endpoints += after.as_deref().map_or(0, endpoints);
        let frontends = [before, after.as_deref()];
        for (frontend, _) in frontends.into_iter().flatten().flat_map(|r| &r.frontends) {
            let claims = self.dataplane.frontends().get(frontend);
            if claims.is_some_and(|claims| claims.losers().next().is_some()) {
                self.contested.insert(*frontend);
                // Who has it, and who has not, may be another.
                self.rejections_changed = true;
            } else {
                self.rejections_changed |= self.contested.remove(frontend);
            }
        }
        let [rejected_before, rejected] = frontends.map(|rules| rules.map(|r| &r.rejections[..]));
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
        let contested = self.contested.iter().flat_map(|key| {
            let claims = self.dataplane.frontends().get(key);
            claims.into_iter().flat_map(move |claims| {
                let (winner, _) = claims.winner();
                claims.losers().map(move |(loser, frontend)| Rejection {
                    object: ObjectName {
                        kind: ObjectKind::Service,
                        namespace: Arc::clone(&loser.namespace),
                        name: Arc::clone(&loser.name),
                    },
                    field: frontend.kind.field().to_owned(),
                    message: format!("{key} is served for Service {winner}, which has it too"),
                })
            })
        });
        let mut rejections: Vec<Rejection> = self
            .catalog
            .rejections()
            .cloned()
            .chain(of_rules.cloned())
            .chain(contested)
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
