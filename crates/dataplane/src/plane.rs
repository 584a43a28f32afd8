//! The rules of all Services, keyed by the destinations of packets.

mod claims;
mod disputes;
mod entitlement;
mod text;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::{
    Config, Family, Frontend, FrontendKey, FrontendKind, Node, PersistentMap, Port, Protocol,
    ServiceKey, ServiceRules, is_ipv6_link_local,
};
use claims::Claim;
pub use claims::Claims;
pub use disputes::Disputes;
pub use entitlement::{Refused, Reserved};

/// The desired state of this node's kernel. Cloning costs a few reference counts; changing a
/// Service costs in proportion to that Service; comparing two skips what they share.
#[derive(Debug, Clone, Default)]
pub struct Dataplane {
    node: Arc<Node>,
    config: Arc<Config>,
    services: PersistentMap<ServiceKey, Arc<ServiceRules>>,
    frontends: PersistentMap<FrontendKey, Claims<Arc<Frontend>>>,
    cluster_ips: PersistentMap<IpAddr, Claims<()>>,
    hairpins: PersistentMap<Hairpin, NonZeroUsize>,
    /// The Services that claim each address other than as a cluster IP, and as which kind.
    claimants: PersistentMap<IpAddr, Claims<FrontendKind>>,
    disputes: Disputes,
    /// The endpoints of the API server's Service.
    api_servers: Arc<BTreeSet<IpAddr>>,
}

/// An endpoint on this node. A packet from it to itself must be masqueraded: otherwise the reply
/// would bypass this node's NAT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hairpin {
    /// The endpoint's address, which is both source and destination.
    pub address: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The endpoint's port.
    pub port: Port,
}

// === impl Dataplane ===

impl Dataplane {
    /// A dataplane without Services.
    pub fn new(node: Arc<Node>, config: Arc<Config>) -> Dataplane {
        Dataplane {
            node,
            config,
            ..Dataplane::default()
        }
    }

    /// The node it is for.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// The configuration it was compiled with.
    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// Replaces node and configuration. The Services stay as compiled: a caller that changes what
    /// [`compile`](crate::compile) reads must compile them again. Decides again which of them may
    /// have an address.
    pub fn set_node(&mut self, node: Arc<Node>, config: Arc<Config>) {
        let node = std::mem::replace(&mut self.node, node);
        let config = std::mem::replace(&mut self.config, config);
        self.follow_node(&node, &config);
    }

    /// Replaces the rules of a Service. If `rules` equal the previous ones, everything stays
    /// shared. Returns whether anything changed.
    pub fn set(&mut self, rules: Arc<ServiceRules>) -> bool {
        let key = rules.service.clone();
        if self.services.get(&key) == Some(&rules) {
            return false;
        }
        let before = self.services.insert(key.clone(), Arc::clone(&rules));
        self.replace_claims(&key, before.as_deref(), Some(&rules));
        true
    }

    /// Removes the rules of a Service. Returns whether it had any.
    pub fn remove(&mut self, service: &ServiceKey) -> bool {
        let Some(before) = self.services.remove(service) else {
            return false;
        };
        self.replace_claims(service, Some(&before), None);
        true
    }

    /// The rules of each Service.
    pub fn services(&self) -> &PersistentMap<ServiceKey, Arc<ServiceRules>> {
        &self.services
    }

    /// The frontends by key. The first claim is the one that is programmed;
    /// [refused](Dataplane::refusal) claims are not included.
    pub fn frontends(&self) -> &PersistentMap<FrontendKey, Claims<Arc<Frontend>>> {
        &self.frontends
    }

    /// The frontend that a packet with this destination reaches, if any. An address takes
    /// precedence over a node port, and node ports exist only on the node's addresses that accept
    /// them.
    pub fn frontend_at(
        &self,
        address: IpAddr,
        protocol: Protocol,
        port: Port,
    ) -> Option<&Arc<Frontend>> {
        let mut claims = self.claims_at(address, protocol, port);
        let (_, frontend) = claims.next()?.winner();
        Some(frontend)
    }

    /// The frontends at a destination whose endpoints may keep answering existing connections: that
    /// of [`Dataplane::frontend_at`], those that come after it only by name, and a node port that
    /// an address hides.
    pub fn equals_at(
        &self,
        address: IpAddr,
        protocol: Protocol,
        port: Port,
    ) -> impl Iterator<Item = &Arc<Frontend>> {
        self.claims_at(address, protocol, port)
            .flat_map(|claims| claims.equals().map(|(_, frontend)| frontend))
    }

