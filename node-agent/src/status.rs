//! The status of this node's NodeProxy. Pure.

mod findings;
mod not_served;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::NodeProxyStatus;
use crds::condition::{self, Finding, reason, set_condition};
use crds::node_proxy::Counts;
use crds::node_proxy::drift::Drift;
use crds::node_proxy::latency::SyncLatency;
use crds::node_proxy::rejections::{MOST_REJECTIONS, Rejection, Rejections};
use crds::profile::handover::Handover;
use dataplane::{Dataplane, Family, FrontendKey};
use handover::ServingState;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use modes::VariantScan;
use reconciler::{FamilyStatus, RepairBackoff, Report, RunningSync, done_without};

use crate::api_service::ApiServiceState;
use crate::engine::View;
use findings::{failure_message, findings};
use foreign_proxy::ForeignProxyScan;
pub(crate) use not_served::NotServed;

/// The inputs of a status.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) view: &'a View,
    /// `None` before the reconciler's first report.
    pub(crate) report: Option<&'a Report>,
    /// The sync in progress, if there is one.
    pub(crate) running_sync: Option<RunningSync>,
    /// The number of Signpost's elements in the kernel.
    pub(crate) elements: usize,
    /// How each family is programmed.
    pub(crate) modes: &'a BTreeMap<Family, modes::ModeState>,
    /// The scan for rules of other programs in both variants of iptables.
    pub(crate) variants: &'a VariantScan,
    pub(crate) latency: Option<SyncLatency>,
    /// The state of the conntrack table.
    pub(crate) connections: &'a conntrack::ConntrackState,
    /// The node ports that should be served on localhost and are not.
    pub(crate) not_relayed: &'a [Rejection],
    /// The frontends that recently had no room for another client's affinity.
    pub(crate) full_affinity_maps: &'a BTreeSet<FrontendKey>,
    /// The Services of families that the kernel does not support.
    pub(crate) not_served: &'a NotServed,
    /// Whether Signpost or another proxy serves the node's Services.
    pub(crate) serving_state: ServingState,
    /// The scan for other proxies.
    pub(crate) scan: &'a ForeignProxyScan,
    /// What prevents the handover that the profile asks for.
    pub(crate) handover_refusal: Option<&'a str>,
    /// Whether new connections reach the API server through its Service.
    pub(crate) api_service: &'a ApiServiceState,
    pub(crate) kernel: &'a str,
}

/// Composes the status for `facts`. Conditions that are unchanged since `before` keep their
/// transition times. Leaves out the fill of the conntrack table, which changes all the time, and
/// the heartbeat: the writer of the status adds both. The cost does not depend on the number of
/// rejections.
pub(crate) fn status(
    facts: &Facts<'_>,
    before: &NodeProxyStatus,
    now: Timestamp,
) -> NodeProxyStatus {
    let view = facts.view;
    let assignment = view.configuration.assignment();
    let generation = assignment.and_then(|assignment| assignment.generation);
    let mut conditions = before.conditions.clone();
    let rejections = rejections(facts);
    let findings = findings(facts, &rejections, now);
    // A condition of one mode is removed in another.
    let is_said = |kind: &str| findings.iter().any(|finding| finding.kind == kind);
    conditions.retain(|c| c.type_ != condition::IPTABLES_SPLIT || is_said(&c.type_));
    for mut finding in findings {
        if finding.kind == condition::IPTABLES_SPLIT
            && finding.reason == reason::BOTH_VARIANTS_IN_USE
        {
            // Keeps the first message with its counts: each new message would be another write to
            // the API.
            let is_same =
                |c: &&Condition| c.type_ == finding.kind && c.reason == finding.reason.name;
            let before = conditions.iter().find(is_same);
            finding.message = before.map_or(finding.message, |before| before.message.clone());
        }
        let finding = Finding {
            generation,
            ..finding
        };
        set_condition(&mut conditions, finding, now);
    }
    let applied = is_handed_over(facts)
        && (is_programmed(facts) || facts.view.effective.handover == Handover::Handback);
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let programmed = programmed(facts);
    NodeProxyStatus {
        observed_generation: generation,
        applied_hash: if applied {
            Some(view.hash.clone())
        } else {
            before.applied_hash.clone()
        },
        mode: modes::findings::mode(facts.modes).filter(|_| !programmed.is_empty()),
        last_sync_time: last_sync(facts).or(before.last_sync_time.clone()),
        // Without changes, the last figures stay: that nothing changed is not worth a write.
        sync_latency: facts.latency.clone().or(before.sync_latency.clone()),
        counts: Counts {
            services: count(view.desired.as_ref().map_or(0, |d| d.services().len())),
            endpoints: count(view.endpoints),
            elements: count(facts.elements),
        },
        conntrack: None,
        heartbeat: None,
        iptables: modes::findings::iptables(facts.modes),
        agent_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        kernel_version: Some(facts.kernel.to_owned()),
        rejections,
        drift: drift(facts),
        conditions,
    }
}

/// Returns whether the proxy that the profile asks for serves the node; true if the profile asks
/// for none.
fn is_handed_over(facts: &Facts<'_>) -> bool {
    let desired = facts.view.effective.handover;
    handover::is_carried_out(desired, facts.serving_state, facts.scan, facts.report)
}

