//! The canonical form of rules, independent of how they came about.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dataplane::{Family, PersistentMap};
use netlink::ipvs::Weight;
use netlink::nf_tables::ElementData;

use crate::allocation::number_of;
use crate::chains::affinity::AffinityGroup;
use crate::layout::SetName;
use crate::render::{allow, lengths_of, mark_key};
use crate::rules::{Rules, Server, lead, mark_of};

impl Rules {
    /// Returns the same rules in canonical form: marks numbered by the order of frontends, no
    /// draining destination, no set for an unused prefix length or affinity map. Equal for rules
    /// that treat new connections the same. Meant for complete rules.
    #[must_use]
    pub fn canonical(&self, family: Family) -> Rules {
        let mut numbers: BTreeMap<u32, u32> = BTreeMap::new();
        for set in SetName::MARKS {
            let held = self.table.sets.get(set.as_str());
            for (_, data) in held.into_iter().flat_map(|set| set.elements.sorted()) {
                if let Some(number) = mark_of(data).and_then(number_of) {
                    let next = u32::try_from(numbers.len() + 1).unwrap_or(u32::MAX);
                    numbers.entry(number).or_insert(next);
                }
            }
        }
        let renumber = |number: u32| numbers.get(&number).copied();
        let mut rules = Rules {
            table: self.table.clone(),
            delivery: self.delivery,
            ..Rules::default()
        };
        rules.servers = self
            .servers
            .iter()
            .filter_map(|(number, server)| {
                let mut server = Server::clone(server);
                let destinations = &mut server.destinations;
                destinations.retain(|_, destination| destination.weight != Weight::DRAINING);
                Some((renumber(*number)?, Arc::new(server)))
            })
            .collect();
        let of_marks = [SetName::Owners, SetName::Affinities, SetName::Slots];
        for set in SetName::MARKS.into_iter().chain(of_marks) {
            let Some(held) = rules.table.sets.get_mut(set.as_str()) else {
                continue;
            };
            let elements = held.elements.iter().filter_map(|(key, data)| match set {
                SetName::Owners | SetName::Affinities | SetName::Slots => {
                    let (mark, rest) = key.as_slice().split_first_chunk()?;
                    let number = renumber(number_of(u32::from_ne_bytes(*mark))?)?;
                    let data = match (set, data) {
                        // The value begins with the mark, too.
                        (SetName::Affinities, ElementData::Value(value)) => {
                            let group = value.as_slice().get(4..)?;
                            ElementData::Value(mark_key(number).with(group))
                        }
                        _ => data.clone(),
                    };
                    Some((mark_key(number).with(rest), data))
                }
                _ => Some((key.clone(), lead(renumber(number_of(mark_of(data)?)?)?))),
            });
            let elements: PersistentMap<_, _> = elements.collect();
            held.elements = elements;
        }
        let affinities = self.table.sets.get(SetName::Affinities.as_str());
        let affinities = affinities.into_iter().flat_map(|set| set.elements.iter());
        let clients_in_use: BTreeSet<SetName> = affinities
            .filter_map(|(_, data)| Some(group_of(data)?.clients()))
            .collect();
        rules.table.sets.retain(|name, set| {
            let is_unused = match SetName::parse(name) {
                Some(SetName::Sources(_)) => set.elements.is_empty(),
                Some(clients @ SetName::NamespaceClients(_)) => !clients_in_use.contains(&clients),
                _ => false,
            };
            !is_unused
        });
        let ranges = allow(family, &lengths_of(&rules.table));
        let chains = Arc::make_mut(&mut rules.table.chains);
        chains.insert(Arc::clone(&ranges.chain.name), Arc::new(ranges));
        rules
    }
}

/// The group of a virtual server, from its value in [`SetName::Affinities`].
fn group_of(data: &ElementData) -> Option<AffinityGroup> {
    match data {
        ElementData::Value(value) => {
            let number = value.as_slice().get(4..)?.try_into().ok()?;
            AffinityGroup::parse(u32::from_ne_bytes(number))
        }
        _ => None,
    }
}
