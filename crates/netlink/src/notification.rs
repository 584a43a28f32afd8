//! Collects notifications into transactions of other programs that touched Signpost's tables.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::nf_tables::Family;
use crate::wire::{Message, Messages};

/// `NFNL_SUBSYS_NFTABLES`, the upper byte of a message's type.
const SUBSYSTEM: u16 = 10;
/// `NFT_MSG_DELTABLE`.
const DELETE_TABLE: u16 = SUBSYSTEM << 8 | 2;
/// `NFT_MSG_NEWCHAIN`.
const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
/// `NFT_MSG_DELCHAIN`.
const DELETE_CHAIN: u16 = SUBSYSTEM << 8 | 5;
/// `NFT_MSG_NEWRULE`.
const NEW_RULE: u16 = SUBSYSTEM << 8 | 6;
/// `NFT_MSG_DELRULE`.
const DELETE_RULE: u16 = SUBSYSTEM << 8 | 8;
/// `NFT_MSG_NEWGEN`, the last message of every transaction.
const NEW_GENERATION: u16 = SUBSYSTEM << 8 | 15;
/// `NFTA_TABLE_NAME`, `NFTA_CHAIN_TABLE`, `NFTA_RULE_TABLE`, `NFTA_SET_TABLE`,
/// `NFTA_SET_ELEM_LIST_TABLE`, `NFTA_OBJ_TABLE` and `NFTA_FLOWTABLE_TABLE` are all the same.
const TABLE: u16 = 1;
/// `NFTA_RULE_CHAIN`.
const CHAIN_OF_RULE: u16 = 2;
/// `NFTA_CHAIN_NAME`.
const CHAIN_NAME: u16 = 3;
/// `NFTA_GEN_ID`.
const GENERATION: u16 = 1;
/// `NFTA_GEN_PROC_PID`: the thread's id in the initial PID namespace.
const PROCESS: u16 = 2;
/// `NFTA_GEN_PROC_NAME`.
const PROGRAM: u16 = 3;

/// The built-in chains of iptables, which Signpost shares with other programs.
const BUILT_IN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// How the names of the tables begin by which agents keep hooks of the kernel. Only the process that has
/// created such a table can change it, through a socket of its own.
pub const KEPT_HOOKS: &str = "signpost-hooks-";

/// The families in which Signpost has tables.
const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

/// The objects of Signpost whose changes by other programs are reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Watched {
    /// All objects of the tables with these names.
    Tables(Vec<&'static str>),
    /// In shared tables: chains with this name prefix, and removals of rules from built-in chains.
    /// The kernel does not report the content of a removed rule.
    Chains {
        /// The tables.
        tables: &'static [&'static str],
        /// The prefix of the names of Signpost's chains.
        prefix: &'static str,
    },
}

/// A report by the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notification {
    /// Another program committed a transaction.
    Transaction(ForeignTransaction),
    /// The kernel dropped notifications because the socket's queue was full: up to now, anything
    /// may have changed.
    Missed,
}

/// A transaction that went through none of Signpost's sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignTransaction {
    /// The families in which it touched Signpost's objects.
    pub touched: BTreeSet<Family>,
    /// The families in which it changed anything in the tables that contain Signpost's objects.
    pub near: BTreeSet<Family>,
    /// Whether it changed tables of [`KEPT_HOOKS`] and nothing else.
    pub keeps_hooks: bool,
    /// The generation of the ruleset that it began.
    pub generation: u32,
    /// The process that committed it, if the kernel reports it.
    pub process: Option<Process>,
}

/// A process as the kernel reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id in the initial PID namespace, regardless of the namespaces of that process and this
    /// one.
    pub id: u32,
    /// The name of the thread, truncated to 15 bytes.
    pub name: String,
}

/// Assembles transactions from notifications. The kernel reports one transaction after the other.
#[derive(Debug)]
pub(crate) struct NotificationCollector {
    watched: Watched,
    own_ports: Vec<Arc<AtomicU32>>,
    /// The families whose objects the current transaction has touched so far.
    touched: BTreeSet<Family>,
    /// The families of the tables that it has changed.
    near: BTreeSet<Family>,
    /// Whether it has changed tables of [`KEPT_HOOKS`] alone; `None` while it has changed nothing.
    keeps_hooks: Option<bool>,
    completeness: Completeness,
}

/// Whether notifications were lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Completeness {
    /// No notification of the current transaction was lost.
    Whole,
    /// The notifications after those still in the socket's queue were lost. The kernel queues
    /// nothing more until the queue is empty.
    Overrun,
    /// The first notifications of the current transaction may have been lost.
    Doubtful,
}

// === impl NotificationCollector ===

