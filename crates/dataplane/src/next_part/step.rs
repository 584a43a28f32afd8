//! One step from a dataplane towards another: the state in between that holds a part of the change.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::address_transfer::{Settled, decides};
use super::size::{FrontendDifference, Granularity};
use super::{Divided, Piece, claimants};
use crate::{
    Claims, Dataplane, Difference, Frontend, FrontendKey, Hairpin, Protocol, ServiceKey,
    ServiceRules, Target,
};

/// A step from one dataplane towards another.
pub(super) struct Step<'a> {
    programmed: &'a Dataplane,
    desired: &'a Dataplane,
    /// The addresses of frontends that later parts change and that a Service of this part has as
    /// cluster IPs.
    unfinished: HashSet<IpAddr>,
    /// The addresses that are taken from some Services or given back to them, so that a part may have
    /// only some of their frontends there.
    transferred: HashSet<IpAddr>,
    /// The Services that get frontends at such an address in later parts.
    waiting: BTreeSet<&'a ServiceKey>,
    /// A frontend that later parts change, of which this part has some endpoints.
    begun: Option<(FrontendKey, Arc<Frontend>)>,
}

// === impl Step ===

impl<'a> Step<'a> {
    pub(super) fn new(
        programmed: &'a Dataplane,
        desired: &'a Dataplane,
        divided: &Divided<'a>,
        settled: &Settled,
    ) -> Step<'a> {
        let chosen = divided.chosen.iter();
        let chosen = chosen.flat_map(|piece| claimants(&piece.difference));
        let mut services: BTreeSet<&ServiceKey> = chosen.collect();
        let given_back = |piece: &&Piece<'a>| piece.is_given_back(programmed);
        let waiting = divided.later.iter().filter(given_back);
        let waiting: BTreeSet<&ServiceKey> = waiting
            .flat_map(|piece| claimants(&piece.difference))
            .collect();
        services.extend(&waiting);
        let addresses = settled.deciding.iter();
        let settled = addresses.flat_map(|at| [programmed, desired].map(|all| all.claims_on(*at)));
        services.extend(settled.flatten().map(|(service, _)| service));
        let begun = divided.begun.clone();
        services.extend(begun.iter().map(|(_, begun)| &begun.service_port.service));
        let cluster_ips = cluster_ips_of(&services, [programmed, desired]);
        let all = divided.chosen.iter().chain(&divided.later);
        let transferred = all.filter(|piece| piece.is_taken_away(desired) || given_back(piece));
        let transferred = transferred.filter_map(Piece::address).collect();
        let later = divided.later.iter().filter_map(Piece::address);
        Step {
            transferred,
            waiting,
            programmed,
            desired,
            unfinished: later
                .filter(|address| cluster_ips.contains(address))
                .collect(),
            begun,
        }
    }

    /// The programmed dataplane with the `chosen` changes, and with the `settled` claims as desired.
    pub(super) fn next(&self, chosen: &[Piece<'a>], settled: &Settled) -> Dataplane {
        let mut keys: BTreeMap<&ServiceKey, BTreeSet<FrontendKey>> = BTreeMap::new();
        for Piece { difference, .. } in chosen {
            for service in claimants(difference) {
                keys.entry(service).or_default().insert(*difference.key);
            }
        }
        for service in &self.waiting {
            keys.entry(service).or_default();
        }
        if let Some((_, frontend)) = &self.begun {
            keys.entry(&frontend.service_port.service).or_default();
        }
        for (dataplane, address) in [self.programmed, self.desired]
            .into_iter()
            .flat_map(|dataplane| settled.deciding.iter().map(move |at| (dataplane, *at)))
        {
            for (service, at_address) in dataplane.claims_on(address) {
                let settled =
                    |(_, frontend): &&(_, Arc<Frontend>)| settled.has(address, decides(frontend));
                let mut at_address = at_address.iter().filter(settled).peekable();
                if at_address.peek().is_some() {
                    let keys = keys.entry(service).or_default();
                    keys.extend(at_address.map(|(key, _)| *key));
                }
            }
        }
        let mut next = self.programmed.clone();
        let (node, config) = (self.desired.node(), self.desired.config());
        next.set_node(Arc::clone(node), Arc::clone(config));
        for (service, keys) in keys {
            match self.rules(service, &keys) {
                Some(rules) => next.set(rules),
                None => next.remove(service),
            };
        }
        next
    }

    /// The addresses of frontends that are `changed` to something else than desired.
    pub(super) fn astray(&self, changed: &[FrontendDifference<'_>]) -> BTreeSet<IpAddr> {
        let is_begun = |key| self.begun.as_ref().is_some_and(|(begun, _)| begun == key);
        let mut astray = BTreeSet::new();
        for Difference { key, before, after } in changed {
            let FrontendKey::Address { address, .. } = key else {
                continue;
            };
            let desired = self.desired.frontends().get(key);
            let [before, after, desired] = [*before, *after, desired]
                .map(|claims: Option<&Claims<_>>| claims.map(|claims| claims.winner().1));
            if after != before && after != desired && !is_begun(*key) {
                astray.insert(*address);
            }
        }
        astray
    }

    /// Whether what is `changed` brings the programmed dataplane closer to the desired one.
    pub(super) fn comes_nearer(
        &self,
        granularity: Granularity,
        changed: &[FrontendDifference<'_>],
    ) -> bool {
        let (mut before, mut after) = (0, 0);
        for difference in changed {
            let desired_claims = self.desired.frontends().get(difference.key);
            let left = |claims: Option<&Claims<Arc<Frontend>>>| match claims == desired_claims {
                true => 0,
                false => granularity.size_between(claims, desired_claims),
            };
            before += left(difference.before);
            after += left(difference.after);
        }
        after < before
    }

    /// The rules of one Service with the frontends at `keys` as desired, and the others as
    /// programmed. Returns `None` if nothing is left of it.
    fn rules(
        &self,
        service: &ServiceKey,
        keys: &BTreeSet<FrontendKey>,
    ) -> Option<Arc<ServiceRules>> {
        let before = self.programmed.services().get(service);
        let after = self.desired.services().get(service);
        let frontends = |rules: Option<&'a Arc<ServiceRules>>, is_chosen| {
            let all = rules.into_iter().flat_map(|rules| &rules.frontends);
            let at = if is_chosen {
                self.desired
            } else {
                self.programmed
            };
            all.filter(move |(key, _)| {
                keys.contains(key) == is_chosen && !self.is_withheld(at, service, key)
            })
        };
        let begun = self.begun.iter();
        let begun = begun.filter(|(_, frontend)| frontend.service_port.service == *service);
        let now = || frontends(after, true).chain(begun.clone());
        let as_before = |(key, _): &&(FrontendKey, _)| begun.clone().all(|(other, _)| key != other);
        let mut mixed: Vec<_> = now()
            .chain(frontends(before, false).filter(as_before))
            .cloned()
            .collect();
        mixed.sort_unstable_by_key(|(key, _)| *key);
        // A Service without any of the changes only waits for an address.
        let cluster_ips = match keys.is_empty() && now().next().is_none() {
            true => before.map_or_else(Vec::new, |rules| rules.cluster_ips.clone()),
            false => self.cluster_ips(before, after),
        };
        if mixed == after.map_or(&[][..], |rules| &rules.frontends)
            && cluster_ips == after.map_or(&[][..], |rules| &rules.cluster_ips)
        {
            return after.cloned();
        }
        let rules = after.or(before)?;
        Some(Arc::new(ServiceRules {
            service: service.clone(),
            cluster_ips,
            hairpins: hairpins(before, after, now()),
            frontends: mixed,
            health_check: rules.health_check,
            rejections: rules.rejections.clone(),
        }))
    }

    /// Whether `service` does not have the frontend at `key` in `at`, and could have it in between.
    fn is_withheld(&self, at: &Dataplane, service: &ServiceKey, key: &FrontendKey) -> bool {
        let FrontendKey::Address { address, .. } = key else {
            return false;
        };
        self.transferred.contains(address) && at.refusal(service, key).is_some()
    }

    /// The cluster IPs of a Service in this part. A new one is added once all its frontends are; an
    /// old one is removed at once. One that only moves to another Service exists throughout.
    fn cluster_ips(
        &self,
        before: Option<&Arc<ServiceRules>>,
        after: Option<&Arc<ServiceRules>>,
    ) -> Vec<IpAddr> {
        let list = |rules: Option<&Arc<ServiceRules>>| -> BTreeSet<IpAddr> {
            let ips = rules.into_iter().flat_map(|rules| &rules.cluster_ips);
            ips.copied().collect()
        };
        let (old, new) = (list(before), list(after));
        let is_kept = |ip: &IpAddr| {
            let both = [self.programmed, self.desired];
            both.iter().all(|at| at.cluster_ips().get(ip).is_some())
        };
        let is_there = |ip: &&IpAddr| match self.unfinished.contains(ip) {
            true => is_kept(ip) && (old.contains(ip) || new.contains(ip)),
            false => new.contains(ip),
        };
        old.union(&new).filter(is_there).copied().collect()
    }
}

/// Every cluster IP of these Services.
pub(super) fn cluster_ips_of(
    services: &BTreeSet<&ServiceKey>,
    dataplanes: [&Dataplane; 2],
) -> BTreeSet<IpAddr> {
    let mut cluster_ips = BTreeSet::new();
    for service in services {
        for dataplane in dataplanes {
            if let Some(rules) = dataplane.services().get(service) {
                cluster_ips.extend(rules.cluster_ips.iter().copied());
            }
        }
    }
    cluster_ips
}

/// The previous hairpins, and those that the `chosen` frontends need.
fn hairpins<'a>(
    before: Option<&'a Arc<ServiceRules>>,
    after: Option<&'a Arc<ServiceRules>>,
    chosen: impl Iterator<Item = &'a (FrontendKey, Arc<Frontend>)>,
) -> Vec<Hairpin> {
    let list = |rules: Option<&'a Arc<ServiceRules>>| rules.map_or(&[][..], |r| &r.hairpins);
    let (old, new) = (list(before), list(after));
    // A Service without endpoints on this node needs none, and may have 100,000 elsewhere.
    if new.is_empty() {
        return old.to_vec();
    }
    let targets: HashSet<(Protocol, Target)> = chosen
        .flat_map(|(key, frontend)| {
            let targets = frontend.cluster.iter().chain(&*frontend.local);
            targets.map(|target| (key.protocol(), *target))
        })
        .collect();
    let is_needed = |hairpin: &&Hairpin| {
        let (address, port) = (hairpin.address, hairpin.port);
        targets.contains(&(hairpin.protocol, Target { address, port }))
    };
    let all = old.iter().chain(new.iter().filter(is_needed));
    let all: BTreeSet<Hairpin> = all.copied().collect();
    all.into_iter().collect()
}
