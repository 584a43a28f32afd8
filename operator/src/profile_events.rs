//! Events about changes of a profile's conditions. `kubectl describe proxyprofile` shows them.

use crds::{
    condition::reason::{
        DEADLINE_EXCEEDED, HALTED, HELD_BACK, INVALID_FIELD, INVALID_NODE_SELECTOR, NO_CONFLICT,
        ROLLED_BACK, SAME_PRIORITY, UNREADABLE, VALID,
    },
    event::ANNOUNCED,
    profile::{ProxyProfile, status::ProxyProfileStatus},
};
use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{
    Client, Resource,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use runtime::chain;
use tracing::warn;

/// Publishes Events about profiles.
#[derive(Clone)]
pub(crate) struct ProfileEventRecorder {
    recorder: Recorder,
}

/// The longest note the API accepts, in bytes.
const LONGEST_NOTE: usize = 1024;

// === impl ProfileEventRecorder ===

impl ProfileEventRecorder {
    /// Publishes with `client` as the operator instance `identity`.
    pub(crate) fn new(client: Client, identity: &str) -> Self {
        let reporter = Reporter {
            controller: "signpost-operator".to_owned(),
            instance: Some(identity.to_owned()),
        };
        Self {
            recorder: Recorder::new(client, reporter),
        }
    }

    /// Publishes an Event for each condition that changed between the status `before` and `after`
    /// of `profile`. An Event that cannot be published is only logged: the conditions state the
    /// same and remain.
    pub(crate) async fn record(
        &self,
        profile: &ProxyProfile,
        before: Option<&ProxyProfileStatus>,
        after: &ProxyProfileStatus,
    ) {
        let about = ObjectReference {
            namespace: None,
            ..profile.object_ref(&())
        };
        for condition in new_conditions(before, after) {
            if let Err(error) = self.recorder.publish(&render(condition), &about).await {
                warn!(error = %chain(&error), reason = condition.reason, "unable to publish an event");
            }
        }
    }
}

impl std::fmt::Debug for ProfileEventRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Announcer")
    }
}

/// Returns the announced conditions whose reason changed. A condition that states no problem is not
/// announced.
fn new_conditions<'a>(
    before: Option<&'a ProxyProfileStatus>,
    after: &'a ProxyProfileStatus,
) -> impl Iterator<Item = &'a Condition> {
    let known = move |kind: &str| {
        before?
            .conditions
            .iter()
            .find(|condition| condition.type_ == kind)
            .map(|condition| condition.reason.as_str())
    };
    after.conditions.iter().filter(move |condition| {
        let known = known(&condition.type_);
        let at_rest =
            known.is_none() && [VALID.name, NO_CONFLICT.name].contains(&condition.reason.as_str());
        ANNOUNCED.contains(&condition.type_.as_str())
            && known != Some(condition.reason.as_str())
            && !at_rest
    })
}

fn render(condition: &Condition) -> Event {
    let bad = [
        INVALID_FIELD,
        INVALID_NODE_SELECTOR,
        UNREADABLE,
        DEADLINE_EXCEEDED,
        HALTED,
        HELD_BACK,
        ROLLED_BACK,
        SAME_PRIORITY,
    ];
    let is_bad = bad.iter().any(|reason| reason.name == condition.reason);
    let end = condition.message.floor_char_boundary(LONGEST_NOTE);
    Event {
        type_: if is_bad {
            EventType::Warning
        } else {
            EventType::Normal
        },
        reason: condition.reason.clone(),
        note: Some(condition.message[..end].to_owned()),
        action: condition.type_.clone(),
        secondary: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(conditions: &[(&str, &str)]) -> ProxyProfileStatus {
        let condition = |(kind, reason): &(&str, &str)| {
            serde_json::from_value(serde_json::json!({
                "type": kind, "status": "True", "reason": reason, "message": "é".repeat(2000),
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }))
            .expect("a condition")
        };
        ProxyProfileStatus {
            conditions: conditions.iter().map(condition).collect(),
            ..ProxyProfileStatus::default()
        }
    }

    fn reported(before: &[(&str, &str)], after: &[(&str, &str)]) -> Vec<String> {
        let (before, after) = (status(before), status(after));
        new_conditions(Some(&before), &after)
            .map(|condition| condition.reason.clone())
            .collect()
    }

    #[test]
    fn only_what_changed_is_reported_and_a_good_start_is_not() {
        let start = [
            ("Accepted", "Valid"),
            ("Conflict", "NoConflict"),
            ("Progressing", "RollingOut"),
        ];
        assert_eq!(reported(&[], &start), ["RollingOut"]);
        assert_eq!(reported(&start, &start), [""; 0]);
        assert_eq!(
            reported(
                &start,
                &[("Accepted", "Valid"), ("Progressing", "RolledBack")]
            ),
            ["RolledBack"]
        );
        assert_eq!(
            reported(&[("Accepted", "InvalidField")], &[("Accepted", "Valid")]),
            ["Valid"]
        );
        assert_eq!(
            reported(
                &[("Ready", "NodesNotReady")],
                &[("Ready", "AllNodesProgrammed")]
            ),
            [""; 0]
        );
    }

    #[test]
    fn a_failure_is_a_warning_within_the_length_the_api_accepts() {
        let status = status(&[("Progressing", "RolledBack"), ("Progressing", "Settled")]);
        let events: Vec<Event> = status.conditions.iter().map(render).collect();
        assert_eq!(
            (events[0].type_, events[1].type_),
            (EventType::Warning, EventType::Normal)
        );
        assert_eq!(events[0].note.as_ref().map(String::len), Some(1024));
    }
}
