//! What can go wrong, by what can be done about it.

use std::error::Error;
use std::io;
use std::iter::successors;

use rustix::io::Errno;

use crate::{Family, TableName};

/// What to do about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing was changed, and the cause passes by itself: another process holds the lock, memory
    /// is short.
    Passing,
    /// The kernel does not hold what the change was made for, or it is not known what it holds.
    Changed,
    /// The kernel refuses what the change says.
    Refused,
    /// This process may not, or this kernel cannot.
    Impossible,
}

/// Why a table could not be read.
#[derive(Debug, thiserror::Error)]
#[error("failed to read table {table} ({family})")]
pub struct ObserveError {
    /// The family.
    pub family: Family,
    /// The table.
    pub table: TableName,
    /// What to do.
    pub fault: Fault,
    /// Why.
    pub source: Box<dyn Error + Send + Sync>,
}

/// Why a change did not take effect, or not whole.
#[derive(Debug, thiserror::Error)]
#[error("failed to change table {table} ({family})")]
pub struct CommitError {
    /// The family.
    pub family: Family,
    /// The table.
    pub table: TableName,
    /// How many steps had taken effect before.
    pub done: usize,
    /// What to do.
    pub fault: Fault,
    /// Why.
    pub source: Box<dyn Error + Send + Sync>,
}

/// Why there is no way to the kernel.
#[derive(Debug, thiserror::Error)]
#[error("failed to open a way to the tables of iptables")]
pub struct OpenError {
    /// What to do: [`Fault::Passing`] or [`Fault::Impossible`].
    pub fault: Fault,
    /// Why.
    pub source: Box<dyn Error + Send + Sync>,
}

// === impl Fault ===

impl Fault {
    /// What to do where nothing was opened or asked for yet: what this process or the machine is short
    /// of now, it may have in a moment.
    pub(crate) fn of_opening(error: &(dyn Error + 'static)) -> Fault {
        let mut chain = successors(Some(error), |error| (*error).source());
        let error = chain.find_map(|error| error.downcast_ref::<io::Error>());
        match error.and_then(Errno::from_io_error) {
            Some(
                Errno::MFILE
                | Errno::NFILE
                | Errno::NOMEM
                | Errno::NOBUFS
                | Errno::INTR
                | Errno::AGAIN
                | Errno::BUSY,
            ) => Fault::Passing,
            _ => Fault::Impossible,
        }
    }
}

// === impl OpenError ===

impl OpenError {
    pub(crate) fn new(source: impl Error + Send + Sync + 'static) -> OpenError {
        OpenError {
            fault: Fault::of_opening(&source),
            source: source.into(),
        }
    }
}
