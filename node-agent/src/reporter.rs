//! Writes this node's status where people and the operator read it: to its own NodeProxy, to a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crds::condition::{self, FEATURES_HONOURED};
use crds::{NodeProxy, NodeProxyStatus};
use jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use reconciler::SLOW_ROUND;
use runtime::{CancellationToken, Check, Readiness, chain};
use thiserror::Error;
use tokio::time::{Instant as Deadline, sleep_until};
use tracing::{debug, warn};

use crate::board::Board;
use crate::conntrack;
use crate::status::{Facts, NotServed, status};
use crate::support::done_without;

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
/// The shortest time between two statuses that are composed: a node may commit a hundred changes a
/// second, and nobody asks as often how it is. A file, which costs nobody else anything, is written each
/// time.
const COMPOSED: Duration = Duration::from_millis(100);
/// How long a status stands when nothing is heard: of a source that is silent or a round that is slow,
/// only time tells.
const LOOKED_AT: Duration = SLOW_ROUND;
/// The time between an attempt that failed and the next.
const RETRY: Duration = Duration::from_secs(3);

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
///
/// The first change after quiet is taken in at once; what comes within [`COMPOSED`] of it, together.
pub(crate) async fn compose(
    board: Arc<Board>,
    readiness: Check,
    kernel: String,
    stop: CancellationToken,
) {
    let (mut view, mut report) = (board.view(), board.report());
    let (mut not_relayed, mut crowded) = (board.not_relayed(), board.crowded());
    let mut connections = board.conntrack();
    let (mut duty, mut sight) = (board.duty(), board.sight());
    let mut variants = board.variants();
    let mut status_now = Arc::<NodeProxyStatus>::default();
    let mut not_served = NotServed::default();
    let mut earliest = Deadline::now();
    // What was posted before this began to listen is news, too.
    view.mark_changed();
    loop {
        // All arms are cancel safe: a change that is missed here is seen at the next look.
        tokio::select! {
            () = stop.cancelled() => return,
            changed = view.changed() => if changed.is_err() { return },
            changed = report.changed() => if changed.is_err() { return },
            changed = not_relayed.changed() => if changed.is_err() { return },
            changed = crowded.changed() => if changed.is_err() { return },
            changed = connections.changed() => if changed.is_err() { return },
            changed = duty.changed() => if changed.is_err() { return },
            changed = sight.changed() => if changed.is_err() { return },
            changed = variants.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(LOOKED_AT) => {}
        }
        // Cancel safe: neither arm holds anything, and what changes meanwhile is seen after it.
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep_until(earliest) => {}
        }
        let view = view.borrow_and_update().clone();
        let report = report.borrow_and_update().clone();
        let not_relayed = not_relayed.borrow_and_update().clone();
        let crowded = crowded.borrow_and_update().clone();
        let connections = connections.borrow_and_update().clone();
        let (duty, sight) = (*duty.borrow_and_update(), sight.borrow_and_update().clone());
        let variants = variants.borrow_and_update().clone();
        let Some(view) = view else { continue };
        let families = report
            .iter()
            .flat_map(|report| done_without(&report.families));
        let lacking: Vec<_> = families.map(|family| family.family).collect();
        not_served.follow(&lacking, view.wanted.as_ref());
        let facts = Facts {
            view: &view,
            report: report.as_deref(),
            under_way: board.under_way(),
            elements: board.elements(),
            carried: &board.carried(),
            variants: &variants,
            latency: board.latency(Instant::now()),
            connections: &connections,
            not_relayed: &not_relayed,
            crowded: &crowded,
            not_served: &not_served,
            duty,
            sight: &sight,
            kernel: &kernel,
        };
        status_now = Arc::new(status(&facts, &status_now, Timestamp::now()));
        readiness.report(readiness_of(&status_now));
        board.post_status(Arc::clone(&status_now));
        earliest = Deadline::now() + COMPOSED;
    }
}

/// What the probes are told: the condition Ready.
fn readiness_of(status: &NodeProxyStatus) -> Readiness {
    let mut conditions = status.conditions.iter();
    match conditions.find(|condition| condition.type_ == condition::READY) {
        Some(ready) if ready.status == "True" => Readiness::Ready,
        Some(ready) => Readiness::NotReady(format!("{}: {}", ready.reason, ready.message)),
        None => Readiness::NotReady(String::new()),
    }
}

