//! Each change of the rules, as the kernel tells of it, with when it was heard.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use xtables::Variant;

use super::netlink_dump::{Messages, NetlinkSocket, Received};
use super::saved_rules::SavedRules;
use crate::differential::Mode;
use crate::network::Namespace;

/// How long the thread waits before it looks whether it should end, and how often the one who waits
/// looks whether it has heard: not part of what is measured, which is stamped when it is heard.
const PAUSE: Duration = Duration::from_millis(5);
/// The resolution where the kernel tells nothing and has to be asked.
const LEGACY_PAUSE: Duration = Duration::from_millis(1);
/// A rule in the place of another of the same length is seen by reading the table only.
pub(super) const LEGACY_READ: Duration = Duration::from_millis(200);

/// Listens on one node. While it does, the kernel writes a message for each object of each
/// transaction, which is why nobody listens to a cold start.
#[derive(Debug)]
pub struct Ear {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    heard: Mutex<Heard>,
    ending: AtomicBool,
}

/// What was heard so far.
#[derive(Debug, Default)]
struct Heard {
    /// Addresses that somebody waits for, with when they were first heard of.
    awaited: HashMap<u32, Option<Instant>>,
    counts: Counts,
    last: Option<Instant>,
    failure: Option<anyhow::Error>,
}

/// How much was heard.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    /// Transactions, those that changed nothing among them.
    pub(super) transactions: u64,
    /// Tables, chains, sets, rules and lists of elements that came or went.
    pub(super) objects: u64,
    /// How often something was lost.
    pub(super) missed: u64,
}

// === impl Ear ===

impl Ear {
    /// Begins to listen on `node`.
    pub fn open(node: &Namespace, mode: Mode) -> Result<Ear> {
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
                thread::spawn(move || listening.look(rules))
            }
        };
        Ok(Ear {
            shared,
            thread: Some(thread),
        })
    }

    /// From now on, notes when something with this address comes to be.
    pub fn expect(&self, address: Ipv4Addr) {
        self.shared.lock().awaited.insert(address.into(), None);
    }

    /// When something with this address was first heard of since it is expected.
    pub fn heard(&self, address: Ipv4Addr) -> Option<Instant> {
        let heard = self.shared.lock();
        heard.awaited.get(&address.into()).copied().flatten()
    }

    /// Waits until something with this address was heard of; `None` when it was not after
    /// `deadline`.
    pub(super) fn wait_for(
        &self,
        address: Ipv4Addr,
        deadline: Duration,
    ) -> Result<Option<Instant>> {
        let end = Instant::now() + deadline;
        loop {
            self.ensure_listens()?;
            let heard = self.heard(address);
            if heard.is_some() || Instant::now() >= end {
                return Ok(heard);
            }
            thread::sleep(PAUSE);
        }
    }

    /// When anything was heard last, and `beginning` if nothing was since.
    pub(super) fn quiet_since(&self, beginning: Instant) -> Instant {
        let last = self.shared.lock().last;
        last.map_or(beginning, |last| last.max(beginning))
    }

    /// How much was heard so far.
    pub(super) fn counts(&self) -> Counts {
        self.shared.lock().counts
    }

    fn ensure_listens(&self) -> Result<()> {
        match self.shared.lock().failure.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic in it has been printed.
            drop(thread.join());
        }
    }
}

// === impl Shared ===

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn look(&self, mut rules: SavedRules) {
        let mut read = Instant::now();
        while !self.ending.load(Ordering::Relaxed) {
            if let Err(error) = self.look_once(&mut rules, &mut read) {
                self.lock().failure = Some(error);
                return;
            }
            thread::sleep(LEGACY_PAUSE);
        }
    }

    fn look_once(&self, rules: &mut SavedRules, read: &mut Instant) -> Result<()> {
        let at = Instant::now();
        let changed = rules.has_changed()?;
        if changed || read.elapsed() > LEGACY_READ {
            let addresses = rules.observe_addresses()?;
            *read = Instant::now();
            let mut heard = self.lock();
            heard.note(addresses, at);
            if changed {
                heard.last = Some(at);
            }
        }
        Ok(())
    }
}

// === impl Heard ===

impl Heard {
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
        let mut heard = Heard::default();
        let (one, other) = (Ipv4Addr::new(10, 128, 0, 1), Ipv4Addr::new(10, 128, 0, 2));
        heard.awaited.insert(one.into(), None);
        let first = Instant::now();
        heard.note([one.into(), other.into()], first);
        heard.note([one.into()], first + Duration::from_secs(1));
        assert_eq!(heard.awaited.len(), 1);
        assert_eq!(heard.awaited[&u32::from(one)], Some(first));
    }
}
