//! How to recover when nf_tables refuses.

use std::io::ErrorKind;

use backend::Recovery;
use netlink::errno::{is_impossible, is_transient};
use rustix::io::Errno;

/// How to recover from a failed transaction after `done` others had taken effect.
pub fn recovery(error: &netlink::CommitError, done: usize) -> Recovery {
    let source = match error {
        // It is unknown what the kernel did.
        netlink::CommitError::Socket { .. } => return Recovery::Observe,
        netlink::CommitError::Refused { source, .. } => source,
    };
    if done > 0 {
        return Recovery::Observe;
    }
    match Errno::from_io_error(source) {
        _ if is_transient(source) => Recovery::Retry,
        // The kernel's state differs from the observed one.
        Some(Errno::NOENT | Errno::EXIST | Errno::NOTEMPTY) => Recovery::Observe,
        _ if is_impossible(source) => Recovery::Halt,
        _ if source.kind() == ErrorKind::PermissionDenied => Recovery::Halt,
        _ => Recovery::Isolate,
    }
}

/// How to recover when the kernel could not be read.
pub fn recovery_of_reading(error: &netlink::ObserveError) -> Recovery {
    let netlink::ObserveError::Refused { source, .. } = error else {
        return Recovery::Observe;
    };
    match Errno::from_io_error(source) {
        // The request is well formed, so EINVAL means that the kernel has no nf_tables
        // (nfnetlink_rcv_msg in net/netfilter/nfnetlink.c).
        Some(
            Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::PROTONOSUPPORT | Errno::INVAL,
        ) => Recovery::Halt,
        _ => Recovery::Observe,
    }
}
