//! The tables of one family, whichever kernel is behind them.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use netlink::{Ledger, Listener, Watched};

use crate::legacy::Legacy;
use crate::nf_tables::NfTables;
use crate::{CommitError, Family, Held, ObserveError, OpenError, TableChange, TableName};

/// Which kernel is behind the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Variant {
    /// nf_tables: `iptables-nft`.
    NfTables,
    /// The tables of before: `iptables-legacy`.
    Legacy,
}

/// The tables of one family, in the network namespace of the thread that opened them. Every chain
/// whose name begins with the prefix is Signpost's.
#[derive(Debug)]
pub enum Tables {
    /// In nf_tables.
    NfTables(NfTables),
    /// In the tables of before.
    Legacy(Legacy),
}

/// A listener for changes of other programs, and where to record them.
pub type Listening = (Listener, Arc<Mutex<Ledger>>);

// === impl Tables ===

impl Tables {
    /// Opens the tables of `family` in this thread's network namespace. The legacy variant takes the
    /// lock at `lock` for each change, and waits for it at most `patience`.
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

    /// Opens the tables of both families, IPv4 first, as [`Tables::open`] does one. Neither takes what
    /// the other does for drift.
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

    /// A listener for changes of other programs to Signpost's rules in `families`, which were opened
    /// together, and where to record which generations they began, so that changes elsewhere are no
    /// drift; `None` for legacy tables, of which the kernel sends no notifications.
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
        let listener = Listener::open(watched, &[ipv4.socket(), ipv6.socket()]);
        let listener = listener.map_err(OpenError::new)?;
        Ok(Some((listener, Arc::clone(ipv4.ledger()))))
    }

    /// Whether this kernel has them at all. Where it does not, as in legacy IPv6 with
    /// `ipv6.disable=1`, they are empty, and no change is ever taken.
    pub fn is_offered(&self) -> bool {
        match self {
            Tables::NfTables(_) => true,
            Tables::Legacy(tables) => tables.is_offered(),
        }
    }

    /// Which kernel is behind them.
    pub fn variant(&self) -> Variant {
        match self {
            Tables::NfTables(_) => Variant::NfTables,
            Tables::Legacy(_) => Variant::Legacy,
        }
    }

    /// Signpost's rules in `table`.
    pub fn observe(&mut self, table: TableName) -> Result<Held, ObserveError> {
        match self {
            Tables::NfTables(tables) => tables.observe(table),
            Tables::Legacy(tables) => tables.observe(table),
        }
    }

    /// Whether a table may hold something else than after our last look or change. Cheap.
    pub fn observe_drift(&mut self) -> Result<bool, ObserveError> {
        match self {
            Tables::NfTables(tables) => tables.observe_drift(),
            Tables::Legacy(tables) => tables.observe_drift(),
        }
    }

    /// Whether the last change gave up waiting for the lock, and the lock is free now: true once. Never
    /// in nf_tables, which has none.
    pub fn observe_release(&mut self) -> bool {
        match self {
            Tables::NfTables(_) => false,
            Tables::Legacy(tables) => tables.observe_release(),
        }
    }

    /// Carries out `changes` in order, each at once. The legacy variant may carry out neighbours of
    /// the same table together. Returns how many transactions it took.
    pub fn commit(&mut self, changes: &[TableChange]) -> Result<usize, CommitError> {
        match self {
            Tables::NfTables(tables) => tables.commit(changes),
            Tables::Legacy(tables) => tables.commit(changes),
        }
    }

    /// How long the last change waited for the lock: zero in nf_tables, which has none.
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
