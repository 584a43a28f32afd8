//! Writes this node's status where people and the operator read it: to its own NodeProxy, to a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crds::condition::FEATURES_HONOURED;
use crds::{NodeProxy, NodeProxySpec, NodeProxyStatus};
use jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use runtime::{Check, Readiness, Stop, chain};
use thiserror::Error;
use tokio::time::{Instant as Deadline, sleep_until};
use tracing::{debug, warn};

use crate::board::Board;
use crate::conntrack;
use crate::status::{Facts, ready, status};

/// The field manager of the agents: each writes the status of one object, alone.
const FIELD_MANAGER: &str = "signpost-agent";
/// The shortest time between two writes.
const AT_ONCE: Duration = Duration::from_secs(1);
/// The time between two writes when only figures have changed: latency, counts, what is rejected. One
/// change of a Service is one of these on every node, so each node also waits for a part of this time
/// of its own from when it saw the change: 5,000 nodes spread over it are 83 writes a second.
const FIGURES: Duration = Duration::from_secs(60);
/// The part that the first latency after a start waits for.
const FIRST_LATENCY: Duration = Duration::from_secs(5);
/// The time between two writes when nothing has changed: what says that this agent lives. Five
/// minutes keep 5,000 nodes at 17 writes a second.
const IDLE: Duration = Duration::from_secs(300);
/// The time between an attempt that failed and the next.
const RETRY: Duration = Duration::from_secs(3);
/// The time between two writes of a file, which costs nobody else anything.
const FILE: Duration = Duration::from_millis(100);

/// Where a status goes.
#[derive(Clone)]
pub(crate) enum Destination {
    /// To this node's own NodeProxy.
    Api(Box<Api<NodeProxy>>),
    /// To a file, as a whole NodeProxy document.
    File(PathBuf),
}

/// Why a status was not written.
#[derive(Debug, Error)]
enum WriteError {
    #[error("failed to write {}", file.display())]
    File {
        file: PathBuf,
        source: std::io::Error,
    },
    #[error("failed to apply the status of NodeProxy {node}")]
    Api { node: String, source: kube::Error },
}

/// Composes the status whenever something changes, until told to stop. The probes learn of it here.
pub(crate) async fn compose(board: Arc<Board>, readiness: Check, kernel: String, stop: Stop) {
    let (mut view, mut report) = (board.view(), board.report());
    let mut not_relayed = board.not_relayed();
    let mut connections = board.conntrack();
    let (mut duty, mut sight) = (board.duty(), board.sight());
    let mut variants = board.variants();
    let mut status_now = NodeProxyStatus::default();
    loop {
        // All arms are cancel safe: a change that is missed here is seen at the next look.
        tokio::select! {
            () = stop.stopped() => return,
            changed = view.changed() => if changed.is_err() { return },
            changed = report.changed() => if changed.is_err() { return },
            changed = not_relayed.changed() => if changed.is_err() { return },
            changed = connections.changed() => if changed.is_err() { return },
            changed = duty.changed() => if changed.is_err() { return },
            changed = sight.changed() => if changed.is_err() { return },
            changed = variants.changed() => if changed.is_err() { return },
            // Figures of the last while change without anything happening.
            () = tokio::time::sleep(FIGURES) => {}
        }
        let view = view.borrow_and_update().clone();
        let report = report.borrow_and_update().clone();
        let not_relayed = not_relayed.borrow_and_update().clone();
        let connections = connections.borrow_and_update().clone();
        let (duty, sight) = (*duty.borrow_and_update(), sight.borrow_and_update().clone());
        let variants = variants.borrow_and_update().clone();
        let Some(view) = view else { continue };
        let facts = Facts {
            view: &view,
            report: report.as_deref(),
            elements: board.elements(),
            carried: &board.carried(),
            variants: &variants,
            latency: board.latency(Instant::now()),
            conntrack: conntrack::observe_fill(),
            connections: &connections,
            not_relayed: &not_relayed,
            duty,
            sight: &sight,
            kernel: &kernel,
        };
        let now = Timestamp::now();
        let finding = ready(&facts, now);
        readiness.report(match finding.status {
            crds::condition::Status::True => Readiness::Ready,
            _ => Readiness::NotReady(format!("{}: {}", finding.reason.name, finding.message)),
        });
        status_now = status(&facts, &status_now, now);
        board.post_status(status_now.clone());
    }
}

/// Writes the status to `destination` when it changes, and now and then when it does not.
pub(crate) async fn report(destination: Destination, node: String, board: Arc<Board>, stop: Stop) {
    let mut status = board.status();
    let mut last = Last::Never;
    loop {
        let current = status.borrow_and_update().clone();
        let due = last.due(&current, &destination, Deadline::now());
        // Cancel safe: what is due is looked at anew whichever arm ends.
        tokio::select! {
            () = stop.stopped() => return,
            changed = status.changed() => if changed.is_err() { return } else { continue },
            () = sleep_until(due) => {}
        }
        let view = board.view().borrow().clone();
        let assignment = view.and_then(|view| view.configuration.assignment().cloned());
        let spec = assignment.map(|assignment| assignment.spec);
        let outcome = write(&destination, &node, spec, &current).await;
        let at = Deadline::now();
        last = match outcome {
            Ok(()) => Last::Written {
                status: Box::new(current),
                at,
                idle: jittered(IDLE),
                differs_since: None,
            },
            Err(error) => {
                if is_absent(&error) {
                    debug!("there is no NodeProxy {node} yet to write a status to");
                } else {
                    warn!(error = %chain(&error), "the status is not written; trying again");
                }
                Last::Failed {
                    retry: at + jittered(RETRY),
                }
            }
        };
    }
}

