//! The listeners that are open.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dataplane::ServiceKey;
use runtime::{CancellationToken, serve_on};
use rustix::net::sockopt::{set_ip_freebind, set_ipv6_freebind, set_ipv6_v6only};
use thiserror::Error;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::{JoinError, JoinSet};

use super::answer::Judge;
use super::desired::Listening;
use crate::port_holder::is_taken;

/// How many connections may wait to be accepted: the probes of one balancer.
const WAITING: u32 = 128;

/// An address cannot be listened on.
#[derive(Debug, Error)]
#[error("failed to listen on {address}")]
pub(super) struct ListenError {
    address: SocketAddr,
    source: io::Error,
}

/// Every open listener. All are closed when this is dropped.
#[derive(Debug)]
pub(super) struct Listeners {
    judge: Judge,
    open: BTreeMap<SocketAddr, Listener>,
    /// Those that are about to be closed, or have been and answer their last requests.
    closing: BTreeSet<SocketAddr>,
    /// Each returns its address.
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
    /// Whether another socket has the address.
    pub(super) fn is_taken(&self) -> bool {
        is_taken(&self.source)
    }
}

// === impl Listeners ===

impl Listeners {
    /// None yet; answers ask `judge`.
    pub(super) fn new(judge: Judge) -> Listeners {
        Listeners {
            judge,
            open: BTreeMap::new(),
            closing: BTreeSet::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Opens and closes listeners until they are `desired`, and returns what cannot be opened. What
    /// is open for the same Service stays so.
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
        self.tasks.spawn(async move {
            serve_on(listener, routes, closed).await;
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

    /// Waits until whatever is to be closed of this port is: a wildcard and an address keep each
    /// other out. Takes as long as requests under way are given, at most.
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
            // Whatever made it panic makes this task and with it the process end.
            Err(Ok(panic)) => resume_unwind(panic),
            // Only dropping all of them cancels one.
            Err(Err(_)) => {}
        }
    }
}

/// Listens on `address`, whether or not this node has it at the moment: it may come and go.
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
            // Each family has listeners of its own.
            set_ipv6_v6only(&socket, true)?;
            socket
        }
    };
    // Connections of a listener that was closed just now are no reason to wait a minute.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(WAITING)
}
