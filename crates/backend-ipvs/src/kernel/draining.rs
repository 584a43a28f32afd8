//! Destinations that the rules no longer have, and that keep their connections.
//!
//! IPVS drops the packets of a connection whose destination is removed. So a destination that
//! leaves first gets weight 0, with which it gets no new connections. It is removed when it has no
//! connection left, or when its deadline has passed. The same holds for all destinations of a
//! virtual server that nothing leads to any more. None of them counts as rules of the mode, since
//! they serve no Service.
//!
//! What is known about them ends with the process. A starting agent finds destinations that its
//! rules do not have, and they leave again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use backend::{CommitError, Effect};
use dataplane::{Family, ServicePortName};
use netlink::ipvs::{Destinations, Operation, VirtualServerKey, Weight};

use super::recovery::{of_reading_servers, of_servers};
use super::{Connection, Ipvs};
use crate::allocation::{LeavingServers, number_of};
use crate::diff::{Departure, ServerRemoval};
use crate::layout::MARKS;
use crate::rules::{Server, destination};
use crate::scheduler_tables::table_of;

/// How many destinations a check or change removes; the rest follows at the next check. The kernel
/// keeps removed destinations in a list for a minute or two, and compares each new one with all of
/// them (`ip_vs_trash_get_dest`).
pub(super) const REMOVED_AT_ONCE: usize = 1_000;

/// The draining destinations of one family.
#[derive(Debug, Default)]
pub(super) struct Draining {
    servers: BTreeMap<VirtualServerKey, DrainingServer>,
    /// By their Service port, if it is known: others may have hundreds of thousands.
    by_owner: BTreeMap<ServicePortName, OfOwner>,
    /// Those of [`ServerRemoval::Leaves`]. Each rendering asks for them.
    leaving_servers: LeavingServers,
}

/// The draining destinations of one virtual server.
#[derive(Debug)]
struct DrainingServer {
    /// With the time at which each is removed although it has connections, if there is one.
    destinations: BTreeMap<SocketAddr, Option<Instant>>,
    owner: Option<ServicePortName>,
    server_removal: ServerRemoval,
}

/// The virtual servers of one Service port that have draining destinations.
#[derive(Debug, Default)]
struct OfOwner {
    keys: BTreeSet<VirtualServerKey>,
    /// The endpoints that have left and have not come back, until their deadline.
    limited: BTreeMap<SocketAddr, Instant>,
}

// === impl Draining ===

impl Draining {
    /// Records `departures` and returns the operations that end new connections.
    pub(super) fn begin(&mut self, departures: Vec<Departure>, now: Instant) -> Vec<Operation> {
        let mut operations = Vec::new();
        for departure in departures {
            let (key, owner) = (departure.key, departure.owner);
            let deadlines = departure.destinations.into_iter();
            let deadlines: Vec<(SocketAddr, Option<Instant>)> = deadlines
                .map(|(address, limit)| (address, limit.and_then(|limit| now.checked_add(limit))))
                .collect();
            // It also leaves where a virtual server of the Service was replaced before.
            let limited = deadlines.iter();
            let limited = limited.filter_map(|(address, deadline)| Some((*address, (*deadline)?)));
            let limited: Vec<(SocketAddr, Instant)> = limited.collect();
            for (address, deadline) in &limited {
                self.set_deadlines(owner.as_ref(), *address, |held| held.or(Some(*deadline)));
            }
            let server = self.servers.entry(key).or_insert_with(|| DrainingServer {
                destinations: BTreeMap::new(),
                owner,
                server_removal: departure.server_removal,
            });
            if let Some(owner) = &server.owner {
                let of_owner = self.by_owner.entry(owner.clone()).or_default();
                of_owner.keys.insert(key);
                of_owner.limited.extend(limited);
            }
            server.server_removal = server.server_removal.max(departure.server_removal);
            if let (ServerRemoval::Leaves, Some(number)) =
                (server.server_removal, number_of(key.mark.value()))
            {
                let owner = server.owner.as_ref();
                let namespace = owner.map(|owner| &owner.service.namespace);
                self.leaving_servers.add(number, departure.table, namespace);
            }
            for (address, deadline) in deadlines {
                server.destinations.entry(address).or_insert(deadline);
                operations.push(Operation::SetDestination {
                    key,
                    address,
                    destination: destination(Weight::DRAINING),
                });
            }
        }
        operations
    }

