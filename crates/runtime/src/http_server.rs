//! Serves HTTP on one address, with limits on everything, until stopped.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{pending, ready};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use http::StatusCode;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use tracing::{debug, info, warn};

use crate::error_chain::chain;

/// What to do if an address cannot be bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BindPolicy {
    /// Try again every five seconds, as kube-proxy does: the process that this one replaces may
    /// still hold the port, and a node can be programmed without probes.
    Retry,
    /// Give up.
    Fail,
}

/// An address could not be bound.
#[derive(Debug, Error)]
#[error("failed to listen on {address}")]
pub struct BindError {
    /// The address.
    pub address: SocketAddr,
    source: io::Error,
}

/// As many as tokio requests; the kernel has a separate limit.
const BACKLOG: i32 = 1024;
const BIND_RETRY: Duration = Duration::from_secs(5);
/// Probes, a scraper or two and a user need far fewer.
const MOST_CONNECTIONS: usize = 128;
/// The largest request head. Requests to these routes have no cookies and no tokens.
const MOST_HEADER_BYTES: usize = 16 * 1024;
const MOST_HEADERS: usize = 64;
/// Also the maximum idle time between two requests; longer than the usual scrape interval of 30 s,
/// so that scrapers keep their connections.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the answer to a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// A peer that stops reading would hold its connection forever.
const CONNECTION_LIFETIME: Duration = Duration::from_secs(600);
/// How long running requests get when their connection has to close.
const DRAIN: Duration = Duration::from_secs(3);
/// The pause after a failed accept, mostly for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// How many connections one or several listeners have at most. One more closes the oldest, so that a
/// client that opens many idle connections cannot block a probe and have this process killed.
#[derive(Debug, Clone)]
pub struct ConnectionLimit {
    most: usize,
    by_age: Arc<Mutex<VecDeque<AbortHandle>>>,
}

/// Where to listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenConfig {
    /// The address; `None` to listen nowhere.
    pub address: Option<SocketAddr>,
    /// What to do if it cannot be bound.
    pub policy: BindPolicy,
}

/// The client's address: an extension of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// Serves `routes` to peers on loopback only, and answers 403 to all others: for responses that
/// list every Service, or show how the node is configured. The kernel drops packets that arrive
/// from elsewhere with a loopback source.
pub fn on_loopback_only(routes: Router) -> Router {
    routes.route_layer(middleware::from_fn(refuse_other_hosts))
}

/// Listens on `address` and serves `routes` until `stop`; then lets running requests finish.
///
/// No TLS and no authentication: the routes are for probes, scrapers and users on the node. A
/// request that is not answered within 30 s gets a 503.
pub async fn serve(
    address: SocketAddr,
    policy: BindPolicy,
    routes: Router,
    stop: CancellationToken,
) -> Result<(), BindError> {
    let place = ListenConfig {
        address: Some(address),
        policy,
    };
    let (_stays, place) = watch::channel(place);
    serve_at(place, routes, |_| ready(()), stop).await
}

/// Like [`serve`], at an address that may change while it serves: the old address is closed,
/// running requests there finish, and the new address is opened. Calls and awaits `refused` for the
/// first failure to listen on each address.
pub async fn serve_at<F>(
    mut place: watch::Receiver<ListenConfig>,
    routes: Router,
    mut refused: impl FnMut(&BindError) -> F,
    stop: CancellationToken,
) -> Result<(), BindError>
where
    F: Future<Output = ()>,
{
    let mut reported = None;
    while !stop.is_cancelled() {
        let ListenConfig { address, policy } = *place.borrow_and_update();
        let moved = moved(&mut place, address);
        let Some(address) = address else {
            stop.run_until_cancelled(moved).await;
            continue;
        };
        let source = match listen(address).await {
            Ok(listener) => {
                reported = None;
                let closed = stop.child_token();
                let limit = ConnectionLimit::new(MOST_CONNECTIONS);
                let serving = serve_on(listener, routes.clone(), limit, closed.clone());
                let leave = async {
                    closed.run_until_cancelled(moved).await;
                    closed.cancel();
                };
                tokio::join!(serving, leave);
                continue;
            }
            Err(source) => source,
        };
        let error = BindError { address, source };
        if reported != Some(address) {
            refused(&error).await;
            reported = Some(address);
        }
        match policy {
            BindPolicy::Fail => return Err(error),
            BindPolicy::Retry => {
                warn!(error = %chain(&error), "unable to serve, trying again in 5 s")
            }
        }
        // Cancelling this loses nothing: the next iteration reads the address again.
        stop.run_until_cancelled(timeout(BIND_RETRY, moved)).await;
    }
    Ok(())
}

// === impl ConnectionLimit ===

impl ConnectionLimit {
    /// A limit of `most` connections for all listeners that get a clone of it.
    pub fn new(most: usize) -> ConnectionLimit {
        ConnectionLimit {
            most,
            by_age: Arc::default(),
        }
    }

