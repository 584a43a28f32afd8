//! Tests against a server that reports the connection and HTTP version of each request.

use std::net::SocketAddr;
use std::sync::Arc;

use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio_rustls::TlsAcceptor;

use super::*;

/// A TLS server on loopback.
struct Server {
    address: SocketAddr,
    certificate: Vec<u8>,
    conduct: Conduct,
}

/// The actions that a test can trigger in a server. Clones share their state.
#[derive(Clone, Default)]
struct Conduct {
    /// Answers one request to `/held`.
    answer: Arc<Notify>,
    /// Ends the current connection gracefully, as an API server does before it restarts: running
    /// requests finish, and no other may begin.
    go_away: Arc<Notify>,
    /// The number of requests to `/held` so far.
    held: watch::Sender<usize>,
}

impl Server {
    /// Starts a server that offers `protocols`.
    async fn start(protocols: &[&str]) -> Server {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
        let key = signing_key.serialize_der().try_into().expect("a key");
        let mut tls = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .expect("they fit");
        tls.alpn_protocols = protocols
            .iter()
            .map(|name| name.as_bytes().into())
            .collect();
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("loopback has free ports");
        let address = listener.local_addr().expect("it listens");
        let conduct = Conduct::default();
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        tokio::spawn(conduct.clone().accept(listener, acceptor));
        Server {
            address,
            certificate: cert.der().to_vec(),
            conduct,
        }
    }

    fn client(&self) -> HttpClient {
        let url = format!("https://{}", self.address);
        let mut config = Config::new(url.parse().expect("a URL"));
        config.root_cert = Some(vec![self.certificate.clone()]);
        http_client(&config).expect("the configuration is whole")
    }

    /// Returns the number of the connection that the request used, and the HTTP version.
    async fn ask(&self, client: &HttpClient, path: &str) -> String {
        let request = Request::get(format!("https://{}{path}", self.address));
        let request = request.body(Body::empty()).expect("a request");
        let answer = client.request(request).await.expect("it is answered");
        let body = answer.into_body().collect().await.expect("it is whole");
        String::from_utf8(body.to_bytes().to_vec()).expect("it is text")
    }

    /// Waits until `many` requests to `/held` have arrived.
    async fn holds(&self, many: usize) {
        let mut held = self.conduct.held.subscribe();
        let come = held.wait_for(|held| *held >= many).await;
        come.expect("the server runs");
    }
}

impl Conduct {
    async fn accept(self, listener: TcpListener, tls: TlsAcceptor) {
        for number in 1.. {
            let (stream, _) = listener.accept().await.expect("it listens");
            tokio::spawn(self.clone().serve(number, stream, tls.clone()));
        }
    }

    /// Ends with the connection, also if the client closes it.
    async fn serve(self, number: usize, stream: TcpStream, tls: TlsAcceptor) {
        let Ok(stream) = tls.accept(stream).await else {
            return;
        };
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let stream = TokioIo::new(stream);
        let conduct = self.clone();
        let service = service_fn(move |request| conduct.clone().reply(number, request));
        if !is_http2 {
            let _ = http1::Builder::new()
                .serve_connection(stream, service)
                .await;
            return;
        }
        let connection =
            http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service);
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            _ = &mut connection => return,
            () = self.go_away.notified() => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    }

    async fn reply(
        self,
        number: usize,
        request: Request<Incoming>,
    ) -> Result<Response<String>, hyper::Error> {
        if request.uri().path() == "/held" {
            self.held.send_modify(|held| *held += 1);
            self.answer.notified().await;
        }
        Ok(Response::new(format!("{number} {:?}", request.version())))
    }
}

#[tokio::test]
async fn all_requests_share_one_connection() {
    let server = Server::start(&["h2", "http/1.1"]).await;
    let client = server.client();
    assert_eq!(server.ask(&client, "/").await, "1 HTTP/2.0");
    let held = tokio::join!(
        server.ask(&client, "/held"),
        server.ask(&client, "/held"),
        async {
            server.holds(2).await;
            assert_eq!(server.ask(&client, "/").await, "1 HTTP/2.0");
            server.conduct.answer.notify_one();
            server.conduct.answer.notify_one();
        },
    );
    assert_eq!(held.0, "1 HTTP/2.0");
    assert_eq!(held.1, "1 HTTP/2.0");
}

#[tokio::test]
async fn a_server_without_http_2_is_asked_over_http_1_1() {
    for protocols in [&["http/1.1"][..], &[]] {
        let server = Server::start(protocols).await;
        let client = server.client();
        let (held, ()) = tokio::join!(server.ask(&client, "/held"), async {
            server.holds(1).await;
            let beside = server.ask(&client, "/").await;
            assert!(beside.ends_with(" HTTP/1.1"), "{beside}");
            assert!(!beside.starts_with("1 "), "{beside}");
            server.conduct.answer.notify_one();
        });
        assert_eq!(held, "1 HTTP/1.1");
    }
}

#[tokio::test]
async fn a_server_that_goes_away_finishes_what_runs_and_gets_the_rest_over_another_connection() {
    let server = Server::start(&["h2"]).await;
    let client = server.client();
    let (held, ()) = tokio::join!(server.ask(&client, "/held"), async {
        server.holds(1).await;
        server.conduct.go_away.notify_one();
        // A request may overtake the GOAWAY.
        while server.ask(&client, "/").await != "2 HTTP/2.0" {}
        server.conduct.answer.notify_one();
    });
    assert_eq!(held, "1 HTTP/2.0");
}
