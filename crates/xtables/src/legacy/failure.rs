//! Why something did not succeed, and what to do.

use std::error::Error;

use thiserror::Error;

use super::blob::Unreadable;
use super::kernel::KernelError;
use super::lock::LockError;
use super::replacement::Obstacle;
use crate::error::Doing;
use crate::{Family, Fault};

/// Why something did not succeed, and what to do.
pub(super) struct Failure {
    pub(super) fault: Fault,
    pub(super) source: Box<dyn Error + Send + Sync>,
}

/// The kernel has no tables of a family, and will have none as long as it runs.
#[derive(Debug, Error)]
#[error("this kernel has no {0}")]
pub(super) struct NoFamily(pub(super) Family);

/// What a change was made for is not there.
#[derive(Debug, Error)]
#[error("chains or rules of Signpost are missing or have been added since the table was last read")]
pub(super) struct Damaged;

/// The kernel refuses rules that it holds already. It checks some matches in the namespaces of the
/// process that writes the table, which need not be those of the process that added them.
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
    /// The kernel did not take a table. ENOENT: a match or target that it does not have. EINVAL: one in
    /// a place where it may not be. ELOOP: chains that lead in a circle.
    pub(super) fn refused(error: KernelError) -> Failure {
        Failure {
            fault: Fault::of(&error.source, Doing::Writing),
            source: error.into(),
        }
    }

    /// The kernel did not take a table as it holds it.
    pub(super) fn not_carried_over(error: KernelError) -> Failure {
        match error.refuses_a_rule() {
            true => Failure {
                fault: Fault::Impossible,
                source: NotCarriedOver { source: error }.into(),
            },
            false => Failure::refused(error),
        }
    }

    /// A table was replaced, and something that was to follow did not.
    pub(super) fn changed(error: KernelError) -> Failure {
        Failure {
            fault: Fault::Changed,
            source: error.into(),
        }
    }

    /// The failure of a change that a table does not allow; `is_as_left` if the table is unchanged since the last write.
    pub(super) fn obstructed(obstacle: Obstacle, is_as_left: bool) -> Failure {
        // No chain comes or goes without a change of the number of entries: an unchanged table never was
        // what the change was made for.
        let fault = match obstacle.is_about_content() && !is_as_left {
            true => Fault::Changed,
            false => Fault::Refused,
        };
        Failure {
            fault,
            source: obstacle.into(),
        }
    }

    /// What was read is no table. `was_replaced`: it is another by now, so that it may be halves of
    /// two.
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
            fault: Fault::of(&error.source, Doing::Reading),
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
