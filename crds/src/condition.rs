//! Conditions of nodes and profiles, as `kubectl wait --for=condition=…` reads them.

pub mod reason;

use std::fmt;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::{Schema, SchemaGenerator, json_schema};

use crate::{condition::reason::Reason, node_proxy::rejections::cut};

/// A type of condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConditionType {
    /// The type in the condition.
    pub name: &'static str,
    /// The kinds of objects that can have it.
    pub kinds: &'static [&'static str],
    /// The meaning of status True.
    pub meaning: &'static str,
}

const PROFILE: &str = "ProxyProfile";
const NODE: &str = "NodeProxy";

macro_rules! types {
    ($($constant:ident = $name:literal of [$($kind:ident),+]: $meaning:literal;)+) => {
        $(
            #[doc = $meaning]
            pub const $constant: &str = $name;
        )+

        /// Every condition type.
        pub const TYPES: &[ConditionType] =
            &[$(ConditionType { name: $name, kinds: &[$($kind),+], meaning: $meaning }),+];
    };
}

types! {
    READY = "Ready" of [PROFILE, NODE]:
        "Everything that the profile and the Services ask for is programmed. On a profile, the \
         condition summarizes all nodes.";
    AVAILABLE = "Available" of [PROFILE]:
        "No more nodes than rollout.maxUnavailable are not ready, whatever configuration they have, and at least one is.";
    PROGRESSING = "Progressing" of [PROFILE, NODE]:
        "A change is being applied. A node that joins or restarts does not make a profile progress.";
    DEGRADED = "Degraded" of [PROFILE, NODE]:
        "A problem exists that does not resolve itself. A profile may be Ready and Degraded.";
    ACCEPTED = "Accepted" of [PROFILE]:
        "The profile is valid and may apply to nodes.";
    CONFLICT = "Conflict" of [PROFILE]:
        "Profiles of the same priority select the same node.";
    IPV4_PROGRAMMED = "IPv4Programmed" of [NODE]:
        "Everything is programmed for IPv4.";
    IPV6_PROGRAMMED = "IPv6Programmed" of [NODE]:
        "Everything is programmed for IPv6.";
    FEATURES_HONOURED = "FeaturesHonoured" of [PROFILE, NODE]:
        "This version of the agent supports everything that the profile and the Services ask for.";
    SOURCE_SYNCED = "SourceSynced" of [NODE]:
        "The agent follows the API server, or the directory of manifests.";
    MANIFESTS_PARSED = "ManifestsParsed" of [NODE]:
        "Every file of the directory of manifests could be read. Absent with an API server.";
    CONNTRACK_PRESSURE = "ConntrackPressure" of [NODE]:
        "The connection tracking table is so full that new connections are about to be dropped: from 90 % until it is below 80 %.";
    CONNTRACK_CONFIGURED = "ConntrackConfigured" of [NODE]:
        "The kernel's connection tracking table has the limits and timeouts of the profile.";
    RULES_CONTESTED = "RulesContested" of [NODE]:
        "Another program keeps changing the rules, so that they are repaired only every few seconds.";
    FOREIGN_PROXY_DETECTED = "ForeignProxyDetected" of [NODE]:
        "Rules of another service proxy, such as kube-proxy, are on the node. Rules in nf_tables are detected within ten seconds, legacy tables and devices within thirty.";
    API_SERVICE_REACHABLE = "APIServiceReachable" of [NODE]:
        "A new connection to the API server's Service, default/kubernetes, was accepted through the programmed rules: after each configuration, and every five minutes. Absent without an API server.";
    IPTABLES_SPLIT = "IptablesSplit" of [NODE]:
        "In mode iptables: both variants of iptables, legacy and nf_tables, hold rules on the node.";
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// It is not known whether it holds.
    Unknown,
}

/// The current content of one condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The condition type, one of [`TYPES`].
    pub kind: &'static str,
    /// Whether it holds.
    pub status: Status,
    /// The reason.
    pub reason: Reason,
    /// Details in plain text. Truncated to the length that the API accepts.
    pub message: String,
    /// The generation of the object that this finding is about.
    pub generation: Option<i64>,
}

// === impl Finding ===

impl Finding {
    /// A finding without a generation.
    pub fn new(kind: &'static str, status: Status, reason: Reason, message: String) -> Finding {
        Finding {
            kind,
            status,
            reason,
            message,
            generation: None,
        }
    }
}

