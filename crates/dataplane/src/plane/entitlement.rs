//! Which Services may have an address at all, on any port. Pure.
//!
//! The order of claims decides about ports. But if an address is assigned to one Service, another
//! one must not open a port on it that the first leaves free, and some addresses may not be claimed
//! by any Service.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::{Dataplane, replace};
use crate::{Config, Family, Frontend, FrontendKey, FrontendKind, Node, ServiceKey, ServiceRules};

/// A claim on an address that is refused on all ports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refused {
    /// The kind of address that the Service claims.
    pub kind: FrontendKind,
    /// Why it is refused.
    pub reserved: Reserved,
}

/// What an address is reserved for, so that claims on it are refused. If several reasons apply, the
/// first one here is reported.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reserved {
    /// It is a cluster IP of this Service, in any namespace.
    ClusterIp(ServiceKey),
    /// It is an endpoint of the API server's Service.
    ApiServer,
    /// It is one of this node's own addresses.
    Node,
    /// It is inside this range of cluster IPs.
    ServiceRange(IpNet),
    /// It is inside this range of pods, by which local traffic is recognised. A packet to a Service
    /// reaches the node of its endpoint with the endpoint's address as its destination.
    PodRange(IpNet),
    /// It is a load-balancer IP of this Service, and of none in the claimant's namespace.
    LoadBalancerIp(ServiceKey),
}

// === impl Dataplane ===

impl Dataplane {
    /// Why `service` is refused the address of `key`, if it is.
    pub fn refusal(&self, service: &ServiceKey, key: &FrontendKey) -> Option<&Refused> {
        let refused = &self.disputes.refused;
        match key {
            // Most nodes refuse nothing.
            _ if refused.is_empty() => None,
            FrontendKey::Address { address, .. } => refused.get(&(*address, service.clone())),
            FrontendKey::NodePort { .. } => None,
        }
    }

    /// The Services that claim `address` other than as a cluster IP, whether they may have it or not,
    /// with their frontends there.
    pub(crate) fn claims_on(
        &self,
        address: IpAddr,
    ) -> impl Iterator<Item = (&ServiceKey, &[(FrontendKey, Arc<Frontend>)])> {
        let claimants = self.claimants.get(&address).into_iter();
        let claimants = claimants.flat_map(|claimants| claimants.iter());
        claimants.filter_map(move |(service, _)| {
            let rules = self.services.get(service)?;
            Some((service, at(rules, address)))
        })
    }

    /// The same with those that claim it as a cluster IP.
    pub(crate) fn all_claims_on(
        &self,
        address: IpAddr,
    ) -> impl Iterator<Item = (&ServiceKey, &[(FrontendKey, Arc<Frontend>)])> {
        let owners = self.cluster_ips.get(&address).into_iter();
        let owners = owners.flat_map(|owners| owners.iter());
        let owners = owners.filter_map(move |(service, ())| {
            let rules = self.services.get(service)?;
            Some((service, at(rules, address)))
        });
        self.claims_on(address).chain(owners)
    }

    /// Whether a Service has `address` as a cluster IP or load-balancer IP, which decides whether others may have
    /// it.
    pub(crate) fn is_owned(&self, address: IpAddr) -> bool {
        let first = self
            .claimants
            .get(&address)
            .map(|claims| *claims.winner().1);
        first == Some(FrontendKind::LoadBalancerIp) || self.cluster_ips.get(&address).is_some()
    }

    /// The endpoints of the API server's Service, which no other Service may have as external IPs.
    pub(crate) fn api_servers(&self) -> &BTreeSet<IpAddr> {
        &self.api_servers
    }

    /// The frontends of `rules` whose addresses the Service may have.
    pub(super) fn admitted(
        &self,
        rules: Option<&ServiceRules>,
    ) -> Vec<(FrontendKey, Arc<Frontend>)> {
        let Some(rules) = rules else {
            return Vec::new();
        };
        let frontends = rules.frontends.iter();
        frontends
            .filter(|(key, _)| self.refusal(&rules.service, key).is_none())
            .cloned()
            .collect()
    }

