//! Assigns separate affinity maps (rooms) to Services.
//!
//! A Service keeps its map as long as it has affinity, also through restarts: the numbers of its
//! frontends identify the map. There are few maps, and one namespace gets only some of them, so
//! that no tenant takes them all. All other Services use the shared map.

use std::collections::BTreeMap;

use dataplane::{Affinity, Dataplane, Family, FrontendKey, ServiceKey};

use crate::chains::Lead;
use crate::layout::{self, Keyed, Room};
use crate::table::Table;

/// How many Services of one namespace may have a separate map.
const IN_A_NAMESPACE: usize = 8;

/// Affinity maps, by number, and their Services.
pub(crate) type Rooms = BTreeMap<u8, ServiceKey>;

/// Reads the assignment from the elements in `rules`, for Services that still have affinity. The
/// cost is proportional to the frontends with affinity.
pub(super) fn read(family: Family, rules: &Table, desired: &Dataplane) -> Rooms {
    let mut rooms = Rooms::new();
    for keyed in Keyed::ALL {
        let set = keyed.affinities();
        let Some(elements) = rules.sets.get(set.as_str()) else {
            continue;
        };
        for (key, data) in elements.elements.iter() {
            let Some(Lead::Numbered(chain)) = Lead::of(set, data) else {
                continue;
            };
            let frontend = layout::parse_frontend(family, keyed, key.as_slice());
            let claims = frontend.and_then(|key| desired.frontends().get(&key));
            if let (Room::Reserved(room), Some(claims)) = (chain.room, claims) {
                let (service, _) = claims.winner();
                if has_affinity(family, desired, service) {
                    // If two Services have the same map, as after an address moved from one to the
                    // other, the first by name keeps it.
                    let holder = rooms.entry(room).or_insert_with(|| service.clone());
                    if service < holder {
                        *holder = service.clone();
                    }
                }
            }
        }
    }
    rooms
}

/// Returns the map of `service`, which has affinity: the one it has, else a free one.
pub(super) fn room_of(
    family: Family,
    desired: &Dataplane,
    rooms: &mut Rooms,
    service: &ServiceKey,
) -> Room {
    let held = rooms.iter().find(|(_, holder)| *holder == service);
    if let Some((room, _)) = held {
        return Room::of(*room);
    }
    rooms.retain(|_, holder| has_affinity(family, desired, holder));
    let namespace = |holder: &&ServiceKey| holder.namespace == service.namespace;
    if rooms.values().filter(namespace).count() >= IN_A_NAMESPACE {
        return Room::Shared;
    }
    let free = (1..=Room::RESERVED).find(|room| !rooms.contains_key(room));
    if let Some(room) = free {
        rooms.insert(room, service.clone());
    }
    free.map_or(Room::Shared, Room::of)
}

/// Whether the clients of a frontend are in the shared map.
pub(super) fn is_in_shared(rules: &Table, key: &FrontendKey) -> bool {
    let set = Keyed::of(key).affinities();
    let data = rules.element(set, &layout::frontend(key));
    let lead = data.and_then(|data| Lead::of(set, data));
    matches!(lead, Some(Lead::Numbered(chain)) if chain.room == Room::Shared)
}

fn has_affinity(family: Family, desired: &Dataplane, service: &ServiceKey) -> bool {
    let rules = desired.services().get(service);
    let mut frontends = rules.into_iter().flat_map(|rules| &rules.frontends);
    frontends.any(|(key, frontend)| key.family() == family && frontend.affinity != Affinity::None)
}
