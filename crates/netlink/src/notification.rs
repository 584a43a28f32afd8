//! Notifications of transactions, collected into those of other programs that touched Signpost's tables.

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
/// `NFTA_GEN_PROC_PID`: of the thread, in the machine's own process namespace.
const PROCESS: u16 = 2;
/// `NFTA_GEN_PROC_NAME`.
const PROGRAM: u16 = 3;

/// The built-in chains of iptables, which Signpost shares with other programs.
const BUILT_IN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// The families in which Signpost has tables.
const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

/// Signpost's objects: those whose changes by other programs are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    /// All of the tables of these names.
    Tables(&'static [&'static str]),
    /// In shared tables: chains whose names begin like this, and removed rules of the built-in chains.
    /// The kernel does not report the content of a removed rule.
    Chains {
        /// The tables.
        tables: &'static [&'static str],
        /// What the names of our chains begin with.
        prefix: &'static str,
    },
}

/// What the kernel reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// Another program committed a transaction.
    Transaction(ForeignTransaction),
    /// The kernel had more to tell than the socket could hold: up to now, anything may have
    /// happened.
    Missed,
}

/// A transaction that went through none of our sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignTransaction {
    /// The families in which it touched Signpost's objects.
    pub touched: BTreeSet<Family>,
    /// The families in which it changed anything of the tables that contain Signpost's objects.
    pub near: BTreeSet<Family>,
    /// The generation of the ruleset that it began.
    pub generation: u32,
    /// Which process it was, where the kernel says so.
    pub process: Option<Process>,
}

/// A process as the kernel names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id in the machine's own process namespace, whatever namespaces it and this process are in.
    pub id: u32,
    /// The name of the thread, cut to 15 bytes.
    pub name: String,
}

/// Makes transactions out of notifications. The kernel tells of one transaction after the other.
#[derive(Debug)]
pub(crate) struct Hearing {
    watched: Watched,
    own_ports: Vec<Arc<AtomicU32>>,
    /// What the current transaction has touched so far.
    touched: BTreeSet<Family>,
    /// What it has come near.
    near: BTreeSet<Family>,
    completeness: Completeness,
}

/// Whether notifications were lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Completeness {
    /// None of the current transaction.
    Whole,
    /// Those that follow what is still in the socket's queue. The kernel queues nothing more until
    /// that is empty.
    Overrun,
    /// Perhaps the first ones of the current transaction.
    Doubtful,
}

// === impl Hearing ===

impl Hearing {
    pub(crate) fn new(watched: Watched, own_ports: Vec<Arc<AtomicU32>>) -> Hearing {
        Hearing {
            watched,
            own_ports,
            touched: BTreeSet::new(),
            near: BTreeSet::new(),
            completeness: Completeness::Whole,
        }
    }

    /// Processes one datagram. Costs a look at the header for each message about an own transaction.
    pub(crate) fn take(&mut self, datagram: &[u8]) -> Vec<Heard> {
        let messages = Messages::parse(datagram);
        messages
            .filter_map(|message| self.take_message(&message))
            .map(Heard::Transaction)
            .collect()
    }

    /// One datagram of the current transaction could not be read.
    pub(crate) fn illegible(&mut self) {
        self.touched = BTreeSet::from(FAMILIES);
        self.near = BTreeSet::from(FAMILIES);
    }

    /// The kernel reported that it dropped messages.
    pub(crate) fn overrun(&mut self) {
        self.completeness = Completeness::Overrun;
    }

    /// There is nothing more to take in for now.
    pub(crate) fn quiet(&mut self) -> Option<Heard> {
        if self.completeness != Completeness::Overrun {
            return None;
        }
        self.completeness = Completeness::Doubtful;
        Some(Heard::Missed)
    }

    fn take_message(&mut self, message: &Message<'_>) -> Option<ForeignTransaction> {
        if message.kind >> 8 != SUBSYSTEM {
            return None;
        }
        if message.kind != NEW_GENERATION {
            if !self.is_own(message.port) {
                self.touched.extend(self.family_touched_by(message));
                self.near.extend(self.family_near(message));
            }
            return None;
        }
        let mut touched = std::mem::take(&mut self.touched);
        let mut near = std::mem::take(&mut self.near);
        if self.completeness == Completeness::Doubtful {
            self.completeness = Completeness::Whole;
            touched = BTreeSet::from(FAMILIES);
            near = BTreeSet::from(FAMILIES);
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
            generation: attributes.u32(GENERATION)?,
            process,
        })
    }

    /// Whether this is the port of an own socket, currently.
    fn is_own(&self, port: u32) -> bool {
        let mut own = self.own_ports.iter();
        own.any(|own| own.load(Ordering::Relaxed) == port)
    }

    /// The family of a message about anything in a table that contains Signpost's objects, the table itself
    /// included.
    fn family_near(&self, message: &Message<'_>) -> Option<Family> {
        let mut families = FAMILIES.into_iter();
        let family = families.find(|family| message.family() == Some(family.number()))?;
        let table = message.attributes().string(TABLE)?;
        let is_near = match self.watched {
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
        let ours = match self.watched {
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
        ours.then_some(family)
    }
}

#[cfg(test)]
mod tests;
