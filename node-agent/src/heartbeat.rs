//! The heartbeat: this node's Lease, renewed every half minute. If it no longer changes, the
//! operator reports that this agent is silent
//! ([0048](../../docs/decisions/0048-a-lease-for-each-agent.md)).

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crds::node_proxy::LEASE_PREFIX;
use crds::{NodeProxy, NodeProxyStatus};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use runtime::{CancellationToken, chain};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, warn};

use crate::engine::{AppliedConfig, Configuration};
use crate::jitter::{fraction, jittered, spread};
use crate::latest::{changed, post, wait_for};
use crate::reporter::{START, is_starting};

/// The field manager of the agents, the same as for their status.
const FIELD_MANAGER: &str = "signpost-agent";
/// The time between two renewals, within ten percent. 5,000 nodes make 167 writes a second.
const PERIOD: Duration = Duration::from_secs(30);
/// The longest pause after a failed renewal: the operator waits for less than three periods.
const RETRY: Duration = Duration::from_secs(10);
/// The number of failures in a row that are retried so soon. After them the operator has noticed,
/// and an API server that returns gets no more requests than at other times.
const SOON: u32 = 8;
/// How long the API server may take to answer.
const LIMIT: Duration = Duration::from_secs(10);
/// The time without a renewal after which the operator may have reported this agent as silent. It
/// is shorter than the operator's limit of 80 s.
const INTERRUPTION: Duration = Duration::from_secs(60);
/// How long to wait for a NodeProxy that does not exist, in case the watch missed its creation.
const ABSENT: Duration = Duration::from_secs(3600);

/// Why the Lease was not renewed.
#[derive(Debug, Error)]
enum RenewError {
    #[error("the node has no NodeProxy to own the Lease")]
    NoNodeProxy,
    #[error("failed to renew Lease {lease}")]
    Request { lease: String, source: kube::Error },
    #[error("no answer within {LIMIT:?} to the renewal of Lease {lease}")]
    NoAnswer { lease: String },
}

/// This node's Lease.
struct OwnLease {
    leases: Api<Lease>,
    proxies: Api<NodeProxy>,
    node: String,
    name: String,
}

/// Renewals without an interruption.
#[derive(Debug, Clone, Copy)]
struct Series {
    since: Instant,
    last: Instant,
    /// The last renewal by the other clock: only one of the two continues while the machine sleeps.
    last_by_wall_clock: SystemTime,
}

/// Renews the Lease of `node` in `namespace` as long as the node has a NodeProxy, until `stop` is
/// cancelled. Posts since when the Lease has been renewed without interruption.
pub(crate) async fn report(
    client: Client,
    namespace: String,
    node: String,
    mut applied_config: watch::Receiver<Option<AppliedConfig>>,
    mut status: watch::Receiver<Arc<NodeProxyStatus>>,
    renewed_since: watch::Sender<Option<Instant>>,
    stop: CancellationToken,
) {
    let lease = OwnLease {
        leases: Api::namespaced(client.clone(), &namespace),
        proxies: Api::all(client),
        name: format!("{LEASE_PREFIX}{node}"),
        node,
    };
    let is_assigned = |applied_config: &Option<AppliedConfig>| {
        let configuration = applied_config
            .as_ref()
            .map(|applied_config| &applied_config.configuration);
        matches!(configuration, Some(Configuration::Assigned(_)))
    };
    // Cancel safe: waiting on a watch consumes nothing.
    tokio::select! {
        () = stop.cancelled() => return,
        () = wait_for(&mut applied_config, is_assigned) => {}
    }
    // Agents that end again and again as they start are no sign of life: the report of one before
    // them stands, and without renewals the operator says that it no longer does.
    let reports = wait_for(&mut status, |status| !is_starting(status));
    // Cancel safe, as above. After this time the status says that the agent does not get ready.
    tokio::select! {
        () = stop.cancelled() => return,
        _ = timeout(START, reports) => {}
    }
    let mut series: Option<Series> = None;
    let mut failures = 0_u32;
    loop {
        applied_config.mark_unchanged();
        // A cancelled renewal may have taken effect or not. At the end of the process either is
        // fine.
        let outcome = tokio::select! {
            () = stop.cancelled() => return,
            outcome = lease.commit() => outcome,
        };
        let pause = match &outcome {
            Ok(()) => {
                let renewed = Series::after(series);
                series = Some(renewed);
                failures = 0;
                post(&renewed_since, Some(renewed.since));
                jittered(PERIOD)
            }
            Err(error) => {
                if error.is_refusal() {
                    series = None;
                    post(&renewed_since, None);
                }
                if failures == 0 {
                    warn!(error = %chain(error), "unable to renew the Lease; trying again");
                } else {
                    debug!(error = %chain(error), failures, "still unable to renew the Lease");
                }
                failures = failures.saturating_add(1);
                match error {
                    RenewError::NoNodeProxy => jittered(ABSENT),
                    _ if error.is_refusal() || failures > SOON => jittered(PERIOD),
                    _ => spread(RETRY, fraction()),
                }
            }
        };
        // Cancel safe: a timer holds nothing, and the current state is read again after a missed
        // change.
        tokio::select! {
            () = stop.cancelled() => return,
            () = changed(&mut applied_config), if matches!(outcome, Err(RenewError::NoNodeProxy)) => {}
            () = sleep(pause) => {}
        }
    }
}

