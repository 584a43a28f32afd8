//! What to do when nf_tables refuses.

use std::io::ErrorKind;

use backend::Recovery;
use netlink::errno::{is_impossible, is_transient};
use rustix::io::Errno;

/// What to do about a transaction that failed after `done` others had taken effect.
pub fn recovery(error: &netlink::CommitError, done: usize) -> Recovery {
    let source = match error {
        // What the kernel did is not known.
        netlink::CommitError::Socket { .. } => return Recovery::Observe,
        netlink::CommitError::Refused { source, .. } => source,
    };
    if done > 0 {
        return Recovery::Observe;
    }
    match Errno::from_io_error(source) {
        _ if is_transient(source) => Recovery::Retry,
        // The kernel does not hold what was believed.
        Some(Errno::NOENT | Errno::EXIST | Errno::NOTEMPTY) => Recovery::Observe,
        _ if is_impossible(source) => Recovery::Halt,
        _ if source.kind() == ErrorKind::PermissionDenied => Recovery::Halt,
        _ => Recovery::Isolate,
    }
}

/// What to do about a kernel that could not be read.
pub fn recovery_of_reading(error: &netlink::ObserveError) -> Recovery {
    let netlink::ObserveError::Refused { source, .. } = error else {
        return Recovery::Observe;
    };
    match Errno::from_io_error(source) {
        // What is asked is well formed: EINVAL is how a kernel says that it has no nf_tables
        // (nfnetlink_rcv_msg in net/netfilter/nfnetlink.c).
        Some(
            Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::PROTONOSUPPORT | Errno::INVAL,
        ) => Recovery::Halt,
        _ => Recovery::Observe,
    }
}
