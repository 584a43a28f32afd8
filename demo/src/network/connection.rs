//! Client connections, made from the network namespace of the calling thread.

use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

use super::{CLIENT_PORTS, Outcome, sctp_socket};

/// A connection kept for several requests.
#[derive(Debug)]
pub enum Kept {
    /// A TCP connection with the server's first answer.
    Tcp(BufReader<TcpStream>, Outcome),
    /// The socket of a UDP flow.
    Udp(UdpSocket),
}

/// The request, which a TCP server echoes.
const QUESTION: &str = "who is there?\n";

/// The parameters of a connection.
#[derive(Debug, Clone, clap::Args)]
pub struct Connection {
    /// The timeout of an answer, in milliseconds.
    #[arg(long)]
    pub deadline_ms: u64,
    /// The source address.
    #[arg(long)]
    pub from: Option<IpAddr>,
    /// The first source port; each further connection uses the next free one. Conntrack remembers a
    /// UDP flow for minutes and sends packets of a reused port to the flow's old destination,
    /// independent of the present rules.
    #[arg(long = "first-port")]
    pub ports: SourcePorts,
    /// The protocol.
    pub protocol: Transport,
    /// The destination.
    pub destination: SocketAddr,
}

/// A sequence of source ports.
#[derive(Debug, Clone)]
pub struct SourcePorts(Arc<AtomicU16>);

/// The protocol as a command line argument.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Transport {
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
    /// Associations, where the kernel has them.
    Sctp,
}

// === impl Connection ===

impl Connection {
    /// Makes one connection; returns its outcome. A TCP handshake must complete within `handshake`.
    pub fn outcome(&self, handshake: Duration) -> Outcome {
        let answer = match self.protocol {
            Transport::Tcp => self.ask_tcp(handshake),
            Transport::Udp => self.ask_udp(),
            Transport::Sctp => self.ask_sctp(),
        };
        match answer {
            Ok(line) => read_answer(&line),
            Err(error) => Outcome::of_error(&error),
        }
    }

    /// Makes a request over `kept`, which is opened if it is `None`. After an error the connection
    /// is unusable.
    pub fn ask_over(&self, kept: &mut Option<Kept>) -> io::Result<Outcome> {
        let kept = match kept {
            Some(kept) => kept,
            none => none.insert(self.make()?),
        };
        match kept {
            Kept::Udp(socket) => Ok(read_answer(&exchange(socket)?)),
            Kept::Tcp(stream, server) => {
                stream.get_mut().write_all(QUESTION.as_bytes())?;
                let mut line = String::new();
                stream.read_line(&mut line)?;
                if line != QUESTION {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Ok(server.clone())
            }
        }
    }

    fn make(&self) -> io::Result<Kept> {
        match self.protocol {
            Transport::Udp => Ok(Kept::Udp(self.connect_udp()?)),
            Transport::Tcp => {
                let socket = self.socket(Type::STREAM, Protocol::TCP)?;
                let stream = self.connect(socket, self.deadline())?;
                let mut stream = BufReader::new(stream);
                let server = read_answer(&read_line(&mut stream)?);
                Ok(Kept::Tcp(stream, server))
            }
            Transport::Sctp => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn ask_tcp(&self, handshake: Duration) -> io::Result<String> {
        let socket = self.socket(Type::STREAM, Protocol::TCP)?;
        self.ask_connected(socket, handshake)
    }

    fn ask_sctp(&self) -> io::Result<String> {
        let socket = sctp_socket(Domain::for_address(self.destination))?;
        let socket = socket.ok_or(io::ErrorKind::Unsupported)?;
        // Without this option SCTP treats an ICMP error as a hint and retries for minutes.
        match self.destination {
            SocketAddr::V4(_) => setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?,
            SocketAddr::V6(_) => setsockopt(&socket, sockopt::Ipv6RecvErr, &true)?,
        }
        self.ask_connected(self.bind(socket)?, self.deadline())
    }

    fn ask_connected(&self, socket: Socket, handshake: Duration) -> io::Result<String> {
        let stream = self.connect(socket, handshake)?;
        read_line(&mut BufReader::new(stream.take(1024)))
    }

    fn connect(&self, socket: Socket, handshake: Duration) -> io::Result<TcpStream> {
        socket.connect_timeout(&self.destination.into(), handshake)?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(self.deadline()))?;
        Ok(stream)
    }

    fn ask_udp(&self) -> io::Result<String> {
        exchange(&self.connect_udp()?)
    }

    fn connect_udp(&self) -> io::Result<UdpSocket> {
        let socket = self.socket(Type::DGRAM, Protocol::UDP)?;
        socket.connect(&self.destination.into())?;
        let socket = UdpSocket::from(socket);
        socket.set_read_timeout(Some(self.deadline()))?;
        Ok(socket)
    }

    fn socket(&self, kind: Type, protocol: Protocol) -> io::Result<Socket> {
        let domain = Domain::for_address(self.destination);
        self.bind(Socket::new(domain, kind, Some(protocol))?)
    }

    fn bind(&self, socket: Socket) -> io::Result<Socket> {
        let any = match self.destination {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let source = self.from.unwrap_or(any);
        for _ in CLIENT_PORTS {
            let source = SocketAddr::new(source, self.ports.next());
            match socket.bind(&source.into()) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                bound => return bound.map(|()| socket),
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }

    /// Returns the timeout of an answer.
    pub fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms)
    }
}

// === impl SourcePorts ===

impl SourcePorts {
    fn next(&self) -> u16 {
        let (first, last) = CLIENT_PORTS.into_inner();
        let next = |port| Some(if port < last { port + 1 } else { first });
        match self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
        {
            Ok(port) | Err(port) => port,
        }
    }
}

impl Default for SourcePorts {
    /// All client ports. Clones share the sequence.
    fn default() -> SourcePorts {
        SourcePorts(Arc::new((*CLIENT_PORTS.start()).into()))
    }
}

impl FromStr for SourcePorts {
    type Err = String;

    fn from_str(text: &str) -> Result<SourcePorts, String> {
        match text.parse() {
            Ok(first) if CLIENT_PORTS.contains(&first) => Ok(SourcePorts(Arc::new(first.into()))),
            _ => Err(format!("is not a port of {:?}", CLIENT_PORTS)),
        }
    }
}

fn exchange(socket: &UdpSocket) -> io::Result<String> {
    match socket.send(QUESTION.as_bytes()) {
        // The kernel reports a packet that this host's own rules reject or drop as an immediate
        // error. Only a reject also causes an ICMP error.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
        sent => drop(sent?),
    }
    let mut buffer = [0; 2048];
    let length = socket.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

/// Reads a line; fails if it is empty.
fn read_line(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    if line.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line)
}

fn read_answer(line: &str) -> Outcome {
    parse_answer(line).unwrap_or(Outcome::Failed(format!("answer {line:?}")))
}

/// Parses a server's line: its name, its own address, the client's address as it received it.
fn parse_answer(line: &str) -> Option<Outcome> {
    let mut words = line.split_whitespace();
    Some(Outcome::Answered {
        server: words.next()?.to_owned(),
        at: words.next()?.parse().ok()?,
        saw: words.next()?.parse().ok()?,
    })
}