/// What came of the last attempt to write.
enum Last {
    Never,
    Written {
        status: Box<NodeProxyStatus>,
        at: Deadline,
        idle: Duration,
        /// When the status was first seen to be another one.
        differs_since: Option<Deadline>,
    },
    Failed {
        retry: Deadline,
    },
}

/// How one status differs from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Difference {
    /// Not at all.
    None,
    /// In the first latency since the start.
    FirstLatency,
    /// In numbers and lists that change with Services, on all nodes at once.
    Figures,
    /// In what somebody may be waiting for.
    Meaning,
}

impl Last {
    /// When `current` is to be written.
    fn due(
        &mut self,
        current: &NodeProxyStatus,
        destination: &Destination,
        now: Deadline,
    ) -> Deadline {
        match self {
            Last::Never => now,
            Last::Failed { retry } => *retry,
            Last::Written {
                status,
                at,
                idle,
                differs_since,
            } => {
                let difference = difference(status, current);
                if difference == Difference::None {
                    *differs_since = None;
                    return *at + *idle;
                }
                let seen = *differs_since.get_or_insert(now);
                if matches!(destination, Destination::File(_)) {
                    return *at + FILE;
                }
                // Where in its range this node falls follows from when it wrote last.
                let part =
                    (*idle - IDLE.mul_f64(0.9)).as_secs_f64() / IDLE.mul_f64(0.2).as_secs_f64();
                match difference {
                    Difference::None | Difference::Meaning => *at + AT_ONCE,
                    Difference::FirstLatency => seen + FIRST_LATENCY.mul_f64(part.clamp(0.0, 1.0)),
                    Difference::Figures => {
                        (seen + FIGURES.mul_f64(part.clamp(0.0, 1.0))).max(*at + FIGURES)
                    }
                }
            }
        }
    }
}

fn difference(before: &NodeProxyStatus, after: &NodeProxyStatus) -> Difference {
    // Rounds that find nothing to do are worth a write when one is due anyway.
    let time = NodeProxyStatus {
        last_sync_time: after.last_sync_time.clone(),
        conntrack: after.conntrack,
        ..before.clone()
    };
    if time == *after {
        return Difference::None;
    }
    let said = |status: &NodeProxyStatus| -> Vec<(String, String, String)> {
        let conditions = status.conditions.iter();
        conditions
            // What is honoured changes with Services, on every node alike.
            .filter(|condition| condition.type_ != FEATURES_HONOURED)
            .map(|c| (c.type_.clone(), c.status.clone(), c.reason.clone()))
            .collect()
    };
    let same_meaning = before.observed_generation == after.observed_generation
        && before.applied_hash == after.applied_hash
        && before.mode == after.mode
        && said(before) == said(after);
    if !same_meaning {
        Difference::Meaning
    } else if before.sync_latency.is_none() && after.sync_latency.is_some() {
        Difference::FirstLatency
    } else {
        Difference::Figures
    }
}

async fn write(
    destination: &Destination,
    node: &str,
    spec: Option<NodeProxySpec>,
    status: &NodeProxyStatus,
) -> Result<(), WriteError> {
    match destination {
        Destination::Api(api) => {
            let patch = serde_json::json!({
                "apiVersion": "signpost.dev/v1alpha1",
                "kind": "NodeProxy",
                "metadata": {"name": node},
                "status": status,
            });
            let parameters = PatchParams::apply(FIELD_MANAGER).force();
            let applied = api
                .patch_status(node, &parameters, &Patch::Apply(&patch))
                .await;
            applied.map(drop).map_err(|source| WriteError::Api {
                node: node.to_owned(),
                source,
            })
        }
        Destination::File(file) => {
            let mut document = NodeProxy::new(node, spec.unwrap_or_default());
            document.status = Some(status.clone());
            write_file(file, &document).map_err(|source| WriteError::File {
                file: file.clone(),
                source,
            })
        }
    }
}

/// Readers see the old document or the new one.
fn write_file(file: &Path, document: &NodeProxy) -> std::io::Result<()> {
    let text = serde_saphyr::to_string(document).map_err(std::io::Error::other)?;
    let mut temporary = file.as_os_str().to_owned();
    temporary.push(".new");
    std::fs::write(&temporary, text)?;
    std::fs::rename(&temporary, file)
}

/// The operator has not made the object yet, or its kind is not installed.
fn is_absent(error: &WriteError) -> bool {
    matches!(error, WriteError::Api { source: kube::Error::Api(status), .. } if status.code == 404)
}

/// Between nine and eleven tenths of it, so that agents that started together drift apart.
fn jittered(pause: Duration) -> Duration {
    let nanoseconds = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos());
    pause.mul_f64(0.9 + f64::from(nanoseconds % 1000) / 5000.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::node_proxy::Counts;

    #[test]
    fn figures_alone_are_no_reason_to_hurry() {
        let before = NodeProxyStatus::default();
        let counted = NodeProxyStatus {
            counts: Counts {
                services: 7,
                ..Counts::default()
            },
            ..before.clone()
        };
        assert_eq!(difference(&before, &before), Difference::None);
        assert_eq!(difference(&before, &counted), Difference::Figures);
        let observed = NodeProxyStatus {
            observed_generation: Some(2),
            ..counted
        };
        assert_eq!(difference(&before, &observed), Difference::Meaning);
    }
}
