//! The state that all ports share.

use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinError;

use crate::{Counts, Limits, Route, Transport};

/// The routes of a port; `None` closes it. The listener holds this exactly as long as its socket.
pub(crate) type Routes = watch::Receiver<Option<Arc<Route>>>;

/// The state that all ports share: their limits and counters.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    pub(crate) counts: Arc<Counts>,
    connections: Arc<Semaphore>,
    sessions: Arc<Semaphore>,
    /// The bytes available for queued datagrams.
    bytes: Arc<Semaphore>,
}

// === impl Shared ===

impl Shared {
    pub(crate) fn new(limits: Limits, counts: Arc<Counts>) -> Shared {
        Shared {
            connections: Arc::new(Semaphore::new(limits.connections)),
            sessions: Arc::new(Semaphore::new(limits.sessions)),
            bytes: Arc::new(Semaphore::new(limits.udp_bytes)),
            limits,
            counts,
        }
    }

    /// Reserves a place for a connection or session of `client`; dropping the permit releases it.
    /// Returns `None`, and counts a rejection, if there is no place or if the client is not on this
    /// node: with the sysctl route_localnet, neighbours can reach 127.0.0.1 (CVE-2020-8558).
    pub(crate) fn admit(
        &self,
        transport: Transport,
        client: SocketAddr,
    ) -> Option<OwnedSemaphorePermit> {
        let places = match transport {
            Transport::Tcp => &self.connections,
            Transport::Udp => &self.sessions,
        };
        let permit = client.ip().is_loopback().then(|| {
            let permit = Arc::clone(places).try_acquire_owned();
            permit.ok()
        });
        let permit = permit.flatten();
        if permit.is_none() {
            self.counts.reject(transport);
        }
        permit
    }

    /// Reserves memory for `bytes` of a queued datagram; dropping the permit releases it. Returns
    /// `None`, and counts a rejection, if no memory is left.
    pub(crate) fn keep(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes).ok();
        let memory =
            bytes.and_then(|bytes| Arc::clone(&self.bytes).try_acquire_many_owned(bytes).ok());
        if memory.is_none() {
            self.counts.reject(Transport::Udp);
        }
        memory
    }
}

/// Waits for the next route of a port; returns `None` if the port is to be closed. Cancel safe.
pub(crate) async fn next_route(routes: &mut Routes) -> Option<Arc<Route>> {
    routes.changed().await.ok()?;
    routes.borrow_and_update().clone()
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The value is consistent between any two statements that change it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Propagates the panic of a task to its owner, so that it ends the process.
pub(crate) fn propagate(error: JoinError) {
    if let Ok(panic) = error.try_into_panic() {
        resume_unwind(panic);
    }
}
