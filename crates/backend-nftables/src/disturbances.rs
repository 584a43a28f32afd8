//! Hears of what others do to our tables.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use backend::{ChangeListener, Culprit, Disturbance, ForeignChange, ListenError};
use dataplane::Family;
use netlink::{ForeignTransaction, Heard, Interruption, Ledger, Listener, OpenError};

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

    /// What ends its waiting, from any thread.
    pub fn interruption(&self) -> Interruption {
        self.listener.interruption()
    }

    /// Waits this long at most for others to touch anything, or without an end to it, and returns
    /// sooner when it is interrupted, or when we have touched something.
    pub fn receive(&mut self, wait: Option<Duration>) -> io::Result<ForeignChange> {
        let heard = self.listener.receive(wait)?;
        let overheard = heard.into_iter().map(|heard| self.take(heard));
        Ok(overheard.fold(ForeignChange::None, ForeignChange::and))
    }

    fn take(&self, heard: Heard) -> ForeignChange {
        let ForeignTransaction {
            touched,
            generation,
            process,
            ..
        } = match heard {
            Heard::Missed => return ForeignChange::Ours(Disturbance::possible()),
            Heard::Transaction(transaction) => transaction,
        };
        let families: BTreeSet<Family> = Family::ALL
            .into_iter()
            .filter(|family| touched.contains(family))
            .collect();
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.add(generation, touched);
        drop(ledger);
        if families.is_empty() {
            return ForeignChange::Elsewhere;
        }
        let culprit = process.map(|process| Culprit {
            program: process.name,
            process: process.id,
        });
        ForeignChange::Ours(Disturbance { families, culprit })
    }
}

impl ChangeListener for Disturbances {
    fn join(&mut self) -> Result<(), ListenError> {
        Ok(self.listener.join()?)
    }

    fn receive(&mut self) -> Result<ForeignChange, ListenError> {
        Ok(Disturbances::receive(self, None)?)
    }
}
