//! Hears of what others do to our chains, or notices.

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

/// How often legacy tables are asked whether they are as they were left: one question of a few
/// microseconds a table.
const POLL: Duration = Duration::from_millis(250);

/// The disturbances of both families of one network namespace, once it has
/// [joined](Disturbances::join).
#[derive(Debug)]
pub struct Disturbances {
    /// With where to note what is heard; `None` for legacy tables, of which the kernel tells nothing.
    listener: Option<Listening>,
    tables: SharedTables,
}

// === impl Disturbances ===

impl Disturbances {
    pub(crate) fn new(listener: Option<Listening>, tables: SharedTables) -> Disturbances {
        Disturbances { listener, tables }
    }

    /// Whether the kernel is listened to, which costs those who commit; else it is asked.
    pub fn listens(&self) -> bool {
        self.listener.is_some()
    }

    /// Begins to hear. From then on the kernel writes a message for each rule that anybody commits,
    /// so this is best done when the first, large commits are over. What happened before is not
    /// told: look once afterwards.
    pub fn join(&mut self) -> Result<(), OpenError> {
        match &mut self.listener {
            Some((listener, _)) => listener.join(),
            None => Ok(()),
        }
    }

    /// What ends its waiting, from any thread, if it listens. Who asks never waits for long.
    pub fn interruption(&self) -> Option<Interruption> {
        let listener = self.listener.as_ref();
        listener.map(|(listener, _)| listener.interruption())
    }

    /// Waits for others to touch our chains, or to let go of the lock that a change has waited for in
    /// vain: where it listens, until something is told or it is interrupted; else for a quarter of a
    /// second.
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

    /// The families whose tables are not as they were left, or can be written again. Tables that are
    /// being written just now, or cannot be asked, are looked at the next time.
    fn notice(&self) -> Option<Disturbance> {
        let families = Family::ALL.into_iter().zip(&self.tables);
        let touched = families.filter(|(_, tables)| {
            let mut tables = match tables.try_lock() {
                Ok(tables) => tables,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return false,
            };
            // Whoever had the lock for a minute has made attempts rare by then.
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
