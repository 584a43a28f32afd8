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
#[error("failed to open a socket to the tables of iptables")]
pub struct OpenError {
    /// What to do: [`Fault::Passing`] or [`Fault::Impossible`].
    pub fault: Fault,
    /// Why.
    pub source: Box<dyn Error + Send + Sync>,
}

/// At what something failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Nothing was asked of the kernel's tables yet.
    Opening,
    /// Nothing was to be changed.
    Reading,
    /// The kernel got rules.
    Writing,
}

// === impl Fault ===

impl Fault {
    /// What to do, by errno (`errno-base.h` and `errno.h` of the kernel). What one of them says in one
    /// variant alone is asked before this.
    pub(crate) fn of(error: &io::Error, doing: Doing) -> Fault {
        match (Errno::from_io_error(error), doing) {
            // What this process or the machine is short of now, it may have in a moment.
            (
                Some(
                    Errno::AGAIN
                    | Errno::BUSY
                    | Errno::INTR
                    | Errno::IO
                    | Errno::MFILE
                    | Errno::NFILE
                    | Errno::NOBUFS
                    | Errno::NOLCK
                    | Errno::NOMEM
                    | Errno::NOSPC,
                ),
                _,
            ) => Fault::Passing,
            (
                Some(
                    Errno::ACCESS
                    | Errno::NOPROTOOPT
                    | Errno::NOSYS
                    | Errno::OPNOTSUPP
                    | Errno::PERM
                    | Errno::PROTONOSUPPORT,
                ),
                _,
            ) => Fault::Impossible,
            // No Service is to blame for a question that is the same with any. It is well formed: who
            // refuses it now will do so again.
            (_, Doing::Opening | Doing::Reading) => Fault::Impossible,
            (_, Doing::Writing) => Fault::Refused,
        }
    }

    /// What to do where nothing could be opened, or looked for.
    pub(crate) fn of_opening(error: &(dyn Error + 'static)) -> Fault {
        let mut chain = successors(Some(error), |error| (*error).source());
        let error = chain.find_map(|error| error.downcast_ref::<io::Error>());
        error.map_or(Fault::Impossible, |error| Fault::of(error, Doing::Opening))
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

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Doing; 3] = [Doing::Opening, Doing::Reading, Doing::Writing];

    fn of(errno: Errno, doing: Doing) -> Fault {
        Fault::of(&errno.into(), doing)
    }

    #[test]
    fn what_is_short_for_a_while_passes_and_what_may_not_be_does_not() {
        for doing in ALL {
            for errno in [
                Errno::AGAIN,
                Errno::BUSY,
                Errno::INTR,
                Errno::IO,
                Errno::MFILE,
                Errno::NFILE,
                Errno::NOMEM,
            ] {
                assert_eq!(of(errno, doing), Fault::Passing, "{errno} {doing:?}");
            }
            for errno in [Errno::PERM, Errno::NOPROTOOPT, Errno::PROTONOSUPPORT] {
                assert_eq!(of(errno, doing), Fault::Impossible, "{errno} {doing:?}");
            }
        }
    }

    /// An unexpected errno, in answer to a request to read, was taken for a refused rule: Services were
    /// tried one by one, and each was blamed.
    #[test]
    fn only_what_was_written_can_be_refused() {
        for errno in [Errno::INVAL, Errno::NOENT, Errno::LOOP, Errno::OVERFLOW] {
            assert_eq!(of(errno, Doing::Opening), Fault::Impossible, "{errno}");
            assert_eq!(of(errno, Doing::Reading), Fault::Impossible, "{errno}");
            assert_eq!(of(errno, Doing::Writing), Fault::Refused, "{errno}");
        }
    }
}
