//! Generates random Services.

use dataplane::{Family, Protocol};
use testkit::Seeded;

use super::{
    Affinity, Condition, Endpoint, ExternalIps, Hints, Ingress, Kind, NODE_PORTS, PLACES, Policy,
    Population, Port, Proxy, SOURCE_RANGES, Service, Slices, TARGETS,
};

/// The number of the first Service. The API server's own Service and the canary have lower ones.
const FIRST: u8 = 20;

impl Population {
    /// Returns a population without Services.
    pub fn empty() -> Population {
        Population {
            services: Vec::new(),
            deleted: Vec::new(),
            next: FIRST,
        }
    }

    /// Generates `size` Services.
    pub fn generate(seeded: &mut Seeded, size: usize) -> Population {
        let mut population = Population::empty();
        for _ in 0..size {
            population.add(seeded);
        }
        population
    }

    pub(super) fn add(&mut self, seeded: &mut Seeded) {
        self.services.push(Service::generate(seeded, self.next));
        self.next += 1;
    }
}

impl Service {
    fn generate(seeded: &mut Seeded, number: u8) -> Service {
        let kind = pick(
            seeded,
            &[
                Kind::ClusterIp,
                Kind::NodePort,
                Kind::NodePort,
                Kind::LoadBalancer,
                Kind::LoadBalancer,
                Kind::LoadBalancer,
            ],
        );
        let families: &[Family] = pick(
            seeded,
            &[
                &Family::ALL,
                &Family::ALL,
                &Family::ALL,
                &[Family::Ipv4],
                &[Family::Ipv6],
            ],
        );
        let of_load_balancer = kind == Kind::LoadBalancer;
        let ingress = match of_load_balancer {
            false => Ingress::Absent,
            true => pick(
                seeded,
                &[Ingress::Plain, Ingress::Vip, Ingress::Proxy, Ingress::Plain],
            ),
        };
        let source_ranges = match of_load_balancer && chance(seeded, 35) {
            false => Vec::new(),
            true => pick(seeded, &SOURCE_RANGES).to_vec(),
        };
        let mut service = Service {
            number,
            kind,
            families: families.to_vec(),
            ports: ports(seeded, number, kind),
            external: Policy::Cluster,
            internal: policy(seeded),
            affinity: match chance(seeded, 20) {
                true => Affinity::ClientIp,
                false => Affinity::None,
            },
            source_ranges,
            ingress,
            external_ips: match chance(seeded, 30) {
                true => ExternalIps::OfBothFamilies,
                false => ExternalIps::Absent,
            },
            hints: pick(
                seeded,
                &[
                    Hints::Absent,
                    Hints::Absent,
                    Hints::Zones,
                    Hints::Nodes,
                    Hints::AllButOne,
                ],
            ),
            slices: match chance(seeded, 20) {
                true => Slices::Uneven,
                false => Slices::Even,
            },
            proxy: Proxy::Any,
            endpoints: endpoints(seeded),
        };
        if service.may_be_external() && chance(seeded, 50) {
            service.external = Policy::Local;
        }
        service
    }
}

impl Port {
    fn new(name: &'static str, protocol: Protocol, number: u16) -> Port {
        Port {
            name,
            protocol,
            number,
            node_port: None,
            target: TARGETS[0],
        }
    }
}

fn ports(seeded: &mut Seeded, number: u8, kind: Kind) -> Vec<Port> {
    use Protocol::{Tcp, Udp};
    let mut ports = match seeded.below(6) {
        0 | 1 => vec![Port::new("", Tcp, 80)],
        2 => vec![Port::new("http", Tcp, 80), Port::new("metrics", Tcp, 9090)],
        3 | 4 => vec![Port::new("dns", Udp, 53), Port::new("dns-tcp", Tcp, 53)],
        _ => vec![Port::new("", Udp, 5353)],
    };
    // A load balancer may have no node ports.
    let with_node_ports = match kind {
        Kind::ClusterIp => false,
        Kind::NodePort => true,
        Kind::LoadBalancer => !chance(seeded, 15),
    };
    for (port, offset) in ports.iter_mut().zip(0..) {
        port.target = pick(seeded, &TARGETS);
        if with_node_ports {
            port.node_port = Some(NODE_PORTS + 4 * u16::from(number) + offset);
        }
    }
    ports
}

pub(super) fn endpoints(seeded: &mut Seeded) -> Vec<Endpoint> {
    let mut places = PLACES;
    seeded.shuffle(&mut places);
    let count = pick(seeded, &[0, 1, 1, 2, 2, 3, 3, 4]);
    let endpoints = places[..count].iter().map(|place| Endpoint {
        place: *place,
        condition: condition(seeded),
        hinted: pick(seeded, &[1, 2]),
    });
    endpoints.collect()
}

pub(super) fn condition(seeded: &mut Seeded) -> Condition {
    use Condition::{Draining, Ending, Published, Ready, Unready, Unsaid};
    pick(
        seeded,
        &[
            Unsaid, Ready, Ready, Ready, Ready, Unready, Draining, Draining, Ending, Published,
        ],
    )
}

fn policy(seeded: &mut Seeded) -> Policy {
    match chance(seeded, 30) {
        true => Policy::Local,
        false => Policy::Cluster,
    }
}

pub(super) fn pick<T: Copy>(seeded: &mut Seeded, list: &[T]) -> T {
    list[seeded.below(list.len())]
}

pub(super) fn chance(seeded: &mut Seeded, percent: usize) -> bool {
    seeded.below(100) < percent
}