    /// Sets the deadlines of an endpoint of `owner` at all virtual servers that it leaves.
    fn set_deadlines(
        &mut self,
        owner: Option<&ServicePortName>,
        address: SocketAddr,
        deadline: impl Fn(Option<Instant>) -> Option<Instant>,
    ) {
        let of_owner = owner.and_then(|owner| self.by_owner.get(owner));
        for key in of_owner.into_iter().flat_map(|of_owner| &of_owner.keys) {
            let server = self.servers.get_mut(key);
            let held = server.and_then(|server| server.destinations.get_mut(&address));
            if let Some(held) = held {
                *held = deadline(*held);
            }
        }
    }

    /// Whether the deadline of any has passed.
    pub(super) fn has_overdue(&self, now: Instant) -> bool {
        let servers = self.servers.values();
        let mut deadlines = servers.flat_map(|server| server.destinations.values().flatten());
        deadlines.any(|deadline| *deadline <= now)
    }

    /// Returns `operations` as a kernel takes them that holds the draining destinations, too: those
    /// that come back are there already. An endpoint that comes back to one of `ports` keeps its
    /// connections where a virtual server of that port was replaced, as if it had not left.
    pub(super) fn resume(
        &mut self,
        operations: Vec<Operation>,
        ports: &BTreeMap<VirtualServerKey, ServicePortName>,
    ) -> Vec<Operation> {
        let mut taken = Vec::with_capacity(operations.len());
        for operation in operations {
            match operation {
                Operation::AddDestination {
                    key,
                    address,
                    destination,
                } => {
                    let port = ports.get(&key);
                    if let Some(of_owner) = port.and_then(|port| self.by_owner.get_mut(port))
                        && of_owner.limited.remove(&address).is_some()
                    {
                        self.set_deadlines(port, address, |_| None);
                    }
                    taken.push(match self.forget(key, address) {
                        true => Operation::SetDestination {
                            key,
                            address,
                            destination,
                        },
                        false => operation,
                    });
                }
                Operation::AddVirtualServer { key, .. } => {
                    // No rendering gives out such a mark. The kernel would refuse a second one.
                    if self.remove(key) {
                        taken.push(Operation::RemoveVirtualServer { key });
                    }
                    taken.push(operation);
                }
                Operation::RemoveVirtualServer { key } => {
                    self.remove(key);
                    taken.push(operation);
                }
                Operation::RemoveDestination { key, address } => {
                    self.forget(key, address);
                    taken.push(operation);
                }
                Operation::SetVirtualServer { .. } | Operation::SetDestination { .. } => {
                    taken.push(operation);
                }
            }
        }
        taken
    }

    /// Forgets a virtual server. Returns whether it was draining.
    fn remove(&mut self, key: VirtualServerKey) -> bool {
        if let Some(number) = number_of(key.mark.value()) {
            self.leaving_servers.remove(number);
        }
        let removed = self.servers.remove(&key);
        let owner = removed.as_ref().and_then(|server| server.owner.as_ref());
        if let Some(owner) = owner
            && let Some(of_owner) = self.by_owner.get_mut(owner)
        {
            of_owner.keys.remove(&key);
            if of_owner.keys.is_empty() {
                self.by_owner.remove(owner);
            }
        }
        removed.is_some()
    }

    /// Whether `address` was draining; it is not any more.
    fn forget(&mut self, key: VirtualServerKey, address: SocketAddr) -> bool {
        let server = self.servers.get_mut(&key);
        server.is_some_and(|server| server.destinations.remove(&address).is_some())
    }

    /// Removes from `servers` what is draining. Forgets what another program has removed, or has
    /// given another weight: that is drift.
    pub(super) fn hide(&mut self, servers: &mut BTreeMap<u32, Arc<Server>>) {
        let mut gone = Vec::new();
        for (key, draining) in &mut self.servers {
            let number = number_of(key.mark.value());
            let Some(server) = number.and_then(|number| servers.get_mut(&number)) else {
                gone.push(*key);
                continue;
            };
            let held = Arc::make_mut(server);
            draining.destinations.retain(|address, _| {
                let found = held.destinations.get(address);
                let is_so = found.is_some_and(|found| found.weight == Weight::DRAINING);
                if is_so {
                    held.destinations.remove(address);
                }
                is_so
            });
            let is_hidden =
                draining.server_removal == ServerRemoval::Leaves && held.destinations.is_empty();
            if let Some(number) = number.filter(|_| is_hidden) {
                servers.remove(&number);
            }
            if !is_hidden && draining.destinations.is_empty() {
                gone.push(*key);
            }
        }
        for key in gone {
            self.remove(key);
        }
    }

    /// The virtual servers of [`ServerRemoval::Leaves`].
    pub(super) fn leaving_servers(&self) -> &LeavingServers {
        &self.leaving_servers
    }

