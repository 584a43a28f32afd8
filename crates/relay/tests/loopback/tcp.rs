//! TCP connections.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use relay::{Limits, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::stage::{TestBed, free_port, limits, promptly, tcp_server};

async fn stage(limits: Limits) -> TestBed {
    TestBed::new(Transport::Tcp, limits).await
}

/// A server that sends its name and then echoes what it receives.
async fn echo(name: &'static str) -> SocketAddr {
    tcp_server(move |mut stream| async move {
        let (mut reader, mut writer) = stream.split();
        let _ = writer.write_all(name.as_bytes()).await;
        let _ = tokio::io::copy(&mut reader, &mut writer).await;
    })
    .await
}

/// Connects and reads one letter, which is a server's name.
async fn connect(address: SocketAddr) -> std::io::Result<(TcpStream, char)> {
    let mut stream = TcpStream::connect(address).await?;
    let name = promptly("a server's name", stream.read_u8()).await?;
    Ok((stream, char::from(name)))
}

async fn answering(address: SocketAddr, count: usize) -> BTreeSet<char> {
    let mut names = BTreeSet::new();
    for _ in 0..count {
        names.insert(connect(address).await.expect("an answer").1);
    }
    names
}

async fn echoes(stream: &mut TcpStream) {
    let mut answer = [0; 5];
    promptly("an echo", async {
        stream.write_all(b"hello").await.expect("it is open");
        stream.read_exact(&mut answer).await.expect("it is open");
    })
    .await;
    assert_eq!(&answer, b"hello");
}

#[tokio::test]
async fn connections_reach_every_endpoint() {
    let mut stage = stage(limits()).await;
    let (a, b) = (echo("a").await, echo("b").await);
    stage.endpoints(&[a, b]).await;
    assert_eq!(answering(stage.address(), 40).await, ['a', 'b'].into());
}

#[tokio::test]
async fn with_affinity_a_client_stays_while_its_endpoint_does() {
    let mut stage = stage(limits()).await.sticky();
    let (a, b) = (echo("a").await, echo("b").await);
    stage.endpoints(&[a, b]).await;
    let first = answering(stage.address(), 20).await;
    assert_eq!(first.len(), 1);
    let (gone, left) = match first.first() {
        Some('a') => ('a', b),
        _ => ('b', a),
    };
    stage.endpoints(&[left]).await;
    let second = answering(stage.address(), 5).await;
    assert!(!second.contains(&gone));
}

#[tokio::test]
async fn whatever_is_sent_arrives_and_one_direction_may_end_before_the_other() {
    let mut stage = stage(limits()).await;
    // It answers after the client has closed its side, with everything that it received.
    let server = tcp_server(|mut stream| async move {
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard).await;
        let _ = stream.write_all(&heard).await;
    })
    .await;
    stage.endpoints(&[server]).await;
    let sent: Vec<u8> = (0..8_000_000_u32)
        .map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[2])
        .collect();
    let mut client = TcpStream::connect(stage.address())
        .await
        .expect("listened on");
    let mut heard = Vec::new();
    promptly("all of it comes back", async {
        client.write_all(&sent).await.expect("it is read");
        client.shutdown().await.expect("it is open");
        client
            .read_to_end(&mut heard)
            .await
            .expect("an orderly end");
    })
    .await;
    assert!(heard == sent, "{} of {} bytes", heard.len(), sent.len());
}

#[tokio::test]
async fn a_reset_of_the_endpoint_is_a_reset_for_the_client() {
    let mut stage = stage(limits()).await;
    let server = tcp_server(|stream| async move {
        let _ = stream.set_zero_linger();
    })
    .await;
    stage.endpoints(&[server]).await;
    let error = connect(stage.address()).await.expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn an_endpoint_that_takes_no_connection_is_passed_over() {
    let mut stage = stage(limits()).await;
    let dead = SocketAddr::from(([127, 0, 0, 1], free_port(Transport::Tcp).await));
    stage.endpoints(&[dead, echo("a").await]).await;
    assert_eq!(answering(stage.address(), 20).await, ['a'].into());
    assert_eq!(stage.counts.rejected(Transport::Tcp), 0);
}

#[tokio::test]
async fn an_endpoint_that_is_silent_has_its_time_and_is_passed_over() {
    let mut stage = stage(Limits {
        connect: Duration::from_millis(50),
        ..limits()
    })
    .await;
    // A listener with a full backlog drops connections.
    let full =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    full.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())
        .expect("a port");
    full.listen(0).expect("it is bound");
    let silent = full
        .local_addr()
        .expect("it is bound")
        .as_socket()
        .expect("an address");
    let _queued = TcpStream::connect(silent).await.expect("room for one");
    stage.endpoints(&[silent, echo("a").await]).await;
    assert_eq!(answering(stage.address(), 10).await, ['a'].into());
}

#[tokio::test]
async fn without_an_endpoint_that_takes_it_a_connection_is_reset_and_counted() {
    let mut stage = stage(limits()).await;
    let dead = SocketAddr::from(([127, 0, 0, 1], free_port(Transport::Tcp).await));
    stage.endpoints(&[dead]).await;
    let error = connect(stage.address())
        .await
        .expect_err("no server listens");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    stage.wait_for_rejected(1).await;
}

#[tokio::test]
async fn established_connections_outlive_a_change_and_the_end_of_their_endpoint() {
    let mut stage = stage(limits()).await;
    let (a, b) = (echo("a").await, echo("b").await);
    stage.endpoints(&[a]).await;
    let (mut old, _) = connect(stage.address()).await.expect("listened on");
    stage.endpoints(&[b]).await;
    assert_eq!(answering(stage.address(), 5).await, ['b'].into());
    echoes(&mut old).await;
    stage.endpoints(&[]).await;
    let error = connect(stage.address()).await.expect_err("no endpoint");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    echoes(&mut old).await;
    stage.endpoints(&[b]).await;
    assert_eq!(answering(stage.address(), 5).await, ['b'].into());
    echoes(&mut old).await;
}

#[tokio::test]
async fn no_more_connections_than_the_limit_and_the_next_when_one_has_ended() {
    let mut stage = stage(Limits {
        connections: 1,
        ..limits()
    })
    .await;
    stage.endpoints(&[echo("a").await]).await;
    let (first, _) = connect(stage.address()).await.expect("the first");
    let error = connect(stage.address()).await.expect_err("the second");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    stage.wait_for_rejected(1).await;
    drop(first);
    promptly("a place is free again", async {
        while connect(stage.address()).await.is_err() {}
    })
    .await;
}

#[tokio::test]
async fn a_connection_that_carries_nothing_for_too_long_ends() {
    let mut stage = stage(Limits {
        tcp_idle: Duration::from_millis(100),
        ..limits()
    })
    .await;
    stage.endpoints(&[echo("a").await]).await;
    let (mut client, _) = connect(stage.address()).await.expect("listened on");
    let error = promptly("it ends", client.read_u8())
        .await
        .expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}
