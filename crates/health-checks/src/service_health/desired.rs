//! The addresses to listen on, each with its Service. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use dataplane::{
    Dataplane, Family, FrontendKey, FrontendKind, HealthCheck, ServiceKey, ServiceRules,
    is_ipv6_link_local,
};

/// The desired listeners, derived from the programmed state of each family.
#[derive(Debug, Default)]
pub(super) struct DesiredListeners(BTreeMap<Family, OfFamily>);

/// The health checks of one family.
#[derive(Debug, Default)]
struct OfFamily {
    /// The last programmed state, as far as it is known.
    dataplane: Dataplane,
    /// Its Services with health checks.
    checks: BTreeMap<ServiceKey, Check>,
}

/// The health check of one Service.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Check {
    check: HealthCheck,
    /// The Service's own load-balancer addresses.
    balancers: Vec<IpAddr>,
}

/// The answer on one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listening {
    /// The Service.
    pub(super) service: ServiceKey,
    /// The number of its endpoints on this node.
    pub(super) local_endpoints: usize,
}

// === impl DesiredListeners ===

impl DesiredListeners {
    /// Sets the programmed state of `family`; `None` while it is not known. Returns whether the
    /// [`listeners`](DesiredListeners::listeners) may have changed.
    pub(super) fn follow(&mut self, family: Family, programmed: Option<&Dataplane>) -> bool {
        match programmed {
            None => self.0.remove(&family).is_some(),
            Some(programmed) => self.0.entry(family).or_default().follow(family, programmed),
        }
    }

    /// Returns the answer on each address, and the Services that have no listener on an address
    /// because another Service, the first by name, has the same one.
    pub(super) fn listeners(
        &self,
    ) -> (
        BTreeMap<SocketAddr, Listening>,
        Vec<(SocketAddr, ServiceKey)>,
    ) {
        let mut listeners = BTreeMap::<SocketAddr, Listening>::new();
        let mut contested = Vec::new();
        for (family, desired) in &self.0 {
            for (service, check) in &desired.checks {
                for address in desired.addresses(*family, check) {
                    let address = SocketAddr::new(address, check.check.port.get());
                    if listeners.contains_key(&address) {
                        contested.push((address, service.clone()));
                        continue;
                    }
                    let listening = Listening {
                        service: service.clone(),
                        local_endpoints: check.check.local_endpoints.of(*family),
                    };
                    listeners.insert(address, listening);
                }
            }
        }
        (listeners, contested)
    }
}

// === impl OfFamily ===

impl OfFamily {
    /// Updates the programmed state. Returns whether anything about listening has changed. The cost
    /// is proportional to the change.
    fn follow(&mut self, family: Family, programmed: &Dataplane) -> bool {
        let places = |dataplane: &Dataplane| dataplane.config().node_ports.of(family).cloned();
        let mut changed = places(&self.dataplane) != places(programmed);
        for difference in self.dataplane.services().differences(programmed.services()) {
            let check = difference.after.and_then(|rules| check(family, rules));
            let before = match &check {
                Some(check) => self.checks.insert(difference.key.clone(), check.clone()),
                None => self.checks.remove(difference.key),
            };
            changed |= before != check;
        }
        self.dataplane = programmed.clone();
        changed
    }

    /// Returns the addresses on which to answer for one Service: those with node ports, and the
    /// Service's load-balancer addresses. IPv6 link-local addresses are left out, because a socket
    /// needs an interface for those.
    fn addresses(&self, family: Family, check: &Check) -> Vec<IpAddr> {
        match self.dataplane.config().node_ports.of(family) {
            None => vec![match family {
                Family::Ipv4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                Family::Ipv6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            }],
            Some(addresses) => {
                let balancers = check.balancers.iter();
                let mut all: Vec<IpAddr> = addresses.iter().chain(balancers).copied().collect();
                all.retain(|address| !is_ipv6_link_local(*address));
                all.sort();
                all.dedup();
                all
            }
        }
    }
}

/// Returns the health check in `rules` for `family`; `None` if the Service has no cluster IP in it.
fn check(family: Family, rules: &ServiceRules) -> Option<Check> {
    let check = rules.health_check?;
    let of_family = |address: &&IpAddr| Family::of(**address) == family;
    rules.cluster_ips.iter().find(of_family)?;
    let balancers = rules
        .frontends
        .iter()
        .filter_map(|(key, frontend)| match key {
            FrontendKey::Address { address, .. }
                if frontend.kind == FrontendKind::LoadBalancerIp =>
            {
                Some(address)
            }
            _ => None,
        });
    Some(Check {
        check,
        balancers: balancers.filter(of_family).copied().collect(),
    })
}
