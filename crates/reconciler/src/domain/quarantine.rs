//! Services that the kernel refuses, and the desired state without them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::iter;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use dataplane::{Dataplane, FrontendKey, ServiceKey, ServiceRules};

use crate::Quarantined;

/// How many groups of suspects, or of Services that have changed, may be refused between two periodic
/// checks before those of the same namespace wait for the next one: enough to find 20 among 10,000.
const REFUSALS_IN_A_NAMESPACE: usize = 512;
/// How many before all wait of a namespace with many refusals. A kernel that refuses more refuses them
/// for a shared reason, and each refusal can make later transactions slower.
const REFUSALS: usize = 1024;
/// How many before those of all other namespaces wait, too. They have these for themselves: a few
/// namespaces use up no other's attempts.
const REFUSALS_WITH_OTHERS: usize = 2 * REFUSALS;
/// With fewer than these a namespace is one of the others: enough to find one or two among 10,000.
const MANY_IN_A_NAMESPACE: usize = 32;
/// The same for Services that were refused before and have not changed since.
const REFUSALS_AGAIN: usize = 32;

/// The Services of one family that are held back, and the search for those among them that the kernel
/// refuses.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    held: BTreeMap<ServiceKey, QuarantinedService>,
    /// The groups that wait to be tried, of Services in `held`. The halves of a refused one go to the
    /// end, so that large groups are tried before small ones.
    groups: VecDeque<Group>,
    refusals: Refusals,
}

/// One Service that is held back.
#[derive(Debug)]
struct QuarantinedService {
    /// The refused rules; `None` if the Service is to be removed.
    refused: Option<Arc<ServiceRules>>,
    kept: Kept,
    suspicion: Suspicion,
    error: String,
    since: SystemTime,
    /// Whether a search has ended without it.
    has_waited: bool,
}

/// What a Service that is held back has in the kernel meanwhile, if anything.
pub(crate) type Kept = Option<Arc<ServiceRules>>;

/// What is known of a Service that is held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Suspicion {
    /// It was part of a change that was refused.
    Suspected,
    /// It has changed since the kernel refused it alone.
    Changed,
    /// The kernel refuses it alone.
    Refused,
}

/// Services with the same suspicion that are tried together.
#[derive(Debug)]
pub(crate) struct Group {
    /// In order. Not empty.
    services: Vec<ServiceKey>,
    suspicion: Suspicion,
    /// How many attempts have failed for another cause.
    failures: usize,
}

/// How many groups were refused since the last periodic check.
#[derive(Debug, Default)]
struct Refusals {
    total: usize,
    by_namespace: BTreeMap<Arc<str>, usize>,
    again: usize,
}

// === impl Quarantine ===

impl Quarantine {
    /// Lets the refused Services whose desired rules have changed be tried, apart from others: a Service
    /// that was refused once may not hold up a change that has nothing to do with it. Releases those
    /// that already have what is desired, and those that are deleted: another one may be waiting for an
    /// address of theirs. If the kernel refuses that, it is the removal that it refuses, not what it
    /// refused before.
    pub(crate) fn release_changed(&mut self, desired: &Dataplane) {
        let (mut changed, before) = (Vec::new(), self.held.len());
        self.held.retain(|service, held| {
            let wanted = desired.services().get(service);
            if wanted == held.refused.as_ref() {
                return true;
            }
            if let (Some(kept), Some(wanted)) = (&held.kept, wanted) {
                held.kept = Some(at_own_addresses(kept, wanted));
            }
            if wanted.is_none() || wanted == held.kept.as_ref() {
                return false;
            }
            held.refused = wanted.cloned();
            if held.suspicion == Suspicion::Refused {
                held.suspicion = Suspicion::Changed;
                changed.push(service.clone());
            }
            true
        });
        if self.held.len() < before {
            self.drop_dead();
        }
        self.add_group(changed, Suspicion::Changed);
    }

    /// Lets all Services be tried again, the refused ones together, unless an earlier attempt at them
    /// has not ended. A search that goes on gets no more attempts than it had: it must end.
    pub(crate) fn retry_all(&mut self) {
        self.drop_dead();
        if self.next_position().is_none() {
            self.refusals = Refusals::default();
            for held in self.held.values_mut() {
                held.has_waited = true;
            }
        }
        let is_refused = |suspicion| suspicion == Suspicion::Refused;
        if !self.groups.iter().any(|group| is_refused(group.suspicion)) {
            let refused = self
                .held
                .iter()
                .filter(|(_, held)| is_refused(held.suspicion));
            let refused = refused.map(|(service, _)| service.clone()).collect();
            self.add_group(refused, Suspicion::Refused);
        }
    }

