//! One client and its endpoint.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use dataplane::{Family, Target};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::datagram::Datagram;
use super::{AT_ONCE, LARGEST};
use crate::shared::Shared;

/// One client and its endpoint.
pub(super) struct Session {
    pub(super) client: SocketAddr,
    /// Connected to the endpoint: receives only its datagrams, and ICMP errors.
    pub(super) server: UdpSocket,
    /// The datagrams of the client.
    pub(super) queue: mpsc::Receiver<Datagram>,
    /// The socket for answers to the client.
    pub(super) near: Arc<UdpSocket>,
    pub(super) shared: Arc<Shared>,
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Its port was closed, or its endpoint was removed.
    Dismissed,
    /// No datagram passed in either direction for too long.
    Idle,
    /// The endpoint, or a router on the way, rejected the datagram with an ICMP error.
    Refused,
}

/// The number of datagrams that passed through a session.
#[derive(Debug, Default)]
struct Passed {
    asked: u64,
    answered: u64,
}

/// Returns a socket that is connected to `target`.
pub(super) async fn connect(target: Target) -> io::Result<UdpSocket> {
    let any = match Family::of(target.address) {
        Family::Ipv4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::Ipv6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await?;
    let address = SocketAddr::new(target.address, target.port.get());
    socket.connect(address).await?;
    Ok(socket)
}

// === impl Session ===

impl Session {
    pub(super) async fn run(mut self) -> End {
        let mut passed = Passed::default();
        loop {
            let limits = &self.shared.limits;
            // As in conntrack: a flow with traffic in both directions gets the longer timeout.
            let idle = if passed.asked > 1 && passed.answered > 0 {
                limits.udp_stream_idle
            } else {
                limits.udp_idle
            };
            // All three arms are cancel safe: a datagram is taken out of the queue or not.
            tokio::select! {
                datagram = self.queue.recv() => {
                    let Some(datagram) = datagram else {
                        return End::Dismissed;
                    };
                    passed.asked += 1;
                    // A datagram that is too large, or finds no buffer, is lost, as anywhere in the
                    // network.
                    if let Err(error) = self.server.send(datagram.bytes()).await
                        && is_refusal(&error)
                    {
                        return End::Refused;
                    }
                }
                _ = self.server.readable() => {
                    if let Err(error) = self.answer(&mut passed)
                        && is_refusal(&error)
                    {
                        return End::Refused;
                    }
                }
                () = sleep(idle) => return End::Idle,
            }
        }
    }

    /// Forwards the endpoint's answers to the client.
    fn answer(&self, passed: &mut Passed) -> io::Result<()> {
        let mut buffer = vec![0; LARGEST];
        for _ in 0..AT_ONCE {
            let length = match self.server.try_recv(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                received => received?,
            };
            passed.answered += 1;
            // The client may have closed its socket and not need the answer. An answer for which
            // the buffer has no room is lost, too: waiting would keep the receive buffer, one for
            // each session.
            let _ = self.near.try_send_to(&buffer[..length], self.client);
        }
        Ok(())
    }
}

/// Whether an ICMP error came back: port, host or network unreachable, or administratively
/// prohibited (Linux, net/ipv4/icmp.c, icmp_err_convert).
fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::PermissionDenied
    )
}
