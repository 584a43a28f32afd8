//! A way to the kernel that is opened anew once it has failed.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use crate::descriptor::{self, OpenError, Subsystem, observe_namespace};
use crate::exchange;

/// A netlink descriptor in the network namespace it was opened in. Once it has failed, answers to
/// what was asked before may still be on their way, so that the next question opens it anew.
#[derive(Debug)]
pub(crate) struct Channel {
    subsystem: Subsystem,
    descriptor: OwnedFd,
    port: Arc<AtomicU32>,
    namespace: Option<PathBuf>,
    condition: Condition,
    datagram: Vec<u8>,
}

/// Whether what is received next answers what is asked next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Good,
    Failed,
}

// === impl Channel ===

impl Channel {
    /// Opens one in the network namespace of this thread, for datagrams of up to `datagram` bytes.
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

    /// What the kernel calls it now, and after each time it is opened anew.
    pub(crate) fn port(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.port)
    }

    /// Sends `bytes`; opens the descriptor anew first where it has failed before.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.condition == Condition::Failed {
            self.reopen()?;
        }
        match exchange::send(&self.descriptor, bytes) {
            // Nothing was sent that might still be answered (netlink_sendmsg).
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

    /// Leaves the answers that are still on their way: as after a failure, the next [`send`](Channel::send)
    /// opens the descriptor anew.
    pub(crate) fn abandon(&mut self) {
        self.condition = Condition::Failed;
    }

    /// Opens it anew where it was; from a thread that is elsewhere, that would be another kernel's
    /// rules.
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

    /// As if the thread had gone to another network since.
    #[cfg(test)]
    pub(crate) fn displace(&mut self) {
        self.namespace = Some("net:[1]".into());
    }

    #[cfg(test)]
    pub(crate) fn has_failed(&self) -> bool {
        self.condition == Condition::Failed
    }
}

/// Whether what was to be sent is more than fits the send buffer, or than there is memory for.
pub(crate) fn is_too_long(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MSGSIZE | Errno::NOBUFS)
    )
}
