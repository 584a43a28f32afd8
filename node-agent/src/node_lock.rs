//! One agent per node: two agents would overwrite each other's rules.
//!
//! ```text
//! the agent that holds the lock --listens--> @signpost-agent, in the node's network namespace
//!    |                                            ^
//!    '--a line that identifies it, then silence---'--connects-- an agent that waits for its end
//! ```
//!
//! The lock is a socket with an abstract name (unix(7)). The kernel keeps such names per network
//! namespace, as it keeps rules, and releases them when the process ends for any reason. Two agents
//! with different state directories compete for the same lock.

use std::fmt;
use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as Listener};
use std::process;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use runtime::{CancellationToken, Supervisor, chain};
use rustix::process::geteuid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

/// The name, which the kernel shows as `@signpost-agent` in /proc/net/unix.
const NAME: &str = "signpost-agent";
/// The pause between two attempts. While another agent holds the lock, an attempt lasts until that
/// agent ends.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the holder may take to identify itself. A holder that is about to end no longer does.
const INTRODUCED_WITHIN: Duration = Duration::from_secs(5);
/// The longest introduction that is read, in bytes.
const LONGEST: u64 = 512;
/// How many agents may wait at a time: connections cost descriptors, and any process on the node
/// can open them.
const MOST_WAITING: usize = 16;
/// The number of attempts after which a socket that has the name and does not listen is not taken
/// for an agent's: an agent listens at once.
const NOT_LISTENING_ATTEMPTS: u32 = 20;

/// The lock of this node. Clones share it.
///
/// No task owns it: a task that is stopping may still write, and no other agent may write until the
/// process has ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeLock(Arc<OnceLock<Listener>>);

/// The outcome of one attempt.
#[derive(Debug)]
enum Attempt {
    /// This process has the lock.
    Taken(Listener),
    /// Another agent had it until now, or until a moment ago.
    Held,
    /// A socket has the name and does not listen.
    NotListening,
    /// The name cannot be taken, and not because of another agent.
    Impossible(Reason),
}

/// Why an agent continues without the lock: a node that cannot be locked must be served all the
/// same.
#[derive(Debug)]
enum Reason {
    /// A process of another user has the name. All agents of a node run as the same user.
    OtherUser(u32),
    /// A socket has the name and does not listen.
    NotListening,
    /// The kernel refuses the name.
    Refused(io::Error),
}

// === impl NodeLock ===

impl NodeLock {
    /// Waits until no other agent runs in this network namespace, and then makes others wait until
    /// this process ends. If it cannot take the lock, it logs this and returns.
    pub(crate) async fn take(&self, supervisor: &Supervisor, node: &str) -> io::Result<()> {
        let listener = match wait_for(NAME).await {
            Ok(listener) => listener,
            Err(reason) => {
                warn!("unable to check whether another agent runs on this node: {reason}");
                return Ok(());
            }
        };
        let introductions = UnixListener::from_std(listener.try_clone()?)?;
        // Set only here.
        let _ = self.0.set(listener);
        let introduction = introduction(node);
        let stop = supervisor.stop();
        supervisor.spawn("node lock", introduce(introductions, introduction, stop));
        Ok(())
    }
}

/// The text by which this agent identifies itself to waiting ones.
fn introduction(node: &str) -> String {
    let (version, process) = (env!("CARGO_PKG_VERSION"), process::id());
    let since = Timestamp::now();
    format!("signpost-agent {version}, process {process}, for node {node} since {since:.0}")
}

/// Waits until it has the name.
async fn wait_for(name: &str) -> Result<Listener, Reason> {
    let mut reported = None;
    let mut deaf = 0;
    loop {
        match attempt(name, &mut reported).await {
            Attempt::Taken(listener) => {
                if reported.is_some() {
                    info!("the other agent has exited: this agent now serves the node");
                }
                return Ok(listener);
            }
            Attempt::Held => deaf = 0,
            Attempt::NotListening if deaf < NOT_LISTENING_ATTEMPTS => deaf += 1,
            Attempt::NotListening => return Err(Reason::NotListening),
            Attempt::Impossible(reason) => return Err(reason),
        }
        sleep(PAUSE).await;
    }
}

