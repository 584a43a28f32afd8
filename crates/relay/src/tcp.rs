//! TCP: copies a connection to its endpoint.

mod activity_stream;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dataplane::Target;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use crate::shared::{Routes, Shared, lock, next_route, propagate};
use crate::{Chooser, Route, Transport};
use activity_stream::ActivityStream;

/// The pause after a connection could not be accepted for lack of descriptors or memory: the next
/// attempt would fail as well.
const OUT_OF_RESOURCES: Duration = Duration::from_millis(100);
/// How long an endpoint may be silent before the kernel sends keepalives. The machine of an
/// endpoint can disappear without closing; a client on this node cannot. Go's default, and
/// therefore kube-proxy's.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// One connection from a process on this node to an endpoint.
struct Relay {
    client: TcpStream,
    from: IpAddr,
    chooser: Arc<Mutex<Chooser>>,
    shared: Arc<Shared>,
}

/// Accepts connections until the route is `None`, then waits for the existing connections.
pub(crate) async fn serve(
    listener: TcpListener,
    route: Arc<Route>,
    mut routes: Routes,
    shared: Arc<Shared>,
) {
    let chooser = Arc::new(Mutex::new(Chooser::new(route, fastrand::Rng::new())));
    let mut connections = JoinSet::new();
    loop {
        // All three arms are cancel safe: a connection that is not accepted stays in the backlog.
        tokio::select! {
            route = next_route(&mut routes) => match route {
                Some(route) => lock(&chooser).retarget(route),
                None => break,
            },
            Some(ended) = connections.join_next() => {
                if let Err(error) = ended {
                    propagate(error);
                }
            }
            accepted = listener.accept() => match accepted {
                Ok((client, from)) => {
                    let Some(place) = shared.admit(Transport::Tcp, from) else {
                        debug!(%from, "rejected a connection: too many connections are open");
                        abort(&client);
                        continue;
                    };
                    let relay = Relay {
                        client,
                        from: from.ip(),
                        chooser: Arc::clone(&chooser),
                        shared: Arc::clone(&shared),
                    };
                    connections.spawn(async move {
                        relay.run().await;
                        drop(place);
                    });
                }
                // This connection was closed before it was accepted; the next one may succeed.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    warn!(%error, "unable to accept connections to localhost");
                    sleep(OUT_OF_RESOURCES).await;
                }
            },
        }
    }
    drop((listener, routes));
    while let Some(ended) = connections.join_next().await {
        if let Err(error) = ended {
            propagate(error);
        }
    }
}

// === impl Relay ===

impl Relay {
    async fn run(mut self) {
        let Some(mut server) = self.connect().await else {
            self.shared.counts.reject(Transport::Tcp);
            abort(&self.client);
            return;
        };
        // Forward segments without delay. If the kernel refuses the option, they are delayed.
        let _ = self.client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        let _ = SockRef::from(&server).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE));

        let moved = AtomicBool::new(true);
        let idle = async {
            while moved.swap(false, Ordering::Relaxed) {
                sleep(self.shared.limits.tcp_idle).await;
            }
        };
        let mut near = ActivityStream::new(&mut self.client, &moved);
        let mut far = ActivityStream::new(&mut server, &moved);
        let ended = tokio::select! {
            copied = copy_bidirectional(&mut near, &mut far) => copied.is_ok(),
            () = idle => false,
        };
        // If not both sides have closed, send both a reset.
        if !ended {
            abort(&self.client);
            abort(&server);
        }
    }

    /// Connects to the first endpoint that accepts.
    async fn connect(&self) -> Option<TcpStream> {
        let limits = &self.shared.limits;
        let mut tried: Vec<Target> = Vec::new();
        while tried.len() < limits.attempts {
            let target = lock(&self.chooser).choose(self.from, &tried, Instant::now())?;
            let address = SocketAddr::new(target.address, target.port.get());
            let error = match timeout(limits.connect, TcpStream::connect(address)).await {
                Ok(Ok(server)) => {
                    lock(&self.chooser).given(self.from, target, Instant::now());
                    return Some(server);
                }
                Ok(Err(error)) => error.to_string(),
                Err(elapsed) => elapsed.to_string(),
            };
            debug!(%target, error, "the endpoint refused a connection");
            lock(&self.chooser).refused(target, Instant::now());
            tried.push(target);
        }
        None
    }
}

/// Makes the drop of the stream send a reset: data from the other side was not delivered.
fn abort(stream: &TcpStream) {
    // If this fails, the socket is already closed.
    let _ = stream.set_zero_linger();
}
