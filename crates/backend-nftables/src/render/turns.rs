//! Assigns separate round-robin counters to the ports of Services.
//!
//! All frontends of a port have the same counter, so that its addresses take turns together. A port
//! keeps its counter as long as a frontend of it uses round robin, also through restarts: the chains
//! that its elements lead to identify the counter. There are few, and a namespace gets no more than
//! it leaves for others, so that no tenant takes them all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use backend::UnsupportedField;
use dataplane::{
    Dataplane, Family, Frontend, FrontendKey, PersistentMap, Scheduler, ServiceKey, ServicePortName,
};

use crate::chains::{ChainId, Counter, SlotChoice};
use crate::layout::{self, Keyed};
use crate::table::Table;

/// How many frontends without a counter are named in each family. There may be thousands, and other
/// rejections are to be read, too.
const NAMED: usize = 8;

/// The Service ports of one family that have a separate counter.
#[derive(Debug, Clone, Default)]
pub(crate) struct RoundRobinCounters {
    own: Arc<BTreeMap<ServicePortName, OwnCounter>>,
    /// The frontends that use these counters.
    users: PersistentMap<FrontendKey, ServicePortName>,
    /// The frontends that were read with the shared counter. They keep it in the same render: a start
    /// writes nothing if nothing differs, and a part of the Services does not show how many counters
    /// are left.
    shared: Arc<BTreeSet<FrontendKey>>,
    /// The frontends of several endpoints that share a counter, with their Services.
    without_room: PersistentMap<FrontendKey, ServiceKey>,
}

#[derive(Debug, Clone)]
struct OwnCounter {
    number: u16,
    /// How many frontends of the port use it.
    users: usize,
}

impl RoundRobinCounters {
    /// Reads the counters that the elements in `rules` lead to, for frontends that still use round
    /// robin. The cost is proportional to all frontends.
    pub(super) fn read(family: Family, rules: &Table, desired: &Dataplane) -> RoundRobinCounters {
        let mut counters = RoundRobinCounters::default();
        let (mut taken, mut shared) = (BTreeSet::new(), BTreeSet::new());
        for (key, counter) in rules.turns_of(family) {
            let Counter::Own(number) = counter else {
                shared.insert(key);
                continue;
            };
            let Some(claims) = desired.frontends().get(&key) else {
                continue;
            };
            let (_, frontend) = claims.winner();
            let port = &frontend.service_port;
            let takes_turns = frontend.scheduler == Scheduler::RoundRobin;
            // Two ports share a counter only if the rules were damaged. Frontends of one port have
            // different ones if another version wrote them; then the first one counts for all.
            if takes_turns && (counters.own.contains_key(port) || taken.insert(number)) {
                counters.join(&key, port, number);
            }
        }
        counters.shared = Arc::new(shared);
        counters
    }

    /// Returns the counter of the frontend at `key`: that of its port, or a free one. A frontend that
    /// does not use round robin, or belongs to another port now, releases its counter.
    pub(super) fn counter(&mut self, key: &FrontendKey, frontend: Option<&Frontend>) -> Counter {
        let frontend = frontend.filter(|frontend| frontend.scheduler == Scheduler::RoundRobin);
        let counter = self.counter_of(key, frontend);
        let endpoints = frontend.map_or(0, |frontend| {
            frontend.cluster.len().max(frontend.local.len())
        });
        match frontend.filter(|_| is_shared(counter, endpoints)) {
            Some(frontend) => {
                let service = frontend.service_port.service.clone();
                self.without_room.ensure(*key, service);
            }
            None => drop(self.without_room.remove(key)),
        }
        counter
    }

    fn counter_of(&mut self, key: &FrontendKey, frontend: Option<&Frontend>) -> Counter {
        let port = frontend.map(|frontend| &frontend.service_port);
        if self.users.get(key) != port {
            self.release(key);
        }
        let Some(port) = port else {
            return Counter::Shared;
        };
        let number = match self.own.get(port) {
            Some(own) => Some(own.number),
            None if self.shared.contains(key) => None,
            None => self.free_number(&port.service.namespace),
        };
        match number {
            Some(number) => {
                self.join(key, port, number);
                Counter::Own(number)
            }
            None => Counter::Shared,
        }
    }

