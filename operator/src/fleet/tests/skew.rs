//! Operators that read what a newer operator wrote.

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::Cluster;

/// Ten nodes with a mode that this operator does not know, which its newer version rolled out. The
/// profile asks for it too.
fn newer_fleet() -> Cluster {
    let mut cluster = Cluster::with_nodes(10);
    for node in cluster.nodes.keys().cloned().collect::<Vec<_>>() {
        let mut proxy = cluster.proxies[&node].clone();
        proxy["spec"]["config"]["mode"] = "ebpf".into();
        proxy["spec"]["configHash"] = "newer".into();
        proxy["metadata"]["resourceVersion"] = cluster.next_version().into();
        cluster.put_proxy(&node, proxy);
        cluster.say(&node, json!({"Ready": "True"}));
    }
    let rolled_out_at = cluster.now + SignedDuration::from_secs(1);
    let revision = json!({
        "generation": 2, "configHash": "newer", "phase": "Settled", "since": rolled_out_at,
        "rolledOutAt": rolled_out_at, "spec": {"mode": "ebpf"},
    });
    let profile = cluster.profiles.get_mut("default").expect("it is there");
    let history = profile["status"]["history"].as_array_mut();
    history.expect("it has one").insert(0, revision);
    cluster.put_profile("default", json!({"mode": "ebpf"}));
    cluster.forget_writes();
    cluster.restart_operator();
    cluster
}

/// Failure story T193.
#[test]
fn t193_an_older_operator_leaves_nodes_alone_whose_configuration_it_cannot_read() {
    let mut cluster = newer_fleet();
    cluster.advance(3600);
    assert_eq!(cluster.assigned, [""; 0]);
    assert_eq!(cluster.nodes_with_mode("ebpf").len(), 10);
    assert_eq!(cluster.condition("default", "Accepted"), "False/Unreadable");
}

/// Failure story T193.
#[test]
fn t193_an_older_operator_replaces_what_it_cannot_read_in_waves() {
    let mut cluster = newer_fleet();
    cluster.mute = cluster.nodes.keys().cloned().collect();
    cluster.put_profile("default", json!({"mode": "iptables"}));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"], "the canary");
    cluster.mute.clear();
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 10);
}

/// Failure story T193. What it can read of a configuration is another one.
#[test]
fn t193_a_configuration_that_was_read_in_part_is_given_to_no_node() {
    let mut cluster = newer_fleet();
    cluster.broken_mode = Some("iptables");
    cluster.put_profile("default", json!({"mode": "iptables"}));
    cluster.advance(3600);
    assert_eq!(cluster.assigned, ["n1"], "it has nothing to return to");
    assert_eq!(
        cluster.proxies["n1"]["metadata"]["annotations"]["signpost.dev/previous"],
        Value::Null
    );
    assert_eq!(cluster.nodes_with_mode("ebpf").len(), 9);
}

/// Ten nodes that another version of the operator gave mode nftables. It wrote the same fields under
/// another hash. While no operator runs, their NodeProxies are deleted and the profile is edited.
fn other_version_with_lost_proxies(change: impl FnOnce(&mut Value)) -> Cluster {
    let mut cluster = Cluster::with_nodes(10);
    let profile = cluster.profiles.get_mut("default").expect("it is there");
    let status = &mut profile["status"];
    status["targetHash"] = "other".into();
    status["currentHash"] = "other".into();
    status["rollout"]["configHash"] = "other".into();
    status["history"][0]["configHash"] = "other".into();
    change(status);
    cluster.proxies.clear();
    let rollout = json!({"minReady": "1h"});
    cluster.put_profile("default", json!({"mode": "iptables", "rollout": rollout}));
    cluster.forget_writes();
    cluster.restart_operator();
    cluster.run();
    cluster
}

/// Failure story T221. Nothing counted as proven, and all nodes got the edit at once.
#[test]
fn t221_what_another_version_rendered_otherwise_is_still_proven() {
    let cluster = other_version_with_lost_proxies(|_| {});
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 9);
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"], "the canary");
    let hash = |node: &str| cluster.proxies[node]["spec"]["configHash"].clone();
    assert_ne!(hash("n2"), "other", "of what this version renders");
}

/// Failure story T221. The version before did not write when a rollout ended.
#[test]
fn t221_without_the_end_of_any_rollout_the_newest_that_ended_is_proven() {
    let cluster = other_version_with_lost_proxies(|status| {
        let newest = status["history"][0].as_object_mut();
        newest.expect("an object").remove("rolledOutAt");
    });
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 9);
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"], "the canary");
    let history = cluster.status("default").history;
    assert!(history[1].rolled_out_at.is_some(), "{history:?}");
}

/// Failure story T221. Without the field that only the other version knows it is another one.
#[test]
fn t221_what_was_read_in_part_is_not_proven() {
    let cluster = other_version_with_lost_proxies(|status| {
        status["history"][0]["spec"]["invented"] = true.into();
    });
    assert_eq!(cluster.nodes_with_mode("nftables"), [""; 0]);
}

