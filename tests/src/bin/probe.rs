//! Connects and says what came of it.
//!
//! `probe once` prints a line for each connection, `probe watch` prints `running` after the first
//! answer, goes on until its input ends, and prints a tally in JSON; `probe keep` does the same over
//! one connection.

use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use tests::network::{CLIENT_PORTS, Outcome, Tally, sctp_socket};

/// Connects and says what came of it.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Subcommand)]
enum Mode {
    /// A fixed number of connections.
    Once {
        /// How many.
        #[arg(long, default_value_t = 1)]
        count: u32,
        #[command(flatten)]
        connection: Connection,
    },
    /// New connections until the input ends.
    Watch {
        /// The time from the start of one connection to the start of the next, in milliseconds.
        #[arg(long)]
        every_ms: u64,
        /// How long a TCP connection may take until both kernels have it, in milliseconds.
        #[arg(long)]
        handshake_ms: u64,
        #[command(flatten)]
        connection: Connection,
    },
    /// Questions over one TCP connection, or one UDP flow, until the input ends.
    Keep {
        /// The time from one question to the next, in milliseconds.
        #[arg(long)]
        every_ms: u64,
        #[command(flatten)]
        connection: Connection,
    },
}

/// A connection that is kept.
enum Kept {
    /// And whom it was made to.
    Tcp(BufReader<TcpStream>, Outcome),
    Udp(UdpSocket),
}

/// What is asked, and over TCP given back.
const QUESTION: &str = "who is there?\n";

#[derive(clap::Args)]
struct Connection {
    /// How long to wait for an answer, in milliseconds.
    #[arg(long)]
    deadline_ms: u64,
    /// The address to connect from.
    #[arg(long)]
    from: Option<IpAddr>,
    /// The port to connect from first; every other connection takes the next free one. Connection
    /// tracking remembers a flow of datagrams for minutes, and sends what comes from its port again
    /// where it sent the flow, whatever the rules say by then.
    #[arg(long = "first-port")]
    ports: SourcePorts,
    /// The protocol.
    protocol: Transport,
    /// Where to.
    destination: SocketAddr,
}

/// The ports that connections come from, one after the other.
#[derive(Clone)]
struct SourcePorts(Arc<AtomicU16>);

#[derive(Clone, Copy, ValueEnum)]
enum Transport {
    Tcp,
    Udp,
    Sctp,
}

fn main() -> Result<()> {
    match Cli::parse().mode {
        Mode::Once { count, connection } => {
            for _ in 0..count {
                println!("{}", connection.outcome(connection.deadline()));
            }
        }
        Mode::Watch {
            every_ms,
            handshake_ms,
            connection,
        } => {
            let handshake = Duration::from_millis(handshake_ms);
            let tally = tally(Duration::from_millis(every_ms), || {
                connection.outcome(handshake)
            });
            println!("{}", serde_json::to_string(&tally)?);
        }
        Mode::Keep {
            every_ms,
            connection,
        } => {
            let mut kept = None;
            let tally = tally(Duration::from_millis(every_ms), || {
                let outcome = connection.ask_over(&mut kept);
                outcome.unwrap_or_else(|error| {
                    kept = None;
                    Outcome::of_error(&error)
                })
            });
            println!("{}", serde_json::to_string(&tally)?);
        }
    }
    Ok(())
}

/// Asks until the input ends, and says so on the output when the first answer has come.
fn tally(every: Duration, mut ask: impl FnMut() -> Outcome) -> Tally {
    let stopped = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&stopped);
    thread::spawn(move || {
        // An error ends the input just as well.
        drop(io::copy(&mut io::stdin(), &mut io::sink()));
        stop.store(true, Ordering::Relaxed);
    });
    let start = Instant::now();
    let mut tally = Tally::default();
    let mut due = start;
    while !stopped.load(Ordering::Relaxed) {
        let outcome = ask();
        tally.count(&outcome, start.elapsed());
        if tally.answers() == 1 && matches!(outcome, Outcome::Answered { .. }) {
            println!("running");
        }
        due += every;
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    tally.end(start.elapsed());
    tally
}

impl Connection {
    /// What comes of one connection, which over TCP takes no longer than `handshake` to make.
    fn outcome(&self, handshake: Duration) -> Outcome {
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

    /// Asks over `kept`, which is made if there is none. After an error it is of no more use.
    fn ask_over(&self, kept: &mut Option<Kept>) -> io::Result<Outcome> {
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
        // Without it SCTP takes an ICMP error for a hint and tries again for minutes.
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

    fn deadline(&self) -> Duration {
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
        // What this host's own rules do away with is reported so at once, whether they refuse
        // it or drop it. Only a refusal is followed by an ICMP error.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
        sent => drop(sent?),
    }
    let mut buffer = [0; 2048];
    let length = socket.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

/// A line, of which there has to be something.
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

/// Reads a server's line: its name, the address it was reached at, the address it saw.
fn parse_answer(line: &str) -> Option<Outcome> {
    let mut words = line.split_whitespace();
    Some(Outcome::Answered {
        server: words.next()?.to_owned(),
        at: words.next()?.parse().ok()?,
        saw: words.next()?.parse().ok()?,
    })
}
