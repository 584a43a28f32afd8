//! Serves every endpoint of a node, over TCP until the client closes the connection.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;
use rustix::thread::sched_getaffinity;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

use crate::bench::echo;
use crate::bench::population::TARGET;
use crate::network::Namespace;

/// Servers of both protocols, which answer each datagram and each byte with the same. They stop on
/// drop.
#[derive(Debug)]
pub(super) struct Servers {
    #[expect(dead_code, reason = "held for the sake of its end")]
    tcp: Runtime,
    udp: echo::Servers,
}

// === impl Servers ===

impl Servers {
    /// Starts them in the namespace `inside`.
    pub(super) fn start(inside: &Namespace) -> Result<Servers> {
        let udp = echo::Servers::start_udp(inside, sched_getaffinity(None)?)?;
        let tcp = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let anywhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), TARGET);
        let listener = inside.enter(|| tcp.block_on(TcpListener::bind(anywhere)))??;
        tcp.spawn(async move {
            loop {
                // A client that has gone before its connection is accepted is no failure.
                if let Ok((connection, _)) = listener.accept().await {
                    tokio::spawn(answer(connection));
                }
            }
        });
        Ok(Servers { tcp, udp })
    }

    /// Stops them. Fails if the server of UDP has failed; clients notice if that of TCP has.
    pub(super) fn stop(self) -> Result<()> {
        self.udp.stop()
    }
}

async fn answer(mut connection: TcpStream) {
    let mut byte = [0];
    while let Ok(1) = connection.read(&mut byte).await {
        if connection.write_all(&byte).await.is_err() {
            return;
        }
    }
}
