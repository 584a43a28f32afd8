//! Checks what was programmed with a new connection to the API server's Service, as a process of the
//! node opens it.
//!
//! The rules of a mode may be in the kernel as rendered and still forward nothing: another
//! program's rule drops the packets, a module or a sysctl is missing. Only a packet shows that.

use std::io::{self, ErrorKind};
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crds::condition::{self, Finding, READY, Status, reason};
use crds::{ConfigHash, NodeProxyStatus};
use dataplane::{Dataplane, FrontendKey, FrontendKind, Protocol, ServiceKey};
use kube::Client;
use runtime::CancellationToken;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::debug;

use crate::engine::View;
use crate::jitter::{fraction, jittered, spread};
use crate::latest::{post, wait_for};

/// The time between two checks. 5,000 nodes open 17 connections a second.
const EVERY: Duration = Duration::from_secs(300);
/// The time until a check that was not possible is repeated, and the longest time until one that
/// failed is. The latter doubles up to [`EVERY`] after [`FREQUENT`] reported failures, and sooner
/// while the API server does not answer either: a failed check costs the API server a request, and
/// the same fault may be on all nodes.
const REPEATED_AFTER: Duration = Duration::from_secs(10);
/// The number of attempts of one check, each to an endpoint of its own choice, and how long each
/// takes if it fails. One API server of three that is down makes one check in 240 fail.
const ATTEMPTS: u32 = 5;
const ATTEMPT: Duration = Duration::from_secs(1);
/// How long the API server may take to answer a request.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
/// The number of failed checks in a row that are reported.
const REPORTED: u32 = 2;

/// Whether new connections reach the API server through its Service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum ApiServiceState {
    /// The Service has no cluster IP or no endpoint, the API server does not answer, or the node has
    /// not been ready yet.
    #[default]
    Unchecked,
    /// The last check succeeded while the node had this configuration.
    Reachable(SocketAddr, ConfigHash),
    /// Several checks in a row have failed, the last with this error.
    Unreachable(SocketAddr, String),
}

/// Checks once the node is ready, after each applied configuration, and from time to time, until
/// `stop` is cancelled. A node that is not ready says why itself. A failure counts only if the API
/// server answers `client` at that time.
pub(crate) async fn check(
    view: watch::Receiver<Option<Arc<View>>>,
    status: watch::Receiver<Arc<NodeProxyStatus>>,
    state: watch::Sender<ApiServiceState>,
    client: Client,
    stop: CancellationToken,
) {
    let checking = check_for_ever(&view, status, &state, &client);
    // Cancel safe: the process ends.
    tokio::select! {
        () = stop.cancelled() => {}
        () = checking => {}
    }
}

/// Never returns.
async fn check_for_ever(
    view: &watch::Receiver<Option<Arc<View>>>,
    mut status: watch::Receiver<Arc<NodeProxyStatus>>,
    state: &watch::Sender<ApiServiceState>,
    client: &Client,
) {
    let mut failures = FailedChecks::default();
    let mut last_hash = None;
    loop {
        let current = status.borrow_and_update().clone();
        if last_hash != current.applied_hash {
            last_hash.clone_from(&current.applied_hash);
            failures = FailedChecks::default();
        }
        let before = mem::take(&mut failures);
        let mut pause = REPEATED_AFTER;
        let destination = destination(view.borrow().as_deref(), &current);
        match destination {
            Destination::Unknown => {}
            Destination::None => post(state, ApiServiceState::Unchecked),
            Destination::ClusterIp(address) => match connect(address).await {
                Ok(()) => {
                    pause = jittered(EVERY);
                    let config = current.applied_hash.clone().unwrap_or_default();
                    post(state, ApiServiceState::Reachable(address, config));
                }
                // The node has no route there, and the kernel looks for one before it sees rules.
                Err(error) if error.kind() == ErrorKind::NetworkUnreachable => {
                    post(state, ApiServiceState::Unchecked);
                }
                Err(error) if !answers(client).await => {
                    debug!(%address, %error, "neither Service nor API server answer");
                    failures.unanswered = before.unanswered.saturating_add(1);
                    pause = spread(pause_after(failures.unanswered), fraction());
                }
                Err(error) => {
                    failures.answered = before.answered.saturating_add(1);
                    pause = spread(
                        pause_after(failures.answered.saturating_sub(FREQUENT)),
                        fraction(),
                    );
                    if failures.answered >= REPORTED {
                        let error = error.to_string();
                        post(state, ApiServiceState::Unreachable(address, error));
                    }
                }
            },
        }
        let is_another = |now: &Arc<NodeProxyStatus>| {
            now.applied_hash != current.applied_hash || is_ready(now) != is_ready(&current)
        };
        // Cancel safe: the status is read again above.
        tokio::select! {
            () = wait_for(&mut status, is_another) => {}
            () = sleep(pause) => {}
        }
    }
}

