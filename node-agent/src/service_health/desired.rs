//! Where to listen, and for which Service. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use dataplane::{
    Dataplane, Family, FrontendKey, FrontendKind, HealthCheck, ServiceKey, ServiceRules,
    is_ipv6_link_local,
};

/// The desired listeners, by what is programmed in each family.
#[derive(Debug, Default)]
pub(super) struct DesiredListeners(BTreeMap<Family, OfFamily>);

/// The health checks of one family.
#[derive(Debug, Default)]
struct OfFamily {
    /// What was last programmed, as far as it is known.
    dataplane: Dataplane,
    /// Its Services with health checks.
    checks: BTreeMap<ServiceKey, Check>,
}

/// How load balancers check one Service.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Check {
    check: HealthCheck,
    /// The Service's own load-balancer addresses.
    balancers: Vec<IpAddr>,
}

/// The answer at one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listening {
    /// For which Service.
    pub(super) service: ServiceKey,
    /// Its endpoints on this node.
    pub(super) local_endpoints: usize,
}

// === impl DesiredListeners ===

impl DesiredListeners {
    /// Sets what is programmed in `family`; `None` as long as that is not known. Returns whether the
    /// [`listeners`](DesiredListeners::listeners) may have changed.
    pub(super) fn follow(&mut self, family: Family, programmed: Option<&Dataplane>) -> bool {
        match programmed {
            None => self.0.remove(&family).is_some(),
            Some(programmed) => self.0.entry(family).or_default().follow(family, programmed),
        }
    }

    /// The answer at each address; and the Services that have no listener because another Service, the
    /// first by name, has the same address.
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
    /// Costs what has changed. Returns whether anything about listening has.
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

    /// Where one Service is asked after: wherever node ports are open, but for IPv6 link-local
    /// addresses, which a socket has by interface only.
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

/// What `rules` say about `family`, of which the Service may have no address.
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
