//! Writes this node's status to its NodeProxy and to a file.

mod difference;
mod earlier;
mod inputs;
mod last;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crds::condition;
use crds::node_proxy::Heartbeat;
use crds::{NodeProxy, NodeProxyStatus};
use jiff::Timestamp;
use kube::api::Api;
use kube::core::ApiResource;
use reconciler::{SLOW_SYNC, done_without};
use runtime::{AppliedStatus, CancellationToken, Check, Readiness, apply_status, chain};
use serde_json::Value;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Instant as Deadline, sleep_until};
use tracing::{debug, warn};

use crate::engine::AppliedConfig;
use crate::jitter::{fraction, jittered, spread};
use crate::latest::{changed, post};
use crate::status::{Facts, NotServed, status};
use earlier::{Earlier, stands_in};
pub(crate) use earlier::{START, is_starting};
pub(crate) use inputs::{ComposeInputs, ReportInputs};
use last::{Last, Written};

/// The field manager of the agents. Each agent writes the status of one object.
const FIELD_MANAGER: &str = "signpost-agent";
/// The shortest time between two writes.
const AT_ONCE: Duration = Duration::from_secs(1);
/// The shortest time between two writes if only figures have changed: latency, counts, rejections.
/// While Services change all the time, 5,000 nodes make 33 writes a second.
const FIGURES: Duration = Duration::from_secs(150);
/// The range of the delay before changed figures are written after a quiet time. One changed
/// Service changes figures on every node at once, so each node waits for a different part of this
/// time.
const FIGURES_SPREAD: Duration = Duration::from_secs(60);
/// The same range for a loss of the API server and its return, which all nodes see at once. Most
/// end before that, and cost no write.
const SOURCE_SPREAD: Duration = Duration::from_secs(30);
/// The same range for the first latency after a start.
const FIRST_LATENCY: Duration = Duration::from_secs(5);
/// The time between two writes if nothing has changed: without a Lease they show that this agent is
/// alive, and they restore what another client has written, or complete a provisional status.
const IDLE: Duration = Duration::from_secs(300);
/// The shortest time between two composed statuses: a node may commit a hundred changes a second,
/// and no reader needs its status as often. A file is written each time, which costs no other
/// process anything.
const COMPOSED: Duration = Duration::from_millis(100);
/// How long a status may stand without any change. A silent source or a slow sync shows only by the
/// time that has passed.
const LOOKED_AT: Duration = SLOW_SYNC;
/// The longest pause after a first failed attempt. It doubles up to [`LONGEST_RETRY`].
const RETRY: Duration = Duration::from_secs(3);
/// The longest pause between failed attempts. It is short enough that a profile's status is correct
/// within half a minute after an outage. 5,000 nodes in the same outage make some 200 requests a
/// second.
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// How long to wait for a NodeProxy that does not exist. The watch reports when it does; this
/// covers a missed event.
const ABSENT: Duration = Duration::from_secs(3600);

/// Where a status is written.
#[derive(Clone)]
pub(crate) enum Destination {
    /// This node's NodeProxy.
    Api(Box<Api<NodeProxy>>),
    /// A file, as a whole NodeProxy document.
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
    #[error("failed to read the status of NodeProxy {node}")]
    Earlier { node: String, source: kube::Error },
}

