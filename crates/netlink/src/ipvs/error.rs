//! Why the kernel did not do what it was asked, and what to do next: decided by errno alone.

use std::fmt;

use rustix::io::Errno;

use crate::errno::{is_impossible, is_transient};
use thiserror::Error;

use super::{Operation, SchedulerName};
use crate::generic::QueryError;

/// The module that has IPVS itself.
const MODULE: &str = "ip_vs";

/// Why operations did not take effect, or why that is not known.
#[derive(Debug, Error)]
pub enum CommitError {
    /// The kernel has no IPVS, and cannot load it. Nothing was sent.
    #[error("the kernel has no IPVS: it needs module {MODULE}")]
    Missing,
    /// An operation is about a mark that is not of the socket's range. Nothing was sent.
    #[error("{0} uses a mark that is not reserved for Signpost")]
    Unreserved(Box<Operation>),
    /// The kernel could not be asked for IPVS. Nothing was sent.
    #[error("failed to look up IPVS in the kernel")]
    Find(#[source] QueryError),
    /// The socket failed; how much of the operations took effect is not known.
    #[error("failed to {step} netlink")]
    Socket {
        /// What was being done.
        step: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The kernel refused some operations. Those before number `answered` that are not among
    /// `refused` took effect, and the rest did not.
    #[error("the kernel refused {} of {answered} operations, the first: {}", refused.len(), refused[0])]
    Refused {
        /// Those that it refused, in order, and at least one.
        refused: Vec<RefusedOperation>,
        /// How many operations it answered.
        answered: usize,
    },
    /// The kernel refused to change what is no operation: the timeouts.
    #[error("the kernel refused to change {what}")]
    RefusedSetting {
        /// What.
        what: &'static str,
        /// Why.
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
    /// Why.
    pub source: std::io::Error,
}

/// What to do after the kernel refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recovery {
    /// The cause will pass: try the same again, later.
    Retry,
    /// The kernel does not hold the recorded state: list, then compare again.
    Observe,
    /// Load this module, or do without what needs it.
    LoadModule(String),
    /// The kernel will never accept this operation, but others.
    Isolate,
    /// This process may not, or this kernel cannot: no operation will ever be taken.
    Halt,
}

// === impl CommitError ===

impl CommitError {
    /// What to do next; of several refusals, what to do about the gravest.
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
    /// What to do next.
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
    /// What to do next about this one (`ip_vs_genl_set_cmd` and what it calls).
    pub fn recovery(&self) -> Recovery {
        let errno = Errno::from_io_error(&self.source);
        match (&self.operation, errno) {
            // The scheduler: the kernel has asked for its module, and in vain.
            (
                Operation::AddVirtualServer { server, .. }
                | Operation::SetVirtualServer { server, .. },
                Some(Errno::NOENT),
            ) => Recovery::LoadModule(SchedulerName::module(&server.scheduler)),
            // ESRCH: no such virtual server. ENOENT: no such destination. EEXIST: one too many.
            (_, Some(Errno::SRCH | Errno::NOENT | Errno::EXIST)) => Recovery::Observe,
            _ => of_any(&self.source),
        }
    }
}

/// What an errno means whatever was asked.
fn of_any(error: &std::io::Error) -> Recovery {
    match Errno::from_io_error(error) {
        _ if is_transient(error) => Recovery::Retry,
        _ if is_impossible(error) => Recovery::Halt,
        // The family went with its module, after it was found.
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
