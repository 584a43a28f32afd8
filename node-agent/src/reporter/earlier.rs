//! The report of the agent that ran on this node before, which this one carries on: a restart is no
//! event on a node whose kernel goes on forwarding.

use std::time::Duration;

use crds::condition::{self, READY, reason};
use crds::{NodeProxy, NodeProxyStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::Api;
use tokio::time::Instant as Deadline;

/// How long a report of readiness stands while this agent reads Services and programs them. That
/// takes a second or two, and longer while the API server is busy.
const START: Duration = Duration::from_secs(30);

/// What is known of the earlier report.
#[derive(Debug)]
pub(super) enum Earlier {
    /// It was not read yet.
    Unread,
    /// What of it still holds.
    Read(Box<NodeProxyStatus>),
}

// === impl Earlier ===

impl Earlier {
    /// Reads the report from the node's NodeProxy.
    pub(super) async fn observe(api: &Api<NodeProxy>, node: &str) -> Result<Earlier, kube::Error> {
        let status = api.get(node).await?.status.unwrap_or_default();
        Ok(Earlier::Read(Box::new(status)))
    }

    /// Returns the earliest time to write `current`, by an agent that was started at `start`.
    pub(super) fn stands_until(&self, current: &NodeProxyStatus, start: Deadline) -> Deadline {
        match self {
            Earlier::Read(earlier) if was_ready(earlier) && is_starting(current) => start + START,
            Earlier::Unread | Earlier::Read(_) => start,
        }
    }

    /// Returns `current` for a write: conditions that have not changed since the earlier report keep
    /// its transition times, and what this agent does not know yet keeps its values.
    pub(super) fn carry_on(&mut self, current: &NodeProxyStatus) -> NodeProxyStatus {
        let mut status = current.clone();
        let Earlier::Read(earlier) = self else {
            return status;
        };
        // What changes now has times of its own from now on.
        earlier.conditions.retain(|before| {
            let now = find(&status.conditions, &before.type_);
            now.is_none_or(|now| now.status == before.status)
        });
        for condition in &mut status.conditions {
            if let Some(before) = find(&earlier.conditions, &condition.type_) {
                condition.last_transition_time = before.last_transition_time.clone();
            }
        }
        // The kernel holds what the earlier agent applied.
        status.applied_hash = status.applied_hash.or_else(|| earlier.applied_hash.clone());
        status.last_sync_time = status
            .last_sync_time
            .or_else(|| earlier.last_sync_time.clone());
        status.sync_latency = status.sync_latency.or_else(|| earlier.sync_latency.clone());
        status
    }
}

fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

fn was_ready(earlier: &NodeProxyStatus) -> bool {
    condition::status_of(&earlier.conditions, READY) == condition::Status::True
}

/// Whether the agent knows too little yet to say whether the node is ready.
fn is_starting(current: &NodeProxyStatus) -> bool {
    let pending = [
        reason::STARTING,
        reason::LISTS_PENDING,
        reason::NO_CONFIGURATION,
    ];
    find(&current.conditions, READY)
        .is_none_or(|ready| pending.iter().any(|pending| pending.name == ready.reason))
}