/// Sets `finding` in `conditions`; it replaces the condition of the same type. `now` becomes the
/// transition time only if the status changes. Returns whether anything except that time changed,
/// and therefore whether the status is worth writing.
pub fn set_condition(conditions: &mut Vec<Condition>, finding: Finding, now: Timestamp) -> bool {
    let mut message = finding.message;
    cut(&mut message, LONGEST_MESSAGE);
    let mut condition = Condition {
        last_transition_time: Time(now),
        message,
        observed_generation: finding.generation,
        reason: finding.reason.name.to_owned(),
        status: finding.status.to_string(),
        type_: finding.kind.to_owned(),
    };
    match conditions
        .iter_mut()
        .find(|known| known.type_ == finding.kind)
    {
        Some(known) => {
            if known.status == condition.status {
                condition.last_transition_time = known.last_transition_time.clone();
            }
            let changed = *known != condition;
            *known = condition;
            changed
        }
        None => {
            conditions.push(condition);
            true
        }
    }
}

/// The status of a condition type in `conditions`; [`Status::Unknown`] if it is missing.
#[must_use]
pub fn status_of(conditions: &[Condition], kind: &str) -> Status {
    match conditions
        .iter()
        .find(|condition| condition.type_ == kind)
        .map(|condition| condition.status.as_str())
    {
        Some("True") => Status::True,
        Some("False") => Status::False,
        _ => Status::Unknown,
    }
}

const LONGEST_MESSAGE: usize = 32_768;

/// A list of conditions with the bounds of the Kubernetes API, one entry for each type.
pub(crate) fn list_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {
                    "description": "The type of the condition.",
                    "type": "string", "minLength": 1, "maxLength": 316,
                },
                "status": {
                    "description": "Whether the condition holds: True, False or Unknown.",
                    "type": "string", "enum": ["True", "False", "Unknown"],
                },
                "observedGeneration": {
                    "description": "The generation of the object that the condition describes.",
                    "type": "integer", "format": "int64", "minimum": 0,
                },
                "lastTransitionTime": {
                    "description": "When the status last changed.",
                    "type": "string", "format": "date-time",
                },
                "reason": {
                    "description": "The reason, as one CamelCase word.",
                    "type": "string", "minLength": 1, "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "message": {
                    "description": "Details, in plain text.",
                    "type": "string", "maxLength": LONGEST_MESSAGE,
                },
            },
        },
    })
}

// === impl Status ===

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        })
    }
}

impl From<bool> for Status {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        reason::{COMMIT_FAILED, PROGRAMMED},
        *,
    };

    fn finding(status: Status, reason: Reason, message: &str) -> Finding {
        Finding {
            kind: READY,
            status,
            reason,
            message: message.into(),
            generation: Some(1),
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn the_time_of_transition_stays_while_the_status_does() {
        let mut conditions = Vec::new();
        assert!(set_condition(
            &mut conditions,
            finding(Status::True, PROGRAMMED, "3 services"),
            at(1)
        ));
        assert!(!set_condition(
            &mut conditions,
            finding(Status::True, PROGRAMMED, "3 services"),
            at(2)
        ));
        assert!(set_condition(
            &mut conditions,
            finding(Status::True, PROGRAMMED, "4 services"),
            at(3)
        ));
        assert_eq!(conditions[0].last_transition_time.0, at(1));
        assert!(set_condition(
            &mut conditions,
            finding(Status::False, COMMIT_FAILED, "no memory"),
            at(4)
        ));
        assert_eq!(
            (conditions.len(), conditions[0].last_transition_time.0),
            (1, at(4))
        );
        assert_eq!(status_of(&conditions, READY), Status::False);
        assert_eq!(status_of(&conditions, DEGRADED), Status::Unknown);
    }

    #[test]
    fn a_message_is_cut_to_what_the_api_accepts() {
        let mut conditions = Vec::new();
        set_condition(
            &mut conditions,
            finding(Status::False, COMMIT_FAILED, &"é".repeat(40_000)),
            at(1),
        );
        assert!(conditions[0].message.chars().count() <= LONGEST_MESSAGE);
        assert!(conditions[0].message.starts_with('é'));
    }
}
