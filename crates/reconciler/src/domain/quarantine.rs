//! Services that the kernel refuses, and what is wanted without them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use dataplane::{Claims, Dataplane, Frontend, FrontendKey, ServiceKey, ServiceRules};

use crate::Quarantined;

/// The Services of one family that are held back.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    held: BTreeMap<ServiceKey, Held>,
    /// Since when those that are being tried again were refused: one that is refused once more has
    /// been so all along.
    released: BTreeMap<ServiceKey, SystemTime>,
}

/// Why one Service is held back.
#[derive(Debug)]
struct Held {
    /// What was refused; `None` where it was the removal of the Service.
    refused: Option<Arc<ServiceRules>>,
    error: String,
    since: SystemTime,
}

impl Quarantine {
    /// Lets go of every Service that asks for something else than what was refused.
    pub(crate) fn release_changed(&mut self, desired: &Dataplane) {
        self.held
            .retain(|service, held| desired.services().get(service) == held.refused.as_ref());
    }

    /// Lets all of them try again.
    pub(crate) fn release_all(&mut self) {
        let held = std::mem::take(&mut self.held);
        self.released = held
            .into_iter()
            .map(|(key, held)| (key, held.since))
            .collect();
    }

    /// Ends the trial of those that [`release_all`](Quarantine::release_all) let go.
    pub(crate) fn forget_released(&mut self) {
        self.released.clear();
    }

    /// Holds `service` back for as long as `desired` asks the same of it.
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

    /// `desired` without what is refused.
    pub(crate) fn apply(&self, desired: &Dataplane, programmed: Option<&Dataplane>) -> Dataplane {
        let mut wanted = desired.clone();
        if !self.held.is_empty() {
            hold_back(&mut wanted, self.held.keys(), programmed);
            keep_addresses(&mut wanted, desired, programmed);
        }
        wanted
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

/// Gives `services` in `wanted` what `programmed` has for them, or nothing where it has nothing.
pub(crate) fn hold_back<'a>(
    wanted: &mut Dataplane,
    services: impl IntoIterator<Item = &'a ServiceKey>,
    programmed: Option<&Dataplane>,
) {
    for service in services {
        copy_service(wanted, service, programmed);
    }
}

/// Takes back from `wanted` what a Service gets there only because another one is held back: an address
/// and port that `desired` gives to the other one, or to nobody, stay without an answer. Otherwise one
/// refused change would hand the address of a Service to the next one that claims it, which may be of
/// another tenant. What `programmed` has given to a Service already, it keeps.
///
/// Costs what differs between `desired` and `wanted`.
pub(crate) fn keep_addresses(
    wanted: &mut Dataplane,
    desired: &Dataplane,
    programmed: Option<&Dataplane>,
) {
    // Where the next claimant is taken out, there may be one behind it.
    loop {
        let mut gains: BTreeMap<ServiceKey, BTreeSet<FrontendKey>> = BTreeMap::new();
        for difference in desired.frontends().differences(wanted.frontends()) {
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
            if let Some(rules) = wanted.services().get(&service) {
                let mut rules = ServiceRules::clone(rules);
                rules.frontends.retain(|(key, _)| !gained.contains(key));
                wanted.set(rules.into());
            }
        }
    }
}

fn winner(claims: Option<&Claims<Arc<Frontend>>>) -> Option<&ServiceKey> {
    claims.map(|claims| claims.winner().0)
}

/// Makes `service` in `wanted` what it is in `from`.
pub(crate) fn copy_service(wanted: &mut Dataplane, service: &ServiceKey, from: Option<&Dataplane>) {
    match from.and_then(|from| from.services().get(service)) {
        Some(rules) => wanted.set(Arc::clone(rules)),
        None => wanted.remove(service),
    };
}
