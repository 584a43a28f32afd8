//! The conditions of this node. Pure.

use std::time::{Duration, SystemTime};

use backend::{Recovery, first_of};
use crds::condition::reason::{self, Reason};
use crds::condition::{self, Finding, Status};
use crds::node_proxy::rejections::Rejections;
use crds::profile::handover::Handover;
use crds::unsupported::{UnsupportedField, unsupported_fields};
use dataplane::{Family, ServiceKey};
use handover::ServingState;
use jiff::Timestamp;
use modes::{FULL_AFFINITY_MAP_TIMEOUT, LockState};
use reconciler::{
    Activity, FamilyCondition, FamilyStatus, Pace, RepairedDrift, Report, RunningSync, SLOW_SYNC,
    done_without,
};

use super::{Facts, families, is_handed_over, is_programmed};
use crate::affinity::exhausted;
use crate::engine::{Configuration, View};
use foreign_proxy::{self, ForeignProxyScan};

/// How long a node whose source does not answer still counts as up to date: long enough to notice,
/// and for an API server to restart. After a longer time the node may be sending traffic to
/// endpoints that no longer exist.
const STALE_AFTER: Duration = Duration::from_secs(120);
/// The maximum number of Services that a message names.
const EXHAUSTED_NAMED: usize = 8;

pub(super) fn findings(facts: &Facts<'_>, rejections: &Rejections, now: Timestamp) -> Vec<Finding> {
    let mut findings = vec![
        ready(facts, now),
        progressing(facts, now),
        degraded(facts),
        unsupported(facts, rejections),
    ];
    let families = families(facts).iter();
    findings.extend(families.map(|family| family_programmed(facts, family)));
    findings.extend(facts.report.map(rules_contested));
    findings.extend(foreign_proxy::finding(facts.scan));
    findings.extend(modes::findings::split(facts.variants, facts.modes));
    findings.push(source_synced(facts.view));
    findings.extend(manifests_parsed(facts.view));
    findings.extend(conntrack::findings(facts.connections));
    // A directory of manifests has no API server.
    if facts.view.source.unreadable.is_none() {
        let is_meaningful = can_check_api_service(facts);
        findings.push(facts.api_service.finding(&facts.view.hash, is_meaningful));
    }
    findings
}

/// Whether a connection through the API server's Service shows something about Signpost's rules.
fn can_check_api_service(facts: &Facts<'_>) -> bool {
    facts.view.source.stale.is_none() && facts.serving_state != ServingState::HandedBack
}

