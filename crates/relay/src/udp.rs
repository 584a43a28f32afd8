//! UDP: forwards a client's datagrams, one by one, to the endpoint of its session.

mod datagram;
mod session;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use dataplane::Target;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::task::{Id, JoinError, JoinSet};

use crate::shared::{Routes, Shared, next_route, propagate};
use crate::{Chooser, Route, Transport};
use datagram::Datagram;
use session::{End, Session};

/// The largest datagram, with room for one byte more than IPv4 and IPv6 allow without a jumbo
/// payload option (RFC 768: the length has 16 bits, and counts a header of 8 bytes).
const LARGEST: usize = 65_535;
/// How many datagrams are received before other events are handled.
const AT_ONCE: usize = 64;
/// How many datagrams wait for one session. More are dropped, as with a socket's buffer.
const QUEUE: usize = 64;

/// One open port.
struct UdpPort {
    socket: Arc<UdpSocket>,
    chooser: Chooser,
    sessions: HashMap<SocketAddr, SessionHandle>,
    tasks: JoinSet<(SocketAddr, Target, End)>,
    shared: Arc<Shared>,
}

/// The port's handle of a session. Dropping it ends the session.
struct SessionHandle {
    task: Id,
    target: Target,
    datagrams: mpsc::Sender<Datagram>,
}

/// Forwards datagrams until the route is `None`.
pub(crate) async fn serve(
    socket: UdpSocket,
    route: Arc<Route>,
    mut routes: Routes,
    shared: Arc<Shared>,
) {
    let mut port = UdpPort {
        socket: Arc::new(socket),
        chooser: Chooser::new(route, fastrand::Rng::new()),
        sessions: HashMap::new(),
        tasks: JoinSet::new(),
        shared,
    };
    loop {
        // All three arms are cancel safe: a datagram is received only after the wait for it.
        tokio::select! {
            route = next_route(&mut routes) => match route {
                Some(route) => port.retarget(route),
                None => break,
            },
            Some(ended) = port.tasks.join_next_with_id() => port.forget(ended),
            _ = port.socket.readable() => port.receive().await,
        }
    }
    // Each session also has the socket, for the answers.
    port.tasks.shutdown().await;
    drop((port, routes));
}

// === impl UdpPort ===

impl UdpPort {
    /// Ends the sessions whose endpoint no longer serves: the next datagram of their clients goes
    /// to another endpoint. An endpoint that only gets no new clients keeps its sessions, as in the
    /// kernel.
    fn retarget(&mut self, route: Arc<Route>) {
        self.chooser.retarget(route);
        self.sessions
            .retain(|_, session| self.chooser.serves(session.target));
    }

    fn forget(&mut self, ended: Result<(Id, (SocketAddr, Target, End)), JoinError>) {
        let (task, (client, target, end)) = match ended {
            Ok(ended) => ended,
            Err(error) => return propagate(error),
        };
        // The client may have a new session by now.
        if self
            .sessions
            .get(&client)
            .is_some_and(|held| held.task == task)
        {
            self.sessions.remove(&client);
        }
        if end == End::Refused {
            self.chooser.refused(target, Instant::now());
        }
    }

    async fn receive(&mut self) {
        // Allocated only while there is something to receive: thousands of ports wait at once.
        let mut buffer = vec![0; LARGEST];
        for _ in 0..AT_ONCE {
            // An error means that no datagram is left, or that an answer did not reach its client.
            let Ok((length, client)) = self.socket.try_recv_from(&mut buffer) else {
                return;
            };
            let datagram = Datagram::keep(&buffer[..length], &self.shared);
            if let Some(datagram) = datagram {
                self.forward(client, datagram).await;
            }
        }
    }

    async fn forward(&mut self, client: SocketAddr, datagram: Datagram) {
        let datagram = match self.sessions.get(&client) {
            None => datagram,
            Some(session) => match session.datagrams.try_send(datagram) {
                Ok(()) => return,
                Err(TrySendError::Full(_)) => return self.shared.counts.reject(Transport::Udp),
                // The session has ended, but its end is not handled yet.
                Err(TrySendError::Closed(datagram)) => datagram,
            },
        };
        let Some(place) = self.shared.admit(Transport::Udp, client) else {
            return;
        };
        let Some((target, server)) = self.connect(client.ip()).await else {
            return self.shared.counts.reject(Transport::Udp);
        };
        let (datagrams, queue) = mpsc::channel(QUEUE);
        // A new channel has room.
        let _ = datagrams.try_send(datagram);
        let session = Session {
            client,
            server,
            queue,
            near: Arc::clone(&self.socket),
            shared: Arc::clone(&self.shared),
        };
        let task = self.tasks.spawn(async move {
            let end = session.run().await;
            drop(place);
            (client, target, end)
        });
        let held = SessionHandle {
            task: task.id(),
            target,
            datagrams,
        };
        self.sessions.insert(client, held);
    }

    /// Returns a socket for a new session, and the endpoint that it is connected to.
    async fn connect(&mut self, client: IpAddr) -> Option<(Target, UdpSocket)> {
        let mut tried = Vec::new();
        while tried.len() < self.shared.limits.attempts {
            let target = self.chooser.choose(client, &tried, Instant::now())?;
            match session::connect(target).await {
                Ok(server) => {
                    self.chooser.given(client, target, Instant::now());
                    return Some((target, server));
                }
                Err(error) => {
                    tracing::debug!(%target, %error, "the endpoint refused a datagram");
                    self.chooser.refused(target, Instant::now());
                    tried.push(target);
                }
            }
        }
        None
    }
}