    /// The Service port of a virtual server that has draining destinations, if it is known.
    pub(super) fn owner(&self, family: Family, number: u32) -> Option<ServicePortName> {
        let mark = MARKS.mark(number)?;
        self.servers
            .get(&VirtualServerKey { family, mark })?
            .owner
            .clone()
    }

    /// The virtual servers that have draining destinations.
    pub(super) fn keys(&self) -> Vec<VirtualServerKey> {
        self.servers.keys().copied().collect()
    }

    /// Forgets the destinations that `found` shows without connections, and those whose deadline
    /// has passed: [`REMOVED_AT_ONCE`] of them. Returns the operations that remove them.
    pub(super) fn end(
        &mut self,
        found: &[(VirtualServerKey, Destinations)],
        now: Instant,
    ) -> Vec<Operation> {
        let (mut operations, mut removed) = (Vec::new(), 0);
        let owners = found.iter();
        let owners = owners.filter_map(|(key, _)| self.servers.get(key)?.owner.clone());
        let owners: BTreeSet<ServicePortName> = owners.collect();
        for (key, listed) in found {
            let Some(draining) = self.servers.get_mut(key) else {
                continue;
            };
            draining.destinations.retain(|address, deadline| {
                // Another program has removed it, or the kernel has refused weight 0.
                let Some((_, connections)) = listed
                    .get(address)
                    .filter(|(found, _)| found.weight == Weight::DRAINING)
                else {
                    return false;
                };
                let is_used = connections.active + connections.inactive > 0;
                let has_time = deadline.is_none_or(|deadline| now < deadline);
                let stays = is_used && has_time || removed >= REMOVED_AT_ONCE;
                if !stays {
                    removed += 1;
                    operations.push(Operation::RemoveDestination {
                        key: *key,
                        address: *address,
                    });
                }
                stays
            });
            if !draining.destinations.is_empty() {
                continue;
            }
            if draining.server_removal == ServerRemoval::Leaves {
                operations.push(Operation::RemoveVirtualServer { key: *key });
            }
            self.remove(*key);
        }
        // Those that were asked alone: there may be hundreds of thousands of others.
        for owner in owners {
            if let Some(of_owner) = self.by_owner.get_mut(&owner) {
                of_owner.limited.retain(|_, deadline| now < *deadline);
            }
        }
        operations
    }
}

impl Ipvs {
    /// Ends new connections to `departures`, and removes those that have none at all.
    pub(super) fn commit_departures(
        &mut self,
        connection: &mut Connection,
        departures: Vec<Departure>,
        is_first: bool,
    ) -> Result<(), CommitError> {
        let keys = departures.iter().map(|departure| departure.key).collect();
        let operations = self.draining.begin(departures, Instant::now());
        let committed = connection.servers.commit(&operations);
        committed.map_err(|e| self.uncommitted(of_servers(&e, is_first), e))?;
        self.finish_draining(connection, keys)
    }

    /// Lets every virtual server in the kernel leave: the mode returns while connections of its
    /// previous time remain. They have no deadline: which Services they belong to is not known any
    /// more, and most endpoints have not left theirs.
    pub(super) fn drain_all(&mut self, connection: &mut Connection) -> Result<(), CommitError> {
        // Checks of the mode's previous time may have read some.
        connection.servers.forget_read_ahead(self.family);
        let found = connection.observe_servers(self.family);
        let (found, _) =
            found.map_err(|e| self.uncommitted((of_reading_servers(&e), Effect::None), e))?;
        let departures = found.into_iter().filter_map(|(number, server)| {
            Some(Departure {
                key: VirtualServerKey {
                    family: self.family,
                    mark: MARKS.mark(number)?,
                },
                owner: None,
                destinations: server.destinations.keys().map(|at| (*at, None)).collect(),
                server_removal: ServerRemoval::Leaves,
                table: table_of(&server.server.scheduler),
            })
        });
        let departures: Vec<_> = departures.collect();
        self.commit_departures(connection, departures, true)
    }

    /// Removes the draining destinations of `keys` that have no connection left, or whose deadline
    /// has passed.
    pub(super) fn finish_draining(
        &mut self,
        connection: &mut Connection,
        keys: Vec<VirtualServerKey>,
    ) -> Result<(), CommitError> {
        if keys.is_empty() {
            return Ok(());
        }
        let found = connection.servers.socket().observe_destinations_of(keys);
        let found =
            found.map_err(|e| self.uncommitted((of_reading_servers(&e), Effect::Possible), e))?;
        let operations = self.draining.end(&found, Instant::now());
        let committed = connection.servers.commit(&operations);
        committed.map_err(|e| self.uncommitted(of_servers(&e, false), e))
    }
}

#[cfg(test)]
mod tests;
