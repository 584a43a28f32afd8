use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::{Method, Request, Response};
use crds::ProxyProfileSpec;
use crds::profile::status::ProxyProfileStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Client;
use kube::client::Body;
use tower::service_fn;

use super::*;
use crate::trouble::tests::condition;

fn report(updated: u32, progressing: Condition) -> ProfileReport {
    let mut profile = ProxyProfile::new("default", ProxyProfileSpec::default());
    profile.metadata.generation = Some(2);
    profile.status = Some(ProxyProfileStatus {
        observed_generation: Some(2),
        matched_nodes: 3,
        updated_nodes: updated,
        ready_nodes: 2,
        conditions: vec![
            // A node that was not ready before the rollout.
            condition("Ready", "False", "NodesNotReady", "2 of 3"),
            progressing,
        ],
        ..ProxyProfileStatus::default()
    });
    ProfileReport::of(&profile)
}

#[test]
fn t142_a_rollout_ends_when_it_has_settled_or_cannot_go_on() {
    let of = |updated, status, reason| {
        stage(&report(
            updated,
            condition("Progressing", status, reason, ""),
        ))
    };
    assert_eq!(of(1, "True", "RollingOut"), Stage::Going);
    assert_eq!(of(3, "False", "Settled"), Stage::Finished);
    assert_eq!(of(3, "False", "Paused"), Stage::Finished);
    for (updated, reason) in [
        (1, "Paused"),
        (1, "Halted"),
        (0, "RolledBack"),
        (2, "DeadlineExceeded"),
    ] {
        let Stage::Stopped(trouble) = of(updated, "False", reason) else {
            panic!("{reason} goes on");
        };
        assert_eq!(trouble.reason, reason);
        assert!(trouble.advice.is_some(), "{reason} does not say what to do");
    }
}

#[test]
fn a_status_of_the_generation_before_ends_nothing() {
    let mut profile = ProxyProfile::new("default", ProxyProfileSpec::default());
    profile.metadata.generation = Some(3);
    profile.status = Some(ProxyProfileStatus {
        observed_generation: Some(2),
        conditions: vec![condition("Progressing", "False", "RolledBack", "")],
        ..ProxyProfileStatus::default()
    });
    assert_eq!(stage(&ProfileReport::of(&profile)), Stage::Going);
}

#[test]
fn progress_is_one_line() {
    let report = report(1, condition("Progressing", "True", "RollingOut", ""));
    assert_eq!(
        describe(&report),
        "default generation 2: RollingOut, 1 of 3 nodes updated, 2 ready, 0 degraded\n"
    );
}

#[test]
fn the_wave_in_progress_is_named_until_the_rollout_has_ended() {
    let mut rollout: RolloutStatus = serde_json::from_value(json!({
        "configHash": "", "generation": 2, "phase": "RollingOut", "since": "2026-01-01T00:00:00Z", "wave": 2,
        "waves": [{"nodes": 1, "available": 1}, {"nodes": 5, "available": 2, "failed": 1}], "waitingFor": "n3, n4",
    }))
    .expect("a rollout");
    assert_eq!(
        wave(&rollout),
        [
            "wave 2 of 2, 2 of its 5 nodes available, 1 failed",
            "waits for n3, n4"
        ]
    );
    rollout.phase = RolloutPhase::Settled;
    assert!(wave(&rollout).is_empty());
}

#[test]
fn t307_what_the_field_undoes_is_said_also_once_the_rollout_has_ended() {
    let said = "rollout.undo: generation 1 (a) is undone, and nodes get generation 2 of status.history (b)";
    let message = format!("every node has the profile's configuration; {said}");
    let report = report(3, condition("Progressing", "False", "Settled", &message));
    assert_eq!(stage(&report), Stage::Finished);
    let text = describe(&report);
    assert!(text.ends_with(&format!("; {said}\n")), "{text}");
}

/// Failure story T438.
#[test]
fn t438_a_rollout_without_an_operator_does_not_point_at_nodes() {
    let hour = Duration::from_secs(3600);
    let going = describe_delay(hour, None);
    assert!(
        going.contains("continues") && going.contains("nodes --not-ready"),
        "{going}"
    );
    let stuck = describe_delay(hour, Some(Timestamp::UNIX_EPOCH));
    assert!(
        stuck.contains("no operator") && stuck.contains("signpost check"),
        "{stuck}"
    );
    assert!(
        !stuck.contains("continues") && !stuck.contains("not-ready"),
        "{stuck}"
    );
    let said = render_operator_absence(Timestamp::UNIX_EPOCH);
    assert!(said.contains("since 1970-01-01T00:00:00Z"), "{said}");
}

/// Failure story T439.
#[tokio::test]
async fn t439_an_edit_is_decided_again_if_the_operator_reports_meanwhile() {
    // The first changes meet a report of the operator each, which changes what there is to decide.
    for (reports, expected, ending) in [
        (0, 1, Some(Ending::Success)),
        (4, 5, Some(Ending::Success)),
        (9, 5, None),
    ] {
        let version = Arc::new(AtomicUsize::new(0));
        let served = Arc::clone(&version);
        let service = service_fn(move |request: Request<Body>| {
            let served = Arc::clone(&served);
            async move {
                let current = served.load(Ordering::Relaxed);
                let is_late = request.method() == Method::PATCH && {
                    served.fetch_add(1, Ordering::Relaxed);
                    current < reports
                };
                let (code, body) = match is_late {
                    true => (
                        409,
                        json!({"status": "Failure", "reason": "Conflict", "message": "changed", "code": 409}),
                    ),
                    false => (
                        200,
                        json!({
                            "apiVersion": "signpost.dev/v1alpha1", "kind": "ProxyProfile", "spec": {},
                            "metadata": {"name": "default", "resourceVersion": current.to_string()},
                        }),
                    ),
                };
                let response = Response::builder().status(code);
                response.body(Body::from(body.to_string().into_bytes()))
            }
        });
        let cluster = Cluster::of(Client::new(service, "default"));
        let decided = RefCell::new(Vec::new());
        let decide = |profile: &ProxyProfile| {
            decided.borrow_mut().push(profile.resource_version());
            Ok(Edit {
                change: json!({}),
                done: "changed".to_owned(),
            })
        };
        let applied = apply(&cluster, "default", decide).await;
        assert_eq!(applied.ok(), ending, "{reports} reports");
        let decided = decided.into_inner();
        assert_eq!(decided.len(), expected, "{reports} reports");
        let last = (expected - 1).to_string();
        assert_eq!(decided.last(), Some(&Some(last)), "{reports} reports");
    }
}
