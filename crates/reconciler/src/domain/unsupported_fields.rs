//! What the backend does not support of the desired state.

use std::collections::BTreeMap;
use std::sync::Arc;

use backend::{Backend, FrontendContext, UnsupportedField};
use dataplane::{Dataplane, FrontendKey, ServiceKey};

/// The unsupported settings of the last desired state: for each frontend, those of the Service that
/// owns it. Checking every frontend would cost as much as the cluster is large, and a sync may
/// cost only what changed, so only changed frontends are checked.
#[derive(Debug, Default)]
pub(crate) struct UnsupportedFields {
    about: Dataplane,
    by_claim: BTreeMap<(ServiceKey, FrontendKey), Vec<UnsupportedField>>,
    /// What the last rules have no room for, as far as it is still desired.
    without_room: Vec<UnsupportedField>,
    list: Arc<[UnsupportedField]>,
}

impl UnsupportedFields {
    /// All of them, sorted.
    pub(crate) fn list(&self) -> &Arc<[UnsupportedField]> {
        &self.list
    }

    /// Updates the list for `desired` and for the `rules` of this sync; `None` if it failed.
    pub(crate) fn follow<B: Backend>(
        &mut self,
        backend: &B,
        desired: &Dataplane,
        rules: Option<&B::Rules>,
    ) {
        let before = std::mem::replace(&mut self.about, desired.clone());
        // A backend does not get the node, which changes with each interface and address.
        let is_comparable = before.config() == desired.config();
        let before = if is_comparable {
            before
        } else {
            self.by_claim.clear();
            Dataplane::default()
        };
        let mut is_same_list = is_comparable;
        for difference in before.frontends().differences(desired.frontends()) {
            let key = difference.key;
            let known = difference.before.and_then(|claims| {
                let (service, _) = claims.winner();
                self.by_claim.remove(&(service.clone(), *key))
            });
            let unsupported_fields = difference.after.map(|claims| {
                let (service, frontend) = claims.winner();
                let found = backend.unsupported_fields(FrontendContext {
                    config: desired.config(),
                    service,
                    key: *key,
                    frontend,
                });
                (service, found)
            });
            let unsupported_fields = unsupported_fields.filter(|(_, found)| !found.is_empty());
            is_same_list &= known.as_ref() == unsupported_fields.as_ref().map(|(_, found)| found);
            if let Some((service, found)) = unsupported_fields {
                self.by_claim.insert((service.clone(), *key), found);
            }
        }
        let without_room = match rules {
            Some(rules) => backend.without_room(rules),
            // What has gone needs no room any more.
            None => self.without_room_in(desired),
        };
        is_same_list &= without_room == self.without_room;
        self.without_room = without_room;
        if !is_same_list {
            let of_claims = self.by_claim.values().flatten();
            self.list = of_claims.chain(&self.without_room).cloned().collect();
        }
    }
    /// What of the last rules' Services without room still has its frontend in `desired`.
    fn without_room_in(&self, desired: &Dataplane) -> Vec<UnsupportedField> {
        let is_desired = |field: &&UnsupportedField| {
            let claims = desired.frontends().get(&field.frontend);
            claims.is_some_and(|claims| *claims.winner().0 == field.service)
        };
        self.without_room
            .iter()
            .filter(is_desired)
            .cloned()
            .collect()
    }
}
