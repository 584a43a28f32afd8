//! What errnos mean whichever subsystem of netlink answers with them.

use std::io;

use rustix::io::Errno;

/// Whether the same request may succeed later: the kernel is busy, or has no memory for it now.
pub fn is_transient(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::BUSY | Errno::AGAIN | Errno::INTR | Errno::NOMEM | Errno::NOBUFS)
    )
}

/// Whether no such request will ever succeed: this process may not make it, or the kernel lacks what
/// would answer it.
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