/// Returns whether the node serves every Service: the source has answered recently, everything is
/// listed, both families are programmed, and the last check of the kernel found the rules. The sync
/// that finds a difference also repairs it; otherwise that sync, and with it the family, has
/// failed.
fn ready(facts: &Facts<'_>, now: Timestamp) -> Finding {
    let view = facts.view;
    let families = families(facts);
    let finding =
        |status, reason, message: String| Finding::new(condition::READY, status, reason, message);
    if facts.serving_state == ServingState::HandedBack {
        // If the profile asks for this, and another proxy serves, nothing is left to do.
        let is_desired = facts.view.effective.handover == Handover::Handback;
        let is_done = is_desired && is_handed_over(facts) && !is_unserved(facts.scan);
        return finding(
            Status::from(is_done),
            reason::HANDED_BACK,
            handed_back(facts),
        );
    }
    if !view.missing.is_empty() {
        let message = format!("waiting for the {}", view.missing.join(", the "));
        let reason = match view.configuration {
            Configuration::Awaited { .. } if view.missing.len() == 1 => reason::NO_CONFIGURATION,
            _ => reason::LISTS_PENDING,
        };
        return finding(Status::False, reason, message);
    }
    let broken: Vec<&FamilyStatus> = counted(facts)
        .filter(|family| {
            matches!(
                family.condition(),
                FamilyCondition::NeverProgrammed | FamilyCondition::Failing
            )
        })
        .collect();
    if families.is_empty() || broken.iter().any(|f| f.failing.is_none()) {
        let message = "no rule has been written since the agent started".to_owned();
        return finding(Status::False, reason::STARTING, message);
    }
    if broken.is_empty()
        && let Some((since, message)) = &view.source.stale
        && age(*since, now) > STALE_AFTER
    {
        let since = Timestamp::try_from(*since).unwrap_or_default();
        let message = format!("no answer since {since:.0}: {message}");
        return finding(Status::False, reason::SOURCE_STALE, message);
    }
    let Some(first) = broken.first() else {
        let slow = families.iter().find_map(|family| match family.pace {
            Pace::Slow { took } => Some((family.family, took)),
            Pace::Ordinary => None,
        });
        if let Some((family, took)) = slow {
            let seconds = took.as_secs();
            let message = format!("programmed, but {family} took {seconds} s");
            return finding(Status::True, reason::SLOW, message);
        }
        if let Some(family) = done_without(families).next() {
            let message = format!(
                "programmed without one address family: {}",
                failure_message(family)
            );
            return finding(Status::True, reason::PROGRAMMED, message);
        }
        let message = match &view.configuration {
            Configuration::Default => "programmed with the defaults: no profile selects this node",
            Configuration::LastGood(_) => "programmed with the last known configuration",
            _ => "everything the profile and the Services ask for is programmed",
        };
        return finding(Status::True, reason::PROGRAMMED, message.to_owned());
    };
    let reason = if broken.len() < families.len() {
        reason::PARTIALLY_PROGRAMMED
    } else {
        failure_reason(facts, first)
    };
    finding(Status::False, reason, failure_message(first))
}

fn progressing(facts: &Facts<'_>, now: Timestamp) -> Finding {
    let say = |status, reason, message: &str| {
        Finding::new(condition::PROGRESSING, status, reason, message.to_owned())
    };
    if facts.serving_state == ServingState::HandedBack && is_handed_over(facts) {
        return say(Status::False, reason::HANDED_BACK, &handed_back(facts));
    }
    if facts.serving_state == ServingState::HandedBack {
        return say(
            Status::True,
            reason::HANDOVER_PENDING,
            pending_handover(facts),
        );
    }
    if let Some(RunningSync { since, .. }) = facts.running_sync
        && age(since, now) > SLOW_SYNC
    {
        let since = Timestamp::try_from(since).unwrap_or_default();
        let message = format!("a sync has been running since {since:.0}");
        return say(Status::True, reason::SLOW, &message);
    }
    if facts.report.is_some_and(|r| r.activity == Activity::Paused) {
        return say(Status::False, reason::PAUSED, "the profile is paused");
    }
    if is_programmed(facts) && !is_handed_over(facts) {
        return say(
            Status::True,
            reason::HANDOVER_PENDING,
            pending_handover(facts),
        );
    }
    if is_programmed(facts) {
        let message = "the current configuration is programmed";
        return say(Status::False, reason::SETTLED, message);
    }
    if facts.report.is_none() {
        return say(
            Status::True,
            reason::STARTING,
            "nothing has been written yet",
        );
    }
    let message = "the current configuration is being programmed";
    say(Status::True, reason::APPLYING, message)
}

