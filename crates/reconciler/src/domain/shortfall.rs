//! What the backend cannot honour, kept up with what is wanted.

use std::collections::BTreeMap;
use std::sync::Arc;

use backend::{Backend, Shortcoming};
use dataplane::{Dataplane, ServiceKey};

/// The shortcomings of what was wanted last. Asking the backend about a whole dataplane costs what
/// the cluster has; a round may only cost what changed, so only Services that did are asked about.
#[derive(Debug, Default)]
pub(crate) struct Shortfall {
    about: Option<Dataplane>,
    by_service: BTreeMap<ServiceKey, Vec<Shortcoming>>,
    list: Arc<[Shortcoming]>,
}

impl Shortfall {
    /// All of them, in order.
    pub(crate) fn list(&self) -> &Arc<[Shortcoming]> {
        &self.list
    }

    /// Makes them those of `wanted`.
    pub(crate) fn follow(&mut self, backend: &impl Backend, wanted: &Dataplane) {
        let (node, config) = (wanted.node(), wanted.config());
        let before = self
            .about
            .take()
            .filter(|about| about.node() == node && about.config() == config)
            .unwrap_or_else(|| {
                self.by_service.clear();
                Dataplane::new(Arc::clone(node), Arc::clone(config))
            });
        let differences = before.services().differences(wanted.services());
        let changed = !differences.is_empty();
        let everything = before.services().is_empty();
        let mut anew = match everything {
            // What differs from nothing is there already, and costs a start as much again to build.
            true => wanted.clone(),
            false => Dataplane::new(Arc::clone(node), Arc::clone(config)),
        };
        let mut lists_change = false;
        for difference in differences {
            lists_change |= self.by_service.remove(difference.key).is_some();
            if !everything && let Some(rules) = difference.after {
                anew.set(Arc::clone(rules));
            }
        }
        if changed {
            for shortcoming in backend.shortcomings(&anew) {
                lists_change = true;
                let service = shortcoming.service.clone();
                self.by_service
                    .entry(service)
                    .or_default()
                    .push(shortcoming);
            }
        }
        if lists_change || self.by_service.is_empty() != self.list.is_empty() {
            self.list = self.by_service.values().flatten().cloned().collect();
        }
        self.about = Some(wanted.clone());
    }
}
