//! The report of the agent that ran on this node before, which this one carries on: a restart is no
//! event on a node whose kernel goes on forwarding.

use std::fs;
use std::time::Duration;

use crds::condition::{self, READY, Status, reason};
use crds::node_proxy::Heartbeat;
use crds::readable::readable;
use crds::{NodeProxy, NodeProxyStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::Api;
use kube::core::{ApiResource, DynamicObject};
use tokio::time::Instant as Deadline;

/// How long an earlier report may stand in for what this agent does not know yet. To read Services
/// and to program them takes a second or two, and longer while the API server is busy.
pub(crate) const START: Duration = Duration::from_secs(30);
/// The age up to which a report of readiness by an agent without a Lease stands. Such an agent writes
/// at least every five minutes and a half, so an older one says that agents have ended before they
/// could write. With a Lease the operator says so: these agents do not begin to renew it.
const RECENT: Duration = Duration::from_secs(360);

/// What is known of the earlier report.
#[derive(Debug)]
pub(super) enum Earlier {
    /// It was not read yet.
    Unread,
    /// What of it still holds.
    Read(Box<Report>),
}

/// An earlier report.
#[derive(Debug)]
pub(super) struct Report {
    status: NodeProxyStatus,
    /// Until when it stands in for what this agent does not know yet.
    until: Deadline,
    /// Whether the node was ready, and its kernel has not restarted since.
    was_ready: bool,
}

// === impl Earlier ===

impl Earlier {
    /// Reads the report from the node's NodeProxy, as far as it can be read: a newer agent may have
    /// written values that this one does not know. Errors that may pass are returned, and
    /// that there is no NodeProxy.
    pub(super) async fn observe(api: &Api<NodeProxy>, node: &str) -> Result<Earlier, kube::Error> {
        let resource = ApiResource::erase::<NodeProxy>(&());
        let objects = Api::<DynamicObject>::all_with(api.clone().into_client(), &resource);
        let status = match objects.get(node).await {
            Ok(object) => {
                let written = object.data.get("status");
                let read = written.and_then(readable::<NodeProxyStatus>);
                read.map(|(status, _)| status).unwrap_or_default()
            }
            Err(kube::Error::Api(error)) if error.code == 403 => NodeProxyStatus::default(),
            Err(error) => return Err(error),
        };
        Ok(Earlier::of(status, observe_boot(), Timestamp::now()))
    }

    /// The report `status`, read at `now` on a kernel that runs since `boot`.
    pub(super) fn of(status: NodeProxyStatus, boot: Option<Timestamp>, now: Timestamp) -> Earlier {
        let last = status.last_sync_time.as_ref().map(|time| time.0);
        let has_lease = status.heartbeat == Some(Heartbeat::Lease);
        let is_recent = |last: Timestamp| {
            let age = Duration::try_from(now.duration_since(last)).unwrap_or_default();
            boot.is_some_and(|boot| last > boot) && (has_lease || age < RECENT)
        };
        let is_true = condition::status_of(&status.conditions, READY) == Status::True;
        Earlier::Read(Box::new(Report {
            was_ready: is_true && last.is_some_and(is_recent),
            until: Deadline::now() + START,
            status,
        }))
    }

    /// Returns the earliest time to write `current`, if there is one.
    pub(super) fn stands_until(&self, current: &NodeProxyStatus) -> Option<Deadline> {
        let Earlier::Read(earlier) = self else {
            return None;
        };
        // Without conditions, nothing was composed yet.
        let stands = current.conditions.is_empty() || earlier.was_ready && is_starting(current);
        stands.then_some(earlier.until)
    }

    /// Returns `current` for a write: conditions that have not changed since the earlier report keep
    /// its transition times, and for a while it stands in for what this agent does not know yet.
    pub(super) fn carry_on(&mut self, current: &NodeProxyStatus) -> NodeProxyStatus {
        let mut status = current.clone();
        let Earlier::Read(earlier) = self else {
            return status;
        };
        let stands_in = earlier.was_ready && Deadline::now() < earlier.until;
        let before = &mut earlier.status;
        status.sync_latency = status.sync_latency.or_else(|| before.sync_latency.clone());
        let is_unknown = |kind: &str| {
            let now = find(&current.conditions, kind);
            now.is_none_or(|now| now.status == "Unknown")
        };
        // What changes now, or is gone, has times of its own from now on.
        before.conditions.retain(|before| {
            let is_same = find(&current.conditions, &before.type_)
                .is_some_and(|now| now.status == before.status);
            is_same || stands_in && is_unknown(&before.type_)
        });
        for before in &before.conditions {
            let mut now = status.conditions.iter_mut();
            match now.find(|now| now.type_ == before.type_) {
                Some(now) if now.status == before.status => {
                    now.last_transition_time = before.last_transition_time.clone();
                }
                Some(now) => *now = before.clone(),
                None => status.conditions.push(before.clone()),
            }
        }
        status
    }
}

/// Whether `carried_on` has conditions by the earlier report that `current` does not have.
pub(super) fn stands_in(carried_on: &NodeProxyStatus, current: &NodeProxyStatus) -> bool {
    carried_on.conditions.iter().any(|carried| {
        let now = find(&current.conditions, &carried.type_);
        now.is_none_or(|now| now.status != carried.status)
    })
}

fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// Whether the agent knows too little yet to say whether the node is ready.
pub(crate) fn is_starting(current: &NodeProxyStatus) -> bool {
    let pending = [
        reason::STARTING,
        reason::LISTS_PENDING,
        reason::NO_CONFIGURATION,
    ];
    find(&current.conditions, READY)
        .is_none_or(|ready| pending.iter().any(|pending| pending.name == ready.reason))
}

/// Returns since when the kernel runs: `btime` in /proc/stat, in seconds since the epoch (proc(5)).
fn observe_boot() -> Option<Timestamp> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("btime "))?;
    Timestamp::from_second(line.trim().parse().ok()?).ok()
}
