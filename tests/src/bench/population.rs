//! The objects in the API server: many similar Services and their endpoints.
//!
//! | what | addresses |
//! |---|---|
//! | Service N | 10.96.1.0 + N, port 80, TCP and UDP in turn |
//! | endpoints | 10.128.0.0/9, port 8080, each address used once |

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, ensure};
use dataplane::Protocol;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

/// The namespace of all objects.
pub(super) const NAMESPACE: &str = "bench";
/// The port of every Service.
const PORT: u16 = 80;
/// The port of every endpoint.
pub(crate) const TARGET: u16 = 8080;
/// The cluster IP of Service 0. Lower addresses are reserved for the cluster itself.
const FIRST_CLUSTER_IP: u32 = u32::from_be_bytes([10, 96, 1, 0]);
/// The first address of an endpoint.
const FIRST_ENDPOINT: u32 = u32::from_be_bytes([10, 128, 0, 0]);
/// The last address of an endpoint.
const LAST_ENDPOINT: u32 = u32::from_be_bytes([10, 255, 255, 255]);
/// The first address that no endpoint has initially, for any size of cluster.
const FIRST_FRESH: u32 = FIRST_ENDPOINT + MOST_SERVICES * MOST_ENDPOINTS;
/// The maximum number of Services: cluster IPs come from 10.96.0.0/16.
const MOST_SERVICES: u32 = 65_000;
/// The maximum number of endpoints of one slice (`discovery/v1`); each Service has one slice.
const MOST_ENDPOINTS: u32 = 100;

/// Services with one EndpointSlice each. The first ones exist from the beginning; the slices of the
/// others exist before their Services, which are added one by one.
#[derive(Debug, Clone)]
pub struct Population {
    services: u32,
    waiting: u32,
    endpoints: u32,
    /// The present endpoints of Services whose endpoints were replaced.
    changed: BTreeMap<u32, Vec<Ipv4Addr>>,
    next_fresh: u32,
}

/// The replacement of one endpoint by another.
#[derive(Debug, Clone)]
pub(crate) struct Replacement {
    /// The name of the slice.
    pub(super) slice: String,
    /// The merge patch.
    pub(super) patch: Value,
    /// The new address, which no endpoint had before.
    pub(crate) fresh: Ipv4Addr,
}

// === impl Population ===

impl Population {
    /// Creates `services` Services with `endpoints` endpoints each, and `waiting` more to be added
    /// later.
    pub fn new(services: u32, endpoints: u32, waiting: u32) -> Result<Population> {
        ensure!(services > 0 && endpoints > 0, "there is nothing to measure");
        ensure_fits(services, waiting)?;
        ensure!(
            endpoints <= MOST_ENDPOINTS,
            "a slice has at most {MOST_ENDPOINTS} endpoints"
        );
        Ok(Population {
            services,
            waiting,
            endpoints,
            changed: BTreeMap::new(),
            next_fresh: FIRST_FRESH,
        })
    }

    /// Adds Services. Existing ones stay unchanged.
    pub fn grow(&mut self, services: u32) -> Result<()> {
        ensure!(services >= self.services, "a population only grows");
        ensure_fits(services, self.waiting)?;
        self.services = services;
        Ok(())
    }

    /// Returns the number of Services that exist from the beginning.
    pub fn services(&self) -> u32 {
        self.services
    }

    /// Returns the number of endpoints of each Service.
    pub fn endpoints(&self) -> u32 {
        self.endpoints
    }

    /// Returns the numbers of the Services to be added later.
    pub(super) fn waiting(&self) -> std::ops::Range<u32> {
        self.services..self.all()
    }

    fn all(&self) -> u32 {
        self.services + self.waiting
    }

    /// Returns every slice, including those of Services to be added later.
    pub(super) fn slices(&self) -> impl Iterator<Item = Result<EndpointSlice>> {
        (0..self.all()).map(|service| self.slice(service))
    }

    fn slice(&self, service: u32) -> Result<EndpointSlice> {
        let object = json!({
            "metadata": {
                "namespace": NAMESPACE,
                "name": slice_name(service),
                "labels": {
                    "kubernetes.io/service-name": service_name(service),
                    // The EndpointSlice controller would delete slices that it considers its own.
                    "endpointslice.kubernetes.io/managed-by": "bench",
                },
            },
            "addressType": "IPv4",
            "ports": [{"name": "", "protocol": protocol_name(service), "port": TARGET}],
            "endpoints": endpoint_objects(&self.endpoints_of(service)),
        });
        serde_json::from_value(object).context("this is no EndpointSlice")
    }

    /// Returns address and port of an endpoint of the Service at `frontend`.
    pub(super) fn endpoint_of(&self, frontend: SocketAddr) -> SocketAddr {
        let service = match frontend.ip() {
            IpAddr::V4(address) => service_at(address.into(), self.all()),
            IpAddr::V6(_) => None,
        };
        let endpoints = self.endpoints_of(service.unwrap_or_default());
        let address = endpoints.first().copied();
        SocketAddr::new(address.unwrap_or(Ipv4Addr::UNSPECIFIED).into(), TARGET)
    }

