//! Errors, classified by how to react to them.

use std::error::Error;
use std::io;
use std::iter::successors;

use rustix::io::Errno;

use crate::{Family, TableName};

/// How to react to a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing was changed, and the cause is temporary: another process holds the lock, or memory
    /// is short.
    Passing,
    /// The kernel's state is not the one that the change was made for, or it is unknown.
    Changed,
    /// The kernel refuses the content of the change.
    Refused,
    /// This process lacks a permission, or this kernel lacks a feature.
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
    /// How to react.
    pub fault: Fault,
    /// The cause.
    pub source: Box<dyn Error + Send + Sync>,
}

/// Why a change did not take effect, or only in part.
#[derive(Debug, thiserror::Error)]
#[error("failed to change table {table} ({family})")]
pub struct CommitError {
    /// The family.
    pub family: Family,
    /// The table.
    pub table: TableName,
    /// The number of steps that took effect.
    pub done: usize,
    /// How to react.
    pub fault: Fault,
    /// The cause.
    pub source: Box<dyn Error + Send + Sync>,
}

/// Why a socket to the kernel could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("failed to open a socket to the tables of iptables")]
pub struct OpenError {
    /// How to react: [`Fault::Passing`] or [`Fault::Impossible`].
    pub fault: Fault,
    /// The cause.
    pub source: Box<dyn Error + Send + Sync>,
}

/// The operation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailedOperation {
    /// Opening a socket, before any request about tables.
    Opening,
    /// Reading, without any change.
    Reading,
    /// Writing rules.
    Writing,
}

// === impl Fault ===

impl Fault {
    /// Classifies an errno (`errno-base.h` and `errno.h` of the kernel). Errnos with a meaning
    /// specific to one variant are handled before this is called.
    pub(crate) fn of(error: &io::Error, doing: FailedOperation) -> Fault {
        match (Errno::from_io_error(error), doing) {
            // A shortage in this process or on this machine may end soon.
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
            // A read request is the same for every Service, so its failure is no Service's fault.
            // The request is well formed: a kernel that refuses it now will refuse it again.
            (_, FailedOperation::Opening | FailedOperation::Reading) => Fault::Impossible,
            (_, FailedOperation::Writing) => Fault::Refused,
        }
    }

    /// Classifies a failure to open a socket or to scan for tables.
    pub(crate) fn of_opening(error: &(dyn Error + 'static)) -> Fault {
        let mut chain = successors(Some(error), |error| (*error).source());
        let error = chain.find_map(|error| error.downcast_ref::<io::Error>());
        error.map_or(Fault::Impossible, |error| {
            Fault::of(error, FailedOperation::Opening)
        })
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

    const ALL: [FailedOperation; 3] = [
        FailedOperation::Opening,
        FailedOperation::Reading,
        FailedOperation::Writing,
    ];

    fn of(errno: Errno, doing: FailedOperation) -> Fault {
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

    /// Regression test: an unexpected errno in reply to a read request was taken for a refused
    /// rule, so each Service was tried alone and reported as refused.
    #[test]
    fn only_what_was_written_can_be_refused() {
        for errno in [Errno::INVAL, Errno::NOENT, Errno::LOOP, Errno::OVERFLOW] {
            assert_eq!(
                of(errno, FailedOperation::Opening),
                Fault::Impossible,
                "{errno}"
            );
            assert_eq!(
                of(errno, FailedOperation::Reading),
                Fault::Impossible,
                "{errno}"
            );
            assert_eq!(
                of(errno, FailedOperation::Writing),
                Fault::Refused,
                "{errno}"
            );
        }
    }
}
