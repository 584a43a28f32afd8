//! The open listeners.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dataplane::ServiceKey;
use processes::is_taken;
use runtime::{CancellationToken, ConnectionLimit, raise_descriptor_limit, serve_on};
use rustix::net::sockopt::{set_ip_freebind, set_ipv6_freebind, set_ipv6_v6only};
use thiserror::Error;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::{JoinError, JoinSet};

use super::answer::HealthSource;
use super::desired::Listening;

/// The accept backlog: enough for the probes of one load balancer.
const WAITING: u32 = 128;

/// The most connections of all listeners together, and the share of this process's descriptors that they
/// may have. Each Service can have a listener, and any client that reaches the node can connect to it: without a
/// total, idle connections would leave no descriptor for the API server and the probes of this process.
const MOST_CONNECTIONS: u64 = 1024;
const SHARE_OF_DESCRIPTORS: u64 = 4;

/// Why an address could not be opened.
#[derive(Debug, Error)]
#[error("failed to listen on {address}")]
pub(super) struct ListenError {
    address: SocketAddr,
    source: io::Error,
}

/// All open listeners. They are closed when this is dropped.
#[derive(Debug)]
pub(super) struct Listeners {
    judge: HealthSource,
    limit: ConnectionLimit,
    open: BTreeMap<SocketAddr, Listener>,
    /// The listeners that are closing and may still answer their last requests.
    closing: BTreeSet<SocketAddr>,
    /// One task per listener; each returns its address.
    tasks: JoinSet<SocketAddr>,
}

#[derive(Debug)]
struct Listener {
    service: ServiceKey,
    local_endpoints: Arc<AtomicUsize>,
    stop: CancellationToken,
}

// === impl ListenError ===

impl ListenError {
    /// Returns whether another socket has the address.
    pub(super) fn is_taken(&self) -> bool {
        is_taken(&self.source)
    }
}

// === impl Listeners ===

impl Listeners {
    /// Starts without listeners. Answers use `judge`.
    pub(super) fn new(judge: HealthSource) -> Listeners {
        let most = MOST_CONNECTIONS.min(raise_descriptor_limit() / SHARE_OF_DESCRIPTORS);
        Listeners {
            judge,
            limit: ConnectionLimit::new(usize::try_from(most).unwrap_or(usize::MAX)),
            open: BTreeMap::new(),
            closing: BTreeSet::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Opens and closes listeners until they match `desired`, and returns those that could not be
    /// opened. A listener for the same Service stays open.
    pub(super) async fn apply(
        &mut self,
        desired: &BTreeMap<SocketAddr, Listening>,
    ) -> Vec<(SocketAddr, ListenError)> {
        while let Some(closed) = self.tasks.try_join_next() {
            self.closed(closed);
        }
        let stays = |address: &SocketAddr, listener: &mut Listener| {
            let desired = desired.get(address);
            desired.is_some_and(|listening| listening.service == listener.service)
        };
        for (address, listener) in self.open.extract_if(.., |a, l| !stays(a, l)) {
            listener.stop.cancel();
            self.closing.insert(address);
        }
        let mut failures = Vec::new();
        for (address, listening) in desired {
            if let Some(listener) = self.open.get(address) {
                let known = &listener.local_endpoints;
                known.store(listening.local_endpoints, Ordering::Relaxed);
            } else if let Err(source) = self.open(*address, listening).await {
                let address = *address;
                failures.push((address, ListenError { address, source }));
            }
        }
        failures
    }

    async fn open(&mut self, address: SocketAddr, listening: &Listening) -> io::Result<()> {
        self.close_all_of(address.port()).await;
        let listener = bind(address)?;
        let local_endpoints = Arc::new(AtomicUsize::new(listening.local_endpoints));
        let service = listening.service.clone();
        let routes = self
            .judge
            .router(service.clone(), Arc::clone(&local_endpoints));
        let stop = CancellationToken::new();
        let closed = stop.clone();
        let limit = self.limit.clone();
        self.tasks.spawn(async move {
            serve_on(listener, routes, limit, closed).await;
            address
        });
        let listener = Listener {
            service,
            local_endpoints,
            stop,
        };
        self.open.insert(address, listener);
        Ok(())
    }

    /// Waits until the closing listeners of this port are closed, because a wildcard and an address
    /// exclude each other. Takes at most as long as requests in progress may take.
    async fn close_all_of(&mut self, port: u16) {
        while self.closing.iter().any(|closing| closing.port() == port) {
            match self.tasks.join_next().await {
                Some(closed) => self.closed(closed),
                None => self.closing.clear(),
            }
        }
    }

    fn closed(&mut self, closed: Result<SocketAddr, JoinError>) {
        match closed.map_err(JoinError::try_into_panic) {
            Ok(address) => drop(self.closing.remove(&address)),
            // Propagates the panic to this task, which ends the process.
            Err(Ok(panic)) => resume_unwind(panic),
            // A task is cancelled only if the whole set is dropped.
            Err(Err(_)) => {}
        }
    }
}

/// Listens on `address` even if this node does not have it at the moment: it may come and go.
fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => {
            let socket = TcpSocket::new_v4()?;
            set_ip_freebind(&socket, true)?;
            socket
        }
        SocketAddr::V6(_) => {
            let socket = TcpSocket::new_v6()?;
            set_ipv6_freebind(&socket, true)?;
            // Each family has separate listeners.
            set_ipv6_v6only(&socket, true)?;
            socket
        }
    };
    // Connections of a listener that was just closed must not delay this by a minute.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(WAITING)
}
