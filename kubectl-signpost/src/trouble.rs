//! The problems reported by conditions, and the advice for them.

use crds::condition::reason::{NO_MATCHING_NODES, PAUSED, SETTLED, advice};
use crds::condition::{
    AVAILABLE, CONFLICT, CONNTRACK_PRESSURE, DEGRADED, FOREIGN_PROXY_DETECTED, IPTABLES_SPLIT,
    PROGRESSING, RULES_CONTESTED,
};
use crds::profile::undo::ROLLOUT_UNDO;
use crds::starter::MAY_BE_STARTED;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Serialize;

/// A condition that reports a problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConditionProblem {
    pub(crate) weight: Weight,
    pub(crate) condition: String,
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    /// The advice; absent for a reason that this version does not know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) advice: Option<&'static str>,
}

/// The severity of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Weight {
    /// Information only. The exit code stays 0.
    Note,
    /// In progress: waiting may resolve it.
    Pending,
    /// A fault.
    Fault,
}

/// Returns the problems in `conditions`, the most severe first.
pub(crate) fn troubles(conditions: &[Condition]) -> Vec<ConditionProblem> {
    let mut troubles: Vec<ConditionProblem> = conditions.iter().filter_map(trouble).collect();
    // The sort is stable: problems of the same severity keep the order of the status.
    troubles.sort_by_key(|trouble| std::cmp::Reverse(trouble.weight));
    troubles
}

fn trouble(condition: &Condition) -> Option<ConditionProblem> {
    let weight = weight(condition)?;
    Some(ConditionProblem {
        weight,
        condition: condition.type_.clone(),
        status: condition.status.clone(),
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        advice: advice(&condition.reason),
    })
}

/// Returns the severity of a condition; `None` if it reports no problem.
fn weight(condition: &Condition) -> Option<Weight> {
    let holds = condition.status == "True";
    let reason = condition.reason.as_str();
    match condition.type_.as_str() {
        PROGRESSING if holds => Some(Weight::Pending),
        PROGRESSING if reason == SETTLED.name => [MAY_BE_STARTED, ROLLOUT_UNDO]
            .iter()
            .any(|note| condition.message.contains(note))
            .then_some(Weight::Note),
        PROGRESSING if reason == NO_MATCHING_NODES.name => None,
        // The user requested the pause. The nodes that it holds back are counted separately.
        PROGRESSING if reason == PAUSED.name => Some(Weight::Note),
        // A rollout that ended without settling. A node that is not Progressing reports nothing
        // more here.
        PROGRESSING if is_of_rollout(reason) => Some(Weight::Fault),
        PROGRESSING => None,
        DEGRADED => holds.then_some(Weight::Fault),
        CONFLICT
        | CONNTRACK_PRESSURE
        | FOREIGN_PROXY_DETECTED
        | IPTABLES_SPLIT
        | RULES_CONTESTED => holds.then_some(Weight::Note),
        crds::condition::READY if reason == NO_MATCHING_NODES.name => Some(Weight::Note),
        AVAILABLE => (condition.status == "False").then_some(Weight::Fault),
        crds::condition::READY | crds::condition::ACCEPTED => (!holds).then_some(Weight::Fault),
        // By the convention of this API, any other condition that a later version adds is good if
        // True.
        _ => (condition.status == "False").then_some(Weight::Note),
    }
}

fn is_of_rollout(reason: &str) -> bool {
    use crds::condition::reason::{DEADLINE_EXCEEDED, HALTED, HELD_BACK, ROLLED_BACK};
    [DEADLINE_EXCEEDED, HALTED, HELD_BACK, ROLLED_BACK]
        .iter()
        .any(|known| known.name == reason)
}

#[cfg(test)]
pub(crate) mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    pub(crate) fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Condition {
        Condition {
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
            message: message.to_owned(),
            observed_generation: Some(1),
            reason: reason.to_owned(),
            status: status.to_owned(),
            type_: kind.to_owned(),
        }
    }

    #[test]
    fn a_good_condition_is_no_trouble() {
        for (kind, status, reason) in [
            ("Ready", "True", "AllNodesProgrammed"),
            ("Progressing", "False", "Settled"),
            ("Progressing", "False", "Programmed"),
            ("Degraded", "False", "AsExpected"),
            ("Conflict", "False", "NoConflict"),
            ("FeaturesHonoured", "True", "AllHonoured"),
            ("ForeignProxyDetected", "False", "NoneFound"),
        ] {
            let found = troubles(&[condition(kind, status, reason, "")]);
            assert!(found.is_empty(), "{found:?}");
        }
    }

    #[test]
    fn the_heaviest_comes_first_and_says_what_to_do() {
        let found = troubles(&[
            condition("FeaturesHonoured", "False", "FieldNotHonoured", ""),
            condition("Progressing", "True", "RollingOut", ""),
            condition("Ready", "False", "NodesNotReady", ""),
            condition("Progressing", "False", "RolledBack", ""),
        ]);
        let weights: Vec<Weight> = found.iter().map(|trouble| trouble.weight).collect();
        use Weight::{Fault, Note, Pending};
        assert_eq!(weights, [Fault, Fault, Pending, Note]);
        assert!(found.iter().all(|trouble| trouble.advice.is_some()));
    }
}
