//! Assigns separate affinity maps (rooms) to Services.
//!
//! A Service keeps its map as long as it has affinity, also through restarts: the numbers of its
//! frontends identify the map. There are few maps, and one namespace gets only some of them, so
//! that no tenant takes them all. All other Services use the shared map.

use std::collections::BTreeMap;
use std::sync::Arc;

use dataplane::{Affinity, Dataplane, Family, Frontend, FrontendKey, ServiceKey};

use crate::chains::ChainId;
use crate::layout::{self, AffinityMap, Keyed};
use crate::table::Table;

/// How many Services of one namespace may have a separate map.
const IN_A_NAMESPACE: usize = 8;

/// Affinity maps, by number, and their Services.
pub(crate) type AffinityMaps = BTreeMap<u8, ServiceKey>;

/// The assignment of maps in one rendering.
pub(super) struct Assignment<'a> {
    family: Family,
    desired: &'a Dataplane,
    /// The maps of the Services that were asked about. What the holders of maps desire does not change
    /// meanwhile, so a Service without a map finds none later.
    found: BTreeMap<&'a ServiceKey, AffinityMap>,
    /// How often the holders of maps were searched.
    #[cfg(test)]
    searches: usize,
}

/// Reads the assignment from the elements in `rules`, for Services that still have affinity. The
/// cost is proportional to the frontends with affinity.
pub(super) fn read(family: Family, rules: &Table, desired: &Dataplane) -> AffinityMaps {
    let mut affinity_maps = AffinityMaps::new();
    for keyed in Keyed::ALL {
        let set = keyed.affinities();
        let Some(elements) = rules.sets.get(set.as_str()) else {
            continue;
        };
        for (key, data) in elements.elements.iter() {
            let Some(ChainId::Numbered(chain)) = ChainId::of(set, data) else {
                continue;
            };
            let frontend = layout::parse_frontend(family, keyed, key.as_slice());
            let claims = frontend.and_then(|key| desired.frontends().get(&key));
            if let (AffinityMap::Reserved(affinity_map), Some(claims)) =
                (chain.affinity_map, claims)
            {
                let (service, _) = claims.winner();
                if has_affinity(family, desired, service) {
                    // If two Services have the same map, as after an address moved from one to the
                    // other, the first by name keeps it.
                    let holder = affinity_maps
                        .entry(affinity_map)
                        .or_insert_with(|| service.clone());
                    if service < holder {
                        *holder = service.clone();
                    }
                }
            }
        }
    }
    affinity_maps
}

// === impl Assignment ===

impl<'a> Assignment<'a> {
    pub(super) fn new(family: Family, desired: &'a Dataplane) -> Assignment<'a> {
        Assignment {
            family,
            desired,
            found: BTreeMap::new(),
            #[cfg(test)]
            searches: 0,
        }
    }

    /// Returns the map of `service`, which has affinity: the one it has in `affinity_maps`, else a free
    /// one.
    pub(super) fn map_of(
        &mut self,
        affinity_maps: &mut AffinityMaps,
        service: &'a ServiceKey,
    ) -> AffinityMap {
        if let Some(found) = self.found.get(service) {
            return *found;
        }
        #[cfg(test)]
        {
            self.searches += 1;
        }
        let found = self.search(affinity_maps, service);
        self.found.insert(service, found);
        found
    }

    fn search(&self, affinity_maps: &mut AffinityMaps, service: &ServiceKey) -> AffinityMap {
        let held = affinity_maps.iter().find(|(_, holder)| *holder == service);
        if let Some((affinity_map, _)) = held {
            return AffinityMap::of(*affinity_map);
        }
        affinity_maps.retain(|_, holder| has_affinity(self.family, self.desired, holder));
        let namespace = |holder: &&ServiceKey| holder.namespace == service.namespace;
        if affinity_maps.values().filter(namespace).count() >= IN_A_NAMESPACE {
            return AffinityMap::Shared;
        }
        let free = (1..=AffinityMap::RESERVED)
            .find(|affinity_map| !affinity_maps.contains_key(affinity_map));
        if let Some(affinity_map) = free {
            affinity_maps.insert(affinity_map, service.clone());
        }
        free.map_or(AffinityMap::Shared, AffinityMap::of)
    }
}

/// Whether the clients of a frontend are in the shared map.
pub(super) fn is_in_shared(rules: &Table, key: &FrontendKey) -> bool {
    let set = Keyed::of(key).affinities();
    let data = rules.element(set, &layout::frontend(key));
    let chain_id = data.and_then(|data| ChainId::of(set, data));
    matches!(chain_id, Some(ChainId::Numbered(chain)) if chain.affinity_map == AffinityMap::Shared)
}

fn has_affinity(family: Family, desired: &Dataplane, service: &ServiceKey) -> bool {
    let rules = desired.services().get(service);
    let frontends = rules.into_iter();
    let mut frontends = frontends.flat_map(|rules| of_family(family, &rules.frontends));
    frontends.any(|(_, frontend)| frontend.affinity != Affinity::None)
}

/// Those of one family. The frontends of a Service are sorted, addresses before node ports and IPv4
/// before IPv6: one that has many in one family would be searched for the first of the other.
fn of_family(
    family: Family,
    frontends: &[(FrontendKey, Arc<Frontend>)],
) -> impl Iterator<Item = &(FrontendKey, Arc<Frontend>)> {
    let place = |key: &FrontendKey| (Keyed::of(key) == Keyed::NodePort, key.family());
    let runs = [(false, family), (true, family)].map(|run| {
        let start = frontends.partition_point(|(key, _)| place(key) < run);
        let length = frontends[start..].partition_point(|(key, _)| place(key) == run);
        &frontends[start..start + length]
    });
    runs.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use dataplane::compile;
    use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

    use super::*;

    fn with_many_frontends(name: &str, last: u8) -> dataplane::Service {
        let service = mk_service(name)
            .cluster_ip(&format!("10.96.0.{last}"))
            .cluster_ip(&format!("fd00:10:96::{last}"));
        let service = (1..=100).fold(service, |service, port| {
            let service = service.port(&port.to_string(), port);
            service.node_port(30_000 + 100 * u16::from(last) + port)
        });
        let timeout = std::time::Duration::from_secs(60);
        service.client_ip_affinity(timeout).build()
    }

    /// Failure story T422: the ninth Service of a namespace has tens of thousands of ports, and for
    /// each one the holders of all maps were searched, each through its frontends of the other family.
    #[test]
    fn t422_the_map_of_a_service_is_searched_once_and_not_through_the_other_family() {
        let (node, config) = (mk_node(1).build(), mk_config().build());
        let mut desired = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
        let endpoints = mk_endpoints().build();
        for last in 1..=9 {
            let service = with_many_frontends(&format!("shop/cart-{last}"), last);
            desired.set(compile(&service, &endpoints, &node, &config).into());
        }
        for family in Family::ALL {
            let mut affinity_maps = AffinityMaps::new();
            let mut assignment = Assignment::new(family, &desired);
            for (key, claims) in desired.frontends().iter() {
                if key.family() == family {
                    assignment.map_of(&mut affinity_maps, claims.winner().0);
                }
            }
            assert_eq!(affinity_maps.len(), IN_A_NAMESPACE);
            assert_eq!(assignment.searches, 9, "{family}");
            for (_, rules) in desired.services().iter() {
                let mut visited = 0;
                let frontends = of_family(family, &rules.frontends);
                let all = frontends.inspect(|(key, _)| {
                    assert_eq!(key.family(), family);
                    visited += 1;
                });
                all.for_each(drop);
                assert_eq!(visited, 200);
            }
        }
    }
}
