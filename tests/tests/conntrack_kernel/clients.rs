//! Clients that keep their source port.

use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::network::Namespace;

/// The timeout of an answer to one datagram. Answers take microseconds; lost datagrams are sent
/// again.
const PATIENCE: Duration = Duration::from_millis(200);
/// How often to retry sending a packet of a flood.
const ATTEMPTS: u32 = 100;

/// A UDP client with a permanent source port, like a DNS resolver.
#[derive(Debug)]
pub(crate) struct UdpClient {
    socket: UdpSocket,
}

/// Flows through the node to unused addresses.
#[derive(Debug)]
pub(crate) struct Flood {
    socket: UdpSocket,
    flows: usize,
}

/// An established TCP connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
    /// The number of the server that answered it.
    pub(crate) server: u8,
}

// === impl UdpClient ===

impl UdpClient {
    pub(crate) fn open(inside: &Namespace, destination: SocketAddr) -> Result<UdpClient> {
        let any = match destination {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let socket = inside.enter(|| -> std::io::Result<UdpSocket> {
            let socket = UdpSocket::bind((any, 0))?;
            socket.connect(destination)?;
            socket.set_read_timeout(Some(PATIENCE))?;
            Ok(socket)
        })??;
        Ok(UdpClient { socket })
    }

    /// Sends a datagram; returns the server that answers it, if any.
    pub(crate) fn ask(&self) -> Result<Option<u8>> {
        let mut buffer = [0; 256];
        // Discard late answers and pending ICMP errors.
        self.socket.set_nonblocking(true)?;
        loop {
            match self.socket.recv(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                _ => {}
            }
        }
        self.socket.set_nonblocking(false)?;
        // Errors here come from ICMP and mean no answer.
        let answer = self.socket.send(b"who is there?");
        let Ok(length) = answer.and_then(|_| self.socket.recv(&mut buffer)) else {
            return Ok(None);
        };
        parse_server(&String::from_utf8_lossy(&buffer[..length])).map(Some)
    }

    /// Sends a datagram and waits for no longer than `wait`. Fails if the datagram, or an earlier one,
    /// is refused; returns the server that answers, if any.
    pub(crate) fn ask_unrefused(&self, wait: Duration) -> Result<Option<u8>> {
        let mut buffer = [0; 256];
        self.socket.set_read_timeout(Some(wait))?;
        let answer = self.socket.send(b"who is there?");
        match answer.and_then(|_| self.socket.recv(&mut buffer)) {
            Ok(length) => parse_server(&String::from_utf8_lossy(&buffer[..length])).map(Some),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                Err(error).context("the client is refused")
            }
            // Nothing answers, or no route leads anywhere.
            Err(_) => Ok(None),
        }
    }
}

// === impl Flood ===

impl Flood {
    pub(crate) fn open(inside: &Namespace, flows: u64) -> Result<Flood> {
        let any = (Ipv4Addr::UNSPECIFIED, 0);
        let socket = inside.enter(|| UdpSocket::bind(any))??;
        let flows = usize::try_from(flows)?;
        Ok(Flood { socket, flows })
    }

    /// Sends one packet in each flow, which creates or refreshes the flow.
    pub(crate) fn send(&self) -> Result<()> {
        let destinations = (1..=254).flat_map(|host| {
            let address = Ipv4Addr::new(203, 0, 113, host);
            (1..=u16::MAX).map(move |port| (address, port))
        });
        for destination in destinations.take(self.flows) {
            // Each ICMP error about an earlier packet is reported once in place of sending. Because
            // so many packets are in flight, another error may follow at once.
            let mut attempts = 0..ATTEMPTS;
            let sent = attempts.any(|_| self.socket.send_to(b"packet", destination).is_ok());
            ensure!(sent, "nothing goes to {destination:?}");
        }
        Ok(())
    }
}

// === impl Connection ===

impl Connection {
    /// Connects; fails without an answer after `patience`.
    pub(crate) fn open(
        inside: &Namespace,
        destination: SocketAddr,
        patience: Duration,
    ) -> Result<Connection> {
        let stream = inside.enter(|| TcpStream::connect_timeout(&destination, patience))??;
        stream.set_read_timeout(Some(patience))?;
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line)?;
        Ok(Connection {
            server: parse_server(&line)?,
            stream,
        })
    }

    /// Sends a line and expects its echo.
    pub(crate) fn echo(&mut self) -> Result<()> {
        self.stream.get_mut().write_all(b"still there?\n")?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        ensure!(line == "still there?\n", "it answered {line:?}");
        Ok(())
    }
}

fn parse_server(line: &str) -> Result<u8> {
    let name = line.split_whitespace().next();
    let name = name.with_context(|| format!("{line:?} is no answer"))?;
    Ok(name.parse()?)
}