    /// Makes the frontend at `key` use the counter of `port`, which is `number` if it has none yet.
    fn join(&mut self, key: &FrontendKey, port: &ServicePortName, number: u16) {
        if self.users.get(key).is_none() {
            self.users.insert(*key, port.clone());
            let own = Arc::make_mut(&mut self.own);
            let none = OwnCounter { number, users: 0 };
            own.entry(port.clone()).or_insert(none).users += 1;
        }
    }

    fn release(&mut self, key: &FrontendKey) {
        let Some(port) = self.users.remove(key) else {
            return;
        };
        let own = Arc::make_mut(&mut self.own);
        if let Some(counter) = own.get_mut(&port) {
            counter.users -= 1;
            if counter.users == 0 {
                own.remove(&port);
            }
        }
    }

    /// Lets frontends with the shared counter take a separate one when they change.
    pub(super) fn forget_shared(&mut self) {
        self.shared = Arc::default();
    }

    /// Some of the frontends that take turns together with others, for want of a counter: as many as
    /// can be read. Every sync asks.
    pub(crate) fn without_room(&self) -> Vec<UnsupportedField> {
        let frontends = self.without_room.iter().take(NAMED);
        let have = match self.without_room.len().saturating_sub(1) {
            0 => "this port has".to_owned(),
            1 => "this port and 1 other have".to_owned(),
            others => format!("this port and {others} others have"),
        };
        let unsupported_field = |(frontend, service): (&FrontendKey, &ServiceKey)| {
            UnsupportedField {
                service: service.clone(),
                frontend: *frontend,
                field: "spec.ports",
                message: format!(
                    "{have} no counter of scheduler roundRobin alone in this family: those with as many endpoints \
                     share one, and take turns with the connections to all of them, so some endpoints of a \
                     port may get more connections than others; mode nftables has 511 counters in each \
                     family, for up to 1,023 endpoints each; one namespace takes no more than it \
                     leaves for others, and a port gets a free one when it changes"
                )
                .into(),
            }
        };
        let mut named: Vec<_> = frontends.map(unsupported_field).collect();
        named.sort();
        named
    }

    /// A number for a port of this namespace; `None` if it has as many as it leaves for others.
    fn free_number(&self, namespace: &str) -> Option<u16> {
        let held = self.own.keys();
        let held = held.filter(|port| *port.service.namespace == *namespace);
        let left = usize::from(Counter::OWN).saturating_sub(self.own.len());
        if held.count() >= left {
            return None;
        }
        let taken: BTreeSet<u16> = self.own.values().map(|own| own.number).collect();
        (1..=Counter::OWN).find(|number| !taken.contains(number))
    }
}

/// Whether a frontend with this many endpoints takes turns together with others.
fn is_shared(counter: Counter, endpoints: usize) -> bool {
    let has_own = matches!(counter, Counter::Own(_)) && Counter::suits(endpoints);
    endpoints > 1 && !has_own
}

impl Table {
    /// The separate counters that elements of frontends lead to, in the order of sets and keys.
    pub(crate) fn counters(&self, family: Family) -> impl Iterator<Item = (FrontendKey, u16)> {
        self.turns_of(family)
            .filter_map(|(key, counter)| match counter {
                Counter::Own(number) => Some((key, number)),
                Counter::Shared => None,
            })
    }

    /// The same with the shared counter.
    fn turns_of(&self, family: Family) -> impl Iterator<Item = (FrontendKey, Counter)> {
        let sets = Keyed::ALL.into_iter().flat_map(|keyed| {
            [keyed.services(), keyed.short_circuits(), keyed.locals()].map(|set| (keyed, set))
        });
        sets.flat_map(move |(keyed, set)| {
            let elements = self.sets.get(set.as_str()).into_iter();
            let elements = elements.flat_map(|set| set.elements.sorted());
            elements.filter_map(move |(key, data)| {
                let Some(ChainId::Numbered(chain)) = ChainId::of(set, data) else {
                    return None;
                };
                let SlotChoice::RoundRobin(counter) = chain.slot_choice else {
                    return None;
                };
                let key = layout::parse_frontend(family, keyed, key.as_slice())?;
                Some((key, counter))
            })
        })
    }
}
