//! Clients that continuously make new connections; records when each was opened and which server
//! answered.

use std::io::{self, BufRead as _, BufReader, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::interruption::Interruption;
use crate::deadline::wait_for;
use crate::network::{Namespace, Outcome};

/// The pause between two connections of a client. Two processors are enough for four such clients,
/// three servers and the agent.
const PAUSE: Duration = Duration::from_millis(1);
/// The timeout of an answer. A lost SYN is retransmitted after a second.
const PATIENCE: Duration = Duration::from_secs(3);
/// The timeout of a wait for connections.
const PROMPTLY: Duration = Duration::from_secs(10);

/// One TCP connection.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    /// The index of its client, from 0.
    pub(super) client: usize,
    /// When it was opened: all of its packets are newer.
    pub(super) opened: Instant,
    /// Its outcome.
    pub(super) outcome: Outcome,
}

/// Clients, each on a thread inside its namespace. They stop on drop.
#[derive(Debug)]
pub(super) struct Crowd {
    stopped: Arc<AtomicBool>,
    seen: Arc<Mutex<Vec<Connection>>>,
    clients: Vec<JoinHandle<Result<()>>>,
}

// === impl Connection ===

impl Connection {
    /// Whether the server with this name answered it.
    pub(super) fn is_answered_by(&self, name: &str) -> bool {
        matches!(&self.outcome, Outcome::Answered { server, .. } if server == name)
    }

    /// Whether no server answered it.
    pub(super) fn has_failed(&self) -> bool {
        !matches!(self.outcome, Outcome::Answered { .. })
    }
}

// === impl Crowd ===

impl Crowd {
    /// Starts a client for each namespace and destination.
    pub(super) fn start(clients: &[(&Namespace, SocketAddr)]) -> Crowd {
        let stopped = Arc::new(AtomicBool::new(false));
        let seen: Arc<Mutex<Vec<Connection>>> = Arc::default();
        let threads = clients.iter().enumerate().map(|(client, (inside, to))| {
            let (inside, to) = ((*inside).clone(), *to);
            let (stopped, seen) = (Arc::clone(&stopped), Arc::clone(&seen));
            std::thread::spawn(move || {
                inside.enter(|| {
                    while !stopped.load(Ordering::Relaxed) {
                        let opened = Instant::now();
                        let outcome = connect(to).unwrap_or_else(|e| Outcome::of_error(&e));
                        lock(&seen).push(Connection {
                            client,
                            opened,
                            outcome,
                        });
                        std::thread::sleep(PAUSE);
                    }
                })
            })
        });
        Crowd {
            clients: threads.collect(),
            stopped,
            seen,
        }
    }

    /// Waits until the last `count` connections of each client were opened after `since` and are
    /// all accepted by `expected`.
    pub(super) fn wait_for(
        &self,
        what: &str,
        since: Instant,
        count: usize,
        interruption: &Interruption,
        expected: impl Fn(&Connection) -> bool,
    ) -> Result<()> {
        wait_for(what, PROMPTLY, || {
            interruption.check()?;
            let seen = lock(&self.seen);
            let are_wanted = |client| {
                let own = seen.iter().rev().filter(|c| c.client == client);
                let last = own.take_while(|c| c.opened > since && expected(c));
                last.take(count).count() == count
            };
            Ok((0..self.clients.len()).all(are_wanted).then_some(()))
        })
    }

    /// Stops the clients; returns all connections in the order in which they ended.
    pub(super) fn stop(mut self) -> Result<Vec<Connection>> {
        self.stopped.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            client.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        let connections = std::mem::take(&mut *lock(&self.seen));
        Ok(connections)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            // On this path the caller already reports another error.
            drop(client.join());
        }
    }
}

/// Connects, reads the server's line and closes.
fn connect(to: SocketAddr) -> io::Result<Outcome> {
    let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(1024)).read_line(&mut line)?;
    Ok(parse_answer(&line).unwrap_or_else(|| Outcome::Failed(format!("answer {line:?}"))))
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A vector is consistent between any two pushes.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