/// Failure story T222. An older operator cannot read the profile, and forgot that its configuration
/// had failed.
#[test]
fn t222_a_configuration_that_failed_is_not_tried_again_after_an_operator_could_not_read_it() {
    for on_failure in ["Rollback", "Halt"] {
        let mut cluster = Cluster::with_nodes(4);
        cluster.broken_mode = Some("iptables");
        let spec = json!({"mode": "iptables", "rollout": {"onFailure": on_failure}});
        cluster.put_profile("default", spec.clone());
        cluster.advance(600);
        let failed = cluster.condition("default", "Progressing");
        let verdict = cluster.status("default").rollout.and_then(|it| it.verdict);
        assert!(verdict.is_some(), "{failed}");
        cluster.forget_writes();
        for mode in ["ebpf", "iptables"] {
            let version = cluster.next_version();
            let profile = cluster.profiles.get_mut("default").expect("it is there");
            profile["spec"]["mode"] = mode.into();
            profile["metadata"]["resourceVersion"] = version.into();
            cluster.restart_operator();
            cluster.advance(600);
        }
        assert_eq!(cluster.condition("default", "Accepted"), "True/Valid");
        assert_eq!(cluster.assigned, [""; 0], "{on_failure}");
        assert_eq!(cluster.condition("default", "Progressing"), failed);
        let after = cluster.status("default").rollout.and_then(|it| it.verdict);
        assert_eq!(after, verdict);
    }
}

/// Failure story T220. The definitions are of an older version than the operator.
#[test]
fn t220_with_older_definitions_a_rollout_ends_and_its_failure_is_known_to_the_next_operator() {
    for unknown in [
        vec!["history[].rolledOutAt", "rollout.waitingFor"],
        vec!["rollout.wave", "rollout.waves"],
        vec!["rollout", "history"],
    ] {
        let mut cluster = Cluster::with_nodes(10);
        cluster.unknown_fields = unknown.iter().map(|&field| field.to_owned()).collect();
        cluster.put_profile("default", json!({"mode": "iptables"}));
        cluster.run();
        assert_eq!(cluster.nodes_with_mode("iptables").len(), 10);
        assert_eq!(cluster.condition("default", "Progressing"), "False/Settled");
        cluster.broken_mode = Some("ipvs");
        cluster.put_profile("default", json!({"mode": "ipvs"}));
        cluster.advance(600);
        cluster.forget_writes();
        cluster.restart_operator();
        cluster.advance(600);
        assert_eq!(cluster.assigned, [""; 0], "{unknown:?}");
        let progressing = cluster.condition("default", "Progressing");
        assert_eq!(progressing, "False/RolledBack");
    }
}

/// Failure story T266. The definitions were replaced after the operator, and the status stayed without
/// the fields until the next change of the profile.
#[test]
fn t266_fields_are_written_once_newer_definitions_have_them() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.unknown_fields = ["readyNodes".to_owned()].into();
    cluster.put_profile("default", json!({"mode": "iptables"}));
    cluster.run();
    cluster.forget_writes();
    cluster.advance(3600);
    let tries = cluster.reported.len();
    assert!((1..=6).contains(&tries), "{tries} writes in an hour");
    assert_eq!(cluster.status("default").ready_nodes, 0);
    cluster.unknown_fields.clear();
    cluster.advance(600);
    assert_eq!(cluster.status("default").ready_nodes, 3);
    cluster.forget_writes();
    cluster.advance(3600);
    assert_eq!(cluster.reported, [""; 0]);
}

/// Failure story T295. A write that failed, or that had to wait a second, was put off for as long as
/// one that was answered: the fields came after twenty minutes and not after ten.
#[test]
fn t295_fields_are_tried_every_ten_minutes_and_soon_again_if_the_write_fails() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.unknown_fields = ["readyNodes".to_owned()].into();
    cluster.put_profile("default", json!({"mode": "iptables"}));
    cluster.run();
    for _ in 0..3 {
        cluster.forget_writes();
        cluster.advance(590);
        assert_eq!(cluster.reported, [""; 0]);
        cluster.now += SignedDuration::from_secs(10);
        for _ in 0..3 {
            let failed = cluster.fleet.plan(cluster.now, cluster.instant());
            assert_eq!(failed.actions.len(), 1, "it is still to be written");
            let in_turn = failed
                .requeue_at
                .is_none_or(|requeue_at| requeue_at > cluster.now);
            assert!(in_turn, "the pace of writes decides when");
        }
        for action in cluster.fleet.plan(cluster.now, cluster.instant()).actions {
            cluster.write(action);
        }
        assert_eq!(cluster.reported, ["default"]);
        cluster.run();
    }
}

/// Failure story T193. A field that only the newer version has.
#[test]
fn t193_a_field_that_the_operator_does_not_know_is_not_lost_in_a_rollback() {
    let mut cluster = Cluster::with_nodes(3);
    let mut proxy = cluster.proxies["n1"].clone();
    proxy["spec"]["config"]["invented"] = true.into();
    cluster.put_proxy("n1", proxy);
    cluster.broken_mode = Some("iptables");
    cluster.put_profile("default", json!({"mode": "iptables"}));
    cluster.run();
    assert_eq!(
        cluster.proxies["n1"]["metadata"]["annotations"]["signpost.dev/previous"],
        Value::Null
    );
}

/// Failure story T193. The same in what the node could return to.
#[test]
fn t193_a_configuration_to_return_to_that_was_read_in_part_is_not_returned_to() {
    let mut cluster = newer_fleet();
    let mut previous = cluster.proxies["n1"]["spec"].clone();
    previous["config"]["mode"] = "nftables".into();
    previous["config"]["invented"] = true.into();
    previous["configHash"] = "older".into();
    let mut proxy = cluster.proxies["n1"].clone();
    proxy["metadata"]["annotations"] = json!({"signpost.dev/previous": previous.to_string()});
    cluster.put_proxy("n1", proxy);
    cluster.restart_operator();
    cluster.broken_mode = Some("iptables");
    cluster.put_profile("default", json!({"mode": "iptables"}));
    cluster.advance(3600);
    assert_ne!(cluster.proxies["n1"]["spec"]["configHash"], "older");
}
