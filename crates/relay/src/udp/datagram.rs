//! What a client sent, while it waits to be sent on.

use tokio::sync::OwnedSemaphorePermit;

use crate::shared::Shared;

/// What a client sent, with its share of the memory that there is for all that waits.
#[derive(Debug)]
pub(super) struct Datagram {
    bytes: Box<[u8]>,
    _memory: OwnedSemaphorePermit,
}

// === impl Datagram ===

impl Datagram {
    /// A copy of `bytes`. `None`, and counted, when too much waits already. One that is empty takes
    /// its place in a queue too.
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