/// Takes the name, or waits for the end of the process that has it. Logs which process that is,
/// unless its description equals `reported`. Cancel safe.
async fn attempt(name: &str, reported: &mut Option<String>) -> Attempt {
    match bind(name) {
        Ok(listener) => return Attempt::Taken(listener),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {}
        Err(error) => return Attempt::Impossible(Reason::Refused(error)),
    }
    let holder = match UnixStream::connect(format!("\0{name}")).await {
        Ok(holder) => holder,
        // Also between the end of the process and that of its socket.
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Attempt::NotListening,
        // Its queue is full, or this process may not connect: the holder exists.
        Err(_) => return Attempt::Held,
    };
    let peer = holder.peer_cred().ok();
    if let Some(user) = peer.map(|peer| peer.uid())
        && user != geteuid().as_raw()
    {
        return Attempt::Impossible(Reason::OtherUser(user));
    }
    // 0 if it is in another container.
    let process = peer.and_then(|peer| peer.pid()).filter(|id| *id != 0);
    expect_end(holder, process, reported).await;
    Attempt::Held
}

/// Listens under this name, from any thread of this network namespace.
fn bind(name: &str) -> io::Result<Listener> {
    let listener = Listener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Waits until the holder ends, and logs its description.
async fn expect_end(mut holder: UnixStream, process: Option<i32>, reported: &mut Option<String>) {
    let mut introduction = Vec::new();
    let mut reader = (&mut holder).take(LONGEST);
    // Whatever is read before the timeout is kept. A holder without a line has ended, or is about
    // to.
    let _ = timeout(INTRODUCED_WITHIN, async {
        while !introduction.ends_with(b"\n") && reader.read_buf(&mut introduction).await? > 0 {}
        io::Result::Ok(())
    })
    .await;
    if let Some(text) = describe(&introduction, process)
        && reported.as_ref() != Some(&text)
    {
        warn!(
            "another agent serves this node: this agent neither serves nor writes anything until \
             that one exits: {text}"
        );
        *reported = Some(text);
    }
    let mut rest = [0; 64];
    // An error means that the holder has ended, too.
    while holder.read(&mut rest).await.is_ok_and(|read| read > 0) {}
}

/// Describes the holder by its introduction, and by its process id in this namespace, if it has
/// one.
fn describe(introduction: &[u8], process: Option<i32>) -> Option<String> {
    let text = String::from_utf8_lossy(introduction);
    // Safe to log.
    let text: String = text.trim().chars().filter(|c| !c.is_control()).collect();
    match (text.is_empty(), process) {
        (true, None) => None,
        (true, Some(process)) => Some(format!("process {process}, which does not identify itself")),
        (false, None) => Some(format!("{text} (in another container)")),
        (false, Some(process)) if text.contains(&format!("process {process},")) => Some(text),
        (false, Some(process)) => Some(format!("{text} (here process {process})")),
    }
}

/// Sends `introduction` to each waiting agent and keeps the connection, until `stop` is cancelled.
/// The lock is held for longer than that.
async fn introduce(listener: UnixListener, introduction: String, stop: CancellationToken) {
    let line: Arc<str> = (introduction + "\n").into();
    let mut waiting = JoinSet::new();
    loop {
        // All arms are cancel safe.
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            Some(_) = waiting.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) if waiting.len() < MOST_WAITING => {
                waiting.spawn(keep(stream, Arc::clone(&line)));
            }
            // Too many are waiting: this one will retry.
            Ok(_) => {}
            // Out of file descriptors.
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// Keeps the connection until the waiting agent closes it by ending.
async fn keep(mut stream: UnixStream, line: Arc<str>) {
    if stream.write_all(line.as_bytes()).await.is_ok() {
        let _ = stream.read(&mut [0]).await;
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::OtherUser(user) => write!(
                f,
                "the socket @{NAME} belongs to a process of user {user}, which is not an agent"
            ),
            Reason::NotListening => {
                write!(f, "the socket @{NAME} exists, but no process listens on it")
            }
            Reason::Refused(error) => {
                write!(f, "failed to create the socket @{NAME}: {}", chain(error))
            }
        }
    }
}

#[cfg(test)]
mod tests;