    /// Holds back Services of a change that the kernel refused, and what they keep. Returns whether this
    /// holds back anything more than before.
    pub(crate) fn hold(
        &mut self,
        services: BTreeMap<ServiceKey, Kept>,
        desired: &Dataplane,
        error: &str,
        now: SystemTime,
    ) -> bool {
        let (mut suspects, mut has_new) = (Vec::new(), false);
        for (service, kept) in services {
            let refused = desired.services().get(&service).cloned();
            if let Some(held) = self.held.get_mut(&service) {
                has_new |= held.kept != kept;
                held.kept = kept;
            } else if refused != kept {
                has_new = true;
                suspects.push(service.clone());
                let held = QuarantinedService {
                    refused,
                    kept,
                    suspicion: Suspicion::Suspected,
                    error: error.to_owned(),
                    since: now,
                    has_waited: false,
                };
                self.held.insert(service, held);
            }
        }
        self.add_group(suspects, Suspicion::Suspected);
        has_new
    }

    /// The next group to try, if any may be tried before the next periodic check.
    pub(crate) fn next_group(&mut self) -> Option<Group> {
        while let Some(at) = self.next_position() {
            let mut group = self.groups.remove(at)?;
            group.retain(&self.held);
            if !group.services.is_empty() {
                return Some(group);
            }
        }
        None
    }

    /// What is known of the groups that may be tried before the next periodic check: the least of it.
    pub(crate) fn next_suspicion(&self) -> Option<Suspicion> {
        self.allowed().map(|(_, group)| group.suspicion).min()
    }

    /// Holds nothing of `group` back any more: the kernel has accepted it.
    pub(crate) fn admit(&mut self, group: &Group) {
        for service in &group.services {
            self.held.remove(service);
        }
    }

    /// Lets the Services of `group` keep what they have in `programmed`: a part of what they are to have.
    pub(crate) fn keep(&mut self, group: &Group, programmed: &Dataplane) {
        for service in &group.services {
            if let Some(held) = self.held.get_mut(service) {
                held.kept = programmed.services().get(service).cloned();
            }
        }
    }

    /// Lets `group` be tried later.
    pub(crate) fn put_back(&mut self, group: Group) {
        self.groups.push_back(group);
    }

    /// Lets `group`, at which an attempt has failed for another cause, be tried after others.
    pub(crate) fn postpone(&mut self, mut group: Group) {
        group.failures += 1;
        self.groups.push_back(group);
    }

    /// Divides `group`, which the kernel has refused. A single Service is refused for as long as the
    /// same rules are desired for it.
    pub(crate) fn refuse(&mut self, group: Group, error: &str) {
        self.refusals.add(&group);
        if let [service] = &group.services[..] {
            if let Some(held) = self.held.get_mut(service) {
                held.suspicion = Suspicion::Refused;
                error.clone_into(&mut held.error);
            }
            return;
        }
        self.groups.extend(group.halves());
    }

    /// Returns `desired` with what is held back as it is kept.
    pub(crate) fn apply(&self, desired: &Dataplane, programmed: Option<&Dataplane>) -> Dataplane {
        let mut admitted = desired.clone();
        if !self.held.is_empty() {
            for (service, held) in &self.held {
                copy_service(&mut admitted, service, held.kept.as_ref());
            }
            let entitled: Vec<_> = [Some(desired), programmed].into_iter().flatten().collect();
            keep_addresses(&mut admitted, desired, &entitled);
        }
        admitted
    }

