//! A Service on a free port of this machine's loopback, and servers on other free ports.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use dataplane::{Dataplane, Family, compile};
use relay::{Counts, Limits, Relays, Transport};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// The maximum time for an operation that should be immediate.
pub(crate) const PROMPTLY: Duration = Duration::from_secs(10);

/// A node port on loopback, with its relays.
pub(crate) struct TestBed {
    pub(crate) relays: Relays,
    pub(crate) counts: Arc<Counts>,
    pub(crate) port: u16,
    pub(crate) transport: Transport,
    affinity: Option<Duration>,
}

// === impl TestBed ===

impl TestBed {
    /// Uses a free port, without endpoints.
    pub(crate) async fn new(transport: Transport, limits: Limits) -> TestBed {
        let counts = Arc::new(Counts::default());
        TestBed {
            relays: Relays::new(limits, Arc::clone(&counts)),
            counts,
            port: free_port(transport).await,
            transport,
            affinity: None,
        }
    }

    /// With session affinity.
    pub(crate) fn sticky(mut self) -> TestBed {
        self.affinity = Some(Duration::from_secs(60));
        self
    }

    /// Sets the endpoints of the Service.
    pub(crate) async fn endpoints(&mut self, endpoints: &[SocketAddr]) {
        self.endpoints_and_draining(endpoints, &[]).await;
    }

    /// Sets the endpoints of the Service, and its terminating endpoints that still serve.
    pub(crate) async fn endpoints_and_draining(
        &mut self,
        endpoints: &[SocketAddr],
        draining: &[SocketAddr],
    ) {
        let (node, config) = (mk_node(1).build(), mk_config().build());
        let service = mk_service("shop/web").cluster_ip("10.96.0.10");
        let mut service = match self.transport {
            Transport::Tcp => service.port("main", 80),
            Transport::Udp => service.udp("main", 80),
        }
        .node_port(self.port);
        if let Some(affinity) = self.affinity {
            service = service.client_ip_affinity(affinity);
        }
        let mut list = match self.transport {
            Transport::Tcp => mk_endpoints().tcp("main"),
            Transport::Udp => mk_endpoints().udp("main"),
        };
        for endpoint in endpoints {
            list = list.ready(&endpoint.to_string(), "node-2");
        }
        for endpoint in draining {
            list = list.draining(&endpoint.to_string(), "node-2");
        }
        let rules = compile(&service.build(), &list.build(), &node, &config);
        let mut dataplane = Dataplane::new(node, config);
        dataplane.set(Arc::new(rules));
        self.relays.apply(Family::Ipv4, Some(&dataplane)).await;
    }

    /// The address that clients connect to.
    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    pub(crate) fn listen_failures(&self) -> Vec<String> {
        let listen_failures = self.relays.listen_failures().into_iter();
        listen_failures
            .map(|refusal| format!("{}: {}", refusal.service_port, refusal.error))
            .collect()
    }

    /// Waits until this many connections or datagrams have been rejected.
    pub(crate) async fn wait_for_rejected(&self, count: u64) {
        let wait = async {
            while self.counts.rejected(self.transport) < count {
                sleep(Duration::from_millis(5)).await;
            }
        };
        promptly("a rejection is counted", wait).await;
    }
}

/// Limits that tests are not expected to reach.
pub(crate) fn limits() -> Limits {
    Limits::within(4096)
}

/// Returns the output of `work`; panics if it takes too long.
pub(crate) async fn promptly<T>(what: &str, work: impl Future<Output = T>) -> T {
    let Ok(output) = timeout(PROMPTLY, work).await else {
        panic!("waited in vain: {what}");
    };
    output
}

/// A port that is free at this moment.
pub(crate) async fn free_port(transport: Transport) -> u16 {
    let any = (Ipv4Addr::LOCALHOST, 0);
    let address = match transport {
        Transport::Tcp => TcpListener::bind(any).await.expect("a port").local_addr(),
        Transport::Udp => UdpSocket::bind(any).await.expect("a port").local_addr(),
    };
    address.expect("it is bound").port()
}

/// Calls `serve` with each connection until the test ends.
pub(crate) async fn tcp_server<F>(
    serve: impl Fn(tokio::net::TcpStream) -> F + Send + 'static,
) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("a port");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address
}

/// Answers each datagram with `name`, the source address and the content.
pub(crate) async fn udp_server(name: &'static str) -> (SocketAddr, JoinHandle<()>) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("a port");
    let address = socket.local_addr().expect("it is bound");
    let task = tokio::spawn(async move {
        let mut buffer = vec![0; 65_535];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let mut answer = format!("{name} {from} ").into_bytes();
            answer.extend(&buffer[..length]);
            answer.truncate(65_507);
            drop(socket.send_to(&answer, from).await);
        }
    });
    (address, task)
}
