//! The endpoints of a process over real sockets on loopback.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use runtime::{
    BindError, BindPolicy, BuildInfo, CancellationToken, ConnectionLimit, Health, ListenConfig,
    Metrics, serve, serve_at, serve_on,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(30);

/// A server on a free port of loopback; ends with the test's runtime.
struct Server {
    address: SocketAddr,
    stopper: CancellationToken,
    task: JoinHandle<()>,
}

impl Server {
    async fn start(routes: Router) -> Self {
        Server::start_within(routes, ConnectionLimit::new(128)).await
    }

    async fn start_within(routes: Router, limit: ConnectionLimit) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("loopback has free ports");
        let address = listener.local_addr().expect("it listens");
        let stop = CancellationToken::new();
        let stopper = stop.clone();
        let task = tokio::spawn(serve_on(listener, routes, limit, stop));
        Server {
            address,
            stopper,
            task,
        }
    }

    async fn get(&self, path: &str) -> String {
        get_from(self.address, path).await
    }
}

/// The whole response, headers and body.
async fn get_from(address: SocketAddr, path: &str) -> String {
    let stream = TcpStream::connect(address).await.expect("it listens");
    ask(
        stream,
        &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
    )
    .await
}

async fn ask(mut stream: TcpStream, request: &str) -> String {
    stream
        .write_all(request.as_bytes())
        .await
        .expect("the server reads");
    let mut answer = String::new();
    timeout(DEADLINE, stream.read_to_string(&mut answer))
        .await
        .expect("it answers in time")
        .expect("it answers in text");
    answer
}

#[track_caller]
fn assert_answer(answer: &str, status: &str, body: &str) {
    let (head, found) = answer.split_once("\r\n\r\n").expect("an answer has a head");
    assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    assert_eq!(found, body);
}

#[tokio::test]
async fn probes_are_reported_what_fails() {
    let health = Health::new();
    let check = health.check("nftables");
    health.check("sources").ready();
    health.heartbeat("reconciler", Duration::from_secs(60));
    let server = Server::start(health.router()).await;

    let unready = "[-]nftables has not reported yet\nreadyz check failed\n";
    assert_answer(&server.get("/readyz").await, "503", unready);
    assert_answer(&server.get("/livez").await, "200", "ok");
    check.ready();
    assert_answer(&server.get("/readyz").await, "200", "ok");
    let verbose = "[+]nftables ok\n[+]sources ok\nreadyz check passed\n";
    assert_answer(&server.get("/readyz?verbose").await, "200", verbose);
    assert_answer(
        &server.get("/livez?verbose").await,
        "200",
        "[+]reconciler ok\nlivez check passed\n",
    );
    check.not_ready("table inet signpost is gone");
    let answer = server.get("/readyz").await;
    assert_answer(
        &answer,
        "503",
        "[-]nftables table inet signpost is gone\nreadyz check failed\n",
    );
    assert!(
        answer.contains("x-content-type-options: nosniff"),
        "{answer}"
    );
}

#[tokio::test]
async fn a_loop_that_is_stuck_fails_liveness_and_no_readiness() {
    let health = Health::new();
    let heartbeat = health.heartbeat("reconciler", Duration::ZERO);
    let server = Server::start(health.router()).await;
    heartbeat.busy();
    let stuck = "[-]reconciler no progress for 0 s, 0 s allowed\nlivez check failed\n";
    assert_answer(&server.get("/livez").await, "503", stuck);
    assert_answer(&server.get("/readyz").await, "200", "ok");
}

#[tokio::test]
async fn metrics_and_own_routes_share_a_server() {
    let metrics = Metrics::new(&BuildInfo {
        program: "test",
        version: "1.2.3",
    });
    let own = Router::new().route("/debug/syncs", get(async || "none yet"));
    let server = Server::start(metrics.router().merge(own)).await;

    assert_answer(&server.get("/debug/syncs").await, "200", "none yet");
    let answer = server.get("/metrics").await;
    assert!(
        answer.contains("content-type: text/plain; version=0.0.4; charset=utf-8"),
        "{answer}"
    );
    assert!(answer.contains("process_resident_memory_bytes"), "{answer}");
    assert_answer(&server.get("/elsewhere").await, "404", "");
}

