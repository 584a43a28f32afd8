//! The open ports and their tasks.

use std::collections::BTreeMap;
use std::net::{TcpListener, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use dataplane::{Dataplane, Family};
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use crate::shared::{Routes, Shared, propagate};
use crate::{
    Counts, Limits, ListenFailure, ListenFailureChange, Listeners, LocalPort, Route, Step,
    Transport, tcp, udp,
};

/// Why a port could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The kernel refuses it.
    #[error("unable to listen on {port}")]
    Bind {
        /// Which port.
        port: LocalPort,
        /// The error; usually another process uses the port.
        source: std::io::Error,
    },
    /// It would use a descriptor that the rest of the process may need.
    #[error(
        "not listening on {port}: the process already listens on {limit} ports, which is all that \
         its limit of open files allows"
    )]
    TooMany {
        /// Which port.
        port: LocalPort,
        /// The maximum number of open ports.
        limit: usize,
    },
}

/// The open ports and their tasks. Dropping this ends all of them.
#[derive(Debug)]
pub struct Relays {
    listeners: Listeners,
    /// The routes of each open port, for its listener; `None` closes it.
    open: BTreeMap<LocalPort, watch::Sender<Option<Arc<Route>>>>,
    ports: JoinSet<()>,
    /// When refused ports are retried.
    retry: Option<Instant>,
    /// The time until the next retry; grows as long as nothing changes.
    pause: Duration,
    shared: Arc<Shared>,
}

// === impl OpenError ===

impl OpenError {
    /// Whether `other` is the same error for the same port.
    pub(crate) fn is_like(&self, other: &OpenError) -> bool {
        match (self, other) {
            (OpenError::Bind { source: one, .. }, OpenError::Bind { source: other, .. }) => {
                (one.kind(), one.raw_os_error()) == (other.kind(), other.raw_os_error())
            }
            (OpenError::TooMany { .. }, OpenError::TooMany { .. }) => true,
            (OpenError::Bind { .. }, OpenError::TooMany { .. })
            | (OpenError::TooMany { .. }, OpenError::Bind { .. }) => false,
        }
    }
}

// === impl Relays ===

impl Relays {
    /// Creates an instance without open ports.
    pub fn new(limits: Limits, counts: Arc<Counts>) -> Relays {
        Relays {
            listeners: Listeners::default(),
            open: BTreeMap::new(),
            ports: JoinSet::new(),
            retry: None,
            pause: limits.retry,
            shared: Arc::new(Shared::new(limits, counts)),
        }
    }

    /// Opens and closes ports of `family` to match `dataplane`; closes all of them for `None`. The
    /// cost is proportional to the change. Ports that cannot be opened are in [`Relays::listen_failures`],
    /// and [`Relays::watch`] retries them. When this returns, closed ports are free for any
    /// process. Not cancel safe.
    pub async fn apply(&mut self, family: Family, dataplane: Option<&Dataplane>) {
        let steps = self.listeners.follow(family, dataplane);
        self.commit(steps).await;
    }

    /// Returns after ports were retried, which may have changed [`Relays::listen_failures`]. Cancel safe.
    pub async fn watch(&mut self) {
        loop {
            let due = self.retry;
            // Both arms are cancel safe: the wait for a time can be repeated, and the end of a task
            // is taken or not. Opening ports does not wait.
            tokio::select! {
                () = async { if let Some(due) = due { sleep_until(due).await } }, if due.is_some() => {
                    self.retry = None;
                    self.pause = (self.pause * 2).min(self.shared.limits.retry_at_most);
                    let steps = self.listeners.retry(self.room());
                    self.commit(steps).await;
                    return;
                }
                Some(ended) = self.ports.join_next() => {
                    if let Err(error) = ended {
                        propagate(error);
                    }
                }
                else => std::future::pending().await,
            }
        }
    }

    /// The ports that could not be opened.
    pub fn listen_failures(&self) -> Vec<ListenFailure> {
        self.listeners.listen_failures().collect()
    }

    async fn commit(&mut self, steps: Vec<Step>) {
        let mut closing = Vec::new();
        for step in steps {
            match step {
                Step::Open(port, route) => self.open(port, route),
                Step::Retarget(port, route) => {
                    if let Some(open) = self.open.get(&port) {
                        debug!(%port, service = %route.service_port, "changed the endpoints of a node port on localhost");
                        open.send_replace(Some(route));
                    }
                }
                Step::Close(port) => {
                    if let Some(open) = self.open.remove(&port) {
                        info!(%port, "closed a node port on localhost");
                        self.shared.counts.closed(port.family);
                        // A port that waits for room may open now.
                        self.pause = self.shared.limits.retry;
                        open.send_replace(None);
                        closing.push(open);
                    }
                }
            }
        }
        let soonest = Instant::now() + self.pause;
        let is_refused = self.listeners.listen_failures().next().is_some();
        self.retry = is_refused.then(|| self.retry.map_or(soonest, |due| due.min(soonest)));
        for port in closing {
            port.closed().await;
        }
    }

    fn open(&mut self, port: LocalPort, route: Arc<Route>) {
        let service = route.service_port.clone();
        let (sender, routes) = watch::channel(None);
        match self.listen(port, route, routes) {
            Ok(()) => {
                info!(%port, %service, "opened a node port on localhost");
                self.open.insert(port, sender);
                self.listeners.opened(port);
                self.shared.counts.opened(port.family);
            }
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                let message = format!("{error}; trying again");
                match self.listeners.refused(port, error) {
                    ListenFailureChange::Fresh => {
                        warn!(%service, cause, "{message}");
                        self.pause = self.shared.limits.retry;
                    }
                    ListenFailureChange::Stale => debug!(%service, cause, "{message}"),
                }
                self.shared.counts.failed(port.family);
            }
        }
    }

    /// How many more ports may be open.
    fn room(&self) -> usize {
        self.shared.limits.listeners.saturating_sub(self.open.len())
    }

    fn listen(
        &mut self,
        port: LocalPort,
        route: Arc<Route>,
        routes: Routes,
    ) -> Result<(), OpenError> {
        if self.room() == 0 {
            let limit = self.shared.limits.listeners;
            return Err(OpenError::TooMany { port, limit });
        }
        let failed = |source| OpenError::Bind { port, source };
        let shared = Arc::clone(&self.shared);
        match port.transport {
            Transport::Tcp => {
                let listener = bind_tcp(port).map_err(failed)?;
                self.ports
                    .spawn(tcp::serve(listener, route, routes, shared));
            }
            Transport::Udp => {
                let socket = bind_udp(port).map_err(failed)?;
                self.ports.spawn(udp::serve(socket, route, routes, shared));
            }
        }
        Ok(())
    }
}

fn bind_tcp(port: LocalPort) -> std::io::Result<tokio::net::TcpListener> {
    let listener = TcpListener::bind(port.address())?;
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)
}

fn bind_udp(port: LocalPort) -> std::io::Result<tokio::net::UdpSocket> {
    let socket = UdpSocket::bind(port.address())?;
    socket.set_nonblocking(true)?;
    tokio::net::UdpSocket::from_std(socket)
}
