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
    let command = "`kubectl signpost rollout undo default` returns";
    assert!(reason.contains(command), "{reason}");
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

/// Failure story T405: two changes in a row fail, and undo of the second breaks the canary with the
/// first.
#[test]
fn t405_undo_returns_to_a_configuration_that_all_nodes_had() {
    let mut failed = profile("RolledBack", json!({"mode": "ipvs"}));
    let history = &mut failed.status.as_mut().expect("a status").history;
    history[2].rolled_out_at = Some(history[2].since.clone());
    let edit = undo(&failed, None).expect("an edit");
    assert!(edit.done.contains("generation 2"), "{}", edit.done);
    let edit = undo(&failed, Some(5)).expect("an edit");
    assert!(edit.done.contains("generation 5"), "{}", edit.done);
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

/// A profile whose own fields, those of generation 6, are undone: nodes have those of generation 7.
fn undone(phase: &str) -> ProxyProfile {
    let spec = json!({"mode": "ipvs", "rollout": {"undo": "hash-6"}});
    let mut profile = profile(phase, spec.clone());
    let status = profile.status.as_mut().expect("it has one");
    let revision = |generation: i64, spec: Value| {
        let spec = serde_json::from_value(spec).expect("a spec");
        let mut revision = status.history[0].clone();
        revision.generation = generation;
        revision.config_hash = format!("hash-{generation}");
        revision.rolled_out_at = Some(revision.since.clone());
        revision.spec = Revision::fields(&spec);
        revision
    };
    status.history = vec![
        revision(7, json!({"mode": "iptables"})),
        revision(6, spec),
        status.history[2].clone(),
    ];
    profile
}

#[test]
fn t307_what_is_undone_by_the_field_is_tried_again_without_it() {
    let edit = retry(&undone("Settled")).expect("an edit");
    assert_eq!(edit.change, json!({"spec": {"rollout": {"undo": null}}}));
    // A return that is under way is not turned round.
    for phase in ["RollingOut", "Paused"] {
        let reason = retry(&undone(phase)).expect_err("it has not failed");
        assert!(reason.contains("has not failed"), "{reason}");
    }
    // What has failed is the way back.
    let edit = retry(&undone("RolledBack")).expect("an edit");
    assert_eq!(edit.change, json!({"spec": {"rollout": {"attempt": 1}}}));
    // There is nothing to return to yet.
    let mut first = undone("RolledBack");
    let status = first.status.as_mut().expect("it has one");
    status.history.remove(0);
    let edit = retry(&first).expect("an edit");
    assert_eq!(
        edit.change,
        json!({"spec": {"rollout": {"attempt": 1, "undo": null}}})
    );
}

#[test]
fn t307_the_command_leaves_no_field_behind_that_says_something_else() {
    let before = undone("Settled");
    let reason = undo(&before, None).expect_err("which one is meant?");
    assert!(reason.contains("generation 7 already: once"), "{reason}");
    assert!(reason.contains("undo default --to GENERATION`"), "{reason}");
    let mut failed = undone("RolledBack");
    let status = failed.status.as_mut().expect("it has one");
    status.history[0].phase = RolloutPhase::RolledBack;
    let reason = undo(&failed, None).expect_err("which one is meant?");
    assert!(reason.contains("that has failed"), "{reason}");
    let edit = undo(&before, Some(7)).expect("an edit");
    assert_eq!(
        edit.change,
        json!({"spec": {"mode": "iptables", "rollout": {"undo": null}}})
    );
    let edit = undo(&before, Some(6)).expect("an edit");
    assert_eq!(edit.change, json!({"spec": {"rollout": {"undo": null}}}));
    assert!(
        edit.done.contains("`rollout.undo` is removed"),
        "{}",
        edit.done
    );
    let spec = json!({"rollout": {"undo": "hash-5"}});
    let edit = undo(&profile("Settled", spec), None).expect("an edit");
    assert_eq!(edit.change["spec"]["rollout"], json!({"undo": null}));
}
