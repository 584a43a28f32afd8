//! Datagrams of clients that wait to be forwarded.

use tokio::sync::OwnedSemaphorePermit;

use crate::shared::Shared;

/// A datagram of a client, with its share of the memory for queued datagrams.
#[derive(Debug)]
pub(super) struct Datagram {
    bytes: Box<[u8]>,
    _memory: OwnedSemaphorePermit,
}

// === impl Datagram ===

impl Datagram {
    /// Copies `bytes`. Returns `None`, and counts a rejection, if too much is queued already. An
    /// empty datagram counts, too.
    pub(super) fn keep(bytes: &[u8], shared: &Shared) -> Option<Datagram> {
        let memory = shared.keep(size_of::<Datagram>() + bytes.len())?;
        Some(Datagram {
            bytes: bytes.into(),
            _memory: memory,
        })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
