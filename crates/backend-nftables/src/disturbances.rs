//! Hears of what others do to our tables.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use backend::{Culprit, Disturbance};
use dataplane::Family;
use netlink::{ForeignTransaction, Heard, Listener, OpenError};

use crate::layout::nft_family;
use crate::ledger::Ledger;

/// The disturbances of both families of one network namespace, once it has
/// [joined](Disturbances::join).
#[derive(Debug)]
pub struct Disturbances {
    listener: Listener,
    ledger: Arc<Mutex<Ledger>>,
}

// === impl Disturbances ===

impl Disturbances {
    pub(crate) fn new(listener: Listener, ledger: Arc<Mutex<Ledger>>) -> Disturbances {
        Disturbances { listener, ledger }
    }

    /// Begins to hear. From then on the kernel writes a message for each element that anybody
    /// commits, so this is best done when the first, large commits are over. What happened before
    /// is not told: look once afterwards.
    pub fn join(&mut self) -> Result<(), OpenError> {
        self.listener.join()
    }

    /// Waits this long at most for others to touch our tables, and returns sooner whenever anybody
    /// has touched anything.
    pub fn receive(&mut self, wait: Duration) -> io::Result<Option<Disturbance>> {
        let heard = self.listener.receive(wait)?;
        let disturbances = heard.into_iter().filter_map(|heard| self.take(heard));
        Ok(disturbances.reduce(|mut earlier, later| {
            earlier.merge(later);
            earlier
        }))
    }

    fn take(&self, heard: Heard) -> Option<Disturbance> {
        let ForeignTransaction {
            touched,
            generation,
            process,
        } = match heard {
            Heard::Missed => return Some(Disturbance::possible()),
            Heard::Transaction(transaction) => transaction,
        };
        let families: BTreeSet<Family> = Family::ALL
            .into_iter()
            .filter(|family| touched.contains(&nft_family(*family)))
            .collect();
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.add(generation, families.clone());
        drop(ledger);
        let culprit = process.map(|process| Culprit {
            program: process.name,
            process: process.id,
        });
        (!families.is_empty()).then_some(Disturbance { families, culprit })
    }
}
