//! The cases: which client connects to which address.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use dataplane::{Family, Protocol};
use testkit::{Seeded, address_plan as addresses};

use super::configuration::{Configuration, Detection};
use super::population::{Affinity, ExternalIps, Ingress, Place, Population, Port, Service};

/// A connection of one client to one address, tried with both proxies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// The number of the Service.
    pub service: u8,
    /// The role of the address for that Service.
    pub front: Front,
    /// The client.
    pub origin: Origin,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The destination.
    pub destination: SocketAddr,
    /// A second destination of the same client.
    pub then: Option<SocketAddr>,
    /// The maximum number of possible endpoints.
    pub endpoints: u32,
    /// Whether session affinity applies.
    pub affinity: Affinity,
}

/// The role of an address for a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Front {
    /// A cluster IP and one of its ports.
    ClusterIp,
    /// The address of the load balancer and a port.
    LoadBalancerIp,
    /// An external IP and a port.
    ExternalIp,
    /// A node port at the node's main address.
    NodePort,
    /// A node port at another address of the node.
    NodePortElsewhere,
    /// A node port at a loopback address, reachable only from the node itself.
    NodePortAtLoopback,
    /// A cluster IP, and then, from the same client, a node port of the same Service: does the same
    /// endpoint answer?
    ClusterIpThenNodePort,
    /// A cluster IP and a port without a Service.
    WrongPort,
    /// The load balancer's address and a port without a Service.
    WrongPortOfLoadBalancer,
    /// An unused address in a Service CIDR.
    Unallocated,
}

/// The origin of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A pod of the node that is not an endpoint.
    Pod,
    /// A pod of the node that is an endpoint or may be one.
    EndpointPod,
    /// A pod of another node, which sends Service traffic to this node.
    PodElsewhere,
    /// The node itself.
    Node,
    /// A client outside the cluster, by its number.
    Outside(u8),
}

/// The host number of a cluster IP that no Service has.
const UNALLOCATED: u8 = 250;
/// The offset from a Service's port to a port without a Service.
const WRONG: u16 = 1000;

// === impl Case ===

impl Case {
    /// Returns `count` random cases, four of five about addresses that their Service has, the
    /// others about addresses that it could have.
    pub fn sample(
        seeded: &mut Seeded,
        population: &Population,
        configuration: Configuration,
        count: usize,
    ) -> Vec<Case> {
        let mut all = Case::all(population, configuration);
        seeded.shuffle(&mut all);
        let (mut sample, mut others): (Vec<Case>, Vec<Case>) = all
            .into_iter()
            .partition(|case| case.is_about_what_is_there(population));
        sample.truncate(count - count / 5);
        others.truncate(count - sample.len());
        sample.append(&mut others);
        sample
    }

    /// Returns every case for `population`. Leaves out cases that show nothing, in which the answer
    /// bypasses the node under test and the client does not recognize it.
    pub fn all(population: &Population, configuration: Configuration) -> Vec<Case> {
        let mut cases = Vec::new();
        for service in population.services.iter().chain(&population.deleted) {
            for port in &service.ports {
                for family in Family::ALL {
                    for front in fronts(service, port, family) {
                        add(&mut cases, service, port, front);
                    }
                }
            }
        }
        cases.retain(|case| case.comes_back(population, configuration));
        cases
    }

    /// Its family.
    pub fn family(&self) -> Family {
        Family::of(self.destination.ip())
    }

    /// Returns the source address; `None` for the node, whose kernel chooses it.
    pub fn source(&self) -> Option<IpAddr> {
        let family = self.family();
        match self.origin {
            Origin::Pod | Origin::EndpointPod | Origin::PodElsewhere => {
                let (node, pod) = self.origin.pod()?;
                Some(addresses::pod_address(node, pod, family))
            }
            Origin::Node => None,
            Origin::Outside(number) => Some(addresses::outside_client(number, family)),
        }
    }

    fn is_about_what_is_there(&self, population: &Population) -> bool {
        let mut services = population.services.iter();
        let own = services.find(|service| service.number == self.service);
        own.is_some_and(|service| match self.front {
            Front::ClusterIp => service.families.contains(&self.family()),
            Front::LoadBalancerIp => service.ingress != Ingress::Absent,
            Front::ExternalIp => service.external_ips == ExternalIps::OfBothFamilies,
            Front::NodePort | Front::NodePortAtLoopback | Front::ClusterIpThenNodePort => true,
            Front::NodePortElsewhere
            | Front::WrongPort
            | Front::WrongPortOfLoadBalancer
            | Front::Unallocated => false,
        })
    }

