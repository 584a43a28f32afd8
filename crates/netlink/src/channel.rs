//! A netlink socket that is reopened after a failure.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use crate::descriptor::{self, OpenError, Subsystem, observe_namespace};
use crate::exchange;

/// A netlink socket in the network namespace in which it was opened. After a failure, replies to
/// earlier requests may still arrive, so the next request opens a new descriptor.
#[derive(Debug)]
pub(crate) struct Channel {
    subsystem: Subsystem,
    descriptor: OwnedFd,
    port: Arc<AtomicU32>,
    namespace: Option<PathBuf>,
    condition: Condition,
    datagram: Vec<u8>,
}

/// Whether the next datagram received answers the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Good,
    Failed,
}

// === impl Channel ===

impl Channel {
    /// Opens a socket in this thread's network namespace, for datagrams of up to `datagram` bytes.
    pub(crate) fn open(subsystem: Subsystem, datagram: usize) -> Result<Channel, OpenError> {
        let (descriptor, port) = descriptor::open(subsystem)?;
        Ok(Channel {
            subsystem,
            descriptor,
            port: Arc::new(AtomicU32::new(port)),
            namespace: observe_namespace(),
            condition: Condition::Good,
            datagram: vec![0; datagram],
        })
    }

    /// The socket's netlink port. The value is updated whenever the descriptor is reopened.
    pub(crate) fn port(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.port)
    }

    /// Sends `bytes`. Reopens the descriptor first if it has failed before.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.condition == Condition::Failed {
            self.reopen()?;
        }
        match exchange::send(&self.descriptor, bytes) {
            // Nothing was sent that the kernel might still answer (netlink_sendmsg).
            Err(error) if is_too_long(&error) => Err(error),
            sent => self.note(sent),
        }
    }

    /// Waits for the next datagram.
    pub(crate) fn receive(&mut self) -> io::Result<&[u8]> {
        let received = exchange::receive(&self.descriptor, &mut self.datagram);
        let length = self.note(received)?;
        Ok(&self.datagram[..length])
    }

    /// Returns a datagram that has already arrived, or `None`.
    pub(crate) fn receive_arrived(&mut self) -> io::Result<Option<&[u8]>> {
        let received = exchange::receive_arrived(&self.descriptor, &mut self.datagram);
        let length = self.note(received)?;
        Ok(length.map(|length| &self.datagram[..length]))
    }

    /// Abandons the replies that may still arrive: as after a failure, the next
    /// [`send`](Channel::send) reopens the descriptor.
    pub(crate) fn abandon(&mut self) {
        self.condition = Condition::Failed;
    }

    /// Reopens the descriptor in the same network namespace. Fails if this thread has moved to
    /// another one, which has other rules.
    fn reopen(&mut self) -> io::Result<()> {
        if self.namespace != observe_namespace() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let (descriptor, port) = descriptor::open(self.subsystem).map_err(|error| error.source)?;
        self.descriptor = descriptor;
        self.port.store(port, Ordering::Relaxed);
        self.condition = Condition::Good;
        Ok(())
    }

    fn note<T>(&mut self, outcome: io::Result<T>) -> io::Result<T> {
        if outcome.is_err() {
            self.condition = Condition::Failed;
        }
        outcome
    }

    /// Pretends that the thread has moved to another network namespace.
    #[cfg(test)]
    pub(crate) fn displace(&mut self) {
        self.namespace = Some("net:[1]".into());
    }

    #[cfg(test)]
    pub(crate) fn has_failed(&self) -> bool {
        self.condition == Condition::Failed
    }
}

/// Whether the bytes to send exceed the send buffer or the available memory.
pub(crate) fn is_too_long(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MSGSIZE | Errno::NOBUFS)
    )
}
