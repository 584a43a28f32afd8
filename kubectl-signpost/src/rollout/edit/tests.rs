use super::*;

fn profile(phase: &str, spec: Value) -> ProxyProfile {
    let revision = |generation: i64, spec: Value| {
        let spec = serde_json::from_value(spec).expect("a spec");
        json!({
            "generation": generation, "configHash": format!("hash-{generation}"), "phase": phase,
            "since": "2026-01-01T00:00:00Z", "spec": Revision::fields(&spec),
        })
    };
    serde_json::from_value(json!({
        "metadata": {"name": "default", "generation": 7},
        "spec": spec.clone(),
        "status": {
            "observedGeneration": 7,
            "rollout": {"configHash": "hash-7", "generation": 7, "phase": phase, "since": "2026-01-01T00:00:00Z", "wave": 1},
            "history": [
                revision(7, spec),
                revision(5, json!({"mode": "iptables", "conntrack": {"maxPerCore": 1}})),
                revision(2, json!({})),
            ],
        },
    }))
    .expect("a profile")
}

#[test]
fn t158_only_a_rollout_in_progress_is_aborted() {
    for phase in ["RollingOut", "Paused"] {
        let edit = abort(&profile(phase, json!({}))).expect("an edit");
        assert_eq!(
            edit.change,
            json!({"spec": {"rollout": {"abort": "hash-7"}}})
        );
    }
    let reason = abort(&profile("Settled", json!({}))).expect_err("it has ended");
    assert!(reason.contains("rollout undo"), "{reason}");
}

#[test]
fn only_a_failed_rollout_is_tried_again_and_an_abort_of_it_ends() {
    let spec = json!({"rollout": {"attempt": 2, "abort": "hash-7"}});
    let edit = retry(&profile("RolledBack", spec)).expect("an edit");
    assert_eq!(
        edit.change,
        json!({"spec": {"rollout": {"attempt": 3, "abort": null}}})
    );
    let spec = json!({"rollout": {"abort": "hash-1"}});
    let edit = retry(&profile("Halted", spec)).expect("an edit");
    assert_eq!(edit.change, json!({"spec": {"rollout": {"attempt": 1}}}));
    retry(&profile("Settled", json!({}))).expect_err("it has not failed");
}

#[test]
fn t159_undo_returns_to_the_fields_of_the_configuration_before_and_no_others() {
    let spec = json!({
        "priority": 3, "paused": true, "syncPeriod": "10s", "conntrack": {"tcpEstablishedTimeout": "1h", "maxPerCore": 1},
        "ipvs": {"tcpTimeout": "1h"}, "rollout": {"canary": 2},
    });
    let before = profile("Settled", spec);
    let edit = undo(&before, None).expect("an edit");
    assert_eq!(
        edit.change,
        json!({"spec": {
            "mode": "iptables", "syncPeriod": "30s", "conntrack": {"tcpEstablishedTimeout": null}, "ipvs": null,
        }})
    );
    assert!(edit.done.contains("generation 5"), "{}", edit.done);
    assert!(
        edit.done.contains("mode: \"nftables\" -> \"iptables\""),
        "{}",
        edit.done
    );
    let edit = undo(&before, Some(2)).expect("an edit");
    assert_eq!(
        edit.change,
        json!({"spec": {"syncPeriod": "30s", "conntrack": null, "ipvs": null}})
    );
    undo(&before, Some(3)).expect_err("the history does not have it");
}

#[test]
fn undo_does_not_return_to_a_configuration_that_stays_aborted() {
    let spec = json!({"rollout": {"abort": "hash-5"}});
    let edit = undo(&profile("Settled", spec), None).expect("an edit");
    assert_eq!(edit.change["spec"]["rollout"], json!({"abort": null}));
}

#[test]
fn nothing_is_decided_by_a_status_of_the_generation_before() {
    let mut behind = profile("RollingOut", json!({}));
    behind.metadata.generation = Some(8);
    for edit in [abort(&behind), retry(&behind), undo(&behind, None)] {
        edit.expect_err("the operator has not seen the profile");
    }
}