    /// Whether answers come back through the node under test. A pod elsewhere that counts as local
    /// keeps its address, so an endpoint next to it would answer directly from an unexpected
    /// address.
    fn comes_back(&self, population: &Population, configuration: Configuration) -> bool {
        if self.origin != Origin::PodElsewhere || configuration.detection != Detection::ClusterCidr
        {
            return true;
        }
        let all = population.services.iter().chain(&population.deleted);
        let mut own = all.filter(|service| service.number == self.service);
        own.all(|service| service.endpoints.iter().all(|e| e.place.node() == 1))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} -> {}/{}, {:?} of s{}",
            self.origin, self.destination, self.protocol, self.front, self.service
        )
    }
}

// === impl Origin ===

impl Origin {
    /// Returns the numbers of the pod's node and of the pod.
    pub(super) fn pod(self) -> Option<(u8, u8)> {
        match self {
            Origin::Pod => Some((1, 9)),
            Origin::EndpointPod => Some((1, 5)),
            Origin::PodElsewhere => Some((2, 9)),
            Origin::Node | Origin::Outside(_) => None,
        }
    }
}

fn add(
    cases: &mut Vec<Case>,
    service: &Service,
    port: &Port,
    (front, destination): (Front, SocketAddr),
) {
    let own_pod = Place::Pod(1, 5);
    let hairpin = service.endpoints.iter().any(|e| e.place == own_pod);
    let then = match front {
        Front::ClusterIpThenNodePort => port.node_port.map(|number| {
            let family = Family::of(destination.ip());
            SocketAddr::new(addresses::node_address(1, family), number)
        }),
        _ => None,
    };
    let origins = [
        Origin::Pod,
        Origin::EndpointPod,
        Origin::PodElsewhere,
        Origin::Node,
        Origin::Outside(2),
        Origin::Outside(3),
    ];
    for origin in origins {
        let shows_something = match origin {
            Origin::EndpointPod => hairpin,
            // The choice between two outside clients matters only if there are source ranges.
            Origin::Outside(3) => !service.source_ranges.is_empty(),
            Origin::Pod | Origin::PodElsewhere | Origin::Node | Origin::Outside(_) => true,
        };
        // A loopback address is reachable only from its own host, and crowds of clients are
        // outside.
        let possible = match origin {
            Origin::Node => then.is_none(),
            Origin::Outside(2) => !destination.ip().is_loopback(),
            _ => !destination.ip().is_loopback() && then.is_none(),
        };
        if !shows_something || !possible {
            continue;
        }
        cases.push(Case {
            service: service.number,
            front,
            origin,
            protocol: port.protocol,
            destination,
            then,
            endpoints: u32::try_from(service.endpoints.len()).unwrap_or(u32::MAX),
            affinity: service.affinity,
        });
    }
}

/// Returns the addresses that could belong to one port of a Service, whether it has them or not.
fn fronts(service: &Service, port: &Port, family: Family) -> Vec<(Front, SocketAddr)> {
    let at = |ip, number| SocketAddr::new(ip, number);
    let cluster_ip = addresses::cluster_ip(service.number, family);
    let balanced = addresses::load_balancer_ip(service.number, family);
    let external = addresses::external_ip(service.number, family);
    let unallocated = addresses::cluster_ip(UNALLOCATED, family);
    let mut fronts = vec![
        (Front::ClusterIp, at(cluster_ip, port.number)),
        (Front::LoadBalancerIp, at(balanced, port.number)),
        (Front::ExternalIp, at(external, port.number)),
        (Front::WrongPort, at(cluster_ip, port.number + WRONG)),
        (
            Front::WrongPortOfLoadBalancer,
            at(balanced, port.number + WRONG),
        ),
        (Front::Unallocated, at(unallocated, port.number)),
    ];
    if let Some(number) = port.node_port {
        let own = addresses::node_address(1, family);
        let others = [
            addresses::second_address(1, family),
            addresses::bridge_address(1, family),
        ];
        let loopback = addresses::loopback(family);
        fronts.push((Front::NodePort, at(own, number)));
        fronts.extend(others.map(|ip| (Front::NodePortElsewhere, at(ip, number))));
        fronts.push((Front::NodePortAtLoopback, at(loopback, number)));
        if service.affinity == Affinity::ClientIp && service.families.contains(&family) {
            let first = at(cluster_ip, port.number);
            fronts.push((Front::ClusterIpThenNodePort, first));
        }
    }
    fronts
}
