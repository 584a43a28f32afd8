//! Services that the kernel refuses, and the desired state without them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use dataplane::{Claims, Dataplane, Frontend, FrontendKey, ServiceKey, ServiceRules};

use crate::Quarantined;

/// The Services of one family that are held back.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    held: BTreeMap<ServiceKey, Held>,
    /// When the Services that are being retried were first refused. A Service that is refused again
    /// keeps this time.
    released: BTreeMap<ServiceKey, SystemTime>,
}

/// Why one Service is held back.
#[derive(Debug)]
struct Held {
    /// The refused rules; `None` if the kernel refused the removal of the Service.
    refused: Option<Arc<ServiceRules>>,
    error: String,
    since: SystemTime,
}

impl Quarantine {
    /// Releases every Service whose desired rules differ from the refused ones.
    pub(crate) fn release_changed(&mut self, desired: &Dataplane) {
        self.held
            .retain(|service, held| desired.services().get(service) == held.refused.as_ref());
    }

    /// Releases all Services, so that the next attempt includes them.
    pub(crate) fn release_all(&mut self) {
        let held = std::mem::take(&mut self.held);
        self.released = held
            .into_iter()
            .map(|(key, held)| (key, held.since))
            .collect();
    }

    /// Forgets when the Services released by [`release_all`](Quarantine::release_all) were refused.
    pub(crate) fn forget_released(&mut self) {
        self.released.clear();
    }

    /// Holds `service` back for as long as `desired` has the same rules for it.
    pub(crate) fn hold(
        &mut self,
        service: &ServiceKey,
        desired: &Dataplane,
        error: &str,
        now: SystemTime,
    ) {
        let held = Held {
            refused: desired.services().get(service).cloned(),
            error: error.to_owned(),
            since: self.released.remove(service).unwrap_or(now),
        };
        self.held.insert(service.clone(), held);
    }

    /// Returns `desired` without what the kernel refuses.
    pub(crate) fn apply(&self, desired: &Dataplane, programmed: Option<&Dataplane>) -> Dataplane {
        let mut admitted = desired.clone();
        if !self.held.is_empty() {
            hold_back(&mut admitted, self.held.keys(), programmed);
            keep_addresses(&mut admitted, desired, programmed);
        }
        admitted
    }

    pub(crate) fn contains(&self, service: &ServiceKey) -> bool {
        self.held.contains_key(service)
    }

    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn list(&self) -> Vec<Quarantined> {
        let quarantined = |(service, held): (&ServiceKey, &Held)| Quarantined {
            service: service.clone(),
            error: held.error.clone(),
            since: held.since,
        };
        self.held.iter().map(quarantined).collect()
    }
}

/// Sets `services` in `admitted` to their rules in `programmed`, or removes them if it has none.
pub(crate) fn hold_back<'a>(
    admitted: &mut Dataplane,
    services: impl IntoIterator<Item = &'a ServiceKey>,
    programmed: Option<&Dataplane>,
) {
    for service in services {
        copy_service(admitted, service, programmed);
    }
}

/// Removes from `admitted` each address and port that a Service gets there only because another
/// Service is held back. If `desired` gives the frontend to the Service held back, or to none, it
/// stays unanswered. Otherwise one refused change would hand the address of a Service to its next
/// claimant, possibly of another tenant. A Service keeps what `programmed` already gives it.
///
/// The cost is proportional to the difference between `desired` and `admitted`.
pub(crate) fn keep_addresses(
    admitted: &mut Dataplane,
    desired: &Dataplane,
    programmed: Option<&Dataplane>,
) {
    // Removing one claimant can expose the next one.
    loop {
        let mut gains: BTreeMap<ServiceKey, BTreeSet<FrontendKey>> = BTreeMap::new();
        for difference in desired.frontends().differences(admitted.frontends()) {
            let Some(gainer) = winner(difference.after) else {
                continue;
            };
            let before = programmed.and_then(|before| before.frontends().get(difference.key));
            if winner(difference.before) != Some(gainer) && winner(before) != Some(gainer) {
                let gained = gains.entry(gainer.clone()).or_default();
                gained.insert(*difference.key);
            }
        }
        if gains.is_empty() {
            return;
        }
        for (service, gained) in gains {
            if let Some(rules) = admitted.services().get(&service) {
                let mut rules = ServiceRules::clone(rules);
                rules.frontends.retain(|(key, _)| !gained.contains(key));
                admitted.set(rules.into());
            }
        }
    }
}

fn winner(claims: Option<&Claims<Arc<Frontend>>>) -> Option<&ServiceKey> {
    claims.map(|claims| claims.winner().0)
}

/// Makes `service` in `admitted` equal to `service` in `from`.
pub(crate) fn copy_service(
    admitted: &mut Dataplane,
    service: &ServiceKey,
    from: Option<&Dataplane>,
) {
    match from.and_then(|from| from.services().get(service)) {
        Some(rules) => admitted.set(Arc::clone(rules)),
        None => admitted.remove(service),
    };
}