/// Composes the status whenever something changes, until `stop` is cancelled. Also updates the
/// readiness probe.
///
/// The first change after a quiet time is processed at once; changes within [`COMPOSED`] after it
/// are processed together.
pub(crate) async fn compose(
    mut inputs: ComposeInputs,
    posted: watch::Sender<Arc<NodeProxyStatus>>,
    readiness: Check,
    stop: CancellationToken,
) {
    let mut status_now = Arc::<NodeProxyStatus>::default();
    let mut not_served = NotServed::default();
    let mut earliest = Deadline::now();
    // A view that was posted before this task began counts as a change, too.
    inputs.view.mark_changed();
    loop {
        // All arms are cancel safe: the values are read again below.
        tokio::select! {
            () = stop.cancelled() => return,
            () = inputs.changed() => {}
            () = tokio::time::sleep(LOOKED_AT) => {}
        }
        // Cancel safe: neither arm consumes anything, and changes in the meantime are read below.
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep_until(earliest) => {}
        }
        let view = inputs.view.borrow_and_update().clone();
        let report = inputs.report.borrow_and_update().clone();
        let not_relayed = inputs.not_relayed.borrow_and_update().clone();
        let full_affinity_maps = inputs.full_affinity_maps.borrow_and_update().clone();
        let connections = inputs.conntrack.borrow_and_update().clone();
        let serving_state = *inputs.serving_state.borrow_and_update();
        let scan = inputs.scan.borrow_and_update().clone();
        let variants = inputs.variants.borrow_and_update().clone();
        let handover_refusal = inputs.handover_refusal.borrow_and_update().clone();
        let api_service = inputs.api_service.borrow_and_update().clone();
        let Some(view) = view else { continue };
        let families = report
            .iter()
            .flat_map(|report| done_without(&report.families));
        let lacking: Vec<_> = families.map(|family| family.family).collect();
        not_served.follow(&lacking, view.desired.as_ref());
        let facts = Facts {
            view: &view,
            report: report.as_deref(),
            running_sync: inputs.programmed.running_sync(),
            elements: inputs.programmed.elements(),
            modes: &inputs.programmed.modes(),
            variants: &variants,
            latency: inputs.programmed.latency(Instant::now()),
            connections: &connections,
            not_relayed: &not_relayed,
            full_affinity_maps: &full_affinity_maps,
            not_served: &not_served,
            serving_state,
            scan: &scan,
            handover_refusal: handover_refusal.as_deref(),
            api_service: &api_service,
            kernel: &inputs.kernel,
        };
        status_now = Arc::new(status(&facts, &status_now, Timestamp::now()));
        readiness.report(readiness_of(&status_now));
        post(&posted, Arc::clone(&status_now));
        earliest = Deadline::now() + COMPOSED;
    }
}

/// The answer of the readiness probe: the condition Ready.
fn readiness_of(status: &NodeProxyStatus) -> Readiness {
    let mut conditions = status.conditions.iter();
    match conditions.find(|condition| condition.type_ == condition::READY) {
        Some(ready) if ready.status == "True" => Readiness::Ready,
        Some(ready) => Readiness::NotReady(format!("{}: {}", ready.reason, ready.message)),
        None => Readiness::NotReady(String::new()),
    }
}

/// Writes the status to `destination` when it changes. What does not change is written again only to
/// a file, by an agent that renews no Lease, over another client's write, and over a provisional
/// status. In the API, the status carries on the report of the agent that ran before.
pub(crate) async fn report(
    destination: Destination,
    node: String,
    inputs: ReportInputs,
    stop: CancellationToken,
) {
    let ReportInputs {
        mut status,
        mut applied_config,
        renewed_since: mut heartbeat,
        mut in_api,
    } = inputs;
    let mut last = Last::Never;
    let mut earlier = Earlier::Unread;
    let mut left_out = BTreeSet::new();
    let mut stood_in = false;
    loop {
        let current = status.borrow_and_update().clone();
        let renewed_since = *heartbeat.borrow_and_update();
        let due = {
            let in_api = &*in_api.borrow_and_update();
            last.due(
                &current,
                renewed_since,
                &destination,
                in_api,
                Deadline::now(),
            )
        };
        let stands_until = earlier.stands_until(&current);
        let due = due.map(|due| stands_until.map_or(due, |until| due.max(until)));
        // Cancel safe: the due time is computed again whichever arm ends.
        tokio::select! {
            () = stop.cancelled() => return,
            () = changed(&mut status) => continue,
            () = changed(&mut heartbeat) => continue,
            () = changed(&mut applied_config), if matches!(last, Last::Absent { .. }) => {}
            () = changed(&mut in_api) => continue,
            () = sleep_until(due.unwrap_or_else(Deadline::now)), if due.is_some() => {}
        }
        // An object that is created during this attempt wakes the next.
        applied_config.mark_unchanged();
        let outcome = match (&destination, &earlier) {
            (Destination::Api(api), Earlier::Unread) => match Earlier::observe(api, &node).await {
                Ok(read) => {
                    earlier = read;
                    // The object may have been absent before.
                    last = Last::Never;
                    continue;
                }
                Err(source) => Err(WriteError::Earlier {
                    node: node.clone(),
                    source,
                }),
            },
            (Destination::Api(_) | Destination::File(_), _) => {
                let carried_on = earlier.carry_on(&current);
                stood_in = stands_in(&carried_on, &current);
                // Without it, an agent that ends before it is ready would never count as silent.
                let is_promised =
                    matches!(destination, Destination::Api(_)) && is_starting(&current);
                let heartbeat =
                    (is_promised || renewed_since.is_some()).then_some(Heartbeat::Lease);
                let applied_config = applied_config.borrow().clone();
                write(&destination, &node, applied_config, &carried_on, heartbeat).await
            }
        };
        let at = Deadline::now();
        last = match outcome {
            Ok(answer) => {
                let fields = answer.left_out;
                let is_provisional = stood_in || !fields.is_empty();
                if !fields.is_empty() && fields != left_out {
                    warn!(
                        ?fields,
                        "the CustomResourceDefinition of NodeProxy is older than this agent: its status is written without these fields"
                    );
                }
                left_out = fields;
                Last::Written(Written {
                    status: current,
                    in_api: answer.in_api,
                    renewed_since,
                    at,
                    idle: jittered(IDLE),
                    is_provisional,
                    differs_since: None,
                    source_differs_since: None,
                })
            }
            Err(error) if is_absent(&error) => {
                debug!("NodeProxy {node} does not exist yet: its status is not written");
                Last::Absent {
                    retry: at + jittered(ABSENT),
                }
            }
            Err(error) => {
                let failures = last.failures();
                if failures == 0 {
                    warn!(error = %chain(&error), "unable to write the status; trying again");
                } else {
                    debug!(error = %chain(&error), failures, "still unable to write the status");
                }
                Last::Failed {
                    retry: at + spread(pause_after(failures), fraction()),
                    failures: failures.saturating_add(1),
                }
            }
        };
    }
}

