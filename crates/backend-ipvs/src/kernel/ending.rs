//! The end of the mode, which connections of IPVS outlive.
//!
//! nf_tables cannot take over a connection of IPVS. When another mode serves, a small table
//! replaces the mode's table: it keeps sending the packets of these connections, and no others, to
//! IPVS. Virtual servers and the routing rule stay as long. None of them counts as rules of the
//! mode, since they serve no Service. They are removed when IPVS has no connection left.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use backend::{CommitError, Effect, Leftover, ObserveError, Recovery};
use dataplane::Family;
use netlink::ipvs::{Destinations, Operation as ServerOperation, VirtualServer, VirtualServerKey};
use netlink::nf_tables::{Operation, Transaction};
use netlink::route::Presence;
use nftables_model::{name, recovery_of_reading};

use super::draining::{Draining, REMOVED_AT_ONCE};
use super::recovery::{of_delivery, of_reading_servers, of_servers, of_table};
use super::{Connection, Holding, Ipvs};
use crate::allocation::{LeavingServers, number_of};
use crate::chains;
use crate::layout::{DELIVERY, ENDING_TABLE, TABLE};
use crate::scheduler_tables::table_of;

/// How virtual servers are removed that have no connection left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RemovalRate {
    /// All of them: no check follows.
    AtOnce,
    /// [`REMOVED_AT_ONCE`] destinations with each check, so that the mode can return meanwhile.
    Spread,
}

type EndingServers = BTreeMap<VirtualServerKey, VirtualServer>;

impl Ipvs {
    /// Reads whether the table for connections that outlive the mode exists.
    pub(super) fn observe_ending(&self, connection: &mut Connection) -> Result<bool, ObserveError> {
        let socket = connection.tables.socket();
        let there = socket.observe_table(self.family, ENDING_TABLE);
        there.map_err(|e| ObserveError::new(self.family, recovery_of_reading(&e), e))
    }

    /// Replaces the table by the one for remaining connections, and removes that too if there are
    /// none. Only then are they counted: as long as the table classifies, there may be another one.
    /// Without a table, nothing classifies, and there is nothing to replace.
    pub(super) fn commit_ending(
        &mut self,
        connection: &mut Connection,
        rate: RemovalRate,
    ) -> Result<Leftover, CommitError> {
        connection.servers.forget_read_ahead(self.family);
        let socket = connection.tables.socket();
        let there = socket.observe_table(self.family, TABLE);
        let unread = |e| self.uncommitted((recovery_of_reading(&e), Effect::None), e);
        if !there.map_err(unread)? {
            self.holding = Holding::Ending;
            return self.finish_ending(connection, rate);
        }
        let [flush, delete] = removal(self.family, TABLE);
        let steps = [replacement(self.family), flush, delete];
        for (number, transaction) in steps.iter().enumerate() {
            let committed = connection.tables.commit(transaction);
            committed.map_err(|e| self.uncommitted(of_table(&e, number == 0), e))?;
        }
        self.holding = Holding::Ending;
        let finished = self.finish_ending(connection, rate);
        finished.map_err(|error| CommitError {
            recovery: match error.recovery {
                Recovery::Halt => Recovery::Halt,
                _ => Recovery::Observe,
            },
            effect: Effect::Possible,
            ..error
        })
    }

    /// Removes what connections need that outlive the mode: when none remains, or at once if the
    /// mode is in use again. Returns what they still need, and keeps it complete.
    pub(super) fn finish_ending(
        &mut self,
        connection: &mut Connection,
        rate: RemovalRate,
    ) -> Result<Leftover, CommitError> {
        let unread = |error: netlink::QueryError| {
            self.uncommitted((of_reading_servers(&error), Effect::None), error)
        };
        match self.holding {
            Holding::Nothing | Holding::Something => {}
            Holding::Both => {
                self.commit_table_removal(connection, ENDING_TABLE)?;
                self.holding = Holding::Something;
            }
            Holding::Ending => {
                let found = connection.observe_ending_servers(self.family);
                let (own, found) = found.map_err(unread)?;
                let numbers = own.iter().filter_map(|(key, server)| {
                    let number = number_of(key.mark.value())?;
                    Some((number, table_of(&server.scheduler)))
                });
                let last = numbers.clone().map(|(number, _)| number).max();
                self.last_observed = last.unwrap_or(0);
                // The end may fail from here on, and the mode return before it succeeds.
                self.ending = LeavingServers::of(numbers);
                let leftover = leftover(&found);
                if leftover == Leftover::Nothing {
                    let first = first_removals(&found);
                    if rate == RemovalRate::Spread && first.len() < found.len() {
                        let committed = connection.servers.commit(&first);
                        committed.map_err(|e| self.uncommitted(of_servers(&e, true), e))?;
                        return Ok(leftover);
                    }
                    self.commit_end(connection)?;
                    self.holding = Holding::Nothing;
                } else {
                    self.commit_lost_ending(connection)?;
                }
                return Ok(leftover);
            }
        }
        Ok(Leftover::Nothing)
    }

