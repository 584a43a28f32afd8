//! Connects to Services from a pod of a node: once, or for as long as the clients run.

use std::mem;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use dataplane::Protocol;
use jiff::Timestamp;
use testkit::Seeded;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::runtime::Builder;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::{PATIENCE, Settings};
use crate::bench::population::{frontend, protocol};
use crate::network::Namespace;

/// The time between two questions over a connection that stays open.
const ASKED_EVERY: Duration = Duration::from_secs(1);
/// How long a client of UDP waits for an answer before it asks again from the same port, as
/// resolvers do.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The number of lost connections that are described.
const DESCRIBED: usize = 20;

/// Clients in one namespace.
#[derive(Debug)]
pub(super) struct Clients {
    ending: Arc<AtomicBool>,
    tally: Arc<Mutex<Tally>>,
    thread: JoinHandle<Result<()>>,
}

/// The results of clients.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    /// Connections made and answered, over TCP.
    pub(super) tcp: u64,
    /// Questions answered over UDP, each from a new port.
    pub(super) udp: u64,
    /// Answers over connections that stay open.
    pub(super) kept: u64,
    /// The longest time that an answer took.
    pub(super) longest: Duration,
    /// The number of connections that were refused, reset, or not answered.
    pub(super) lost: u64,
    /// When and how the first of them were lost.
    pub(super) descriptions: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Tcp,
    Udp,
    Kept,
}

// === impl Clients ===

impl Clients {
    /// Starts clients in `inside`. All connections that stay open are established when this returns.
    pub(super) fn start(inside: &Namespace, settings: &Settings, seed: u64) -> Result<Clients> {
        let ending = Arc::new(AtomicBool::new(false));
        let tally = Arc::new(Mutex::new(Tally::default()));
        let (opened, all_opened) = std::sync::mpsc::channel();
        let (inside, settings) = (inside.clone(), *settings);
        let (is_ending, noted) = (Arc::clone(&ending), Arc::clone(&tally));
        let thread = thread::spawn(move || {
            inside.enter(|| {
                let runtime = Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(connect_until(&is_ending, &noted, &settings, seed, opened))
            })?
        });
        let clients = Clients {
            ending,
            tally,
            thread,
        };
        match all_opened.recv_timeout(PATIENCE) {
            Ok(()) => Ok(clients),
            Err(_) => {
                clients.finish()?;
                bail!("connections that stay open could not be opened")
            }
        }
    }

