//! What the backend does not support of the desired state.

use std::collections::BTreeMap;
use std::sync::Arc;

use backend::{Asked, Backend, Shortcoming};
use dataplane::{Dataplane, FrontendKey, ServiceKey};

/// The unsupported settings of the last desired state: for each frontend, those of the Service that
/// owns it. Checking every frontend would cost as much as the cluster is large, and a round may
/// cost only what changed, so only changed frontends are checked.
#[derive(Debug, Default)]
pub(crate) struct Shortfall {
    about: Dataplane,
    by_claim: BTreeMap<(ServiceKey, FrontendKey), Vec<Shortcoming>>,
    list: Arc<[Shortcoming]>,
}

impl Shortfall {
    /// All of them, sorted.
    pub(crate) fn list(&self) -> &Arc<[Shortcoming]> {
        &self.list
    }

    /// Updates the list for `wanted`.
    pub(crate) fn follow(&mut self, backend: &impl Backend, wanted: &Dataplane) {
        let before = std::mem::replace(&mut self.about, wanted.clone());
        let is_comparable = before.node() == wanted.node() && before.config() == wanted.config();
        let before = if is_comparable {
            before
        } else {
            self.by_claim.clear();
            Dataplane::default()
        };
        let mut is_same_list = is_comparable;
        for difference in before.frontends().differences(wanted.frontends()) {
            let key = difference.key;
            let known = difference.before.and_then(|claims| {
                let (service, _) = claims.winner();
                self.by_claim.remove(&(service.clone(), *key))
            });
            let shortcomings = difference.after.map(|claims| {
                let (service, frontend) = claims.winner();
                let found = backend.shortcomings(Asked {
                    config: wanted.config(),
                    service,
                    key: *key,
                    frontend,
                });
                (service, found)
            });
            let shortcomings = shortcomings.filter(|(_, found)| !found.is_empty());
            is_same_list &= known.as_ref() == shortcomings.as_ref().map(|(_, found)| found);
            if let Some((service, found)) = shortcomings {
                self.by_claim.insert((service.clone(), *key), found);
            }
        }
        if !is_same_list {
            self.list = self.by_claim.values().flatten().cloned().collect();
        }
    }
}