    /// Writes the table for remaining connections again if another program has removed it, or the one
    /// before it: otherwise their packets do not reach IPVS.
    fn commit_lost_ending(&self, connection: &mut Connection) -> Result<(), CommitError> {
        let there = connection
            .tables
            .socket()
            .observe_table(self.family, ENDING_TABLE);
        let unread = |e| self.uncommitted((recovery_of_reading(&e), Effect::None), e);
        if there.map_err(unread)? {
            return Ok(());
        }
        let committed = connection.tables.commit(&replacement(self.family));
        committed.map_err(|e| self.uncommitted(of_table(&e, true), e))
    }

    /// Removes it unconditionally. Writes nothing if nothing exists.
    pub(super) fn commit_end(&mut self, connection: &mut Connection) -> Result<(), CommitError> {
        let stays = lasting(self.commit_without(connection, ENDING_TABLE))?;
        let removed = self.commit_without_servers(connection);
        if removed.is_ok() {
            self.draining = Draining::default();
            self.ending = LeavingServers::default();
        }
        stays.map_or(removed, Err)
    }

    /// Removes the virtual servers, and then the routing rule, which leads to them.
    fn commit_without_servers(&self, connection: &mut Connection) -> Result<(), CommitError> {
        let unread = |error: netlink::QueryError| {
            self.uncommitted((of_reading_servers(&error), Effect::Possible), error)
        };
        let listed = connection.servers.observe(self.family);
        let own = listed.map_err(unread)?.own.into_keys();
        let removals: Vec<_> = own
            .filter(|key| key.family == self.family)
            .map(|key| ServerOperation::RemoveVirtualServer { key })
            .collect();
        let committed = connection.servers.commit(&removals);
        committed.map_err(|e| self.uncommitted(of_servers(&e, false), e))?;
        let delivery = connection.routes.observe(self.family, &DELIVERY);
        if delivery.map_err(unread)? == Presence::Absent {
            return Ok(());
        }
        let committed = connection.commit_delivery(self.family, Presence::Absent);
        committed.map_err(|e| self.uncommitted(of_delivery(&e, false), e))
    }

    /// Removes a table, if it exists.
    pub(super) fn commit_without(
        &self,
        connection: &mut Connection,
        table: &str,
    ) -> Result<(), CommitError> {
        let unread = |e| self.uncommitted((recovery_of_reading(&e), Effect::Possible), e);
        let socket = connection.tables.socket();
        if !socket.observe_table(self.family, table).map_err(unread)? {
            return Ok(());
        }
        self.commit_table_removal(connection, table)
    }

    fn commit_table_removal(
        &self,
        connection: &mut Connection,
        table: &str,
    ) -> Result<(), CommitError> {
        for (number, step) in removal(self.family, table).iter().enumerate() {
            let committed = connection.tables.commit(step);
            committed.map_err(|e| self.uncommitted(of_table(&e, number == 0), e))?;
        }
        Ok(())
    }

    /// Converts an error of a removal to one of an observation.
    pub(super) fn unremoved(&self, error: CommitError) -> ObserveError {
        let recovery = match error.recovery {
            Recovery::Halt => Recovery::Halt,
            _ => Recovery::Observe,
        };
        ObserveError::new(self.family, recovery, error.source)
    }
}

impl Connection {
    /// Reads Signpost's virtual servers of one family, and their destinations.
    fn observe_ending_servers(
        &mut self,
        family: Family,
    ) -> Result<(EndingServers, Vec<(VirtualServerKey, Destinations)>), netlink::QueryError> {
        let mut own = self.servers.observe(family)?.own;
        own.retain(|key, _| key.family == family);
        let keys: Vec<_> = own.keys().copied().collect();
        Ok((own, self.servers.socket().observe_destinations_of(keys)?))
    }
}

