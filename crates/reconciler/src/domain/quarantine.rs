//! Services that the kernel refuses, and the desired state without them.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
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
/// The cost is proportional to the difference between `desired` and `admitted` with the claims in it. Each
/// claim that is removed also costs a copy of the others on its frontend.
pub(crate) fn keep_addresses(
    admitted: &mut Dataplane,
    desired: &Dataplane,
    programmed: Option<&Dataplane>,
) {
    // Twice at most: without the claims on an address as a load-balancer IP, those on it as an
    // external IP may become visible.
    loop {
        let gains = gains(admitted, desired, programmed);
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

/// The claims in `admitted` that come before the first one whose Service may have the frontend: all of
/// them, since each would answer in the place of the one before it.
fn gains(
    admitted: &Dataplane,
    desired: &Dataplane,
    programmed: Option<&Dataplane>,
) -> BTreeMap<ServiceKey, BTreeSet<FrontendKey>> {
    let mut gains: BTreeMap<ServiceKey, BTreeSet<FrontendKey>> = BTreeMap::new();
    for difference in desired.frontends().differences(admitted.frontends()) {
        let Some(claims) = difference.after else {
            continue;
        };
        let before = programmed.and_then(|before| before.frontends().get(difference.key));
        let entitled = [winner(difference.before), winner(before)];
        let losers = claims.losers().map(|(service, _)| service);
        let claimants = iter::once(claims.winner().0).chain(losers);
        for gainer in claimants.take_while(|service| !entitled.contains(&Some(*service))) {
            let gained = gains.entry(gainer.clone()).or_default();
            gained.insert(*difference.key);
        }
    }
    gains
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

#[cfg(test)]
mod tests {
    use dataplane::compile;
    use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

    use super::*;

    const CLAIMANTS: u8 = 40;

    /// Services that all claim three external IPs. The first of them has them.
    fn claimants() -> Dataplane {
        let (node, config) = (mk_node(1).build(), mk_config().build());
        let mut all = Dataplane::new(node.clone(), config.clone());
        for number in 0..CLAIMANTS {
            let service = mk_service(&format!("shop/web-{number:02}"))
                .cluster_ip(&format!("10.96.0.{number}"))
                .external_ip("198.51.100.1")
                .external_ip("198.51.100.2")
                .external_ip("198.51.100.3")
                .port("", 80);
            let endpoints = mk_endpoints().tcp("").ready("10.0.1.5:8080", "node-1");
            let rules = compile(&service.build(), &endpoints.build(), &node, &config);
            all.set(Arc::new(rules));
        }
        all
    }

    /// T385: each pass over the claims took an address from one claimant, and exposed the next.
    #[test]
    fn t385_all_who_claim_an_address_held_back_are_found_in_one_pass() {
        let desired = claimants();
        let mut admitted = desired.clone();
        hold_back(&mut admitted, [&ServiceKey::new("shop", "web-00")], None);

        let found = gains(&admitted, &desired, None);
        assert_eq!(found.len(), usize::from(CLAIMANTS) - 1);
        assert!(found.values().all(|keys| keys.len() == 3), "{found:?}");
        keep_addresses(&mut admitted, &desired, None);
        assert_eq!(admitted.services().len(), usize::from(CLAIMANTS) - 1);
        assert_eq!(admitted.frontends().len(), usize::from(CLAIMANTS) - 1);
    }

    /// The one that has the address keeps it, and those behind it their claims.
    #[test]
    fn who_had_an_address_keeps_it_and_those_behind_keep_their_claims() {
        let desired = claimants();
        let mut programmed = desired.clone();
        let held = [0, 1, 2].map(|n| ServiceKey::new("shop", format!("web-0{n}")));
        hold_back(&mut programmed, &held, None);
        let mut admitted = desired.clone();
        hold_back(&mut admitted, &held[..1], None);

        let found = gains(&admitted, &desired, Some(&programmed));
        let found: Vec<_> = found.into_keys().collect();
        assert_eq!(found, held[1..], "web-03 had it");
    }
}
