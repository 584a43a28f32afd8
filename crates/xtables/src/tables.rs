//! The tables of one family, in either variant.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use netlink::{ForeignGenerations, Listener, Watched};

use crate::legacy::Legacy;
use crate::nf_tables::NfTables;
use crate::{CommitError, Family, ObserveError, OpenError, OwnRules, TableChange, TableName};

/// The iptables variants of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Variant {
    /// nf_tables: `iptables-nft`.
    NfTables,
    /// The older `ip_tables` and `ip6_tables`: `iptables-legacy`.
    Legacy,
}

/// The tables of one family, in the network namespace of the thread that opened them. Every chain
/// whose name begins with the prefix belongs to Signpost.
#[derive(Debug)]
pub enum Tables {
    /// The nf_tables variant.
    NfTables(NfTables),
    /// The legacy variant.
    Legacy(Legacy),
}

/// A listener for changes by other programs, and the ledger to record them in.
pub type Listening = (Listener, Arc<Mutex<ForeignGenerations>>);

// === impl Tables ===

impl Tables {
    /// Opens the tables of `family` in this thread's network namespace. The legacy variant takes
    /// the lock at `lock` for each change and waits at most `patience` for it.
    pub fn open(
        variant: Variant,
        family: Family,
        prefix: &'static str,
        lock: &Path,
        patience: Duration,
    ) -> Result<Tables, OpenError> {
        match variant {
            Variant::NfTables => NfTables::open(family, prefix).map(Tables::NfTables),
            Variant::Legacy => Legacy::open(family, prefix, lock, patience).map(Tables::Legacy),
        }
    }

    /// Opens the tables of both families, IPv4 first, as [`Tables::open`] does one. Changes made
    /// through one are not drift for the other.
    pub fn open_families(
        variant: Variant,
        prefix: &'static str,
        lock: &Path,
        patience: Duration,
    ) -> Result<[Tables; 2], OpenError> {
        let ipv4 = Tables::open(variant, Family::Ipv4, prefix, lock, patience)?;
        let ipv6 = match &ipv4 {
            Tables::NfTables(tables) => Tables::NfTables(tables.open_beside(Family::Ipv6)?),
            Tables::Legacy(_) => Tables::open(variant, Family::Ipv6, prefix, lock, patience)?,
        };
        Ok([ipv4, ipv6])
    }

    /// Returns a listener for other programs' changes to Signpost's rules in `families`, which were
    /// opened together, and the ledger that records which generations were changes elsewhere, so
    /// that these do not count as drift. `None` for legacy tables: the kernel sends no
    /// notifications for them.
    pub fn listen(
        families: [&Tables; 2],
        prefix: &'static str,
    ) -> Result<Option<Listening>, OpenError> {
        let [Tables::NfTables(ipv4), Tables::NfTables(ipv6)] = families else {
            return Ok(None);
        };
        let watched = Watched::Chains {
            tables: &["nat", "filter"],
            prefix,
        };
        let own = [ipv4, ipv6].map(|tables| tables.socket().port());
        let listener = Listener::open(watched, own.to_vec());
        let listener = listener.map_err(OpenError::new)?;
        Ok(Some((listener, Arc::clone(ipv4.foreign_generations()))))
    }

    /// Whether this kernel has the tables at all. Where it does not, such as legacy IPv6 with
    /// `ipv6.disable=1`, they are empty and every change fails.
    pub fn is_offered(&self) -> bool {
        match self {
            Tables::NfTables(_) => true,
            Tables::Legacy(tables) => tables.is_offered(),
        }
    }

    /// The variant of the tables.
    pub fn variant(&self) -> Variant {
        match self {
            Tables::NfTables(_) => Variant::NfTables,
            Tables::Legacy(_) => Variant::Legacy,
        }
    }

    /// Reads Signpost's rules in `table`.
    pub fn observe(&mut self, table: TableName) -> Result<OwnRules, ObserveError> {
        match self {
            Tables::NfTables(tables) => tables.observe(table),
            Tables::Legacy(tables) => tables.observe(table),
        }
    }

    /// Whether a table may differ from what Signpost last read or wrote. Cheap.
    pub fn observe_drift(&mut self) -> Result<bool, ObserveError> {
        match self {
            Tables::NfTables(tables) => tables.observe_drift(),
            Tables::Legacy(tables) => tables.observe_drift(),
        }
    }

    /// Whether the last change gave up waiting for the lock and the lock is free now. Returns true
    /// only once for each such change, and never for nf_tables, which has no lock.
    pub fn observe_release(&mut self) -> bool {
        match self {
            Tables::NfTables(_) => false,
            Tables::Legacy(tables) => tables.observe_release(),
        }
    }

    /// Commits `changes` in order, each atomically. The legacy variant may combine consecutive
    /// changes of the same table. Returns the number of transactions.
    pub fn commit(&mut self, changes: &[TableChange]) -> Result<usize, CommitError> {
        self.commit_divided(changes, |_, _| true)
    }

    /// The same. A change that is too large for nf_tables is divided only where the change of that number
    /// `may_end` after so many of its chains. If there is no such place, the commit fails.
    pub fn commit_divided(
        &mut self,
        changes: &[TableChange],
        may_end: impl Fn(usize, usize) -> bool,
    ) -> Result<usize, CommitError> {
        match self {
            Tables::NfTables(tables) => tables.commit(changes, may_end),
            Tables::Legacy(tables) => tables.commit(changes),
        }
    }

    /// How long the last change waited for the lock: zero for nf_tables, which has no lock.
    pub fn waited(&self) -> Duration {
        match self {
            Tables::NfTables(_) => Duration::ZERO,
            Tables::Legacy(tables) => tables.waited(),
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Variant::NfTables => "nf_tables",
            Variant::Legacy => "legacy",
        })
    }
}