// === impl RenewError ===

impl RenewError {
    /// Returns whether retries will not help: there is no NodeProxy or no namespace, or the API
    /// server refuses this agent, which has the permissions of an older version. The status then
    /// does not announce a Lease.
    fn is_refusal(&self) -> bool {
        match self {
            RenewError::NoNodeProxy => true,
            RenewError::Request { source, .. } => {
                matches!(source, kube::Error::Api(status) if matches!(status.code, 403 | 404 | 422))
            }
            RenewError::NoAnswer { .. } => false,
        }
    }
}

// === impl OwnLease ===

impl OwnLease {
    /// Renews the Lease, or creates it.
    async fn commit(&self) -> Result<(), RenewError> {
        match timeout(LIMIT, self.request()).await {
            Ok(Ok(Some(()))) => Ok(()),
            Ok(Ok(None)) => Err(RenewError::NoNodeProxy),
            Ok(Err(source)) => Err(RenewError::Request {
                lease: self.name.clone(),
                source,
            }),
            Err(_) => Err(RenewError::NoAnswer {
                lease: self.name.clone(),
            }),
        }
    }

    /// Returns `None` if there is no NodeProxy. A Lease is deleted with the NodeProxy that owns it,
    /// and created again for the next one.
    async fn request(&self) -> Result<Option<()>, kube::Error> {
        let spec = LeaseSpec {
            holder_identity: Some(self.node.clone()),
            renew_time: Some(MicroTime(Timestamp::now())),
            ..LeaseSpec::default()
        };
        let parameters = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let renewal = Patch::Merge(serde_json::json!({ "spec": spec }));
        match self.leases.patch(&self.name, &parameters, &renewal).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            renewed => return renewed.map(|_| Some(())),
        }
        let Some(proxy) = self.proxies.get_metadata_opt(&self.node).await? else {
            return Ok(None);
        };
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                owner_references: proxy.metadata.uid.map(|uid| vec![owner(&self.node, uid)]),
                ..ObjectMeta::default()
            },
            spec: Some(spec),
        };
        let parameters = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        self.leases.create(&parameters, &lease).await?;
        Ok(Some(()))
    }
}

fn owner(node: &str, uid: String) -> OwnerReference {
    OwnerReference {
        api_version: NodeProxy::api_version(&()).into_owned(),
        kind: NodeProxy::kind(&()).into_owned(),
        name: node.to_owned(),
        uid,
        ..OwnerReference::default()
    }
}

// === impl Series ===

impl Series {
    /// Continues `before` with a renewal that has just succeeded, or starts a new series after an
    /// interruption.
    fn after(before: Option<Series>) -> Series {
        let (now, now_by_wall_clock) = (Instant::now(), SystemTime::now());
        let unbroken = before.filter(|before| {
            let wall_clock = now_by_wall_clock.duration_since(before.last_by_wall_clock);
            now - before.last < INTERRUPTION && wall_clock.unwrap_or_default() < INTERRUPTION
        });
        Series {
            since: unbroken.map_or(now, |before| before.since),
            last: now,
            last_by_wall_clock: now_by_wall_clock,
        }
    }
}

#[cfg(test)]
mod tests;
