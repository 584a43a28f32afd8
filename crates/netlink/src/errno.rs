//! The meaning of errnos that is the same in all netlink subsystems.

use std::io;

use rustix::io::Errno;

/// Whether the same request may succeed later: the kernel is busy or short of memory.
pub fn is_transient(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::BUSY | Errno::AGAIN | Errno::INTR | Errno::NOMEM | Errno::NOBUFS)
    )
}

/// Whether such a request will never succeed: this process lacks the permission, or the kernel
/// lacks the feature.
pub fn is_impossible(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::PERM
                | Errno::ACCESS
                | Errno::OPNOTSUPP
                | Errno::PROTONOSUPPORT
                | Errno::AFNOSUPPORT
        )
    )
}
