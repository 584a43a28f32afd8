//! Ends a wait for the kernel from another thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, write};

/// Ends the waiting of its [`Listener`](crate::Listener) for good: after that, the listener never
/// blocks. This allows a thread to wait for the kernel without a timeout.
#[derive(Debug, Clone)]
pub struct Interruption(Arc<OwnedFd>);

// === impl Interruption ===

impl Interruption {
    pub(crate) fn new() -> Result<Interruption, Errno> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Interruption(Arc::new(eventfd(0, flags)?)))
    }

    /// Interrupts the listener. May be called from any thread, and more than once.
    pub fn begin(&self) {
        // Fails only if the counter is full, and then the listener is already interrupted
        // (eventfd_write).
        let _ = write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl AsFd for Interruption {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
