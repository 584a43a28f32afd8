//! Checks what was programmed with a new connection to the API server's Service, as a Pod opens it.
//!
//! The rules of a mode may be in the kernel as rendered and still forward nothing: another
//! program's rule drops the packets, a module or a sysctl is missing. Only a packet shows that.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crds::NodeProxyStatus;
use crds::condition::{self, Finding, READY, Status, reason};
use dataplane::{Dataplane, FrontendKey, FrontendKind, Protocol, ServiceKey};
use runtime::CancellationToken;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::board::Board;
use crate::jitter::jittered;

/// The time between two checks. 5,000 nodes open 17 connections a second.
const EVERY: Duration = Duration::from_secs(300);
/// The time until a check that failed, or was not possible, is repeated.
const REPEATED_AFTER: Duration = Duration::from_secs(10);
/// The number of attempts of one check, each to an endpoint of its own choice, and how long each may
/// take. One API server of three that is down makes one check in 240 fail.
const ATTEMPTS: u32 = 5;
const ATTEMPT: Duration = Duration::from_secs(1);
/// The number of failed checks in a row that are reported.
const REPORTED: u32 = 2;

/// Whether new connections reach the API server through its Service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum ApiServiceState {
    /// The Service has no cluster IP or no endpoint, or the node has not been ready yet.
    #[default]
    Unchecked,
    /// The last check succeeded.
    Reachable(SocketAddr),
    /// Several checks in a row have failed, the last with this error.
    Unreachable(SocketAddr, String),
}

/// Checks once the node is ready, after each applied configuration, and from time to time, until
/// `stop` is cancelled. A node that is not ready says why itself.
pub(crate) async fn check(board: Arc<Board>, stop: CancellationToken) {
    let mut status = board.status();
    let mut failures = 0;
    loop {
        let current = status.borrow_and_update().clone();
        let view = board.view().borrow().clone();
        let view = view.filter(|view| {
            // A directory of manifests has no API server.
            let has_api_server = view.source.unreadable.is_none();
            has_api_server && view.source.stale.is_none() && is_ready(&current)
        });
        let desired = view.as_deref().and_then(|view| view.desired.as_ref());
        let mut pause = REPEATED_AFTER;
        match desired.map(address_of) {
            // What is known stays: the node says itself why it is not ready.
            None => {}
            Some(None) => {
                failures = 0;
                board.post_api_service(ApiServiceState::Unchecked);
            }
            Some(Some(address)) => match connect(address).await {
                Ok(()) => {
                    failures = 0;
                    pause = jittered(EVERY);
                    board.post_api_service(ApiServiceState::Reachable(address));
                }
                Err(error) => {
                    failures += 1;
                    if failures >= REPORTED {
                        board.post_api_service(ApiServiceState::Unreachable(address, error));
                    }
                }
            },
        }
        let is_another = |now: &Arc<NodeProxyStatus>| {
            now.applied_hash != current.applied_hash || is_ready(now) != is_ready(&current)
        };
        // Cancel safe: the status is read again above.
        tokio::select! {
            () = stop.cancelled() => return,
            changed = async { status.wait_for(is_another).await.map(drop) } => {
                if changed.is_err() { return }
            }
            () = sleep(pause) => {}
        }
    }
}

/// Returns the cluster IP and port of the API server's Service, if it has endpoints. Its name is
/// fixed.
fn address_of(desired: &Dataplane) -> Option<SocketAddr> {
    let key = ServiceKey {
        namespace: "default".into(),
        name: "kubernetes".into(),
    };
    let rules = desired.services().get(&key)?;
    rules
        .frontends
        .iter()
        .find_map(|(key, frontend)| match key {
            FrontendKey::Address {
                address,
                protocol: Protocol::Tcp,
                port,
            } if frontend.kind == FrontendKind::ClusterIp && !frontend.cluster.is_empty() => {
                Some(SocketAddr::new(*address, port.get()))
            }
            FrontendKey::Address { .. } | FrontendKey::NodePort { .. } => None,
        })
}

fn is_ready(status: &NodeProxyStatus) -> bool {
    condition::status_of(&status.conditions, READY) == Status::True
}

/// Opens a connection and closes it. The error is that of the last attempt.
async fn connect(address: SocketAddr) -> Result<(), String> {
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        match timeout(ATTEMPT, TcpStream::connect(address)).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => last = error.to_string(),
            Err(_) => last = format!("no answer within {} s", ATTEMPT.as_secs()),
        }
    }
    Err(last)
}

// === impl ApiServiceState ===

impl ApiServiceState {
    /// Returns the condition; the caller knows whether the check means anything now.
    pub(crate) fn finding(&self, is_meaningful: bool) -> Finding {
        let say = |status, reason, message| {
            Finding::new(condition::API_SERVICE_REACHABLE, status, reason, message)
        };
        match self {
            ApiServiceState::Reachable(address) if is_meaningful => {
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
