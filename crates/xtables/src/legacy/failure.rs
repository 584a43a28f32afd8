//! Failures of legacy tables, and how to react to them.

use std::error::Error;

use thiserror::Error;

use super::blob::Unreadable;
use super::kernel::KernelError;
use super::lock::LockError;
use super::replacement::Obstacle;
use crate::error::FailedOperation;
use crate::{Family, Fault};

/// The cause of a failure, and how to react to it.
pub(super) struct Failure {
    pub(super) fault: Fault,
    pub(super) source: Box<dyn Error + Send + Sync>,
}

/// The kernel does not support a family, and will not as long as it runs.
#[derive(Debug, Error)]
#[error("this kernel has no {0}")]
pub(super) struct NoFamily(pub(super) Family);

/// The rules that a change was made for have been altered.
#[derive(Debug, Error)]
#[error("chains or rules of Signpost are missing or have been added since the table was last read")]
pub(super) struct Damaged;

/// The kernel refuses rules that it already has. It checks some matches in the namespaces of the
/// process that writes the table, which may differ from those of the process that added the rules.
#[derive(Debug, Error)]
#[error(
    "the kernel refuses even the unchanged table: a rule of another program cannot be written \
     back, such as one with -m cgroup --path or -m owner that was added in another namespace"
)]
pub(super) struct NotCarriedOver {
    source: KernelError,
}

// === impl Failure ===

impl Failure {
    /// The kernel refused a table. ENOENT: it lacks a match or target. EINVAL: a match or target is
    /// not allowed where it is. ELOOP: chains form a loop.
    pub(super) fn refused(error: KernelError) -> Failure {
        Failure {
            fault: Fault::of(&error.source, FailedOperation::Writing),
            source: error.into(),
        }
    }

    /// The kernel refused a table with its current content.
    pub(super) fn not_carried_over(error: KernelError) -> Failure {
        match error.refuses_a_rule() {
            true => Failure {
                fault: Fault::Impossible,
                source: NotCarriedOver { source: error }.into(),
            },
            false => Failure::refused(error),
        }
    }

    /// The table was replaced, but a later step failed.
    pub(super) fn changed(error: KernelError) -> Failure {
        Failure {
            fault: Fault::Changed,
            source: error.into(),
        }
    }

    /// The table's content does not allow the change. `is_as_left` if the table is unchanged since
    /// the last write.
    pub(super) fn obstructed(obstacle: Obstacle, is_as_left: bool) -> Failure {
        // Adding or removing a chain changes the number of entries. If the table is unchanged, the
        // change never fitted it.
        let fault = match obstacle.is_about_content() && !is_as_left {
            true => Fault::Changed,
            false => Fault::Refused,
        };
        Failure {
            fault,
            source: obstacle.into(),
        }
    }

    /// The entries that were read are not a valid table. If `was_replaced`, the table has changed
    /// meanwhile, so they may be parts of two versions.
    pub(super) fn unreadable(error: Unreadable, was_replaced: bool) -> Failure {
        let fault = match was_replaced {
            true => Fault::Passing,
            false => Fault::Impossible,
        };
        Failure {
            fault,
            source: error.into(),
        }
    }
}

impl From<KernelError> for Failure {
    /// The kernel could not be read.
    fn from(error: KernelError) -> Failure {
        Failure {
            fault: Fault::of(&error.source, FailedOperation::Reading),
            source: error.into(),
        }
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Failure {
        Failure {
            fault: error.fault(),
            source: error.into(),
        }
    }
}

impl From<NoFamily> for Failure {
    fn from(error: NoFamily) -> Failure {
        Failure {
            fault: Fault::Impossible,
            source: error.into(),
        }
    }
}

impl From<Damaged> for Failure {
    fn from(error: Damaged) -> Failure {
        Failure {
            fault: Fault::Changed,
            source: error.into(),
        }
    }
}
