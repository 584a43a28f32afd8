//! Bounds the lists of clients that session affinity has in the kernel.
//!
//! For each rule with the match `recent` that a packet reaches, the kernel searches all lists of the
//! network namespace, of any Service and family, name by name and under one lock (`recent_mt` in
//! `net/netfilter/xt_recent.c`). So every list costs the clients of all Services with affinity.

use std::collections::BTreeSet;
use std::sync::Arc;

use backend::UnsupportedField;
use dataplane::{Affinity, Frontend, FrontendKey, PersistentMap, ServicePortName};

use crate::service_chains::{Clients, balanced};

/// The most lists of a Service port, one for each endpoint: a new client's packet searches for all.
const MOST_OF_PORT: usize = 100;
/// The most lists of one family. A search costs some 20 ns for each list (Linux 6.18). With both
/// families full a new client of five endpoints waits for 0.2 ms, and one of a hundred for 5 ms.
const MOST: usize = 1_000;
/// How many Service ports without lists are named in each family. There may be thousands, and other
/// rejections are to be read, too.
const NAMED: usize = 8;

/// The Service ports of one family that have lists of clients. A port keeps its lists until it needs
/// more. A namespace has no more lists than it leaves for others, so that no tenant takes them all.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClientLists {
    by_port: PersistentMap<ServicePortName, usize>,
    by_namespace: PersistentMap<Arc<str>, usize>,
    total: usize,
    /// The ports with affinity for whose lists there is no room.
    without: PersistentMap<ServicePortName, Need>,
}

/// The lists that a Service port with affinity needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Need {
    /// One for each endpoint.
    pub(crate) lists: usize,
    /// One of the port's frontends.
    frontend: FrontendKey,
}

// === impl Need ===

impl Need {
    /// What a Service port with these frontends needs; `None` without affinity or endpoints.
    pub(crate) fn of(frontends: &[(FrontendKey, &Frontend)]) -> Option<Need> {
        let mut sticky = frontends.iter();
        let (frontend, _) = sticky.find(|(_, frontend)| frontend.affinity != Affinity::None)?;
        let chains = [
            balanced(frontends, |frontend| &frontend.cluster),
            balanced(frontends, |frontend| &frontend.local),
        ];
        let targets = chains.into_iter().flatten();
        let endpoints: BTreeSet<_> = targets.flat_map(|(_, targets)| targets.iter()).collect();
        (!endpoints.is_empty()).then_some(Need {
            lists: endpoints.len(),
            frontend: *frontend,
        })
    }

    /// Whether a port may have so many lists.
    pub(crate) fn is_within_bounds(&self) -> bool {
        self.lists <= MOST_OF_PORT
    }
}

// === impl ClientLists ===

impl ClientLists {
    /// Whether there may be so many lists.
    pub(crate) fn fit(lists: usize) -> bool {
        lists <= MOST
    }

    /// Whether the endpoints of `port` have lists.
    pub(crate) fn clients(&self, port: &ServicePortName) -> Clients {
        match self.by_port.get(port) {
            Some(_) => Clients::Remembered,
            None => Clients::Forgotten,
        }
    }

    /// Gives `port` the lists that it had before.
    pub(crate) fn keep(&mut self, port: &ServicePortName, need: Need) {
        self.set(port, need.lists);
    }

    /// Gives `port` the lists that it needs, if there is room for all of them.
    pub(crate) fn place(&mut self, port: &ServicePortName, need: Option<Need>) {
        self.without.remove(port);
        let lists = need.map_or(0, |need| need.lists);
        let had = self.by_port.get(port).copied().unwrap_or(0);
        if lists <= had {
            return self.set(port, lists);
        }
        self.set(port, 0);
        let admits = |need: &Need| match had {
            0 => self.admits(port, *need),
            _ => self.admits_growth(port, *need),
        };
        match need.filter(|need| !admits(need)) {
            Some(need) => drop(self.without.insert(port.clone(), need)),
            None => self.set(port, lists),
        }
    }

    /// Gives lists to ports without, as far as there is room since `before`. Returns these ports.
    pub(crate) fn fill(&mut self, before: &ClientLists) -> BTreeSet<ServicePortName> {
        let mut found = BTreeSet::new();
        if self.total >= before.total {
            return found;
        }
        for (port, need) in self.without.clone().sorted() {
            if self.admits(port, *need) {
                self.place(port, Some(*need));
                found.insert(port.clone());
            }
        }
        found
    }

    /// Some of the ports that have no room for their lists: as many as can be read. Every sync asks.
    pub(crate) fn without_room(&self) -> Vec<UnsupportedField> {
        let have = match self.without.len().saturating_sub(1) {
            0 => "this port has".to_owned(),
            1 => "this port and 1 other have".to_owned(),
            others => format!("this port and {others} others have"),
        };
        let message = format!(
            "{have} no session affinity: mode iptables has a list of clients for each endpoint, at most {MOST_OF_PORT} \
             for a port and {MOST} for each family; one namespace takes no more than it leaves for others, and a port \
             without gets them when others leave some"
        );
        let unsupported_field = |(port, need): (&ServicePortName, &Need)| UnsupportedField {
            service: port.service.clone(),
            frontend: need.frontend,
            field: "spec.sessionAffinity",
            message: message.clone().into(),
        };
        let ports = self.without.iter().take(NAMED);
        let mut named: Vec<_> = ports.map(unsupported_field).collect();
        named.sort();
        named
    }

    /// Whether there is room for the lists of another port.
    fn admits(&self, port: &ServicePortName, need: Need) -> bool {
        let of_namespace = self.count(&port.service.namespace) + need.lists;
        need.is_within_bounds() && of_namespace <= MOST.saturating_sub(self.total)
    }

    /// The same for a port that had lists and needs more, as in a rolling update that adds an endpoint
    /// before it removes one: its clients keep theirs while there is room and its namespace has no
    /// more than half.
    fn admits_growth(&self, port: &ServicePortName, need: Need) -> bool {
        let of_namespace = self.count(&port.service.namespace) + need.lists;
        need.is_within_bounds() && of_namespace <= MOST / 2 && self.total + need.lists <= MOST
    }

    fn count(&self, namespace: &Arc<str>) -> usize {
        self.by_namespace.get(namespace).copied().unwrap_or(0)
    }

    fn set(&mut self, port: &ServicePortName, lists: usize) {
        let had = match lists {
            0 => self.by_port.remove(port),
            _ => self.by_port.insert(port.clone(), lists),
        };
        let had = had.unwrap_or(0);
        let namespace = &port.service.namespace;
        match (self.count(namespace) + lists).saturating_sub(had) {
            0 => drop(self.by_namespace.remove(namespace)),
            count => drop(self.by_namespace.insert(Arc::clone(namespace), count)),
        }
        self.total = (self.total + lists).saturating_sub(had);
    }
}

#[cfg(test)]
mod tests;