/// A status after a write.
#[derive(Default)]
struct Answer {
    /// What is in the API; null in a file.
    in_api: Value,
    /// The fields that the API server's definition does not have.
    left_out: BTreeSet<String>,
}

/// Writes the status.
async fn write(
    destination: &Destination,
    node: &str,
    applied_config: Option<AppliedConfig>,
    status: &NodeProxyStatus,
    heartbeat: Option<Heartbeat>,
) -> Result<Answer, WriteError> {
    let status = NodeProxyStatus {
        conntrack: conntrack::observe_fill(),
        heartbeat,
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
            let client = Api::clone(api).into_client();
            let resource = ApiResource::erase::<NodeProxy>(&());
            let applied = apply_status(&client, &resource, node, FIELD_MANAGER, patch).await;
            let answer = applied.map(
                |AppliedStatus {
                     mut object,
                     left_out,
                 }| Answer {
                    in_api: object.data["status"].take(),
                    left_out,
                },
            );
            answer.map_err(|source| WriteError::Api {
                node: node.to_owned(),
                source,
            })
        }
        Destination::File(file) => {
            let spec = applied_config.and_then(|applied_config| {
                Some(applied_config.configuration.assignment()?.spec.clone())
            });
            let mut document = NodeProxy::new(node, spec.unwrap_or_default());
            document.status = Some(status);
            let written = write_file(file, &document);
            written
                .map(|()| Answer::default())
                .map_err(|source| WriteError::File {
                    file: file.clone(),
                    source,
                })
        }
    }
}

/// Writes the file atomically: readers see the old document or the new one.
fn write_file(file: &Path, document: &NodeProxy) -> std::io::Result<()> {
    let text = serde_saphyr::to_string(document).map_err(std::io::Error::other)?;
    let mut temporary = file.as_os_str().to_owned();
    temporary.push(".new");
    std::fs::write(&temporary, text)?;
    std::fs::rename(&temporary, file)
}

/// Returns whether the operator has not created the object yet, or its CRD is not installed.
fn is_absent(error: &WriteError) -> bool {
    match error {
        WriteError::Api { source, .. } | WriteError::Earlier { source, .. } => {
            matches!(source, kube::Error::Api(status) if status.code == 404)
        }
        WriteError::File { .. } => false,
    }
}

/// Returns the longest pause after a failed attempt that followed `failures` failures in a row.
fn pause_after(failures: u32) -> Duration {
    RETRY
        .saturating_mul(1 << failures.min(10))
        .min(LONGEST_RETRY)
}

#[cfg(test)]
mod tests;