/// So many checks that fail are repeated soon: for more than the two minutes after which a node
/// counts as failed in a rollout, so that one that is repaired by then is not.
const FREQUENT: u32 = 12;

/// The number of checks in a row that have failed.
#[derive(Debug, Default)]
struct FailedChecks {
    /// While the API server answered requests.
    answered: u32,
    /// While it did not.
    unanswered: u32,
}

/// Returns the longest pause after this many failed checks in a row.
fn pause_after(failures: u32) -> Duration {
    let doubled = failures.saturating_sub(REPORTED).min(10);
    REPEATED_AFTER.saturating_mul(1 << doubled).min(EVERY)
}

/// The destination of a check.
enum Destination {
    /// The node is not ready, or does not follow the API server: what is known stays.
    Unknown,
    /// The Service has no cluster IP of a family that the node has, or no endpoint.
    None,
    /// This cluster IP and port.
    ClusterIp(SocketAddr),
}

fn destination(view: Option<&View>, status: &NodeProxyStatus) -> Destination {
    let Some(view) = view.filter(|_| is_ready(status)) else {
        return Destination::Unknown;
    };
    if view.source.stale.is_some() {
        return Destination::None;
    }
    let address = view.desired.as_ref().and_then(address_of);
    address.map_or(Destination::None, Destination::ClusterIp)
}

/// Returns the cluster IP and port of the API server's Service, if it has endpoints and the node an
/// address of this family.
fn address_of(desired: &Dataplane) -> Option<SocketAddr> {
    let rules = desired.services().get(&ServiceKey::api_server())?;
    rules
        .frontends
        .iter()
        .find_map(|(key, frontend)| match key {
            FrontendKey::Address {
                address,
                protocol: Protocol::Tcp,
                port,
            } if frontend.kind == FrontendKind::ClusterIp
                && !frontend.cluster.is_empty()
                && desired.node().has_address(key.family()) =>
            {
                Some(SocketAddr::new(*address, port.get()))
            }
            FrontendKey::Address { .. } | FrontendKey::NodePort { .. } => None,
        })
}

fn is_ready(status: &NodeProxyStatus) -> bool {
    condition::status_of(&status.conditions, READY) == Status::True
}

/// Opens a connection and closes it. The error is that of the last attempt.
async fn connect(address: SocketAddr) -> io::Result<()> {
    let mut last = io::Error::from(ErrorKind::TimedOut);
    for _ in 0..ATTEMPTS {
        let next = Instant::now() + ATTEMPT;
        match timeout(ATTEMPT, TcpStream::connect(address)).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => last = error,
            Err(_) => last = io::Error::from(ErrorKind::TimedOut),
        }
        sleep_until(next).await;
    }
    Err(last)
}

/// Whether the API server answers a request.
async fn answers(client: &Client) -> bool {
    let answered = timeout(ANSWERED_WITHIN, client.apiserver_version()).await;
    // An answer that refuses is one, too.
    matches!(answered, Ok(Ok(_) | Err(kube::Error::Api(_))))
}

// === impl ApiServiceState ===

impl ApiServiceState {
    /// Returns the condition of a node that should have `config`; the caller knows whether the check
    /// means anything now. A success with another configuration proves nothing about this one.
    pub(crate) fn finding(&self, config: &ConfigHash, is_meaningful: bool) -> Finding {
        let say = |status, reason, message| {
            Finding::new(condition::API_SERVICE_REACHABLE, status, reason, message)
        };
        match self {
            ApiServiceState::Reachable(address, checked) if is_meaningful && checked == config => {
                let message = format!("a new connection to {address} was accepted");
                say(Status::True, reason::CONNECTED, message)
            }
            ApiServiceState::Unreachable(..) if is_meaningful => {
                let message = self.problem().unwrap_or_default();
                say(Status::False, reason::CONNECTION_FAILED, message)
            }
            _ => say(Status::Unknown, reason::NOT_CHECKED, String::new()),
        }
    }

    /// Describes the failure, if there is one.
    pub(crate) fn problem(&self) -> Option<String> {
        let ApiServiceState::Unreachable(address, error) = self else {
            return None;
        };
        Some(format!(
            "new connections to Service default/kubernetes at {address} fail through the programmed rules: {error}"
        ))
    }
}

#[cfg(test)]
mod tests;
