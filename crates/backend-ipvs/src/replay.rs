//! A simulated kernel: applies the steps of a change, and refuses what nf_tables and IPVS would
//! refuse.

use std::collections::BTreeMap;
use std::sync::Arc;

use netlink::ipvs::Operation;
use thiserror::Error;

use crate::allocation::number_of;
use crate::diff::{Departure, Step};
use crate::rules::{Rules, Server};

/// Why the kernel would refuse a step.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refused {
    /// nf_tables refuses the transaction.
    #[error("the table's transaction is refused")]
    Table(#[source] nftables_model::Refused),
    /// The virtual server or destination does not exist (`ESRCH`, `ENOENT`).
    #[error("{0}: it does not exist")]
    Missing(String),
    /// It already exists (`EEXIST`).
    #[error("{0}: it already exists")]
    Present(String),
}

impl Rules {
    /// Applies `step`. If an operation on a virtual server is refused, those before it have taken
    /// effect.
    pub fn replay(&mut self, step: &Step) -> Result<(), Refused> {
        match step {
            Step::Table(transaction) => self.table.replay(transaction).map_err(Refused::Table),
            Step::Delivery(presence) => {
                self.delivery = *presence;
                Ok(())
            }
            Step::Timeouts(timeouts) => {
                self.idle = timeouts.or(self.idle);
                Ok(())
            }
            Step::Servers(operations) => operations.iter().try_for_each(|o| self.carry_out(o)),
            Step::Departures(departures) => {
                let mut removals = departures.iter().flat_map(Departure::removals);
                removals.try_for_each(|operation| self.carry_out(&operation))
            }
        }
    }

    fn carry_out(&mut self, operation: &Operation) -> Result<(), Refused> {
        let missing = || Refused::Missing(operation.to_string());
        let present = || Refused::Present(operation.to_string());
        let number = number_of(operation.key().mark.value()).ok_or_else(missing)?;
        let held = self.servers.get(&number).map(|server| (**server).clone());
        if let Operation::AddVirtualServer { server, .. } = operation {
            if held.is_some() {
                return Err(present());
            }
            let server = Server {
                server: server.clone(),
                destinations: BTreeMap::new(),
                owner: None,
            };
            self.servers.insert(number, Arc::new(server));
            return Ok(());
        }
        let mut held = held.ok_or_else(missing)?;
        match operation {
            Operation::RemoveVirtualServer { .. } => {
                self.servers.remove(&number);
                return Ok(());
            }
            Operation::AddVirtualServer { server, .. }
            | Operation::SetVirtualServer { server, .. } => held.server = server.clone(),
            Operation::AddDestination {
                address,
                destination,
                ..
            } => {
                if held.destinations.insert(*address, *destination).is_some() {
                    return Err(present());
                }
            }
            Operation::SetDestination {
                address,
                destination,
                ..
            } => {
                let old = held.destinations.get_mut(address).ok_or_else(missing)?;
                *old = *destination;
            }
            Operation::RemoveDestination { address, .. } => {
                held.destinations.remove(address).ok_or_else(missing)?;
            }
        }
        self.servers.insert(number, Arc::new(held));
        Ok(())
    }
}
