//! Why a request failed, and how to recover: decided by errno alone.

use std::fmt;

use rustix::io::Errno;

use crate::errno::{is_impossible, is_transient};
use thiserror::Error;

use super::{Operation, SchedulerName};
use crate::generic::QueryError;

/// The kernel module of IPVS.
const MODULE: &str = "ip_vs";

/// Why operations did not take effect, or why that is unknown.
#[derive(Debug, Error)]
pub enum CommitError {
    /// The kernel has no IPVS and cannot load it. Nothing was sent.
    #[error("the kernel has no IPVS: it needs module {MODULE}")]
    Missing,
    /// An operation uses a mark outside the socket's range. Nothing was sent.
    #[error("{0} uses a mark that is not reserved for Signpost")]
    Unreserved(Box<Operation>),
    /// Looking up IPVS in the kernel failed. Nothing was sent.
    #[error("failed to look up IPVS in the kernel")]
    Find(#[source] QueryError),
    /// The socket failed; it is unknown which operations took effect.
    #[error("failed to {step} netlink")]
    Socket {
        /// The step that failed.
        step: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// The kernel refused some operations. Of the first `answered` operations, those not in
    /// `refused` took effect; later ones did not.
    #[error("the kernel refused {} of {answered} operations, the first: {}", refused.len(), refused[0])]
    Refused {
        /// The refused operations in order, at least one.
        refused: Vec<RefusedOperation>,
        /// The number of operations that the kernel answered.
        answered: usize,
    },
    /// The kernel refused to change a setting that is not an operation: the timeouts.
    #[error("the kernel refused to change {what}")]
    RefusedSetting {
        /// The setting.
        what: &'static str,
        /// The cause.
        source: std::io::Error,
    },
}

/// An operation that the kernel refused.
#[derive(Debug, Error)]
#[error("{operation}: {source}")]
pub struct RefusedOperation {
    /// Its index in the list of operations.
    pub index: usize,
    /// The operation.
    pub operation: Operation,
    /// The cause.
    pub source: std::io::Error,
}

/// How to recover after the kernel refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recovery {
    /// The cause is temporary: retry the same later.
    Retry,
    /// The kernel does not have the recorded state: list it and compare again.
    Observe,
    /// Load this module, or do without the feature that needs it.
    LoadModule(String),
    /// The kernel will never accept this operation, but it will accept others.
    Isolate,
    /// This process lacks the permission, or this kernel lacks the feature: every operation will
    /// fail.
    Halt,
}

// === impl CommitError ===

impl CommitError {
    /// How to recover; for several refusals, from the gravest.
    pub fn recovery(&self) -> Recovery {
        match self {
            CommitError::Missing => Recovery::LoadModule(MODULE.to_owned()),
            CommitError::Unreserved(_) => Recovery::Isolate,
            CommitError::Find(error) => error.recovery(),
            CommitError::Socket { .. } => Recovery::Observe,
            CommitError::Refused { refused, .. } => {
                let recoveries = refused.iter().map(RefusedOperation::recovery);
                recoveries.max_by_key(gravity).unwrap_or(Recovery::Observe)
            }
            CommitError::RefusedSetting { source, .. } => of_any(source),
        }
    }
}

impl QueryError {
    /// How to recover.
    pub fn recovery(&self) -> Recovery {
        match self {
            QueryError::Socket { .. } | QueryError::Unsteady { .. } => Recovery::Observe,
            QueryError::Illegible { .. } => Recovery::Halt,
            QueryError::Refused { source, .. } => match of_any(source) {
                Recovery::Isolate => Recovery::Observe,
                recovery => recovery,
            },
        }
    }
}

fn gravity(recovery: &Recovery) -> u8 {
    match recovery {
        Recovery::Retry => 0,
        Recovery::Isolate => 1,
        Recovery::LoadModule(_) => 2,
        Recovery::Observe => 3,
        Recovery::Halt => 4,
    }
}

// === impl RefusedOperation ===

impl RefusedOperation {
    /// How to recover from this refusal (`ip_vs_genl_set_cmd` and the functions it calls).
    pub fn recovery(&self) -> Recovery {
        let errno = Errno::from_io_error(&self.source);
        match (&self.operation, errno) {
            // The scheduler: the kernel requested its module without success.
            (
                Operation::AddVirtualServer { server, .. }
                | Operation::SetVirtualServer { server, .. },
                Some(Errno::NOENT),
            ) => Recovery::LoadModule(SchedulerName::module(&server.scheduler)),
            // ESRCH: no such virtual server. ENOENT: no such destination. EEXIST: it already
            // exists.
            (_, Some(Errno::SRCH | Errno::NOENT | Errno::EXIST)) => Recovery::Observe,
            _ => of_any(&self.source),
        }
    }
}

/// The meaning of an errno regardless of the request.
fn of_any(error: &std::io::Error) -> Recovery {
    match Errno::from_io_error(error) {
        _ if is_transient(error) => Recovery::Retry,
        _ if is_impossible(error) => Recovery::Halt,
        // The family's module was unloaded after the family was looked up.
        Some(Errno::NOENT) => Recovery::LoadModule(MODULE.to_owned()),
        _ => Recovery::Isolate,
    }
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Recovery::Retry => f.write_str("try again later"),
            Recovery::Observe => f.write_str("list what the kernel holds"),
            Recovery::LoadModule(module) => write!(f, "load module {module}"),
            Recovery::Isolate => f.write_str("leave this operation out"),
            Recovery::Halt => f.write_str("give IPVS up"),
        }
    }
}
