//! Assigns separate affinity maps (rooms) to Services.
//!
//! A Service keeps its map as long as it has affinity, also through restarts: the numbers of its
//! frontends identify the map. There are few maps, and one namespace gets only some of them, so
//! that no tenant takes them all. All other Services use the shared map.

use std::collections::BTreeMap;

use dataplane::{Affinity, Dataplane, Family, FrontendKey, ServiceKey};

use crate::chains::ChainId;
use crate::layout::{self, AffinityMap, Keyed};
use crate::table::Table;

/// How many Services of one namespace may have a separate map.
const IN_A_NAMESPACE: usize = 8;

/// Affinity maps, by number, and their Services.
pub(crate) type AffinityMaps = BTreeMap<u8, ServiceKey>;

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

/// Returns the map of `service`, which has affinity: the one it has, else a free one.
pub(super) fn affinity_map_of(
    family: Family,
    desired: &Dataplane,
    affinity_maps: &mut AffinityMaps,
    service: &ServiceKey,
) -> AffinityMap {
    let held = affinity_maps.iter().find(|(_, holder)| *holder == service);
    if let Some((affinity_map, _)) = held {
        return AffinityMap::of(*affinity_map);
    }
    affinity_maps.retain(|_, holder| has_affinity(family, desired, holder));
    let namespace = |holder: &&ServiceKey| holder.namespace == service.namespace;
    if affinity_maps.values().filter(namespace).count() >= IN_A_NAMESPACE {
        return AffinityMap::Shared;
    }
    let free =
        (1..=AffinityMap::RESERVED).find(|affinity_map| !affinity_maps.contains_key(affinity_map));
    if let Some(affinity_map) = free {
        affinity_maps.insert(affinity_map, service.clone());
    }
    free.map_or(AffinityMap::Shared, AffinityMap::of)
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
    let mut frontends = rules.into_iter().flat_map(|rules| &rules.frontends);
    frontends.any(|(key, frontend)| key.family() == family && frontend.affinity != Affinity::None)
}