/// Describes the pending handover.
fn pending_handover(facts: &Facts<'_>) -> &'static str {
    match facts.view.effective.handover {
        Handover::Handback => "Services are being handed back to kube-proxy",
        Handover::Manual | Handover::Takeover => "Services are being taken over from kube-proxy",
    }
}

fn degraded(facts: &Facts<'_>) -> Finding {
    let say = |status, reason, message| Finding::new(condition::DEGRADED, status, reason, message);
    let families = families(facts);
    let failing: Vec<&FamilyStatus> = counted(facts).filter(|f| f.failing.is_some()).collect();
    if let Some(first) = failing.first() {
        let reason = if failing.len() < families.len() {
            reason::PARTIALLY_PROGRAMMED
        } else {
            failure_reason(facts, first)
        };
        let failures = failing.iter().map(|family| failure_message(family));
        let all: Vec<String> = failures
            .chain(modes::findings::stalled(facts.modes))
            .collect();
        return say(Status::True, reason, all.join("; "));
    }
    if let Some(repair_backoff) = facts
        .report
        .and_then(|report| report.repair_backoff.as_ref())
    {
        return say(
            Status::True,
            reason::REPAIRS_HELD_BACK,
            repair_backoff.to_string(),
        );
    }
    if let Some(stalled) = modes::findings::stalled(facts.modes) {
        return say(Status::True, reason::COMMIT_FAILED, stalled);
    }
    let refused = families.iter().flat_map(|family| &family.quarantined);
    if let Some(first) = refused.clone().next() {
        let message = format!("the kernel refuses {} Services: {first}", refused.count());
        return say(Status::True, reason::SERVICES_REJECTED, message);
    }
    if let Some(family) = families.iter().find(|family| family.searched > 0) {
        let message = format!("not programmed: {}", searched(family.searched));
        return say(Status::True, reason::SERVICES_REJECTED, message);
    }
    if let Some(first) = facts.view.source.unreadable.iter().flatten().next() {
        return say(Status::True, reason::MANIFESTS_UNREADABLE, first.clone());
    }
    if let Some((since, message)) = &facts.view.source.stale {
        let since = Timestamp::try_from(*since).unwrap_or_default();
        let message = format!("no answer since {since:.0}: {message}");
        return say(Status::True, reason::SOURCE_STALE, message);
    }
    if let Some((reason, message)) = conntrack::degradation(facts.connections) {
        return say(Status::True, reason, message);
    }
    if let Some(problem) = facts.api_service.problem()
        && can_check_api_service(facts)
    {
        return say(Status::True, reason::CONNECTION_FAILED, problem);
    }
    // Last, because a takeover checks whether there is any other problem.
    if let Some(refusal) = facts.handover_refusal.filter(|_| !is_handed_over(facts)) {
        return say(Status::True, reason::HANDOVER_REFUSED, refusal.to_owned());
    }
    say(Status::False, reason::AS_EXPECTED, String::new())
}

/// Returns the families that the node must serve: all except those that the kernel does not support
/// and that no Service needs on this node.
fn counted<'a>(facts: &Facts<'a>) -> impl Iterator<Item = &'a FamilyStatus> {
    let desired = facts.view.desired.as_ref();
    let is_needed = |family: Family| {
        let has_address = desired.is_some_and(|desired| desired.node().has_address(family));
        has_address && facts.not_served.services(family).len() > 0
    };
    let families = families(facts);
    let unneeded: Vec<Family> = done_without(families)
        .map(|family| family.family)
        .filter(|family| !is_needed(*family))
        .collect();
    families
        .iter()
        .filter(move |family| !unneeded.contains(&family.family))
}

fn age(since: SystemTime, now: Timestamp) -> Duration {
    // A clock that was set back does not make anything old.
    let age = SystemTime::from(now).duration_since(since);
    age.unwrap_or_default()
}

