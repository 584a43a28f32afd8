//! How much a change of the status matters to those who read it.

use std::collections::BTreeSet;

use crds::NodeProxyStatus;
use crds::condition::reason::SOURCE_STALE;
use crds::condition::{API_SERVICE_REACHABLE, DEGRADED, FEATURES_HONOURED, SOURCE_SYNCED};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// How one status differs from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Difference {
    /// No difference.
    None,
    /// The first latency since the start.
    FirstLatency,
    /// Numbers and lists that change with Services, on all nodes at once.
    Figures,
    /// The API server has been lost, or is back: on all nodes at once.
    Source,
    /// Something that a reader may be waiting for.
    Meaning,
}

/// Compares two statuses, without what is not worth a write.
pub(super) fn difference(before: &NodeProxyStatus, after: &NodeProxyStatus) -> Difference {
    let NodeProxyStatus {
        observed_generation,
        applied_hash,
        mode,
        // Syncs that find nothing to do do not cause a write.
        last_sync_time: _,
        sync_latency,
        counts,
        conntrack: _,
        heartbeat: _,
        iptables,
        agent_version,
        kernel_version,
        rejections,
        // The message of RulesContested changes with it, and is the reason to write.
        drift: _,
        conditions,
    } = before;
    let same_state = *observed_generation == after.observed_generation
        && *applied_hash == after.applied_hash
        && *mode == after.mode;
    let same_meaning = same_state && said(before).eq(said(after));
    let same_figures = *sync_latency == after.sync_latency
        && *counts == after.counts
        && *iptables == after.iptables
        && *agent_version == after.agent_version
        && *kernel_version == after.kernel_version
        && *rejections == after.rejections
        && are_the_same(conditions, &after.conditions);
    if !same_meaning {
        if same_state && differs_by_source(before, after) {
            return Difference::Source;
        }
        Difference::Meaning
    } else if same_figures {
        Difference::None
    } else if sync_latency.is_none() && after.sync_latency.is_some() {
        Difference::FirstLatency
    } else {
        Difference::Figures
    }
}

/// Returns the type, status and reason of each condition, without its message.
fn said(status: &NodeProxyStatus) -> impl Iterator<Item = [&str; 3]> {
    let conditions = status.conditions.iter();
    conditions
        // What is honoured changes with Services, on every node alike.
        .filter(|condition| condition.type_ != FEATURES_HONOURED)
        .map(|c| [&*c.type_, &*c.status, &*c.reason])
}

/// Whether two lists of conditions differ at most in times. A condition that has changed and is
/// again as it was written has another time, which is no reason to write.
fn are_the_same(before: &[Condition], after: &[Condition]) -> bool {
    let untimed = |condition: &Condition| Condition {
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
        ..condition.clone()
    };
    before.iter().map(untimed).eq(after.iter().map(untimed))
}

/// Whether the conditions differ, and only as they do when the API server is lost or back.
fn differs_by_source(before: &NodeProxyStatus, after: &NodeProxyStatus) -> bool {
    let (was, is): (BTreeSet<_>, BTreeSet<_>) = (said(before).collect(), said(after).collect());
    // The way to the API server's Service is not checked meanwhile.
    let of_source = [SOURCE_SYNCED, DEGRADED, API_SERVICE_REACHABLE];
    let is_stale =
        |[kind, _, reason]: &[&str; 3]| (*kind, *reason) == (SOURCE_SYNCED, SOURCE_STALE.name);
    // A fault that was hidden behind the source.
    let is_other_fault = |[kind, status, reason]: &[&str; 3]| {
        (*kind, *status) == (DEGRADED, "True") && *reason != SOURCE_STALE.name
    };
    let mut all = was.symmetric_difference(&is);
    all.clone().any(is_stale)
        && all.all(|[kind, ..]| of_source.contains(kind))
        && !is.difference(&was).any(is_other_fault)
}
