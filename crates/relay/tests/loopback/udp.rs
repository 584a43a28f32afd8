//! UDP sessions.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use relay::{Limits, Transport};
use tokio::net::UdpSocket;
use tokio::time::{sleep, timeout};

use crate::stage::{PROMPTLY, TestBed, free_port, limits, promptly, udp_server};

/// The time between two attempts of a client without an answer.
const AGAIN: Duration = Duration::from_millis(200);

/// A client of the port.
struct Client(UdpSocket);

/// A server's answer.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    name: String,
    /// The source address that the server saw: that of the session.
    saw: String,
    repeated: String,
}

// === impl Client ===

impl Client {
    async fn of(stage: &TestBed) -> Client {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a port");
        socket.connect(stage.address()).await.expect("an address");
        Client(socket)
    }

    async fn hear(&self) -> Option<Answer> {
        let mut buffer = vec![0; 65_535];
        let received = timeout(AGAIN, self.0.recv(&mut buffer)).await.ok()?;
        let text = String::from_utf8_lossy(&buffer[..received.ok()?]).into_owned();
        let mut words = text.splitn(3, ' ').map(ToOwned::to_owned);
        Some(Answer {
            name: words.next()?,
            saw: words.next()?,
            repeated: words.next()?,
        })
    }

    /// Sends until there is an answer, as UDP clients do.
    async fn ask(&self, question: &str) -> Answer {
        promptly("an answer", async {
            loop {
                // The kernel reports an earlier refusal here.
                drop(self.0.send(question.as_bytes()).await);
                if let Some(answer) = self.hear().await {
                    return answer;
                }
            }
        })
        .await
    }
}

async fn stage(limits: Limits) -> TestBed {
    TestBed::new(Transport::Udp, limits).await
}

#[tokio::test]
async fn clients_reach_every_endpoint_and_each_keeps_its_own() {
    let mut stage = stage(limits()).await;
    let ((a, _), (b, _)) = (udp_server("a").await, udp_server("b").await);
    stage.endpoints(&[a, b]).await;
    let mut names = BTreeSet::new();
    let mut sessions = BTreeSet::new();
    // Kept: a later client could get the port of a closed one, and with it its session.
    let mut clients = Vec::new();
    for _ in 0..40 {
        let client = Client::of(&stage).await;
        let first = client.ask("who?").await;
        let second = client.ask("who?").await;
        assert_eq!(first, second);
        names.insert(first.name);
        sessions.insert(first.saw);
        clients.push(client);
    }
    assert_eq!(names, ["a".to_owned(), "b".to_owned()].into());
    assert_eq!(sessions.len(), 40);
}

#[tokio::test]
async fn with_affinity_all_clients_of_one_address_share_an_endpoint() {
    let mut stage = stage(limits()).await.sticky();
    let ((a, _), (b, _)) = (udp_server("a").await, udp_server("b").await);
    stage.endpoints(&[a, b]).await;
    let mut names = BTreeSet::new();
    for _ in 0..20 {
        names.insert(Client::of(&stage).await.ask("who?").await.name);
    }
    assert_eq!(names.len(), 1);
}

#[tokio::test]
async fn datagrams_keep_their_boundaries_and_may_be_as_large_as_any() {
    let mut stage = stage(limits()).await;
    let (server, _) = udp_server("a").await;
    stage.endpoints(&[server]).await;
    let client = Client::of(&stage).await;
    for question in ["", "one", "another", &"x".repeat(60_000)] {
        let answer = client.ask(question).await;
        assert!(answer.repeated == question, "{} bytes", question.len());
    }
}

#[tokio::test]
async fn a_session_moves_when_its_endpoint_goes_and_at_no_other_time() {
    let mut stage = stage(limits()).await;
    let ((a, _), (b, _)) = (udp_server("a").await, udp_server("b").await);
    stage.endpoints(&[a]).await;
    let client = Client::of(&stage).await;
    let first = client.ask("who?").await;
    stage.endpoints(&[a, b]).await;
    assert_eq!(client.ask("who?").await, first, "another has come");
    stage.endpoints(&[b]).await;
    assert_eq!(client.ask("who?").await.name, "b");
}