    /// Replaces the claims of one Service on addresses by those of `after`. Adds and removes
    /// frontends of other Services that become entitled to an address by this, or are no longer.
    /// The cluster IPs must have been replaced before. The cost is proportional to the difference,
    /// plus the claims on each address that changes its owner.
    pub(super) fn replace_entitlements(
        &mut self,
        service: &ServiceKey,
        before: Option<&ServiceRules>,
        after: Option<&ServiceRules>,
    ) {
        let [old, new] = [before, after].map(|rules| rules.map_or_else(Vec::new, claimed));
        let decides = |rules: Option<&ServiceRules>, claimed: &[(IpAddr, FrontendKind)]| {
            let given = rules.map_or(&[][..], |rules| &rules.cluster_ips).iter();
            let balancers = claimed.iter();
            let balancers = balancers.filter(|(_, kind)| *kind == FrontendKind::LoadBalancerIp);
            given
                .chain(balancers.map(|(address, _)| address))
                .copied()
                .collect::<BTreeSet<IpAddr>>()
        };
        let (old_says, new_says) = (decides(before, &old), decides(after, &new));
        let mut decided: BTreeSet<IpAddr> =
            old_says.symmetric_difference(&new_says).copied().collect();
        if service.is_api_server() {
            let endpoints = Arc::new(after.map(endpoint_addresses).unwrap_or_default());
            let before = std::mem::replace(&mut self.api_servers, Arc::clone(&endpoints));
            decided.extend(before.symmetric_difference(&endpoints));
        }
        let own: BTreeSet<IpAddr> = old
            .iter()
            .chain(&new)
            .map(|(address, _)| *address)
            .collect();
        replace(&mut self.claimants, service, old, new);
        for address in own {
            self.decide_claim(service, address);
        }
        for address in decided {
            self.decide_other_claims(address, Some(service));
        }
    }

    /// Decides claims again after a change of node and configuration. The cost is proportional to
    /// the addresses that were added to or removed from the node, or to all claims on addresses if
    /// the ranges changed.
    pub(super) fn follow_node(&mut self, node: &Arc<Node>, config: &Arc<Config>) {
        let mut decided = BTreeSet::new();
        if !Arc::ptr_eq(node, &self.node) {
            let (before, after) = (node.own_addresses(), self.node.own_addresses());
            decided.extend(before.symmetric_difference(&after).copied());
        }
        let now = &self.config;
        if config.service_cidrs != now.service_cidrs
            || config.local_detection != now.local_detection
        {
            decided.extend(self.claimants.iter().map(|(address, _)| *address));
        }
        for address in decided {
            self.decide_other_claims(address, None);
        }
    }

    /// Decides the claims on `address` again, except those of `except`.
    fn decide_other_claims(&mut self, address: IpAddr, except: Option<&ServiceKey>) {
        let Some(claimants) = self.claimants.get(&address).cloned() else {
            return;
        };
        let others = claimants.iter().map(|(service, _)| service);
        for service in others.filter(|service| Some(*service) != except) {
            let (was_refused, is_refused) = self.decide_claim(service, address);
            if was_refused == is_refused {
                continue;
            }
            let Some(rules) = self.services.get(service) else {
                continue;
            };
            // The rules stay as they are, so only the frontends are copied.
            for (key, frontend) in at(rules, address).to_vec() {
                let frontend = (!is_refused).then_some(frontend);
                self.replace_frontend(service, key, frontend);
            }
        }
    }

    /// Records whether `service` may have `address`. Returns whether it was refused before, and
    /// whether it is now.
    fn decide_claim(&mut self, service: &ServiceKey, address: IpAddr) -> (bool, bool) {
        let refused = self.decide(service, address);
        let (key, is_refused) = ((address, service.clone()), refused.is_some());
        let known = &mut self.disputes.refused;
        let was_refused = match refused {
            Some(refused) if known.get(&key) == Some(&refused) => true,
            Some(refused) => known.insert(key, refused).is_some(),
            None => known.remove(&key).is_some(),
        };
        (was_refused, is_refused)
    }

    fn decide(&self, service: &ServiceKey, address: IpAddr) -> Option<Refused> {
        let claimants = self.claimants.get(&address)?;
        let kind = claimants.kind_of(service)?;
        let reserved = match self.cluster_ips.get(&address) {
            // The Service claims the address as another kind, so it does not have it as a cluster
            // IP.
            Some(owners) => Some(Reserved::ClusterIp(owners.winner().0.clone())),
            None if kind == FrontendKind::ExternalIp => self.decide_external(service, address),
            None => None,
        }?;
        Some(Refused { kind, reserved })
    }

