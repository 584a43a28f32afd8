//! The rules of all Services together, keyed by what a packet is addressed to.

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

/// What this node's kernel should do. Cloning costs a few reference counts; changing one Service
/// costs what that Service has; two of them are compared by skipping what they share.
#[derive(Debug, Clone, Default)]
pub struct Dataplane {
    node: Arc<Node>,
    config: Arc<Config>,
    services: PersistentMap<ServiceKey, Arc<ServiceRules>>,
    frontends: PersistentMap<FrontendKey, Claims<Arc<Frontend>>>,
    cluster_ips: PersistentMap<IpAddr, Claims<()>>,
    hairpins: PersistentMap<Hairpin, NonZeroUsize>,
    /// Who claims each address beside those that have it as a cluster IP, and as what.
    claimants: PersistentMap<IpAddr, Claims<FrontendKind>>,
    disputes: Disputes,
    /// Where the API server's own Service leads.
    api_servers: Arc<BTreeSet<IpAddr>>,
}

/// An endpoint on this node: a packet from it to itself must be masqueraded, or the reply would
/// never pass through this node's NAT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hairpin {
    /// The endpoint's address, source and destination alike.
    pub address: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The endpoint's port.
    pub port: Port,
}

// === impl Dataplane ===

impl Dataplane {
    /// A node without Services.
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

    /// Replaces node and configuration. The Services stay as they were compiled: a caller that changes
    /// what [`compile`](crate::compile) reads compiles them again. Which of them may have an address
    /// is decided anew.
    pub fn set_node(&mut self, node: Arc<Node>, config: Arc<Config>) {
        let node = std::mem::replace(&mut self.node, node);
        let config = std::mem::replace(&mut self.config, config);
        self.follow_node(&node, &config);
    }

    /// Puts `rules` in the place of what their Service asked for before. Rules equal to those that
    /// stand leave everything shared as it is. Returns whether anything changed.
    pub fn set(&mut self, rules: Arc<ServiceRules>) -> bool {
        let key = rules.service.clone();
        if self.services.get(&key) == Some(&rules) {
            return false;
        }
        let before = self.services.insert(key.clone(), Arc::clone(&rules));
        self.replace_claims(&key, before.as_deref(), Some(&rules));
        true
    }

    /// Takes out everything the Service asked for. Returns whether there was anything.
    pub fn remove(&mut self, service: &ServiceKey) -> bool {
        let Some(before) = self.services.remove(service) else {
            return false;
        };
        self.replace_claims(service, Some(&before), None);
        true
    }

    /// What each Service asks for.
    pub fn services(&self) -> &PersistentMap<ServiceKey, Arc<ServiceRules>> {
        &self.services
    }

    /// What packets can be addressed to. The first claim is the one that is programmed; claims that
    /// are [refused](Dataplane::refusal) are not among them.
    pub fn frontends(&self) -> &PersistentMap<FrontendKey, Claims<Arc<Frontend>>> {
        &self.frontends
    }

    /// What a packet with this destination is addressed to, if to any frontend. An address comes
    /// before a node port, and a node port is only one on the node's own addresses that accept them.
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

    /// The frontends at a destination whose endpoints may go on answering what they answered before:
    /// that of [`Dataplane::frontend_at`], those that only their names put behind it, and a node port
    /// that an address comes before.
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

    /// Whether node ports are open on `address`. Where all addresses of a family take them, an IPv6
    /// link-local one counts as this node's: what arrives for one is for this node, and the list does
    /// not have them. What a process of this node sends to a neighbour's is taken for that, too.
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

    /// The claims of Services that are not served, because another comes before them or the address is
    /// not one to claim.
    pub fn disputes(&self) -> &Disputes {
        &self.disputes
    }

    /// Every endpoint of this node that could be sent its own packets, with the number of Services
    /// that send it packets. Which ones does not matter: a thousand Services may share one endpoint.
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

    /// Moves the claims of one Service on frontends from `before` to `after`, both sorted by key.
    fn replace_frontends(
        &mut self,
        service: &ServiceKey,
        before: Vec<(FrontendKey, Arc<Frontend>)>,
        after: Vec<(FrontendKey, Arc<Frontend>)>,
    ) {
        let keys: BTreeSet<FrontendKey> =
            before.iter().chain(&after).map(|(key, _)| *key).collect();
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

/// Moves the claims of one Service from `before` to `after`, both sorted by key.
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
