//! The server side of the agent's socket: handovers one at a time, and queries at any time.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use crds::profile::mode::Mode;
use dataplane::Dataplane;
use modes::{Lock, findings};
use runtime::{CancellationToken, chain};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Mutex;
use tokio::task::{JoinError, JoinSet, spawn_blocking};
use tokio::time::timeout;
use tracing::{info, warn};
use xtables::Variant;

use super::closing::Counters;
use super::contradiction::contradiction;
use super::debug_request::{self, DebugRequest};
use super::preflight::{Point, Severity};
use super::{Direction, Ending, Reply, Request, WarningPolicy, socket_within};
use crate::Agent;
use crate::HandbackMark;
use foreign_proxy::{self, ForeignProxyScan};

/// How long a request may take to arrive, and its maximum length in bytes.
const PATIENCE: Duration = Duration::from_secs(5);
const LONGEST_REQUEST: u64 = 4096;
/// How many connections are served at the same time. Further ones wait.
const MOST_CALLERS: usize = 16;

/// The server, with the state that handovers read and change.
#[derive(Debug)]
pub struct Server {
    socket: PathBuf,
    pub(super) agent: Arc<dyn Agent>,
    pub(super) mark: HandbackMark,
    debug: Router,
    /// The lock of legacy tables.
    pub(super) lock: Lock,
    /// Held during a handover.
    pub(super) turn: Mutex<()>,
    /// kube-proxy's counters as of the last check, which blocking threads read and replace.
    pub(super) counters: Arc<std::sync::Mutex<Counters>>,
}

/// Signpost's side of a comparison with another proxy.
#[derive(Debug, Clone)]
pub(super) struct SignpostSide {
    /// The active mode, or the desired one before any is active.
    pub(super) mode: Mode,
    /// The variant of iptables that has Signpost's chains, or would have them, if it is known.
    pub(super) variant: Option<Variant>,
    /// The desired state; `None` before the first.
    pub(super) desired: Option<Dataplane>,
}

/// The requester of a handover: a command or, by default, the profile, which needs only the
/// outcome. A handover that has begun continues if the command disconnects.
#[derive(Default)]
pub(super) struct Caller {
    /// The connection of a command.
    command: Option<OwnedWriteHalf>,
    /// What prevents the handover.
    obstacles: Vec<String>,
    /// The last line that was sent.
    last: String,
}

// === impl Server ===

impl Server {
    /// Serves the socket in the state directory, which also contains `mark`. Queries are answered
    /// by `debug`.
    pub fn within(
        state: &Path,
        agent: Arc<dyn Agent>,
        mark: HandbackMark,
        debug: Router,
        lock: Lock,
    ) -> Server {
        Server {
            socket: socket_within(state),
            agent,
            mark,
            debug,
            lock,
            turn: Mutex::new(()),
            counters: Arc::default(),
        }
    }

