//! Ports that another process uses.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dataplane::Family;
use relay::{Limits, Transport};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::stage::{TestBed, limits, promptly, tcp_server, udp_server};

#[tokio::test]
async fn a_port_that_is_in_use_is_named_and_taken_when_it_is_free() {
    for transport in Transport::ALL {
        let mut stage = TestBed::new(
            transport,
            Limits {
                retry: Duration::from_millis(50),
                ..limits()
            },
        )
        .await;
        // On every address, as a server unrelated to Services would listen.
        let everywhere = (Ipv4Addr::UNSPECIFIED, stage.port);
        let (tcp, udp) = match transport {
            Transport::Tcp => (TcpListener::bind(everywhere).await.ok(), None),
            Transport::Udp => (None, UdpSocket::bind(everywhere).await.ok()),
        };
        assert!(tcp.is_some() || udp.is_some());
        let server = match transport {
            Transport::Tcp => tcp_server(|_| async {}).await,
            Transport::Udp => udp_server("a").await.0,
        };
        stage.endpoints(&[server]).await;
        let address = stage.address();
        assert_eq!(
            stage.listen_failures(),
            [format!(
                "shop/web:main: unable to listen on {address}/{}",
                transport.protocol()
            )]
        );
        assert_eq!(stage.counts.listeners(Family::Ipv4), 0);
        drop((tcp, udp));
        promptly("the port is taken", async {
            while !stage.listen_failures().is_empty() {
                stage.relays.watch().await;
            }
        })
        .await;
        assert_eq!(stage.counts.listeners(Family::Ipv4), 1);
        assert!(stage.counts.creation_failures(Family::Ipv4) >= 1);
        assert_eq!(stage.counts.creation_failures(Family::Ipv6), 0);
    }
}

#[tokio::test]
async fn no_more_ports_than_the_limit() {
    let mut stage = TestBed::new(
        Transport::Tcp,
        Limits {
            listeners: 0,
            ..limits()
        },
    )
    .await;
    stage.endpoints(&[tcp_server(|_| async {}).await]).await;
    let listen_failures = stage.listen_failures();
    assert!(
        matches!(listen_failures.as_slice(), [one] if one.contains("limit of open files")),
        "{listen_failures:?}"
    );
}

/// Counts the warnings of this thread.
struct Warnings(Arc<AtomicU64>);

impl<S: Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() <= Level::WARN {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// An agent with a limit of 256 open files and 201 node ports wrote 137 warnings every five
/// seconds.
#[tokio::test(start_paused = true)]
async fn a_port_that_stays_refused_is_reported_of_once_and_tried_less_and_less() {
    let reported = Arc::new(AtomicU64::new(0));
    let subscriber = tracing_subscriber::registry().with(Warnings(Arc::clone(&reported)));
    let _guard = subscriber.set_default();
    for (listeners, tries) in [(100, 5..=25), (0, 1..=1)] {
        reported.store(0, Ordering::Relaxed);
        let limits = Limits {
            listeners,
            ..limits()
        };
        let mut stage = TestBed::new(Transport::Tcp, limits).await;
        let _other = TcpListener::bind((Ipv4Addr::LOCALHOST, stage.port))
            .await
            .expect("a port");
        stage.endpoints(&[([10, 0, 2, 7], 80).into()]).await;
        let ten_minutes = Duration::from_secs(600);
        let _ = timeout(ten_minutes, async {
            loop {
                stage.relays.watch().await;
            }
        })
        .await;
        let listen_failures = stage.listen_failures();
        assert_eq!(listen_failures.len(), 1);
        assert_eq!(reported.load(Ordering::Relaxed), 1, "{listen_failures:?}");
        let failures = stage.counts.creation_failures(Family::Ipv4);
        assert!(
            tries.contains(&failures),
            "{failures} times: {listen_failures:?}"
        );
    }
}

#[tokio::test]
async fn nothing_is_listened_on_once_it_is_switched_off() {
    let mut stage = TestBed::new(Transport::Tcp, limits()).await;
    stage.endpoints(&[tcp_server(|_| async {}).await]).await;
    assert!(TcpStream::connect(stage.address()).await.is_ok());
    stage.relays.apply(Family::Ipv4, None).await;
    let error = TcpStream::connect(stage.address())
        .await
        .expect_err("closed");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    assert_eq!(stage.counts.listeners(Family::Ipv4), 0);
}

/// Sockets are closed by their tasks, on any thread: a port that is reopened at once must not
/// collide with its own old socket.
#[tokio::test(flavor = "multi_thread")]
async fn a_port_may_close_and_open_again_at_once() {
    for transport in Transport::ALL {
        let mut stage = TestBed::new(transport, limits()).await;
        let server = match transport {
            Transport::Tcp => tcp_server(|_| async {}).await,
            Transport::Udp => udp_server("a").await.0,
        };
        for _ in 0..100 {
            stage.endpoints(&[server]).await;
            assert_eq!(stage.listen_failures(), [""; 0]);
            if transport == Transport::Udp {
                let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
                    .await
                    .expect("a port");
                client
                    .send_to(b"who?", stage.address())
                    .await
                    .expect("an address");
                let mut buffer = [0; 64];
                let answer = client.recv(&mut buffer);
                promptly("an answer of the session", answer)
                    .await
                    .expect("a session");
            }
            stage.endpoints(&[]).await;
        }
    }
}
