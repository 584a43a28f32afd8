//! What all ports have in common.

use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinError;

use crate::{Counts, Limits, Route, Transport};

/// The routes of a port; `None` closes it. Its listener holds this for as long as its socket, and for
/// no longer.
pub(crate) type Routes = watch::Receiver<Option<Arc<Route>>>;

/// What all ports have in common: what they may take together.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    pub(crate) counts: Arc<Counts>,
    connections: Arc<Semaphore>,
    sessions: Arc<Semaphore>,
    /// Bytes that datagrams may take while they wait.
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

    /// A place for a connection or session of `client`, which is given back when it is dropped.
    /// `None`, and counted, when there is none, or when the client is not of this node: with the
    /// sysctl route_localnet neighbours can reach 127.0.0.1 (CVE-2020-8558).
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

    /// Memory for `bytes` of a datagram that waits, which is given back when it is dropped. `None`,
    /// and counted, when all that there is for this is taken.
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

/// Where to send what arrives from now on, once that is another place than before; `None` when the
/// port is to be closed. Cancel safe.
pub(crate) async fn next_route(routes: &mut Routes) -> Option<Arc<Route>> {
    routes.changed().await.ok()?;
    routes.borrow_and_update().clone()
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whatever is behind it is whole between any two statements that change it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Carries the panic of a task on into the one that owns it: whatever ends here ends the process.
pub(crate) fn propagate(error: JoinError) {
    if let Ok(panic) = error.try_into_panic() {
        resume_unwind(panic);
    }
}