#[tokio::test]
async fn a_stop_lets_the_request_under_way_end_and_takes_no_more() {
    let (asked, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tell, wait) = (Arc::clone(&asked), Arc::clone(&go_on));
    let slow = get(async move || {
        tell.notify_one();
        wait.notified().await;
        "done"
    });
    let server = Server::start(Router::new().route("/slow", slow)).await;
    let address = server.address;
    let mut idle = TcpStream::connect(address).await.expect("it listens");
    let under_way = tokio::spawn(async move { get_from(address, "/slow").await });
    asked.notified().await;

    server.stopper.cancel();
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while TcpStream::connect(address).await.is_ok() {
        assert!(tokio::time::Instant::now() < deadline, "it still listens");
        tokio::task::yield_now().await;
    }
    // If it waited until connections are cut off, the running request would be cut off, too.
    let read = timeout(DEADLINE, idle.read(&mut [0])).await;
    let closed = read.expect("an idle connection is closed");
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    go_on.notify_one();
    assert_answer(
        &under_way.await.expect("the client does not panic"),
        "200",
        "done",
    );
    let ended = timeout(DEADLINE, server.task).await;
    ended.expect("nothing holds it").expect("it does not panic");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_takes_too_long_is_answered_with_an_error() {
    let stuck = get(async || std::future::pending::<&str>().await);
    let server = Server::start(Router::new().route("/stuck", stuck)).await;
    // The clock is paused and jumps to the next timer whenever all tasks wait, so no deadline can
    // guard this: a missing answer would hang the test.
    let mut stream = TcpStream::connect(server.address)
        .await
        .expect("it listens");
    let request = "GET /stuck HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream
        .write_all(request.as_bytes())
        .await
        .expect("the server reads");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .await
        .expect("it answers in text");
    assert_answer(&answer, "503", "no answer within 30 s\n");
}

#[tokio::test]
async fn a_request_head_has_a_size_limit() {
    let server = Server::start(Health::new().router()).await;
    let stream = TcpStream::connect(server.address)
        .await
        .expect("it listens");
    let long = "a".repeat(20 * 1024);
    let answer = ask(
        stream,
        &format!("GET /livez HTTP/1.1\r\nHost: x\r\nX-Long: {long}\r\n\r\n"),
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[tokio::test]
async fn connections_that_say_nothing_cannot_keep_a_probe_out() {
    let server = Server::start(Health::new().router()).await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(
            TcpStream::connect(server.address)
                .await
                .expect("it listens"),
        );
    }
    assert_answer(&server.get("/livez").await, "200", "ok");
    let oldest = timeout(DEADLINE, silent[0].read(&mut [0]))
        .await
        .expect("the oldest was closed to make room");
    assert!(matches!(oldest, Ok(0) | Err(_)), "{oldest:?}");
}

/// T374: each Service with a health check has a listener, and each listener took 128 connections.
#[tokio::test]
async fn t374_connections_that_say_nothing_to_one_listener_count_with_those_of_others() {
    let limit = ConnectionLimit::new(10);
    let routes = || Health::new().router();
    let server = Server::start_within(routes(), limit.clone()).await;
    let other = Server::start_within(routes(), limit).await;
    let mut silent = Vec::new();
    for _ in 0..10 {
        for address in [server.address, other.address] {
            silent.push(TcpStream::connect(address).await.expect("it listens"));
        }
    }
    for probed in [&server, &other] {
        assert_answer(&probed.get("/livez").await, "200", "ok");
    }
    for closed in &mut silent[..10] {
        let read = timeout(DEADLINE, closed.read(&mut [0])).await;
        let read = read.expect("the oldest were closed to make room");
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    }
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0")
        .await
        .expect("loopback has free ports");
    let address = taken.local_addr().expect("it listens");
    let stop = CancellationToken::new();
    let error = serve(address, BindPolicy::Fail, Router::new(), stop)
        .await
        .expect_err("the address is taken");
    assert_eq!(error.to_string(), format!("failed to listen on {address}"));
    let text = runtime::chain(&error).to_string();
    assert!(text.contains("in use"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn an_address_in_use_is_tried_again_until_it_is_free() {
    let taken = TcpListener::bind("127.0.0.1:0")
        .await
        .expect("loopback has free ports");
    let address = taken.local_addr().expect("it listens");
    let stop = CancellationToken::new();
    let stopper = stop.clone();
    let server = tokio::spawn(serve(
        address,
        BindPolicy::Retry,
        Health::new().router(),
        stop,
    ));

    tokio::time::sleep(Duration::from_secs(12)).await;
    assert!(!server.is_finished(), "it gave up");
    drop(taken);
    tokio::time::sleep(Duration::from_secs(6)).await;
    // From here on the test waits for sockets, for which a paused clock does not wait.
    tokio::time::resume();
    assert_answer(&get_from(address, "/livez").await, "200", "ok");
    stopper.cancel();
    server
        .await
        .expect("it does not panic")
        .expect("it was told to stop");
}

async fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0")
        .await
        .expect("loopback has free ports");
    listener.local_addr().expect("it listens")
}

/// Returns once connections to `address` succeed, or no longer do.
async fn wait_until_listening(address: SocketAddr, listening: bool) {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while TcpStream::connect(address).await.is_ok() != listening {
        assert!(
            tokio::time::Instant::now() < deadline,
            "listening on {address} is not {listening}"
        );
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_server_moves_to_another_address_and_goes_away_while_it_has_none() {
    let (first, second) = (free_address().await, free_address().await);
    let at = |address| ListenConfig {
        address,
        policy: BindPolicy::Retry,
    };
    let (place, reported) = watch::channel(at(Some(first)));
    let stop = CancellationToken::new();
    let stopper = stop.clone();
    let routes = Health::new().router();
    let server = tokio::spawn(serve_at(reported, routes, |_| std::future::ready(()), stop));
    wait_until_listening(first, true).await;
    place.send_replace(at(Some(second)));
    wait_until_listening(second, true).await;
    wait_until_listening(first, false).await;
    assert_answer(&get_from(second, "/livez").await, "200", "ok");
    place.send_replace(at(None));
    wait_until_listening(second, false).await;
    place.send_replace(at(Some(first)));
    wait_until_listening(first, true).await;
    stopper.cancel();
    let ended = timeout(DEADLINE, server)
        .await
        .expect("it does not wait on");
    ended
        .expect("it does not panic")
        .expect("it was told to stop");
}

#[tokio::test(start_paused = true)]
async fn an_address_that_cannot_be_had_is_reported_of_once_and_can_be_left() {
    let taken = TcpListener::bind("127.0.0.1:0")
        .await
        .expect("loopback has free ports");
    let address = taken.local_addr().expect("it listens");
    let at = |address| ListenConfig {
        address: Some(address),
        policy: BindPolicy::Retry,
    };
    let (place, reported) = watch::channel(at(address));
    let stop = CancellationToken::new();
    let refusals = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&refusals);
    let note = move |error: &BindError| {
        let mut refusals = noted.lock().expect("no test panics while it holds this");
        refusals.push(error.address);
        std::future::ready(())
    };
    tokio::spawn(serve_at(reported, Health::new().router(), note, stop));
    tokio::time::sleep(Duration::from_secs(22)).await;
    let free = free_address().await;
    place.send_replace(at(free));
    tokio::time::sleep(Duration::from_secs(1)).await;
    tokio::time::resume();
    assert_answer(&get_from(free, "/livez").await, "200", "ok");
    let refusals = refusals.lock().expect("no test panics while it holds this");
    assert_eq!(*refusals, [address]);
}

#[tokio::test]
async fn waiting_for_an_address_ends_with_the_process() {
    let taken = TcpListener::bind("127.0.0.1:0")
        .await
        .expect("loopback has free ports");
    let address = taken.local_addr().expect("it listens");
    let stop = CancellationToken::new();
    let stopper = stop.clone();
    let server = tokio::spawn(serve(address, BindPolicy::Retry, Router::new(), stop));
    stopper.cancel();
    let ended = timeout(DEADLINE, server)
        .await
        .expect("it does not wait on");
    ended
        .expect("it does not panic")
        .expect("it was told to stop");
}