/// The error of a removal that will never succeed, after which the others go on. Fails with one that
/// another attempt may not meet: until then, the table keeps what it leads to.
pub(super) fn lasting(
    removed: Result<(), CommitError>,
) -> Result<Option<CommitError>, CommitError> {
    match removed {
        Ok(()) => Ok(None),
        Err(error) if error.recovery == Recovery::Halt => Ok(Some(CommitError {
            effect: Effect::Possible,
            ..error
        })),
        Err(error) => Err(error),
    }
}

/// The connections that IPVS has to any of these, including closing ones.
fn leftover(found: &[(VirtualServerKey, Destinations)]) -> Leftover {
    let counts = found
        .iter()
        .flat_map(|(_, destinations)| destinations.values());
    let counts = counts
        .map(|(_, connections)| u64::from(connections.active) + u64::from(connections.inactive));
    let count = NonZeroU64::new(counts.sum());
    count.map_or(Leftover::Nothing, Leftover::Connections)
}

/// Removes at least one virtual server, and those after it which have [`REMOVED_AT_ONCE`] destinations
/// together. The last one stays longest: marks of the mode that returns come after it.
fn first_removals(found: &[(VirtualServerKey, Destinations)]) -> Vec<ServerOperation> {
    let mut found: Vec<_> = found.iter().collect();
    found.sort_by_key(|(key, _)| *key);
    let mut destinations = 0;
    let removed = found
        .into_iter()
        .enumerate()
        .take_while(|(number, (_, listed))| {
            destinations += listed.len();
            *number == 0 || destinations <= REMOVED_AT_ONCE
        });
    let removals = removed.map(|(_, (key, _))| ServerOperation::RemoveVirtualServer { key: *key });
    removals.collect()
}

/// Creates the table that sends connections on to IPVS, replacing one that was cut short.
fn replacement(family: Family) -> Transaction {
    let mut transaction = Transaction::new(family, name(ENDING_TABLE));
    transaction.operations = vec![
        Operation::AddTable,
        Operation::DeleteTable,
        Operation::AddTable,
    ];
    let chains = chains::ending(family);
    let added = chains
        .iter()
        .map(|chain| Operation::AddChain(chain.chain.clone()));
    transaction.operations.extend(added);
    for chain in chains {
        let name = chain.chain.name;
        let rules = chain.rules.into_iter();
        transaction
            .operations
            .extend(rules.map(|rule| Operation::AddRule {
                chain: Arc::clone(&name),
                rule,
            }));
    }
    transaction
}

fn removal(family: Family, table: &str) -> [Transaction; 2] {
    Transaction::removal(family, &name(table))
}

#[cfg(test)]
mod tests {
    use netlink::ipvs::{Connections, Weight};

    use super::*;
    use crate::layout::MARKS;
    use crate::rules::destination;

    fn server(number: u32, destinations: usize) -> (VirtualServerKey, Destinations) {
        let key = VirtualServerKey {
            family: Family::Ipv4,
            mark: MARKS.mark(number).expect("a mark"),
        };
        let ports = 1..=u16::try_from(destinations).expect("few");
        let listed = ports.map(|port| {
            let at = ([10, 0, 1, 5], port).into();
            (at, (destination(Weight::DRAINING), Connections::default()))
        });
        (key, listed.collect())
    }

    /// Failure story T298, where the mode ends and returns within minutes.
    #[test]
    fn t298_the_virtual_servers_of_a_mode_that_ends_are_removed_over_several_checks() {
        let third = REMOVED_AT_ONCE / 3;
        let mut found: Vec<_> = (1..=7).map(|number| server(number, third)).collect();
        found.push(server(8, REMOVED_AT_ONCE + 1));
        let mut removed = Vec::new();
        while !found.is_empty() {
            let removals = first_removals(&found);
            found.retain(|(key, _)| {
                !removals.contains(&ServerOperation::RemoveVirtualServer { key: *key })
            });
            removed.push(removals.len());
        }
        assert_eq!(removed, [3, 3, 1, 1]);
    }
}
