//! Listens for every change of the rules in the kernel, with the time of each notification.

use std::collections::{BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use xtables::Variant;

use super::Contender;
use super::netlink_dump::{Messages, NetlinkSocket, Received};
use super::saved_rules::SavedRules;
use super::virtual_server_table::VirtualServerTable;
use crate::differential::Mode;
use crate::network::Namespace;

/// How often the thread checks whether to stop, and how often a waiting caller checks for a
/// notification. It does not affect the measured times, which are taken on arrival.
const PAUSE: Duration = Duration::from_millis(5);
/// The shortest interval between two looks at what sends no notifications.
const POLLED_PAUSE: Duration = Duration::from_millis(1);
/// The interval of full reads of a legacy table. A rule replaced by one of the same length shows
/// only in a full read.
pub(super) const LEGACY_READ: Duration = Duration::from_millis(200);

/// A listener on one node. While it is open, the kernel sends a message for each object of each
/// transaction, so cold starts are measured without one.
#[derive(Debug)]
pub struct ListenerThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    received: Mutex<Notification>,
    ending: AtomicBool,
}

/// What sends no notifications.
#[derive(Debug)]
enum Polled {
    Legacy(SavedRules),
    Ipvs(VirtualServerTable),
}

/// The notifications received so far.
#[derive(Debug, Default)]
struct Notification {
    /// The expected addresses, each with the time of its first notification.
    awaited: HashMap<u32, Option<Instant>>,
    counts: Counts,
    last: Option<Instant>,
    /// How long it took at most to read tables of whose changes the kernel sends no notifications.
    longest_read: Option<Duration>,
    failure: Option<anyhow::Error>,
}

/// The number of notifications.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Transactions, including those that changed nothing.
    pub(super) transactions: u64,
    /// Tables, chains, sets, rules and lists of elements that were added or removed.
    pub(super) objects: u64,
    /// How often notifications were lost.
    pub(crate) missed: u64,
}

// === impl ListenerThread ===

impl ListenerThread {
    /// Starts to listen on `node`.
    pub fn open(node: &Namespace, contender: Contender, mode: Mode) -> Result<ListenerThread> {
        let shared = Arc::new(Shared::default());
        let listening = Arc::clone(&shared);
        let thread = match mode {
            Mode::Nftables | Mode::Iptables(Variant::NfTables) => {
                let socket = node.enter(NetlinkSocket::join)?;
                let socket = socket.context("failed to listen to the kernel")?;
                thread::spawn(move || listening.listen(socket))
            }
            Mode::Iptables(Variant::Legacy) => {
                let rules = SavedRules::open(node)?;
                thread::spawn(move || listening.poll(Polled::Legacy(rules)))
            }
            Mode::Ipvs => {
                let servers = VirtualServerTable::open(node, contender)?;
                thread::spawn(move || listening.poll(Polled::Ipvs(servers)))
            }
        };
        Ok(ListenerThread {
            shared,
            thread: Some(thread),
        })
    }

    /// From now on, records when an object with this address is added.
    pub fn expect(&self, address: Ipv4Addr) {
        self.shared.lock().awaited.insert(address.into(), None);
    }

    /// Returns when an object with this address was first reported since [`ListenerThread::expect`].
    pub fn received(&self, address: Ipv4Addr) -> Option<Instant> {
        let received = self.shared.lock();
        received.awaited.get(&address.into()).copied().flatten()
    }

    /// Waits until an object with this address is reported; `None` after `deadline`.
    pub(super) fn wait_for(
        &self,
        address: Ipv4Addr,
        deadline: Duration,
    ) -> Result<Option<Instant>> {
        let end = Instant::now() + deadline;
        loop {
            self.ensure_listens()?;
            let received = self.received(address);
            if received.is_some() || Instant::now() >= end {
                return Ok(received);
            }
            thread::sleep(PAUSE);
        }
    }

    /// Returns the time of the last notification, or `beginning` if there was none since.
    pub(super) fn quiet_since(&self, beginning: Instant) -> Instant {
        let last = self.shared.lock().last;
        last.map_or(beginning, |last| last.max(beginning))
    }

