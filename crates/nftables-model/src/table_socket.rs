//! The socket of a backend, which detects writes by other programs.

use dataplane::Family;
use netlink::nf_tables::{Set, Transaction};
use netlink::{CommitError, ObserveError, OpenError, Socket};

use crate::contents::Contents;

/// A socket for nf_tables that counts the transactions committed through it.
#[derive(Debug)]
pub struct TableSocket {
    socket: Socket,
    transactions: u32,
}

/// The ruleset's generation, and how many of the transactions in it were sent by one socket. Each
/// transaction by any program in the namespace raises the generation by one.
#[derive(Debug, Clone, Copy)]
pub struct RulesetVersion {
    /// The generation.
    pub generation: u32,
    transactions: u32,
}

// === impl TableSocket ===

impl TableSocket {
    /// Opens a socket in this thread's network namespace.
    pub fn open() -> Result<TableSocket, OpenError> {
        Socket::open().map(TableSocket::from)
    }

    /// The underlying socket, for reading only: transactions committed through it directly would
    /// count as another program's.
    pub fn socket(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// Commits a transaction, whole or not at all.
    pub fn commit(&mut self, transaction: &Transaction) -> Result<(), CommitError> {
        self.socket.commit(transaction)?;
        self.transactions = self.transactions.wrapping_add(1);
        Ok(())
    }

    /// Reads the state of the ruleset. Call it before reading tables, so that a concurrent change
    /// shows as drift.
    pub fn observe_seen(&mut self) -> Result<RulesetVersion, ObserveError> {
        Ok(RulesetVersion {
            generation: self.socket.observe_generation()?,
            transactions: self.transactions,
        })
    }

    /// Like [`Contents::observe`].
    pub fn observe_table(
        &mut self,
        family: Family,
        table_name: &str,
        own: impl Fn(&str) -> Option<Set>,
    ) -> Result<Contents, ObserveError> {
        Contents::observe(&mut self.socket, family, table_name, own)
    }
}

impl From<Socket> for TableSocket {
    fn from(socket: Socket) -> TableSocket {
        TableSocket {
            socket,
            transactions: 0,
        }
    }
}

// === impl RulesetVersion ===

impl RulesetVersion {
    /// Whether nothing was committed between this and `later` except by the socket that both come
    /// from, and by `elsewhere` transactions that are known to be irrelevant.
    pub fn has_no_foreign_change(&self, later: &RulesetVersion, elsewhere: u32) -> bool {
        let own = later.transactions.wrapping_sub(self.transactions);
        let all = later.generation.wrapping_sub(self.generation);
        own.wrapping_add(elsewhere) == all
    }
}
