//! Which Services have a room of their own for the clients they remember.
//!
//! A room stays with its Service as long as that has affinity, through restarts too: the numbers of its
//! frontends say which one it is. There are few. Of one namespace only some Services have one, so that
//! nobody takes them all; the others share what is there for all.

use std::collections::BTreeMap;

use dataplane::{Affinity, Dataplane, Family, FrontendKey, ServiceKey};

use crate::chains::Lead;
use crate::layout::{self, Keyed, Room};
use crate::table::Table;

/// How many Services of one namespace have a room of their own at the most.
const IN_A_NAMESPACE: usize = 8;

/// Rooms and the Services that have them.
pub(crate) type Rooms = BTreeMap<u8, ServiceKey>;

/// The rooms that the elements in `rules` say, of Services that are still wanted to have one. Costs in
/// proportion to the frontends with affinity.
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
                    // Of two that meet in one, as after an address went from one to the other, the
                    // first by name stays.
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

/// The room of `service`, which has affinity: the one it has, or one that is free.
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

/// Whether the clients of a frontend are remembered in the shared room so far.
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
