//! Detects external changes to Signpost's chains, by notifications or by polling.

use std::collections::BTreeSet;
use std::io;
use std::sync::{PoisonError, TryLockError};
use std::thread;
use std::time::Duration;

use backend::{Actor, ChangeListener, ExternalChange, ForeignChange, ListenError};
use dataplane::Family;
use netlink::{Interruption, Notification, OpenError};

use xtables::Listening;

use crate::kernel::SharedTables;

/// How often legacy tables are checked for changes: one query of a few microseconds for each table.
const POLL: Duration = Duration::from_millis(250);

/// Reports external changes to both families in one network namespace, once it has
/// [joined](NotificationListener::join).
#[derive(Debug)]
pub struct NotificationListener {
    /// The listener and the ledger that records what it receives; `None` for legacy tables, for
    /// which the kernel sends no notifications.
    listener: Option<Listening>,
    tables: SharedTables,
}

// === impl NotificationListener ===

impl NotificationListener {
    pub(crate) fn new(listener: Option<Listening>, tables: SharedTables) -> NotificationListener {
        NotificationListener { listener, tables }
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

    /// Returns a handle that interrupts [`receive`](NotificationListener::receive) from any thread, or
    /// `None` if it polls, since then it never waits for long.
    pub fn interruption(&self) -> Option<Interruption> {
        let listener = self.listener.as_ref();
        listener.map(|(listener, _)| listener.interruption())
    }

    /// Waits until another program changes Signpost's chains, or releases the lock that a change
    /// has waited for in vain. With notifications, waits until one arrives or it is interrupted;
    /// otherwise for a quarter of a second.
    pub fn receive(&mut self) -> io::Result<Option<ExternalChange>> {
        let Some((listener, foreign_generations)) = &mut self.listener else {
            thread::sleep(POLL);
            return Ok(self.notice());
        };
        let received = listener.receive(None)?;
        let mut foreign_generations = foreign_generations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for notification in &received {
            if let Notification::Transaction(transaction) = notification {
                foreign_generations.add(transaction.generation, transaction.near.clone());
            }
        }
        drop(foreign_generations);
        let notification_listener = received.into_iter().filter_map(external_change);
        Ok(notification_listener.reduce(|mut earlier, later| {
            earlier.merge(later);
            earlier
        }))
    }

    /// Polls for families whose tables have changed, or can be written again. Tables that are being
    /// written at the moment, or cannot be read, are checked the next time.
    fn notice(&self) -> Option<ExternalChange> {
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
        (!families.is_empty()).then_some(ExternalChange {
            families,
            actor: None,
        })
    }
}

impl ChangeListener for NotificationListener {
    fn join(&mut self) -> Result<(), ListenError> {
        Ok(NotificationListener::join(self)?)
    }

    fn receive(&mut self) -> Result<ForeignChange, ListenError> {
        let external_change = NotificationListener::receive(self)?;
        Ok(external_change.map_or(ForeignChange::None, ForeignChange::OwnRules))
    }
}

fn external_change(notification: Notification) -> Option<ExternalChange> {
    let transaction = match notification {
        Notification::Missed => return Some(ExternalChange::possible()),
        Notification::Transaction(transaction) => transaction,
    };
    let families: BTreeSet<Family> = transaction.touched.into_iter().collect();
    let actor = transaction.process.map(|process| Actor {
        program: process.name,
        process: process.id,
    });
    (!families.is_empty()).then_some(ExternalChange { families, actor })
}
