//! The socket of a backend, and how it knows that nobody else has written.

use dataplane::Family;
use netlink::nf_tables::{Set, Transaction};
use netlink::{CommitError, ObserveError, OpenError, Socket};

use crate::contents::Contents;

/// A socket for nf_tables that counts what went through it.
#[derive(Debug)]
pub struct TableSocket {
    socket: Socket,
    transactions: u32,
}

/// The ruleset's generation, and how many of the transactions in it one socket sent. Each transaction of
/// any program in the namespace raises the generation by one.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// The generation.
    pub generation: u32,
    transactions: u32,
}

// === impl TableSocket ===

impl TableSocket {
    /// Opens this thread's network namespace.
    pub fn open() -> Result<TableSocket, OpenError> {
        Socket::open().map(TableSocket::from)
    }

    /// The socket itself, for what changes nothing: transactions that are committed through it directly
    /// count as another program's.
    pub fn socket(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// Carries out a transaction, whole or not at all.
    pub fn commit(&mut self, transaction: &Transaction) -> Result<(), CommitError> {
        self.socket.commit(transaction)?;
        self.transactions = self.transactions.wrapping_add(1);
        Ok(())
    }

    /// How the ruleset stands. To be read before the tables that it is about: what changes meanwhile then
    /// shows as drift.
    pub fn observe_seen(&mut self) -> Result<Seen, ObserveError> {
        Ok(Seen {
            generation: self.socket.observe_generation()?,
            transactions: self.transactions,
        })
    }

    /// As [`Contents::observe`].
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

// === impl Seen ===

impl Seen {
    /// Whether between this and `later` nothing was written but by the socket that both come from, and
    /// `elsewhere` transactions that are known not to matter.
    pub fn is_quiet_until(&self, later: &Seen, elsewhere: u32) -> bool {
        let own = later.transactions.wrapping_sub(self.transactions);
        let all = later.generation.wrapping_sub(self.generation);
        own.wrapping_add(elsewhere) == all
    }
}