    /// Counts a connection that has begun.
    fn admit(&self, connection: AbortHandle) {
        let mut by_age = self.by_age.lock().unwrap_or_else(PoisonError::into_inner);
        if by_age.len() >= self.most {
            by_age.retain(|connection| !connection.is_finished());
        }
        if by_age.len() >= self.most
            && let Some(oldest) = by_age.pop_front()
        {
            oldest.abort();
        }
        by_age.push_back(connection);
    }
}

// === impl BindError ===

impl BindError {
    /// Whether another socket has the address.
    pub fn is_taken(&self) -> bool {
        self.source.kind() == io::ErrorKind::AddrInUse
    }
}

/// Returns when the address is no longer `from`. Cancel safe.
async fn moved(place: &mut watch::Receiver<ListenConfig>, from: Option<SocketAddr>) {
    // Every sender is gone: the address stays.
    if place.wait_for(|place| place.address != from).await.is_err() {
        pending::<()>().await;
    }
}

/// Like [`serve`], on a socket that already listens, with at most as many connections as `limit` has for
/// all listeners with it.
pub async fn serve_on(
    listener: TcpListener,
    routes: Router,
    limit: ConnectionLimit,
    stop: CancellationToken,
) {
    if let Ok(address) = listener.local_addr() {
        info!(%address, "serving HTTP");
    }
    let routes = routes.layer(middleware::from_fn(answer_in_time));
    let mut connections = JoinSet::new();
    loop {
        // All arms are cancel safe.
        tokio::select! {
            () = stop.cancelled() => break,
            (stream, peer) = accept(&listener) => {
                let routes = routes.clone().layer(Extension(peer));
                limit.admit(connections.spawn(serve_connection(stream, routes, stop.clone())));
            }
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Listens on `address`. The unspecified IPv4 address means all addresses of both families, as in a
/// Go program: a client that is configured for kube-proxy's `[node]:10256` reaches this process.
async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    if address.ip() == IpAddr::from(Ipv4Addr::UNSPECIFIED) {
        let both = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port());
        match listen_in_both_families(both) {
            // A node without IPv6 has no such sockets, or no such address.
            Err(error) if is_without_ipv6(&error) => {}
            listening => return listening,
        }
    }
    TcpListener::bind(address).await
}

fn listen_in_both_families(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_only_v6(false)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

fn is_without_ipv6(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL))
}

async fn accept(listener: &TcpListener) -> (TcpStream, Peer) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => return (stream, Peer(address)),
            Err(error) => {
                debug!(error = %chain(&error), "unable to accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_connection(stream: TcpStream, routes: Router, stop: CancellationToken) {
    let service = TowerToHyperService::new(
        routes.map_request(|request: http::Request<_>| request.map(Body::new)),
    );
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_headers(MOST_HEADERS)
        .max_buf_size(MOST_HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = stop.cancelled() => None,
        () = sleep(CONNECTION_LIFETIME) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            timeout(DRAIN, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        debug!(error = %chain(&error), "a connection ended early");
    }
}

async fn refuse_other_hosts(request: Request, next: Next) -> Response {
    let peer: Option<&Peer> = request.extensions().get();
    if peer.is_some_and(|Peer(address)| address.ip().to_canonical().is_loopback()) {
        return next.run(request).await;
    }
    let refusal = "answered on loopback only: ask on the node itself, at 127.0.0.1 or [::1]\n";
    (StatusCode::FORBIDDEN, refusal).into_response()
}

async fn answer_in_time(request: Request, next: Next) -> Result<Response, Infallible> {
    Ok(match timeout(REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "no answer within 30 s\n").into_response(),
    })
}

#[cfg(test)]
mod tests {
    use axum::routing::get;

    use super::*;
    use crate::error_chain::tests::assert_no_doubling;

    /// An unknown peer does not count as loopback.
    #[tokio::test]
    async fn what_is_for_the_node_itself_is_refused_to_others() {
        let routes = on_loopback_only(Router::new().route("/debug", get(async || "all Services")));
        for (peer, status) in [
            (Some("127.0.0.1:1"), StatusCode::OK),
            (Some("[::1]:1"), StatusCode::OK),
            (Some("[::ffff:127.0.0.1]:1"), StatusCode::OK),
            (Some("192.0.2.1:1"), StatusCode::FORBIDDEN),
            (Some("[::ffff:192.0.2.1]:1"), StatusCode::FORBIDDEN),
            (None, StatusCode::FORBIDDEN),
        ] {
            let mut request = http::Request::get("/debug");
            if let Some(peer) = peer {
                request = request.extension(Peer(peer.parse().expect("an address")));
            }
            let request = request.body(Body::empty()).expect("a request");
            let answer = routes.clone().oneshot(request).await;
            let answer = answer.expect("routes do not fail");
            assert_eq!(answer.status(), status, "{peer:?}");
        }
    }

    #[test]
    fn an_address_that_cannot_be_had_is_named_once() {
        let error = BindError {
            address: ([127, 0, 0, 1], 10249).into(),
            source: io::Error::from(io::ErrorKind::AddrInUse),
        };
        let text = assert_no_doubling(&error);
        assert_eq!(text, "failed to listen on 127.0.0.1:10249: address in use");
    }
}