    /// Decides a claim as an external IP, which any user who may write a Service can make.
    /// Load-balancer IPs are set by cluster administrators, and may be the node's: k3s gives
    /// Services the addresses of nodes.
    fn decide_external(&self, service: &ServiceKey, address: IpAddr) -> Option<Reserved> {
        if self.api_servers.contains(&address) && !service.is_api_server() {
            return Some(Reserved::ApiServer);
        }
        if self.node.has_itself(address) {
            return Some(Reserved::Node);
        }
        let mut ranges = self.config.service_cidrs.iter();
        if let Some(range) = ranges.find(|range| range.contains(&address)) {
            return Some(Reserved::ServiceRange(*range));
        }
        let pods = self.config.local_detection.source(Family::of(address));
        if let Some(range) = pods.filter(|range| range.contains(&address)) {
            return Some(Reserved::PodRange(range));
        }
        let claimants = self.claimants.get(&address)?;
        let (first, kind) = claimants.winner();
        if *kind != FrontendKind::LoadBalancerIp {
            return None;
        }
        let shares = claimants.has_namespace(&service.namespace, FrontendKind::LoadBalancerIp);
        (!shares).then(|| Reserved::LoadBalancerIp(first.clone()))
    }
}

/// The addresses that a Service claims other than as cluster IPs, sorted and distinct. The rules
/// are sorted by address, and all ports of one address have the same kind.
fn claimed(rules: &ServiceRules) -> Vec<(IpAddr, FrontendKind)> {
    let mut claimed: Vec<(IpAddr, FrontendKind)> = Vec::new();
    for (key, frontend) in &rules.frontends {
        let FrontendKey::Address { address, .. } = key else {
            continue;
        };
        let is_known = claimed.last().is_some_and(|(last, _)| last == address);
        if frontend.kind != FrontendKind::ClusterIp && !is_known {
            claimed.push((*address, frontend.kind));
        }
    }
    claimed
}

/// The frontends of a Service at one address.
fn at(rules: &ServiceRules, address: IpAddr) -> &[(FrontendKey, Arc<Frontend>)] {
    let of = |key: &FrontendKey| match key {
        FrontendKey::Address { address, .. } => Some(*address),
        // Sorted after all addresses.
        FrontendKey::NodePort { .. } => None,
    };
    let frontends = &rules.frontends;
    let start = frontends.partition_point(|(key, _)| of(key).is_some_and(|other| other < address));
    let length = frontends[start..].partition_point(|(key, _)| of(key) == Some(address));
    &frontends[start..start + length]
}

fn endpoint_addresses(rules: &ServiceRules) -> BTreeSet<IpAddr> {
    let frontends = rules.frontends.iter();
    let targets = frontends.flat_map(|(_, f)| f.serving.iter().chain(&*f.cluster).chain(&*f.local));
    targets.map(|target| target.address).collect()
}

// === impl Reserved ===

impl Reserved {
    /// The Service that has the address, if any, and as which kind.
    pub fn owner(&self) -> Option<(&ServiceKey, FrontendKind)> {
        match self {
            Reserved::ClusterIp(owner) => Some((owner, FrontendKind::ClusterIp)),
            Reserved::LoadBalancerIp(owner) => Some((owner, FrontendKind::LoadBalancerIp)),
            Reserved::ApiServer
            | Reserved::Node
            | Reserved::ServiceRange(_)
            | Reserved::PodRange(_) => None,
        }
    }

    /// The alternative for the author of the claim.
    pub fn remedy(&self) -> &'static str {
        match self {
            Reserved::ClusterIp(_) | Reserved::ApiServer => "name another address",
            Reserved::Node => "use a node port or a load-balancer IP",
            Reserved::ServiceRange(_) | Reserved::PodRange(_) => "name an address outside of it",
            Reserved::LoadBalancerIp(_) => {
                "name another address, or have the load balancer's controller share this one"
            }
        }
    }
}

impl fmt::Display for Reserved {
    /// Prints a predicate for the address: `is a cluster IP of Service …`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reserved::ClusterIp(owner) => write!(f, "is a cluster IP of Service {owner}"),
            Reserved::ApiServer => f.write_str("is an address of the API server"),
            Reserved::Node => f.write_str("is an address of this node"),
            Reserved::ServiceRange(range) => {
                write!(f, "is inside {range}, where cluster IPs come from")
            }
            Reserved::PodRange(range) => {
                write!(f, "is inside {range}, where pods have their addresses")
            }
            Reserved::LoadBalancerIp(owner) => {
                write!(
                    f,
                    "is a load-balancer IP of Service {owner} in another namespace"
                )
            }
        }
    }
}