    /// Answers until `stop` is cancelled. Without a directory for its socket, it does not answer,
    /// and the node is served all the same.
    pub async fn serve(self: Arc<Server>, stop: CancellationToken) {
        let listener = match self.listen() {
            Ok(listener) => listener,
            Err(error) => {
                let at = self.socket.display();
                warn!(%at, error = %chain(&error), "takeover and handback are not available");
                return stop.cancelled().await;
            }
        };
        // The set is dropped at the end of this function, which ends its tasks. The steps of a
        // handover may outlast a stop only by their own deadlines. A killed agent continues from
        // the mark after its start, or is asked again.
        let mut callers = JoinSet::new();
        loop {
            // Every arm is cancel safe.
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                Some(ended) = callers.join_next() => {
                    ended.unwrap_or_else(resume_panic);
                    continue;
                }
                accepted = listener.accept(), if callers.len() < MOST_CALLERS => accepted,
            };
            let Ok((stream, _)) = accepted else {
                // Out of file descriptors: the client has to ask again.
                tokio::time::sleep(PATIENCE).await;
                continue;
            };
            callers.spawn(Arc::clone(&self).converse(stream));
        }
    }

    async fn converse(self: Arc<Server>, stream: UnixStream) {
        let (reader, writer) = stream.into_split();
        let mut line = String::new();
        let mut reader = BufReader::new(reader.take(LONGEST_REQUEST));
        let read = timeout(PATIENCE, reader.read_line(&mut line)).await;
        let mut caller = Caller::command(writer);
        if let Ok(debug_request) = serde_json::from_str::<DebugRequest>(&line) {
            let answer = debug_request::answer(self.debug.clone(), &debug_request).await;
            return caller.send(&answer).await;
        }
        let Ok(request) = serde_json::from_str::<Request>(&line) else {
            info!(?read, "received an invalid handover request");
            return;
        };
        let _turn = self.turn.lock().await;
        info!(?request, "received a handover request");
        let ending = match self.contradiction(request.what) {
            None => {
                self.carry_out(request.what, request.effort, &mut caller)
                    .await
            }
            Some(text) => {
                caller.say(format!("obstacle: {text}")).await;
                Ending::Refused
            }
        };
        info!(%ending, "the handover has finished");
        caller.send(&Reply::Ended(ending)).await;
    }

    fn listen(&self) -> io::Result<UnixListener> {
        if let Some(directory) = self.socket.parent() {
            fs::create_dir_all(directory)?;
        }
        match fs::remove_file(&self.socket) {
            // The socket of an earlier agent.
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let listener = UnixListener::bind(&self.socket)?;
        fs::set_permissions(&self.socket, Permissions::from_mode(0o600))?;
        Ok(listener)
    }

    /// Performs the handover `what`. The caller holds `turn`.
    pub(super) async fn carry_out(
        &self,
        what: Direction,
        effort: WarningPolicy,
        caller: &mut Caller,
    ) -> Ending {
        match what {
            Direction::Takeover => self.take_over(effort, caller).await,
            Direction::Handback => self.hand_back(effort, caller).await,
        }
    }

    /// Returns why the node's profile rules `what` out.
    fn contradiction(&self, what: Direction) -> Option<String> {
        let profile = self.agent.profile_name()?;
        contradiction(self.agent.desired_handover(), what, &profile)
    }

    /// Scans for other proxies now.
    pub(super) async fn observe_proxies(&self) -> ForeignProxyScan {
        let scan = blocking(foreign_proxy::observe).await;
        self.agent.post_scan(scan.clone());
        scan
    }

    /// Returns Signpost's side of a comparison.
    pub(super) fn signpost(&self) -> SignpostSide {
        let view = self.agent.view();
        let mode = || view.as_ref().map(|view| view.effective.mode);
        let modes = self.agent.modes();
        let mode = findings::mode(&modes).or_else(mode);
        SignpostSide {
            mode: mode.unwrap_or_default(),
            variant: findings::variant(&self.agent.variants(), &modes),
            desired: view.and_then(|view| view.desired.clone()),
        }
    }
}

// === impl SignpostSide ===

impl SignpostSide {
    /// Returns the addresses by which other nodes reach this one, at most one of each family.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        let node = self.desired.as_ref().map(Dataplane::node);
        let ipv4 = node.and_then(|node| node.ipv4).map(IpAddr::V4);
        let ipv6 = node.and_then(|node| node.ipv6).map(IpAddr::V6);
        ipv4.into_iter().chain(ipv6).collect()
    }
}

// === impl Caller ===

impl Caller {
    fn command(connection: OwnedWriteHalf) -> Caller {
        Caller {
            command: Some(connection),
            ..Caller::default()
        }
    }

    pub(super) async fn say(&mut self, line: impl Into<String>) {
        let line = line.into();
        info!("{line}");
        self.last.clone_from(&line);
        self.send(&Reply::Line(line)).await;
    }

    /// Returns what prevents the handover, without the commands to type.
    pub(super) fn refusal(&self) -> String {
        let first_line = |text: &String| text.lines().next().unwrap_or_default().to_owned();
        let obstacles: Vec<String> = self.obstacles.iter().map(first_line).collect();
        match obstacles.is_empty() {
            true => first_line(&self.last),
            false => obstacles.join("; "),
        }
    }

    /// Sends all `points`. Returns whether the handover may proceed.
    pub(super) async fn allows(&mut self, points: Vec<Point>, effort: WarningPolicy) -> bool {
        let worst = points.iter().map(|point| point.weight).max();
        for point in &points {
            self.say(point.to_string()).await;
        }
        let obstacles = points
            .into_iter()
            .filter(|point| point.weight > Severity::Note);
        self.obstacles.extend(obstacles.map(|point| point.text));
        match worst {
            Some(Severity::Obstacle) => false,
            Some(Severity::Warning) if effort == WarningPolicy::Forced => true,
            Some(Severity::Warning) => {
                if self.command.is_some() {
                    self.say("--force overrides this").await;
                }
                false
            }
            Some(Severity::Note) | None => true,
        }
    }

    async fn send(&mut self, reply: &impl Serialize) {
        if let Ok(mut text) = serde_json::to_string(reply) {
            text.push('\n');
            // The client may have disconnected.
            if let Some(command) = &mut self.command {
                let _ = command.write_all(text.as_bytes()).await;
            }
        }
    }
}

/// Propagates a panic of a task.
fn resume_panic(error: JoinError) {
    if error.is_panic() {
        std::panic::resume_unwind(error.into_panic());
    }
}

/// Runs `work` on a blocking thread.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is shutting down, and this task with it.
        Err(_) => std::future::pending().await,
    }
}