/// A DTLS or QUIC server that shuts down finishes its sessions: later datagrams of these clients
/// mean nothing to another server.
#[tokio::test]
async fn a_session_stays_with_an_endpoint_that_gets_no_new_clients_and_still_serves() {
    let mut stage = stage(limits()).await;
    let ((a, _), (b, _)) = (udp_server("a").await, udp_server("b").await);
    stage.endpoints(&[a]).await;
    let client = Client::of(&stage).await;
    let first = client.ask("who?").await;
    stage.endpoints_and_draining(&[b], &[a]).await;
    assert_eq!(client.ask("who?").await, first, "its endpoint still serves");
    assert_eq!(Client::of(&stage).await.ask("who?").await.name, "b");
    stage.endpoints(&[b]).await;
    assert_eq!(client.ask("who?").await.name, "b", "its endpoint has gone");
}

#[tokio::test]
async fn datagrams_that_wait_take_no_more_memory_than_they_may() {
    let mut stage = stage(Limits {
        udp_bytes: 2000,
        ..limits()
    })
    .await;
    let (server, _) = udp_server("a").await;
    stage.endpoints(&[server]).await;
    let client = Client::of(&stage).await;
    let question = "x".repeat(1500);
    for _ in 0..10 {
        assert_eq!(client.ask(&question).await.repeated, question);
    }
    let before = stage.counts.rejected(Transport::Udp);
    let sent = client.0.send(&[0; 3000]).await;
    sent.expect("listened on");
    stage.wait_for_rejected(before + 1).await;
    assert_eq!(client.ask(&question).await.repeated, question);
}

#[tokio::test]
async fn without_an_endpoint_a_client_is_refused() {
    let mut stage = stage(limits()).await;
    let (server, _) = udp_server("a").await;
    stage.endpoints(&[server]).await;
    let client = Client::of(&stage).await;
    client.ask("who?").await;
    stage.endpoints(&[]).await;
    drop(client.0.send(b"who?").await);
    let mut buffer = [0; 64];
    let refused = promptly("an ICMP error", client.0.recv(&mut buffer)).await;
    let error = refused.expect_err("a refusal");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    stage.endpoints(&[server]).await;
    assert_eq!(client.ask("who?").await.name, "a");
}

#[tokio::test]
async fn an_endpoint_that_refuses_is_left_for_another() {
    let mut stage = stage(limits()).await;
    let dead = SocketAddr::from(([127, 0, 0, 1], free_port(Transport::Udp).await));
    let (server, _) = udp_server("a").await;
    stage.endpoints(&[dead, server]).await;
    for _ in 0..20 {
        assert_eq!(Client::of(&stage).await.ask("who?").await.name, "a");
    }
}

#[tokio::test]
async fn no_more_sessions_than_the_limit_and_the_next_when_one_is_idle() {
    let mut stage = stage(Limits {
        sessions: 1,
        udp_idle: Duration::from_secs(1),
        udp_stream_idle: PROMPTLY,
        ..limits()
    })
    .await;
    let (server, _) = udp_server("a").await;
    stage.endpoints(&[server]).await;
    let first = Client::of(&stage).await;
    first.ask("who?").await;
    let second = Client::of(&stage).await;
    second.0.send(b"who?").await.expect("listened on");
    stage.wait_for_rejected(1).await;
    second.ask("who?").await;
}

#[tokio::test]
async fn a_session_with_traffic_both_ways_is_kept_longer() {
    let mut stage = stage(Limits {
        udp_idle: Duration::from_millis(50),
        udp_stream_idle: PROMPTLY,
        ..limits()
    })
    .await;
    let (server, _) = udp_server("a").await;
    stage.endpoints(&[server]).await;
    let client = Client::of(&stage).await;
    // Two requests in one session, unless the machine is so slow that the session ended in between.
    let kept = promptly("a session of two questions", async {
        loop {
            let (first, second) = (client.ask("1").await, client.ask("2").await);
            if first.saw == second.saw {
                return first.saw;
            }
        }
    })
    .await;
    // The test needs this time to pass without any traffic.
    sleep(Duration::from_millis(300)).await;
    assert_eq!(client.ask("3").await.saw, kept);
}