    /// Returns the counts so far.
    pub(crate) fn counts(&self) -> Counts {
        self.shared.lock().counts
    }

    /// How long it took at most to read the tables; `None` where the kernel sends notifications.
    pub(super) fn longest_read(&self) -> Option<Duration> {
        self.shared.lock().longest_read
    }

    fn ensure_listens(&self) -> Result<()> {
        match self.shared.lock().failure.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

impl Drop for ListenerThread {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been printed.
            drop(thread.join());
        }
    }
}

// === impl Polled ===

impl Polled {
    fn has_changed(&mut self) -> Result<bool> {
        match self {
            Polled::Legacy(rules) => rules.has_changed(),
            Polled::Ipvs(servers) => servers.has_changed(),
        }
    }

    fn observe_among(&self, among: &BTreeSet<Ipv4Addr>) -> Result<BTreeSet<Ipv4Addr>> {
        match self {
            Polled::Legacy(rules) => rules.observe_among(among),
            Polled::Ipvs(servers) => Ok(servers.among(among)),
        }
    }
}

// === impl Shared ===

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Notification> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(&self, mut socket: NetlinkSocket) {
        while !self.ending.load(Ordering::Relaxed) {
            match socket.receive(PAUSE) {
                Ok(Received::Nothing) => {}
                Ok(Received::Overrun) => self.lock().counts.missed += 1,
                Ok(Received::Datagram(messages)) => self.lock().take(messages, Instant::now()),
                Err(error) => {
                    let error = anyhow::Error::from(error);
                    self.lock().failure = Some(error.context("failed to hear the kernel"));
                    return;
                }
            }
        }
    }

    fn poll(&self, mut rules: Polled) {
        let mut read = Instant::now();
        while !self.ending.load(Ordering::Relaxed) {
            let looked = Instant::now();
            if let Err(error) = self.look_once(&mut rules, &mut read) {
                self.lock().failure = Some(error);
                return;
            }
            // No more than half of one processor is for that.
            thread::sleep(POLLED_PAUSE.max(looked.elapsed()));
        }
    }

    fn look_once(&self, rules: &mut Polled, read: &mut Instant) -> Result<()> {
        let at = Instant::now();
        let changed = rules.has_changed()?;
        if changed || read.elapsed() > LEGACY_READ {
            let awaited = self.lock().unheard();
            let found = rules.observe_among(&awaited)?;
            *read = Instant::now();
            let mut received = self.lock();
            received.note(found.into_iter().map(u32::from), at);
            received.longest_read = received.longest_read.max(Some(at.elapsed()));
            if changed {
                received.last = Some(at);
            }
        }
        Ok(())
    }
}

// === impl Notification ===

impl Notification {
    fn take(&mut self, messages: Messages<'_>, at: Instant) {
        self.last = Some(at);
        for message in messages {
            match message.ends_transaction() {
                true => self.counts.transactions += 1,
                false => self.counts.objects += 1,
            }
            if message.adds() {
                self.note(message.words(), at);
            }
        }
    }

    /// Returns the awaited addresses that were not seen yet.
    fn unheard(&self) -> BTreeSet<Ipv4Addr> {
        let unheard = self
            .awaited
            .iter()
            .filter(|(_, received)| received.is_none());
        unheard
            .map(|(address, _)| Ipv4Addr::from(*address))
            .collect()
    }

    fn note(&mut self, words: impl IntoIterator<Item = u32>, at: Instant) {
        for word in words {
            if let Some(first @ None) = self.awaited.get_mut(&word) {
                *first = Some(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_expected_is_noted_and_only_the_first_time() {
        let mut received = Notification::default();
        let (one, other) = (Ipv4Addr::new(10, 128, 0, 1), Ipv4Addr::new(10, 128, 0, 2));
        received.awaited.insert(one.into(), None);
        let first = Instant::now();
        received.note([one.into(), other.into()], first);
        received.note([one.into()], first + Duration::from_secs(1));
        assert_eq!(received.awaited.len(), 1);
        assert_eq!(received.awaited[&u32::from(one)], Some(first));
    }
}
