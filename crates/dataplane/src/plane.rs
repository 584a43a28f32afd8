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
use disputes::Contested;
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
        let (_, claims) = claims.next()?;
        Some(claims.winner().1)
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
            .flat_map(|(_, claims)| claims.equals().map(|(_, frontend)| frontend))
    }

    /// The claims on the address, then those on the node port that it hides.
    pub fn claims_at(
        &self,
        address: IpAddr,
        protocol: Protocol,
        port: Port,
    ) -> impl Iterator<Item = (FrontendKey, &Claims<Arc<Frontend>>)> {
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
        let keys = [by_address, by_node_port].into_iter();
        let is_served = move |key: &FrontendKey| match key {
            FrontendKey::Address { .. } => true,
            FrontendKey::NodePort { .. } => self.has_node_ports_at(address),
        };
        let keys = keys.filter(is_served);
        keys.filter_map(|key| Some((key, self.frontends.get(&key)?)))
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
        self.replace_frontends(service, &had, has);
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
        before: &[(FrontendKey, Arc<Frontend>)],
        after: Vec<(FrontendKey, Arc<Frontend>)>,
    ) {
        for key in gone(before, &after) {
            self.replace_frontend(service, *key, None);
        }
        for (key, frontend) in after {
            self.replace_frontend(service, key, Some(frontend));
        }
    }

    fn replace_frontend(
        &mut self,
        service: &ServiceKey,
        key: FrontendKey,
        frontend: Option<Arc<Frontend>>,
    ) {
        if !claims::differs(&self.frontends, service, &key, frontend.as_ref()) {
            return;
        }
        // Claims that are shared would be copied.
        self.disputes.contested.remove(&key);
        claims::set(&mut self.frontends, service, key, frontend);
        let claims = self.frontends.get(&key);
        if let Some(claims) = claims.filter(|claims| claims.are_several()) {
            let contested = Contested(claims.clone());
            self.disputes.contested.insert(key, contested);
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
    for key in gone(&before, &after) {
        if claims::differs(map, service, key, None) {
            claims::set(map, service, key.clone(), None);
        }
    }
    for (key, value) in after {
        if claims::differs(map, service, &key, Some(&value)) {
            claims::set(map, service, key, Some(value));
        }
    }
}

/// The keys of `before` that `after` does not have, both sorted.
fn gone<'a, K: Ord, V>(before: &'a [(K, V)], after: &[(K, V)]) -> impl Iterator<Item = &'a K> {
    let is_kept = |key: &K| after.binary_search_by(|(other, _)| other.cmp(key)).is_ok();
    before
        .iter()
        .map(|(key, _)| key)
        .filter(move |key| !is_kept(key))
}