/// Returns whether every family is programmed as desired, under the desired configuration. A family
/// that the kernel does not support counts as programmed.
fn is_programmed(facts: &Facts<'_>) -> bool {
    let Some(desired) = &facts.view.desired else {
        return false;
    };
    let families = families(facts);
    let is_done_without = |family| done_without(families).any(|other| other.family == family);
    !families.is_empty()
        && families.iter().all(|family| {
            if is_done_without(family.family) {
                return true;
            }
            let programmed = family.programmed.as_ref();
            programmed.is_some_and(|programmed| Arc::ptr_eq(programmed.config(), desired.config()))
        })
}

fn families<'a>(facts: &Facts<'a>) -> &'a [FamilyStatus] {
    facts
        .report
        .map_or(&[], |report| report.families.as_slice())
}

fn programmed<'a>(facts: &Facts<'a>) -> Vec<&'a Dataplane> {
    let families = families(facts).iter();
    families.filter_map(|f| f.programmed.as_ref()).collect()
}

fn last_sync(facts: &Facts<'_>) -> Option<Time> {
    let successes = families(facts).iter().filter_map(|f| f.last_success);
    successes
        .max()
        .and_then(|at| Timestamp::try_from(at).ok())
        .map(Time)
}

/// Returns the first of each namespace, as many as a status can name. `all` is in the order of
/// objects.
fn first_of_each<'a, T: 'a>(
    all: impl IntoIterator<Item = &'a T>,
    namespace: fn(&T) -> &str,
) -> impl Iterator<Item = &'a T> {
    let mut last: Option<&str> = None;
    let mut count = 0;
    all.into_iter().filter(move |item| {
        let of_item = Some(namespace(item));
        count = if last == of_item { count + 1 } else { 1 };
        last = of_item;
        count <= MOST_REJECTIONS
    })
}

/// Collects the programs that changed rules of either family.
fn drift(facts: &Facts<'_>) -> Vec<Drift> {
    let repair_backoff = facts
        .report
        .and_then(|report| report.repair_backoff.as_ref());
    let mut found: BTreeMap<Option<&str>, Drift> = BTreeMap::new();
    for entry in families(facts).iter().flat_map(|f| &*f.drift_by_program) {
        let program = entry.program.as_deref();
        let is_by_it = |repair_backoff: &RepairBackoff| {
            repair_backoff.actor.as_ref().map(|actor| &*actor.program) == program
        };
        let last = Time(Timestamp::try_from(entry.last).unwrap_or_default());
        let number = |size: usize| u64::try_from(size).unwrap_or(u64::MAX);
        let known = found.entry(program).or_insert_with(|| Drift {
            program: program.map(str::to_owned),
            continues: repair_backoff.is_some_and(is_by_it),
            repairs: 0,
            last_found: last.clone(),
            elements: 0,
            objects: 0,
        });
        known.repairs += entry.repairs;
        known.elements += number(entry.size.elements);
        known.objects += number(entry.size.objects);
        known.last_found = Time(known.last_found.0.max(last.0));
    }
    Drift::bounded(found.into_values().collect())
}

/// Collects everything that could not be honoured, from all parts of the agent. Counts all of it,
/// and describes only what may be among those that a status names.
fn rejections(facts: &Facts<'_>) -> Rejections {
    let families = families(facts);
    let found = first_of_each(&**facts.view.rejections, |r| &r.object.namespace);
    let found = found.map(|rejection| Rejection {
        object: rejection.object.to_string(),
        field: rejection.field.clone(),
        message: rejection.message.clone(),
    });
    let short = families.iter().flat_map(|family| {
        let first = first_of_each(&*family.unsupported_fields, |s| &s.service.namespace);
        first.map(|unsupported_field| Rejection {
            object: format!("Service {}", unsupported_field.service),
            field: unsupported_field.field.to_owned(),
            message: format!(
                "{} ({})",
                unsupported_field.message, unsupported_field.frontend
            ),
        })
    });
    let refused = families.iter().flat_map(|family| {
        let first = first_of_each(&family.quarantined, |q| &q.service.namespace);
        first.map(|quarantined| Rejection {
            object: format!("Service {}", quarantined.service),
            field: family.family.to_string(),
            message: quarantined.error.clone(),
        })
    });
    let unserved = done_without(families).flat_map(|family| {
        let services = facts.not_served.services(family.family);
        first_of_each(services, |service| &service.namespace).map(|service| Rejection {
            object: format!("Service {service}"),
            field: "spec.ipFamilies".to_owned(),
            message: format!("not served: {}", failure_message(family)),
        })
    });
    let not_relayed = facts.not_relayed.iter().cloned();
    let first = found
        .chain(short)
        .chain(refused)
        .chain(unserved)
        .chain(not_relayed);
    let of_families = families
        .iter()
        .map(|family| family.unsupported_fields.len() + family.quarantined.len());
    let unserved = done_without(families).map(|f| facts.not_served.services(f.family).len());
    let total = facts.view.rejections.len()
        + of_families.sum::<usize>()
        + unserved.sum::<usize>()
        + facts.not_relayed.len();
    Rejections {
        total: u32::try_from(total).unwrap_or(u32::MAX),
        ..Rejections::of(first)
    }
}

#[cfg(test)]
mod tests;
