//! Connects and says what came of it.
//!
//! `probe once` prints a line for each connection, `probe watch` prints `running` after the first
//! answer, goes on until its input ends, and prints a tally in JSON.

use std::io::{self, BufRead as _, BufReader, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use tests::network::{Outcome, Tally, sctp_socket};

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
        #[command(flatten)]
        connection: Connection,
    },
}

#[derive(clap::Args)]
struct Connection {
    /// How long to wait for an answer, in milliseconds.
    #[arg(long)]
    deadline_ms: u64,
    /// The address to connect from.
    #[arg(long)]
    from: Option<IpAddr>,
    /// The protocol.
    protocol: Transport,
    /// Where to.
    destination: SocketAddr,
}

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
                println!("{}", connection.outcome());
            }
        }
        Mode::Watch {
            every_ms,
            connection,
        } => {
            let tally = connection.watch(Duration::from_millis(every_ms));
            println!("{}", serde_json::to_string(&tally)?);
        }
    }
    Ok(())
}

impl Connection {
    fn watch(&self, every: Duration) -> Tally {
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
            let outcome = self.outcome();
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

    fn outcome(&self) -> Outcome {
        let answer = match self.protocol {
            Transport::Tcp => self.ask_tcp(),
            Transport::Udp => self.ask_udp(),
            Transport::Sctp => self.ask_sctp(),
        };
        match answer {
            Ok(line) => parse_answer(&line).unwrap_or(Outcome::Failed(format!("answer {line:?}"))),
            Err(error) => Outcome::of_error(&error),
        }
    }

    fn ask_tcp(&self) -> io::Result<String> {
        self.ask_connected(self.socket(Type::STREAM, Protocol::TCP)?)
    }

    fn ask_sctp(&self) -> io::Result<String> {
        let socket = sctp_socket(Domain::for_address(self.destination))?;
        let socket = socket.ok_or(io::ErrorKind::Unsupported)?;
        // Without it SCTP takes an ICMP error for a hint and tries again for minutes.
        match self.destination {
            SocketAddr::V4(_) => setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?,
            SocketAddr::V6(_) => setsockopt(&socket, sockopt::Ipv6RecvErr, &true)?,
        }
        self.ask_connected(self.bind(socket)?)
    }

    fn ask_connected(&self, socket: Socket) -> io::Result<String> {
        socket.connect_timeout(&self.destination.into(), self.deadline())?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(self.deadline()))?;
        let mut line = String::new();
        BufReader::new(stream.take(1024)).read_line(&mut line)?;
        if line.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line)
    }

    fn ask_udp(&self) -> io::Result<String> {
        let socket = self.socket(Type::DGRAM, Protocol::UDP)?;
        socket.connect(&self.destination.into())?;
        let socket = UdpSocket::from(socket);
        socket.set_read_timeout(Some(self.deadline()))?;
        match socket.send(b"who is there?") {
            // What this host's own rules do away with is reported so at once, whether they refuse
            // it or drop it. Only a refusal is followed by an ICMP error.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            sent => drop(sent?),
        }
        let mut buffer = [0; 2048];
        let length = socket.recv(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
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
        let source = SocketAddr::new(self.from.unwrap_or(any), 0);
        socket.bind(&source.into())?;
        Ok(socket)
    }

    fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms)
    }
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
