//! Detects external changes to Signpost's chains, by notifications or by polling.

use std::collections::BTreeSet;
use std::io;
use std::sync::{PoisonError, TryLockError};
use std::thread;
use std::time::Duration;

use backend::{ChangeListener, Culprit, Disturbance, ForeignChange, ListenError};
use dataplane::Family;
use netlink::{Heard, Interruption, OpenError};

use xtables::Listening;

use crate::kernel::SharedTables;

/// How often legacy tables are checked for changes: one query of a few microseconds for each table.
const POLL: Duration = Duration::from_millis(250);

/// Reports external changes to both families in one network namespace, once it has
/// [joined](Disturbances::join).
#[derive(Debug)]
pub struct Disturbances {
    /// The listener and the ledger that records what it receives; `None` for legacy tables, for
    /// which the kernel sends no notifications.
    listener: Option<Listening>,
    tables: SharedTables,
}

// === impl Disturbances ===

impl Disturbances {
    pub(crate) fn new(listener: Option<Listening>, tables: SharedTables) -> Disturbances {
        Disturbances { listener, tables }
    }

    /// Whether it receives notifications, which cost every process that commits; otherwise it
    /// polls.
    pub fn listens(&self) -> bool {
        self.listener.is_some()
    }

    /// Subscribes to notifications. From then on the kernel sends one message for each rule that
    /// any process commits, so call it after the first, large commits. Earlier changes are not
    /// reported: check the rules once afterwards.
    pub fn join(&mut self) -> Result<(), OpenError> {
        match &mut self.listener {
            Some((listener, _)) => listener.join(),
            None => Ok(()),
        }
    }

    /// Returns a handle that interrupts [`receive`](Disturbances::receive) from any thread, or
    /// `None` if it polls, since then it never waits for long.
    pub fn interruption(&self) -> Option<Interruption> {
        let listener = self.listener.as_ref();
        listener.map(|(listener, _)| listener.interruption())
    }

    /// Waits until another program changes Signpost's chains, or releases the lock that a change
    /// has waited for in vain. With notifications, waits until one arrives or it is interrupted;
    /// otherwise for a quarter of a second.
    pub fn receive(&mut self) -> io::Result<Option<Disturbance>> {
        let Some((listener, ledger)) = &mut self.listener else {
            thread::sleep(POLL);
            return Ok(self.notice());
        };
        let heard = listener.receive(None)?;
        let mut ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
        for heard in &heard {
            if let Heard::Transaction(transaction) = heard {
                ledger.add(transaction.generation, transaction.near.clone());
            }
        }
        drop(ledger);
        let disturbances = heard.into_iter().filter_map(disturbance);
        Ok(disturbances.reduce(|mut earlier, later| {
            earlier.merge(later);
            earlier
        }))
    }

    /// Polls for families whose tables have changed, or can be written again. Tables that are being
    /// written at the moment, or cannot be read, are checked the next time.
    fn notice(&self) -> Option<Disturbance> {
        let families = Family::ALL.into_iter().zip(&self.tables);
        let touched = families.filter(|(_, tables)| {
            let mut tables = match tables.try_lock() {
                Ok(tables) => tables,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return false,
            };
            // If another process has held the lock for a minute, attempts to write have become rare
            // by then.
            tables.observe_release() || tables.observe_drift().unwrap_or(false)
        });
        let families: BTreeSet<Family> = touched.map(|(family, _)| family).collect();
        (!families.is_empty()).then_some(Disturbance {
            families,
            culprit: None,
        })
    }
}

impl ChangeListener for Disturbances {
    fn join(&mut self) -> Result<(), ListenError> {
        Ok(Disturbances::join(self)?)
    }

    fn receive(&mut self) -> Result<ForeignChange, ListenError> {
        let disturbance = Disturbances::receive(self)?;
        Ok(disturbance.map_or(ForeignChange::None, ForeignChange::Ours))
    }
}

fn disturbance(heard: Heard) -> Option<Disturbance> {
    let transaction = match heard {
        Heard::Missed => return Some(Disturbance::possible()),
        Heard::Transaction(transaction) => transaction,
    };
    let families: BTreeSet<Family> = transaction.touched.into_iter().collect();
    let culprit = transaction.process.map(|process| Culprit {
        program: process.name,
        process: process.id,
    });
    (!families.is_empty()).then_some(Disturbance { families, culprit })
}