    pub(crate) fn contains(&self, service: &ServiceKey) -> bool {
        self.held.contains_key(service)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// How many Services the search has yet to try before the next periodic check, for the first time.
    pub(crate) fn searched(&self) -> usize {
        let searched = self.in_search();
        let held = self.held.iter();
        held.filter(|(service, held)| held.is_searched(service, &searched))
            .count()
    }

    /// The Services that the kernel refuses, and suspects that wait, or have waited, for the next periodic
    /// check.
    pub(crate) fn list(&self) -> Vec<Quarantined> {
        let searched = self.in_search();
        let known = self.held.iter();
        let known = known.filter(|(service, held)| !held.is_searched(service, &searched));
        let quarantined = known.map(|(service, held)| Quarantined {
            service: service.clone(),
            error: held.error.clone(),
            since: held.since,
        });
        quarantined.collect()
    }

    /// The suspects that may be tried before the next periodic check.
    fn in_search(&self) -> BTreeSet<&ServiceKey> {
        let suspected = self.allowed().map(|(_, group)| group);
        let suspected = suspected.filter(|group| group.suspicion == Suspicion::Suspected);
        suspected.flat_map(Group::services).collect()
    }

    /// Removes from the groups what is not held back any more, or of which something else is known by now.
    fn drop_dead(&mut self) {
        let held = &self.held;
        self.groups.retain_mut(|group| {
            group.retain(held);
            !group.services.is_empty()
        });
    }

    fn add_group(&mut self, services: Vec<ServiceKey>, suspicion: Suspicion) {
        if !services.is_empty() {
            self.groups.push_back(Group::new(services, suspicion));
        }
    }

    /// The groups that may be tried before the next periodic check, with their positions.
    fn allowed(&self) -> impl Iterator<Item = (usize, &Group)> {
        let groups = self.groups.iter().enumerate();
        groups.filter(|(_, group)| self.refusals.allow(group))
    }

    /// Those of the namespaces come first of which the fewest groups were refused, so that no
    /// namespace waits for the search among many Services of another one; failures for another cause count, too. What was
    /// refused before and has not changed comes last.
    fn next_position(&self) -> Option<usize> {
        let order = |(_, group): &(usize, &Group)| {
            let is_again = group.suspicion == Suspicion::Refused;
            let tries = self.refusals.of(group) + group.failures;
            (is_again, tries, group.suspicion)
        };
        self.allowed().min_by_key(order).map(|(at, _)| at)
    }
}

// === impl QuarantinedService ===

impl QuarantinedService {
    /// Whether nothing is known of this `service` yet, but soon.
    fn is_searched(&self, service: &ServiceKey, searched: &BTreeSet<&ServiceKey>) -> bool {
        self.suspicion == Suspicion::Suspected && !self.has_waited && searched.contains(service)
    }
}

// === impl Refusals ===

impl Refusals {
    fn add(&mut self, group: &Group) {
        if group.suspicion == Suspicion::Refused {
            self.again += 1;
            return;
        }
        self.total += 1;
        if let Some(namespace) = group.namespace() {
            *self.by_namespace.entry(Arc::clone(namespace)).or_default() += 1;
        }
    }

    /// How many groups of the namespace of `group` were refused; 0 if it has Services of several.
    fn of(&self, group: &Group) -> usize {
        let refusals = group.namespace().and_then(|it| self.by_namespace.get(it));
        refusals.copied().unwrap_or_default()
    }

    fn allow(&self, group: &Group) -> bool {
        match (group.suspicion, self.of(group)) {
            (Suspicion::Refused, _) => self.again < REFUSALS_AGAIN,
            (_, refusals) if refusals < MANY_IN_A_NAMESPACE => self.total < REFUSALS_WITH_OTHERS,
            (_, refusals) => refusals < REFUSALS_IN_A_NAMESPACE && self.total < REFUSALS,
        }
    }
}

// === impl Group ===

impl Group {
    fn new(services: Vec<ServiceKey>, suspicion: Suspicion) -> Group {
        Group {
            services,
            suspicion,
            failures: 0,
        }
    }

    pub(crate) fn services(&self) -> &[ServiceKey] {
        &self.services
    }

    /// Keeps those of which `held` says the same.
    fn retain(&mut self, held: &BTreeMap<ServiceKey, QuarantinedService>) {
        let is_in = |held: &QuarantinedService| held.suspicion == self.suspicion;
        self.services
            .retain(|service| held.get(service).is_some_and(is_in));
    }

    /// The namespace of all its Services, if they have the same.
    fn namespace(&self) -> Option<&Arc<str>> {
        let ends = [self.services.first()?, self.services.last()?];
        let [first, last] = ends.map(|service| &service.namespace);
        (first == last).then_some(first)
    }

    /// Where another namespace begins; of several places, the nearest to the middle.
    fn border(&self) -> Option<usize> {
        let services = &self.services;
        let is_border = |at: &usize| services[*at - 1].namespace != services[*at].namespace;
        let borders = (1..services.len()).filter(is_border);
        borders.min_by_key(|at| at.abs_diff(services.len() / 2))
    }