fn unsupported(facts: &Facts<'_>, rejections: &Rejections) -> Finding {
    let say = |status, reason, message| {
        Finding::new(condition::FEATURES_HONOURED, status, reason, message)
    };
    let written = facts.view.configuration.assignment();
    let written = written.map_or(&[][..], |a| a.spec.written_fields.as_slice());
    let config = facts.view.desired.as_ref().map(|desired| desired.config());
    let replaced = config.and_then(|c| modes::findings::replaced(c.mode, facts.modes));
    let mut fields: Vec<_> = replaced.into_iter().collect();
    fields.extend(modes::findings::left_behind(facts.modes));
    fields.extend(modes::findings::limitations(facts.modes));
    fields.extend(unsupported_fields(&facts.view.effective, written));
    fields.extend(unreadable(facts));
    fields.extend(config.and_then(|c| modes::findings::scheduler(c)));
    if let Some(first) = fields.first() {
        let fields = fields.iter().map(|f| format!("{}: {}", f.field, f.message));
        let all: Vec<String> = fields.chain(affinity_exhausted(facts)).collect();
        return say(Status::False, first.reason, all.join("; "));
    }
    let rejected = rejections.first.first().map(|first| {
        let first = format!("{}: {}: {}", first.object, first.field, first.message);
        format!("{} in all, the first: {first}", rejections.total)
    });
    match (rejected, affinity_exhausted(facts)) {
        (Some(rejected), Some(exhausted)) => {
            let message = format!("{rejected}; {exhausted}");
            say(Status::False, reason::SERVICES_REJECTED, message)
        }
        (Some(rejected), None) => say(Status::False, reason::SERVICES_REJECTED, rejected),
        (None, Some(exhausted)) => say(Status::False, reason::AFFINITY_EXHAUSTED, exhausted),
        (None, None) => say(Status::True, reason::ALL_HONOURED, String::new()),
    }
}

/// Names the fields whose values only a newer version knows.
fn unreadable<'a>(facts: &'a Facts<'_>) -> impl Iterator<Item = UnsupportedField> + 'a {
    let assignment = facts.view.configuration.assignment().into_iter();
    let fields = assignment.flat_map(|assignment| &assignment.unreadable);
    fields.map(|unreadable| {
        let field = unreadable.field();
        UnsupportedField {
            field: field.strip_prefix("config.").unwrap_or(&field).to_owned(),
            reason: reason::FIELD_NOT_HONOURED,
            message: format!(
                "this version of the agent cannot read the value ({}); the one before stays in force",
                unreadable.message
            ),
        }
    })
}

/// Names the Services that have no room for another client's affinity; `None` if all have.
fn affinity_exhausted(facts: &Facts<'_>) -> Option<String> {
    let services = exhausted(facts.full_affinity_maps, facts.view.desired.as_ref());
    let services: Vec<&ServiceKey> = services.into_iter().collect();
    if services.is_empty() {
        return None;
    }
    Some(format!(
        "session affinity is exhausted for {}: in the last {} minutes new clients found no \
         room, and each of their connections is assigned an endpoint anew",
        first_of(&services, EXHAUSTED_NAMED),
        FULL_AFFINITY_MAP_TIMEOUT.as_secs() / 60
    ))
}

/// Describes who serves the node's Services after a handback.
fn handed_back(facts: &Facts<'_>) -> String {
    let failing = families(facts).iter().find(|f| f.failing.is_some());
    if let Some(family) = failing {
        let error = failure_message(family);
        return format!("handed back, but Signpost's rules are still in the kernel: {error}");
    }
    let served = match is_unserved(facts.scan) {
        true => {
            "handed back, and there are no rules of another proxy: no proxy serves this node's Services"
        }
        false => "handed back to another proxy: Signpost serves no Service here",
    };
    match facts.report.map_or(0, Report::remaining_connections) {
        0 => served.to_owned(),
        1 => format!(
            "{served}; 1 connection of mode ipvs goes on until it ends, and needs the agent"
        ),
        count => format!(
            "{served}; {count} connections of mode ipvs go on until they end, and need the agent"
        ),
    }
}

/// Returns whether no other proxy has rules on the node.
fn is_unserved(scan: &ForeignProxyScan) -> bool {
    matches!(scan, ForeignProxyScan::Seen(found, _) if found.is_nothing())
}

/// Describes this many Services of a change that the kernel refused.
fn searched(services: usize) -> String {
    format!(
        "{services} Services of a change that the kernel refused; the agent is finding out which of \
         them caused that"
    )
}