    fn endpoints_of(&self, service: u32) -> Vec<Ipv4Addr> {
        let first = FIRST_ENDPOINT + service * self.endpoints;
        let original = || {
            (first..first + self.endpoints)
                .map(Ipv4Addr::from)
                .collect()
        };
        self.changed.get(&service).cloned().unwrap_or_else(original)
    }

    /// Replaces one endpoint of a Service by one with a new address.
    pub(crate) fn replace_endpoint(&mut self, service: u32) -> Replacement {
        let fresh = Ipv4Addr::from(self.next_fresh);
        self.next_fresh = match self.next_fresh {
            LAST_ENDPOINT => FIRST_FRESH,
            address => address + 1,
        };
        let mut endpoints = self.endpoints_of(service);
        endpoints.rotate_left(1);
        if let Some(last) = endpoints.last_mut() {
            *last = fresh;
        }
        let patch = json!({"endpoints": endpoint_objects(&endpoints)});
        self.changed.insert(service, endpoints);
        Replacement {
            slice: slice_name(service),
            patch,
            fresh,
        }
    }
}

fn ensure_fits(services: u32, waiting: u32) -> Result<()> {
    ensure!(
        services.saturating_add(waiting) <= MOST_SERVICES,
        "more than {MOST_SERVICES} Services do not fit in 10.96.0.0/16"
    );
    Ok(())
}

/// Returns a Service as an API object.
pub(super) fn service(number: u32) -> Result<Service> {
    let object = json!({
        "metadata": {"namespace": NAMESPACE, "name": service_name(number)},
        "spec": {
            "clusterIP": cluster_ip(number),
            "ports": [{
                "protocol": protocol_name(number), "port": PORT, "targetPort": TARGET,
            }],
        },
    });
    serde_json::from_value(object).context("this is no Service")
}

/// Returns the address and port of a Service.
pub(crate) fn frontend(number: u32) -> SocketAddr {
    SocketAddr::new(cluster_ip(number).into(), PORT)
}

/// The cluster IP of a Service.
pub(super) fn cluster_ip(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(FIRST_CLUSTER_IP + number)
}

/// The Service that has this cluster IP, if there are `services`.
pub(crate) fn service_at(address: u32, services: u32) -> Option<u32> {
    let number = address.checked_sub(FIRST_CLUSTER_IP)?;
    (number < services).then_some(number)
}

/// Whether this is the address of an endpoint.
pub(crate) fn is_endpoint(address: u32) -> bool {
    (FIRST_ENDPOINT..=LAST_ENDPOINT).contains(&address)
}

/// The protocol of a Service: every second one is UDP.
pub(crate) fn protocol(number: u32) -> Protocol {
    match number.is_multiple_of(2) {
        true => Protocol::Tcp,
        false => Protocol::Udp,
    }
}

/// The name of a Service.
pub(super) fn service_name(number: u32) -> String {
    format!("service-{number}")
}

fn slice_name(service: u32) -> String {
    format!("service-{service}-x")
}

fn protocol_name(number: u32) -> &'static str {
    match protocol(number) {
        Protocol::Udp => "UDP",
        _ => "TCP",
    }
}

fn endpoint_objects(addresses: &[Ipv4Addr]) -> Vec<Value> {
    let object = |address| json!({"addresses": [address], "conditions": {"ready": true}});
    addresses.iter().map(object).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_endpoints_have_one_address() -> Result<()> {
        let mut population = Population::new(30, 3, 2)?;
        let all = (0..32).flat_map(|service| population.endpoints_of(service));
        let mut seen: BTreeSet<Ipv4Addr> = all.collect();
        assert_eq!(seen.len(), 96);
        for service in [4, 4, 4, 4, 9] {
            let replacement = population.replace_endpoint(service);
            assert!(seen.insert(replacement.fresh));
            let endpoints = population.endpoints_of(service);
            assert_eq!(endpoints.len(), 3);
            assert!(endpoints.contains(&replacement.fresh));
        }
        assert!(seen.iter().all(|address| is_endpoint((*address).into())));
        Ok(())
    }

    #[test]
    fn what_has_changed_stays_when_the_population_grows() -> Result<()> {
        let mut population = Population::new(3, 2, 1)?;
        let fresh = population.replace_endpoint(0).fresh;
        population.grow(10)?;
        assert!(population.endpoints_of(0).contains(&fresh));
        let all = (0..11).flat_map(|service| population.endpoints_of(service));
        assert_eq!(all.collect::<BTreeSet<_>>().len(), 22);
        assert!(population.grow(9).is_err());
        Ok(())
    }

    #[test]
    fn more_services_than_there_are_addresses_are_refused() {
        assert!(Population::new(65_000, 1, 1).is_err());
        assert!(Population::new(10, 101, 1).is_err());
    }
}