impl NotificationCollector {
    pub(crate) fn new(watched: Watched, own_ports: Vec<Arc<AtomicU32>>) -> NotificationCollector {
        NotificationCollector {
            watched,
            own_ports,
            touched: BTreeSet::new(),
            near: BTreeSet::new(),
            keeps_hooks: None,
            completeness: Completeness::Whole,
        }
    }

    /// Processes one datagram. For a message about one of Signpost's transactions, it reads only
    /// the header.
    pub(crate) fn take(&mut self, datagram: &[u8]) -> Vec<Notification> {
        let messages = Messages::parse(datagram);
        messages
            .filter_map(|message| self.take_message(&message))
            .map(Notification::Transaction)
            .collect()
    }

    /// Records that one datagram of the current transaction could not be read.
    pub(crate) fn illegible(&mut self) {
        self.touched = BTreeSet::from(FAMILIES);
        self.near = BTreeSet::from(FAMILIES);
        self.keeps_hooks = Some(false);
    }

    /// Records that the kernel dropped notifications.
    pub(crate) fn overrun(&mut self) {
        self.completeness = Completeness::Overrun;
    }

    /// Records that the queue is empty. Returns `Missed` if notifications were lost.
    pub(crate) fn quiet(&mut self) -> Option<Notification> {
        if self.completeness != Completeness::Overrun {
            return None;
        }
        self.completeness = Completeness::Doubtful;
        Some(Notification::Missed)
    }

    fn take_message(&mut self, message: &Message<'_>) -> Option<ForeignTransaction> {
        if message.kind >> 8 != SUBSYSTEM {
            return None;
        }
        if message.kind != NEW_GENERATION {
            if !self.is_own(message.port) {
                self.touched.extend(self.family_touched_by(message));
                self.near.extend(self.family_near(message));
                self.keeps_hooks = Some(self.keeps_hooks != Some(false) && keeps_hooks(message));
            }
            return None;
        }
        let mut touched = std::mem::take(&mut self.touched);
        let mut near = std::mem::take(&mut self.near);
        let mut keeps_hooks = self.keeps_hooks.take() == Some(true);
        if self.completeness == Completeness::Doubtful {
            self.completeness = Completeness::Whole;
            touched = BTreeSet::from(FAMILIES);
            near = BTreeSet::from(FAMILIES);
            keeps_hooks = false;
        }
        if self.is_own(message.port) {
            return None;
        }
        let attributes = message.attributes();
        let process = attributes.u32(PROCESS).map(|id| Process {
            id,
            name: attributes.string(PROGRAM).unwrap_or_default().to_owned(),
        });
        Some(ForeignTransaction {
            touched,
            near,
            keeps_hooks,
            generation: attributes.u32(GENERATION)?,
            process,
        })
    }

    /// Whether this is the current port of one of Signpost's sockets.
    fn is_own(&self, port: u32) -> bool {
        let mut own = self.own_ports.iter();
        own.any(|own| own.load(Ordering::Relaxed) == port)
    }

    /// The family of a message about a table that contains Signpost's objects, or about anything in
    /// it.
    fn family_near(&self, message: &Message<'_>) -> Option<Family> {
        let mut families = FAMILIES.into_iter();
        let family = families.find(|family| message.family() == Some(family.number()))?;
        let table = message.attributes().string(TABLE)?;
        let is_near = match &self.watched {
            Watched::Tables(own) => own.contains(&table),
            Watched::Chains { tables, .. } => tables.contains(&table),
        };
        is_near.then_some(family)
    }

    fn family_touched_by(&self, message: &Message<'_>) -> Option<Family> {
        let family = FAMILIES
            .into_iter()
            .find(|family| message.family() == Some(family.number()))?;
        let attributes = message.attributes();
        let table = attributes.string(TABLE)?;
        let is_own = match &self.watched {
            Watched::Tables(own) => own.contains(&table),
            Watched::Chains { tables, prefix } if tables.contains(&table) => match message.kind {
                DELETE_TABLE => true,
                NEW_CHAIN | DELETE_CHAIN => attributes.string(CHAIN_NAME)?.starts_with(prefix),
                NEW_RULE => attributes.string(CHAIN_OF_RULE)?.starts_with(prefix),
                DELETE_RULE => {
                    let chain = attributes.string(CHAIN_OF_RULE)?;
                    chain.starts_with(prefix) || BUILT_IN.contains(&chain)
                }
                _ => false,
            },
            Watched::Chains { .. } => false,
        };
        is_own.then_some(family)
    }
}

/// Whether a message is about a table of [`KEPT_HOOKS`].
fn keeps_hooks(message: &Message<'_>) -> bool {
    let table = message.attributes().string(TABLE);
    table.is_some_and(|table| table.starts_with(KEPT_HOOKS))
}

#[cfg(test)]
mod tests;