    /// Returns what happened since the last call.
    pub(super) fn take(&self) -> Tally {
        mem::take(&mut *self.tally.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends all clients, once connections under way have been answered or lost; returns what
    /// happened since the last [`Clients::take`].
    pub(super) fn finish(self) -> Result<Tally> {
        self.ending.store(true, Ordering::Relaxed);
        let joined = self.thread.join();
        joined.map_err(|_| anyhow!("a client has panicked"))??;
        Ok(mem::take(
            &mut *self.tally.lock().unwrap_or_else(PoisonError::into_inner),
        ))
    }
}

// === impl Tally ===

impl Tally {
    /// Adds the results of other clients.
    pub(super) fn add(&mut self, other: Tally) {
        self.tcp += other.tcp;
        self.udp += other.udp;
        self.kept += other.kept;
        self.longest = self.longest.max(other.longest);
        self.lost += other.lost;
        self.descriptions.extend(other.descriptions);
        self.descriptions.truncate(DESCRIBED);
    }

    fn count(&mut self, kind: Kind, to: SocketAddr, outcome: Result<Duration>) {
        match outcome {
            Ok(took) => {
                self.longest = self.longest.max(took);
                match kind {
                    Kind::Tcp => self.tcp += 1,
                    Kind::Udp => self.udp += 1,
                    Kind::Kept => self.kept += 1,
                }
            }
            Err(error) => {
                self.lost += 1;
                if self.descriptions.len() < DESCRIBED {
                    let now = Timestamp::now();
                    self.descriptions
                        .push(format!("{now:.3}: {kind:?} to {to}: {error:#}"));
                }
            }
        }
    }
}

async fn connect_until(
    ending: &Arc<AtomicBool>,
    tally: &Arc<Mutex<Tally>>,
    settings: &Settings,
    seed: u64,
    opened: std::sync::mpsc::Sender<()>,
) -> Result<()> {
    let (services, _) = settings.size;
    let mut random = Seeded::new(seed);
    let mut next = |expected| {
        loop {
            let number = random.below(usize::try_from(services).unwrap_or(usize::MAX));
            let number = u32::try_from(number).unwrap_or(0);
            if protocol(number) == expected || services == 1 {
                return frontend(number);
            }
        }
    };
    let mut tasks = JoinSet::new();
    let all_open = Arc::new(Barrier::new(usize::try_from(settings.kept)? + 1));
    for _ in 0..settings.kept {
        let (to, all_open) = (next(Protocol::Tcp), Arc::clone(&all_open));
        let (ending, tally) = (Arc::clone(ending), Arc::clone(tally));
        tasks.spawn(async move {
            let ended = keep(to, &all_open, &ending, &tally).await;
            if let Err(error) = ended {
                note(&tally, Kind::Kept, to, Err(error));
            }
        });
    }
    timeout(PATIENCE, all_open.wait())
        .await
        .context("connections that stay open are not all open")?;
    // The receiver waits no longer if it has given up.
    let _ = opened.send(());
    let mut ticks = interval(Duration::from_secs(1) / settings.connections);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    while !ending.load(Ordering::Relaxed) {
        for kind in [Kind::Tcp, Kind::Udp] {
            ticks.tick().await;
            let tally = Arc::clone(tally);
            let to = next(match kind {
                Kind::Udp => Protocol::Udp,
                Kind::Tcp | Kind::Kept => Protocol::Tcp,
            });
            tasks.spawn(async move {
                let outcome = match kind {
                    Kind::Udp => ask_by_udp(to).await,
                    Kind::Tcp | Kind::Kept => ask_by_tcp(to).await,
                };
                note(&tally, kind, to, outcome);
            });
        }
        while let Some(joined) = tasks.try_join_next() {
            joined.context("a client has panicked")?;
        }
    }
    while let Some(joined) = tasks.join_next().await {
        joined.context("a client has panicked")?;
    }
    Ok(())
}

fn note(tally: &Mutex<Tally>, kind: Kind, to: SocketAddr, outcome: Result<Duration>) {
    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    tally.count(kind, to, outcome);
}

async fn ask_by_tcp(to: SocketAddr) -> Result<Duration> {
    let started = Instant::now();
    let asked = async {
        let mut connection = TcpStream::connect(to).await?;
        ask_over(&mut connection).await
    };
    timeout(PATIENCE, asked).await.context("no answer")??;
    Ok(started.elapsed())
}

async fn ask_by_udp(to: SocketAddr) -> Result<Duration> {
    let started = Instant::now();
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
    socket.connect(to).await?;
    while started.elapsed() < PATIENCE {
        socket.send(b"?").await?;
        if let Ok(answered) = timeout(ASKED_AGAIN_AFTER, socket.recv(&mut [0; 8])).await {
            ensure!(answered? == 1, "another answer than expected");
            return Ok(started.elapsed());
        }
    }
    bail!("no answer")
}

/// Asks again and again over one connection.
async fn keep(
    to: SocketAddr,
    all_open: &Barrier,
    ending: &AtomicBool,
    tally: &Mutex<Tally>,
) -> Result<()> {
    let mut connection = TcpStream::connect(to).await?;
    ask_over(&mut connection).await?;
    all_open.wait().await;
    while !ending.load(Ordering::Relaxed) {
        let started = Instant::now();
        let asked = timeout(PATIENCE, ask_over(&mut connection)).await;
        asked.context("no answer")??;
        note(tally, Kind::Kept, to, Ok(started.elapsed()));
        sleep(ASKED_EVERY).await;
    }
    Ok(())
}

async fn ask_over(connection: &mut TcpStream) -> Result<()> {
    connection.write_all(b"?").await?;
    ensure!(
        connection.read(&mut [0]).await? == 1,
        "the connection was closed"
    );
    Ok(())
}