/// Writes the status to `destination` when it changes, and now and then when it does not.
pub(crate) async fn report(
    destination: Destination,
    node: String,
    board: Arc<Board>,
    stop: CancellationToken,
) {
    let mut status = board.status();
    let mut last = Last::Never;
    loop {
        let current = status.borrow_and_update().clone();
        let due = last.due(&current, &destination, Deadline::now());
        // Cancel safe: what is due is looked at anew whichever arm ends.
        tokio::select! {
            () = stop.cancelled() => return,
            changed = status.changed() => if changed.is_err() { return } else { continue },
            () = sleep_until(due) => {}
        }
        let outcome = write(&destination, &node, &board, &current).await;
        let at = Deadline::now();
        last = match outcome {
            Ok(()) => Last::Written {
                status: current,
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
        status: Arc<NodeProxyStatus>,
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
                    return now;
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
    let NodeProxyStatus {
        observed_generation,
        applied_hash,
        mode,
        // Rounds that find nothing to do are worth a write when one is due anyway.
        last_sync_time: _,
        sync_latency,
        counts,
        conntrack: _,
        iptables,
        agent_version,
        kernel_version,
        rejections,
        conditions,
    } = before;
    let same_meaning = *observed_generation == after.observed_generation
        && *applied_hash == after.applied_hash
        && *mode == after.mode
        && said(before).eq(said(after));
    let same_figures = *sync_latency == after.sync_latency
        && *counts == after.counts
        && *iptables == after.iptables
        && *agent_version == after.agent_version
        && *kernel_version == after.kernel_version
        && *rejections == after.rejections
        && *conditions == after.conditions;
    if !same_meaning {
        Difference::Meaning
    } else if same_figures {
        Difference::None
    } else if sync_latency.is_none() && after.sync_latency.is_some() {
        Difference::FirstLatency
    } else {
        Difference::Figures
    }
}

/// What each condition says, without its particulars.
fn said(status: &NodeProxyStatus) -> impl Iterator<Item = [&str; 3]> {
    let conditions = status.conditions.iter();
    conditions
        // What is honoured changes with Services, on every node alike.
        .filter(|condition| condition.type_ != FEATURES_HONOURED)
        .map(|c| [&*c.type_, &*c.status, &*c.reason])
}

async fn write(
    destination: &Destination,
    node: &str,
    board: &Board,
    status: &NodeProxyStatus,
) -> Result<(), WriteError> {
    let status = NodeProxyStatus {
        conntrack: conntrack::observe_fill(),
        ..status.clone()
    };
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
            let in_force = board.in_force().borrow().clone();
            let spec = in_force
                .and_then(|in_force| Some(in_force.configuration.assignment()?.spec.clone()));
            let mut document = NodeProxy::new(node, spec.unwrap_or_default());
            document.status = Some(status);
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
    use crate::engine::{Engine, Silence, View};
    use crds::node_proxy::{ConntrackFill, Counts};
    use runtime::Health;

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
        let filled = NodeProxyStatus {
            conntrack: Some(ConntrackFill { entries: 7, max: 9 }),
            ..before.clone()
        };
        assert_eq!(difference(&before, &filled), Difference::None);
        let observed = NodeProxyStatus {
            observed_generation: Some(2),
            ..counted
        };
        assert_eq!(difference(&before, &observed), Difference::Meaning);
    }
    /// At a hundred changes a second, the status is composed ten times a second, and says the last of
    /// them in the end.
    #[tokio::test(start_paused = true)]
    async fn a_burst_is_taken_in_together_and_the_last_of_it_is_never_lost() {
        let board = Arc::new(Board::new());
        let post = |endpoints| {
            let view = Engine::new("node-1", None, Silence::MayEnd).view();
            board.post_view(View { endpoints, ..view });
        };
        let (mut said, mut counted) = (board.status(), board.status());
        let counting = tokio::spawn(async move {
            let mut statuses = 0;
            while counted.changed().await.is_ok() {
                statuses += 1;
                if counted.borrow_and_update().counts.endpoints == 100 {
                    break;
                }
            }
            statuses
        });
        let stop = CancellationToken::new();
        let stopper = stop.clone();
        let readiness = Health::new().check("programmed");
        let composing = compose(Arc::clone(&board), readiness, String::new(), stop);
        let composing = tokio::spawn(composing);

        let start = Deadline::now();
        post(1);
        let first = said.wait_for(|status| status.counts.endpoints == 1).await;
        drop(first.expect("the board is there"));
        assert_eq!(Deadline::now(), start, "the first waits for nothing");
        for endpoints in 2..=100 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            post(endpoints);
        }
        let statuses = counting.await.expect("it ends with the last");
        assert!((10..=11).contains(&statuses), "{statuses} statuses");
        stopper.cancel();
        composing.await.expect("it ends when it is told to");
    }
}