    /// The claims on the address, then those on the node port that it hides.
    fn claims_at(
        &self,
        address: IpAddr,
        protocol: Protocol,
        port: Port,
    ) -> impl Iterator<Item = &Claims<Arc<Frontend>>> {
        let by_address = FrontendKey::Address {
            address,
            protocol,
            port,
        };
        let by_node_port = FrontendKey::NodePort {
            family: Family::of(address),
            protocol,
            port,
        };
        let is_open = move || self.has_node_ports_at(address);
        let claims = self.frontends.get(&by_address).into_iter();
        claims.chain(
            std::iter::once_with(move || {
                is_open()
                    .then(|| self.frontends.get(&by_node_port))
                    .flatten()
            })
            .flatten(),
        )
    }

    /// Whether node ports are open on `address`. If all addresses of a family accept them, every
    /// IPv6 link-local address counts as this node's: the list lacks them, and an arriving packet
    /// to one is for this node. A packet that this node sends to a neighbour's link-local address
    /// is treated the same way.
    pub fn has_node_ports_at(&self, address: IpAddr) -> bool {
        let listed = match self.config.node_ports.of(Family::of(address)) {
            Some(addresses) => addresses.contains(&address),
            None => self.node.local_addresses.contains(&address) || is_ipv6_link_local(address),
        };
        listed && !address.is_loopback()
    }

    /// Every cluster IP.
    pub fn cluster_ips(&self) -> &PersistentMap<IpAddr, Claims<()>> {
        &self.cluster_ips
    }

    /// The claims that are not served, because another Service comes first or the address may not
    /// be claimed.
    pub fn disputes(&self) -> &Disputes {
        &self.disputes
    }

    /// Every endpoint on this node that could receive its own packets, with the number of Services
    /// that use it. A thousand Services may share one endpoint, so the Services themselves are not
    /// stored.
    pub fn hairpins(&self) -> &PersistentMap<Hairpin, NonZeroUsize> {
        &self.hairpins
    }

    fn replace_claims<'a>(
        &mut self,
        service: &ServiceKey,
        before: Option<&'a ServiceRules>,
        after: Option<&'a ServiceRules>,
    ) {
        let had = self.admitted(before);
        let addresses = |rules: Option<&ServiceRules>| {
            rules.map_or_else(Vec::new, |rules| {
                rules.cluster_ips.iter().map(|ip| (*ip, ())).collect()
            })
        };
        replace(
            &mut self.cluster_ips,
            service,
            addresses(before),
            addresses(after),
        );
        self.replace_entitlements(service, before, after);
        let has = self.admitted(after);
        self.replace_frontends(service, had, has);
        let hairpins = |rules: Option<&'a ServiceRules>| rules.map_or(&[][..], |r| &r.hairpins);
        let (before, after) = (hairpins(before), hairpins(after));
        for gone in before.iter().filter(|h| after.binary_search(h).is_err()) {
            self.recount(gone, |count| count - 1);
        }
        for new in after.iter().filter(|h| before.binary_search(h).is_err()) {
            self.recount(new, |count| count + 1);
        }
    }

    /// Replaces the claims of one Service on frontends, both lists sorted by key.
    fn replace_frontends(
        &mut self,
        service: &ServiceKey,
        before: Vec<(FrontendKey, Arc<Frontend>)>,
        after: Vec<(FrontendKey, Arc<Frontend>)>,
    ) {
        let mut keys: Vec<FrontendKey> = before.iter().chain(&after).map(|(key, _)| *key).collect();
        // Both lists are sorted, and sorting keeps runs.
        keys.sort();
        keys.dedup();
        replace(&mut self.frontends, service, before, after);
        for key in keys {
            let contested = &mut self.disputes.contested;
            match self.frontends.get(&key).and_then(Claims::kinds_of_several) {
                Some(claims) => contested.ensure(key, claims),
                None => drop(contested.remove(&key)),
            }
        }
    }

    fn recount(&mut self, hairpin: &Hairpin, change: impl FnOnce(usize) -> usize) {
        let count = self.hairpins.get(hairpin).map_or(0, |count| count.get());
        match NonZeroUsize::new(change(count)) {
            Some(count) => drop(self.hairpins.insert(*hairpin, count)),
            None => drop(self.hairpins.remove(hairpin)),
        }
    }
}

/// Replaces the claims of one Service, both lists sorted by key.
fn replace<K, V>(
    map: &mut PersistentMap<K, Claims<V>>,
    service: &ServiceKey,
    before: Vec<(K, V)>,
    after: Vec<(K, V)>,
) where
    K: Clone + Ord + std::hash::Hash,
    V: Claim + Clone + PartialEq,
{
    for (key, _) in &before {
        if after.binary_search_by(|(other, _)| other.cmp(key)).is_ok() {
            continue;
        }
        let Some(claims) = map.get(key) else { continue };
        match claims.without(service) {
            Some(rest) => drop(map.insert(key.clone(), rest)),
            None => drop(map.remove(key)),
        }
    }
    for (key, value) in after {
        let claims = match map.get(&key) {
            Some(claims) if claims.holds(service, &value) => continue,
            Some(claims) => claims.with(service, value),
            None => Claims::of_one(service, value),
        };
        map.insert(key, claims);
    }
}
