//! Established connections that must survive every handover.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use dataplane::Protocol;
use tests::deadline::patience;
use tests::network::Namespace;

/// The timeout of an answer. A lost UDP answer is not sent again in this time, and a TCP connection
/// that lost its translation never recovers.
const PATIENCE: Duration = Duration::from_secs(5);
/// The shortest interval between two requests.
const PAUSE: Duration = Duration::from_millis(10);

/// A client that continuously makes requests over one connection.
#[derive(Debug)]
pub(crate) struct Conversation {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64>>,
}

// === impl Conversation ===

impl Conversation {
    /// Connects and makes a request every `every`, but not more often than every 10 ms, until
    /// [`Conversation::end`].
    pub(crate) fn begin(
        inside: &Namespace,
        protocol: Protocol,
        with: SocketAddr,
        every: Duration,
    ) -> Result<Conversation> {
        let pause = every.max(PAUSE);
        let over = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&over);
        let thread = match protocol {
            Protocol::Udp => {
                let socket = inside.enter(|| connect_udp(with))??;
                thread::spawn(move || ask_over_udp(&socket, pause, &end))
            }
            Protocol::Tcp | Protocol::Sctp => {
                let stream = inside.enter(|| TcpStream::connect(with))??;
                stream.set_read_timeout(Some(patience(PATIENCE)))?;
                thread::spawn(move || ask_over_tcp(stream, pause, &end))
            }
        };
        Ok(Conversation { over, thread })
    }

    /// Returns the number of answered requests. Fails if one was not answered, or not by the server
    /// that answered the first.
    pub(crate) fn end(self) -> Result<u64> {
        self.over.store(true, Ordering::Relaxed);
        let joined = self.thread.join();
        joined.map_err(|_| anyhow!("who asks panicked"))?
    }
}

fn connect_udp(with: SocketAddr) -> std::io::Result<UdpSocket> {
    let socket = match with {
        SocketAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)),
    }?;
    socket.connect(with)?;
    socket.set_read_timeout(Some(patience(PATIENCE)))?;
    Ok(socket)
}

fn ask_over_tcp(stream: TcpStream, pause: Duration, over: &AtomicBool) -> Result<u64> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let mut answers = 0;
    while !over.load(Ordering::Relaxed) {
        let question = format!("question {answers}\n");
        stream.get_mut().write_all(question.as_bytes())?;
        line.clear();
        let answered = stream.read_line(&mut line);
        answered.with_context(|| format!("established TCP, after {answers} answers"))?;
        ensure!(line == question, "{line:?} came back of {question:?}");
        answers += 1;
        thread::sleep(pause);
    }
    Ok(answers)
}

fn ask_over_udp(socket: &UdpSocket, pause: Duration, over: &AtomicBool) -> Result<u64> {
    let mut buffer = [0; 2048];
    let mut first = None;
    let mut answers = 0;
    while !over.load(Ordering::Relaxed) {
        let exchange = |buffer: &mut [u8]| {
            socket.send(b"who is there?")?;
            socket.recv(buffer)
        };
        let length = exchange(&mut buffer);
        let length = length.with_context(|| format!("established UDP, after {answers} answers"))?;
        // The answer contains the server's name and the client's address as it sees it: a change of
        // either means another connection.
        let answer = String::from_utf8_lossy(&buffer[..length]).into_owned();
        let first = first.get_or_insert_with(|| answer.clone());
        ensure!(*first == answer, "{first:?} became {answer:?}");
        answers += 1;
        thread::sleep(pause);
    }
    Ok(answers)
}
