//! Ending a wait for the kernel from another thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, write};

/// Ends the wait of its [`Listener`](crate::Listener) for good: from then on, that listener never blocks.
/// Until then, a thread may wait for the kernel without a limit.
#[derive(Debug, Clone)]
pub struct Interruption(Arc<OwnedFd>);

// === impl Interruption ===

impl Interruption {
    pub(crate) fn new() -> Result<Interruption, Errno> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Interruption(Arc::new(eventfd(0, flags)?)))
    }

    /// Begins, from whichever thread; again does no harm.
    pub fn begin(&self) {
        // Refused only where the counter is full, and then it has begun (eventfd_write).
        let _ = write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl AsFd for Interruption {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
