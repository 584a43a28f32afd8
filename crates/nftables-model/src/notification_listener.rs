//! Listens for external changes to Signpost's tables.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use backend::{Actor, ChangeListener, ExternalChange, ForeignChange, ListenError};
use dataplane::Family;
use netlink::{
    ForeignGenerations, ForeignTransaction, Interruption, Listener, Notification, OpenError,
    SocketPort, Watched,
};

/// Reports external changes to both families in one network namespace, once it has
/// [joined](NotificationListener::join).
#[derive(Debug)]
pub struct NotificationListener {
    listener: Listener,
    foreign_generations: Arc<Mutex<ForeignGenerations>>,
}

// === impl NotificationListener ===

impl NotificationListener {
    /// Opens a listener for changes to the tables `watched`, which has not joined. Transactions of
    /// the sockets with the ports `own` are not reported. Those of other programs are added to
    /// `foreign_generations`.
    pub fn open(
        watched: Vec<&'static str>,
        own: Vec<SocketPort>,
        foreign_generations: Arc<Mutex<ForeignGenerations>>,
    ) -> Result<NotificationListener, OpenError> {
        Ok(NotificationListener {
            listener: Listener::open(Watched::Tables(watched), own)?,
            foreign_generations,
        })
    }

    /// Subscribes to notifications. From then on the kernel sends one message for each element that
    /// any process commits, so call it after the first, large commits. Earlier changes are not
    /// reported: check the tables once afterwards.
    pub fn join(&mut self) -> Result<(), OpenError> {
        self.listener.join()
    }

    /// Returns a handle that interrupts [`receive`](NotificationListener::receive) from any thread.
    pub fn interruption(&self) -> Interruption {
        self.listener.interruption()
    }

    /// Waits until another program changes anything but tables by which agents keep hooks, for at most
    /// `wait` (`None`: without limit). Returns early on an interruption or a transaction of Signpost.
    pub fn receive(&mut self, wait: Option<Duration>) -> io::Result<ForeignChange> {
        let received = self.listener.receive(wait)?;
        let changes = received
            .into_iter()
            .map(|notification| self.take(notification));
        Ok(changes.fold(ForeignChange::None, ForeignChange::and))
    }

    fn take(&self, notification: Notification) -> ForeignChange {
        let ForeignTransaction {
            touched,
            keeps_hooks,
            generation,
            process,
            ..
        } = match notification {
            Notification::Missed => return ForeignChange::OwnRules(ExternalChange::possible()),
            Notification::Transaction(transaction) => transaction,
        };
        let families: BTreeSet<Family> = Family::ALL
            .into_iter()
            .filter(|family| touched.contains(family))
            .collect();
        let mut foreign_generations = self
            .foreign_generations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        foreign_generations.add(generation, touched);
        drop(foreign_generations);
        if families.is_empty() {
            return match keeps_hooks {
                true => ForeignChange::None,
                false => ForeignChange::Elsewhere,
            };
        }
        let actor = process.map(|process| Actor {
            program: process.name,
            process: process.id,
        });
        ForeignChange::OwnRules(ExternalChange { families, actor })
    }
}

impl ChangeListener for NotificationListener {
    fn join(&mut self) -> Result<(), ListenError> {
        Ok(self.listener.join()?)
    }

    fn receive(&mut self) -> Result<ForeignChange, ListenError> {
        Ok(NotificationListener::receive(self, None)?)
    }
}