    fn halves(mut self) -> [Group; 2] {
        let middle = self.services.len() / 2;
        let services = self.services.split_off(self.border().unwrap_or(middle));
        [
            Group::new(self.services, self.suspicion),
            Group::new(services, self.suspicion),
        ]
    }
}

/// Removes from `admitted` each address and port that a Service has there, and not in `from`, only
/// because another Service is held back. If no dataplane in `entitled` gives it the frontend, that
/// stays unanswered. Otherwise one refused change would hand the address of a Service to its next
/// claimant, possibly of another tenant. A Service keeps what it had before, if that is in `entitled`.
///
/// The cost is proportional to the difference between `from` and `admitted` with the claims in it.
pub(crate) fn keep_addresses(admitted: &mut Dataplane, from: &Dataplane, entitled: &[&Dataplane]) {
    // Twice at most: without the claims on an address as a load-balancer IP, those on it as an
    // external IP may become visible.
    loop {
        let gains = gains(admitted, from, entitled);
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
    from: &Dataplane,
    entitled: &[&Dataplane],
) -> BTreeMap<ServiceKey, BTreeSet<FrontendKey>> {
    let mut gains: BTreeMap<ServiceKey, BTreeSet<FrontendKey>> = BTreeMap::new();
    for difference in from.frontends().differences(admitted.frontends()) {
        let Some(claims) = difference.after else {
            continue;
        };
        let owners = entitled.iter();
        let owners = owners.filter_map(|owners| owners.frontends().get(difference.key));
        let owners: Vec<&ServiceKey> = owners.map(|claims| claims.winner().0).collect();
        let losers = claims.losers().map(|(service, _)| service);
        let claimants = iter::once(claims.winner().0).chain(losers);
        for gainer in claimants.take_while(|service| !owners.contains(service)) {
            let gained = gains.entry(gainer.clone()).or_default();
            gained.insert(*difference.key);
        }
    }
    gains
}

/// Returns `kept` without the cluster IPs that its Service has no more in `wanted`: another Service of the
/// same name, of which the first one's addresses may by now be those of a third.
pub(crate) fn at_own_addresses(
    kept: &Arc<ServiceRules>,
    wanted: &ServiceRules,
) -> Arc<ServiceRules> {
    let is_former = |address: &IpAddr| {
        kept.cluster_ips.contains(address) && !wanted.cluster_ips.contains(address)
    };
    if !kept.cluster_ips.iter().any(is_former) {
        return Arc::clone(kept);
    }
    let mut rules = ServiceRules::clone(kept);
    rules.cluster_ips.retain(|address| !is_former(address));
    rules.frontends.retain(|(key, _)| match key {
        FrontendKey::Address { address, .. } => !is_former(address),
        FrontendKey::NodePort { .. } => true,
    });
    rules.into()
}

/// Gives `service` these rules in `admitted`, or none.
pub(crate) fn copy_service(
    admitted: &mut Dataplane,
    service: &ServiceKey,
    rules: Option<&Arc<ServiceRules>>,
) {
    match rules {
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
        admitted.remove(&ServiceKey::new("shop", "web-00"));

        let found = gains(&admitted, &desired, &[&desired]);
        assert_eq!(found.len(), usize::from(CLAIMANTS) - 1);
        assert!(found.values().all(|keys| keys.len() == 3), "{found:?}");
        keep_addresses(&mut admitted, &desired, &[&desired]);
        assert_eq!(admitted.services().len(), usize::from(CLAIMANTS) - 1);
        assert_eq!(admitted.frontends().len(), usize::from(CLAIMANTS) - 1);
    }

    /// The one that has the address keeps it, and those behind it their claims.
    #[test]
    fn who_had_an_address_keeps_it_and_those_behind_keep_their_claims() {
        let desired = claimants();
        let mut programmed = desired.clone();
        let held = [0, 1, 2].map(|n| ServiceKey::new("shop", format!("web-0{n}")));
        for service in &held {
            programmed.remove(service);
        }
        let mut admitted = desired.clone();
        admitted.remove(&held[0]);

        let found = gains(&admitted, &desired, &[&desired, &programmed]);
        let found: Vec<_> = found.into_keys().collect();
        assert_eq!(found, held[1..], "web-03 had it");
    }

    #[test]
    fn nothing_is_kept_of_services_that_are_deleted() {
        let desired = claimants();
        let services = desired.services().sorted().into_iter();
        let kept = services.map(|(service, _)| (service.clone(), None));
        let mut quarantine = Quarantine::default();
        quarantine.hold(kept.collect(), &desired, "refused", SystemTime::UNIX_EPOCH);
        assert!(!quarantine.groups.is_empty());

        let (node, config) = (mk_node(1).build(), mk_config().build());
        quarantine.release_changed(&Dataplane::new(node, config));
        assert!(quarantine.held.is_empty() && quarantine.groups.is_empty());
    }
}