fn family_programmed(facts: &Facts<'_>, family: &FamilyStatus) -> Finding {
    let kind = match family.family {
        Family::Ipv4 => condition::IPV4_PROGRAMMED,
        Family::Ipv6 => condition::IPV6_PROGRAMMED,
    };
    match family.condition() {
        FamilyCondition::Programmed | FamilyCondition::PartlyProgrammed => {
            let first = family.quarantined.first();
            let refused = first.map(|first| format!("{}: {first}", family.quarantined.len()));
            let searched = (family.searched > 0).then(|| searched(family.searched));
            let missing: Vec<_> = refused.into_iter().chain(searched).collect();
            let message = match missing.is_empty() {
                true => String::new(),
                false => format!("all but {}", missing.join("; ")),
            };
            Finding::new(kind, Status::True, reason::FAMILY_PROGRAMMED, message)
        }
        FamilyCondition::NeverProgrammed if facts.serving_state == ServingState::HandedBack => {
            let message = String::new();
            Finding::new(kind, Status::False, reason::HANDED_BACK, message)
        }
        FamilyCondition::NeverProgrammed if family.failing.is_none() => {
            let message = "no rule has been written since the agent started".to_owned();
            Finding::new(kind, Status::Unknown, reason::STARTING, message)
        }
        FamilyCondition::NeverProgrammed | FamilyCondition::Failing => Finding::new(
            kind,
            Status::False,
            failure_reason(facts, family),
            failure_message(family),
        ),
    }
}

fn rules_contested(report: &Report) -> Finding {
    let say =
        |status, reason, message| Finding::new(condition::RULES_CONTESTED, status, reason, message);
    if let Some(repair_backoff) = &report.repair_backoff {
        // The message stays the same while this lasts: each new message would be another write to
        // the API.
        let since = Timestamp::try_from(repair_backoff.since).unwrap_or_default();
        let message = format!("since {since:.0}, {repair_backoff}");
        return say(Status::True, reason::REPAIRS_HELD_BACK, message);
    }
    let last: Option<(Family, &RepairedDrift)> = report
        .families
        .iter()
        .filter_map(|family| Some((family.family, family.last_repaired_drift.as_ref()?)))
        .max_by_key(|(_, repaired_drift)| repaired_drift.found);
    let message = last.map_or_else(String::new, |(family, repaired_drift)| {
        let found = Timestamp::try_from(repaired_drift.found).unwrap_or_default();
        format!("last repaired at {found:.0}: {family}: {repaired_drift}")
    });
    say(Status::False, reason::UNDISTURBED, message)
}

fn source_synced(view: &View) -> Finding {
    let say =
        |status, reason, message| Finding::new(condition::SOURCE_SYNCED, status, reason, message);
    if let Some((_, message)) = &view.source.stale {
        return say(Status::False, reason::SOURCE_STALE, message.clone());
    }
    if view.missing.is_empty() {
        return say(Status::True, reason::LISTS_COMPLETE, String::new());
    }
    let message = format!("waiting for the {}", view.missing.join(", the "));
    say(Status::False, reason::LISTS_PENDING, message)
}

fn manifests_parsed(view: &View) -> Option<Finding> {
    let unreadable = view.source.unreadable.as_ref()?;
    let (status, reason) = if unreadable.is_empty() {
        (Status::True, reason::MANIFESTS_READ)
    } else {
        (Status::False, reason::MANIFESTS_UNREADABLE)
    };
    let message = unreadable.join("; ");
    Some(Finding::new(
        condition::MANIFESTS_PARSED,
        status,
        reason,
        message,
    ))
}

fn failure_reason(facts: &Facts<'_>, family: &FamilyStatus) -> Reason {
    let modes = facts.modes.get(&family.family);
    if modes.is_some_and(|modes| modes.lock == LockState::Held) {
        return reason::XTABLES_LOCK_HELD;
    }
    match &family.failing {
        Some(failing) if failing.recovery == Recovery::Halt => reason::KERNEL_UNSUPPORTED,
        _ => reason::COMMIT_FAILED,
    }
}

pub(super) fn failure_message(family: &FamilyStatus) -> String {
    // Without a count of attempts: each new message would be another write to the API.
    let error = family.failing.as_ref().map(|failing| &failing.error);
    format!("{}: {}", family.family, error.map_or("", String::as_str))
}
