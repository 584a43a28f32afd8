//! Random changes of Services in use.

use testkit::Seeded;

use super::generation::{chance, condition, endpoints, pick};
use super::{
    Affinity, Endpoint, ExternalIps, Ingress, Kind, PLACES, Policy, Population, Proxy,
    SOURCE_RANGES, Service, TARGETS,
};

impl Population {
    /// Changes `count` Services, most of them slightly; one in six is deleted and replaced by a new
    /// one. Returns a description of each change.
    pub fn mutate(&mut self, seeded: &mut Seeded, count: usize) -> Vec<String> {
        let mut done = Vec::new();
        for _ in 0..count {
            let index = seeded.below(self.services.len());
            if chance(seeded, 15) {
                let service = self.services.swap_remove(index);
                done.push(format!("{} deleted", service.name()));
                self.deleted.push(service);
                self.add(seeded);
            } else {
                let service = &mut self.services[index];
                done.push(format!("{} {}", service.name(), service.mutate(seeded)));
            }
        }
        done
    }
}

impl Service {
    fn mutate(&mut self, seeded: &mut Seeded) -> &'static str {
        match seeded.below(13) {
            0..=2 => self.flip_endpoint(seeded),
            3 => {
                self.endpoints = endpoints(seeded);
                "has other endpoints"
            }
            4 => {
                self.endpoints.clear();
                "has no endpoint"
            }
            5 => {
                self.internal = opposite(self.internal);
                "has the other internal policy"
            }
            6 if self.may_be_external() => {
                self.external = opposite(self.external);
                "has the other external policy"
            }
            7 => {
                self.affinity = match self.affinity {
                    Affinity::None => Affinity::ClientIp,
                    Affinity::ClientIp => Affinity::None,
                };
                "has the other affinity"
            }
            8 if self.kind == Kind::LoadBalancer => {
                self.source_ranges = match self.source_ranges.is_empty() {
                    true => pick(seeded, &SOURCE_RANGES).to_vec(),
                    false => Vec::new(),
                };
                "has other source ranges"
            }
            9 if self.kind == Kind::LoadBalancer => {
                self.ingress = pick(seeded, &[Ingress::Absent, Ingress::Vip, Ingress::Proxy]);
                "has another load-balancer status"
            }
            10 if self.external_ips == ExternalIps::Absent => {
                self.external_ips = ExternalIps::OfBothFamilies;
                "has external IPs"
            }
            11 => {
                self.proxy = match self.proxy {
                    Proxy::Any => Proxy::Another,
                    Proxy::Another => Proxy::Any,
                };
                "has another proxy, or any again"
            }
            _ => {
                for port in &mut self.ports {
                    port.target = TARGETS[usize::from(port.target == TARGETS[0])];
                }
                "has other target ports"
            }
        }
    }

    /// Adds an endpoint or changes the condition of one.
    fn flip_endpoint(&mut self, seeded: &mut Seeded) -> &'static str {
        let free = PLACES
            .iter()
            .find(|place| self.endpoints.iter().all(|known| known.place != **place));
        if let Some(place) = free
            && (self.endpoints.is_empty() || chance(seeded, 50))
        {
            self.endpoints.push(Endpoint {
                place: *place,
                condition: condition(seeded),
                hinted: pick(seeded, &[1, 2]),
            });
            return "has an endpoint more";
        }
        let index = seeded.below(self.endpoints.len());
        self.endpoints[index].condition = condition(seeded);
        "has an endpoint with another condition"
    }
}

fn opposite(policy: Policy) -> Policy {
    match policy {
        Policy::Cluster => Policy::Local,
        Policy::Local => Policy::Cluster,
    }
}
