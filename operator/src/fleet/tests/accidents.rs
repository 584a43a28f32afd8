//! Events that must not change a whole fleet at once: deleted objects, explicit defaults, a pause,
//! a delayed operator.

use serde_json::{Value, json};

use super::{Cluster, proxy_record};
use crate::fleet::{Action, Event, ObjectChange};

fn iptables() -> Value {
    json!({"mode": "iptables"})
}

/// Fifty nodes with mode nftables whose agents no longer report by themselves.
fn silent_fleet() -> Cluster {
    let mut cluster = Cluster::with_nodes(50);
    cluster.mute = cluster.nodes.keys().cloned().collect();
    cluster
}

/// Asserts that all nodes but the canary keep mode nftables, that a failing canary rolls the change
/// back and that a ready one continues it.
fn assert_only_the_canary_changes(mut cluster: Cluster) {
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"]);
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 49);
    let others: Vec<String> = cluster.nodes.keys().cloned().collect();
    for node in others.iter().filter(|node| *node != "n1") {
        cluster.say(node, json!({"Ready": "True"}));
    }
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"]);
    cluster.advance(601);
    assert_eq!(
        cluster.condition("default", "Progressing"),
        "False/RolledBack"
    );
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 50);
}

#[test]
fn t112_a_profile_deleted_and_made_again_otherwise_goes_in_waves() {
    let mut cluster = silent_fleet();
    cluster.remove_profile("default");
    cluster.run();
    assert_eq!(cluster.assignments().len(), 0);
    cluster.now += jiff::SignedDuration::from_secs(5);
    cluster.put_profile("default", iptables());
    assert_only_the_canary_changes(cluster);
}

#[test]
fn t112_deleted_node_proxies_come_back_as_they_were() {
    let mut cluster = silent_fleet();
    cluster.delete_proxies();
    cluster.put_profile("default", iptables());
    assert_only_the_canary_changes(cluster);

    let mut cluster = Cluster::with_nodes(50);
    cluster.delete_proxies();
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 50);
    assert_eq!(cluster.condition("default", "Progressing"), "False/Settled");
}

/// While no operator runs, the NodeProxies are deleted and the profile gets this spec.
fn delete_without_operator(cluster: &mut Cluster, spec: Value) {
    cluster.proxies.clear();
    cluster.put_profile("default", spec);
    cluster.forget_writes();
    cluster.restart_operator();
}

/// Failure story T211. The whole fleet took the edit for its first configuration.
#[test]
fn t211_node_proxies_deleted_while_no_operator_runs_come_back_as_they_were() {
    let mut cluster = Cluster::with_nodes(50);
    delete_without_operator(&mut cluster, json!({}));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 50);
    assert_eq!(cluster.condition("default", "Progressing"), "False/Settled");

    cluster.broken_mode = Some("iptables");
    delete_without_operator(&mut cluster, iptables());
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"], "the canary");
    // The operator ends again before any agent has reported.
    delete_without_operator(&mut cluster, iptables());
    cluster.restart_operator();
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"]);
    cluster.advance(121);
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 50);
    let progressing = cluster.condition("default", "Progressing");
    assert_eq!(progressing, "False/RolledBack");

    cluster.broken_mode = None;
    let mut other = iptables();
    other["syncPeriod"] = "1m".into();
    delete_without_operator(&mut cluster, other);
    cluster.advance(600);
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 50);
}

/// Failure story T211.
#[test]
fn t211_in_the_middle_of_a_rollout_they_come_back_with_what_is_proven() {
    let mut cluster = Cluster::with_nodes(50);
    let rollout = json!({"minReady": "60s", "maxUnavailable": 10, "waves": [50]});
    let mut spec = json!({"mode": "iptables", "rollout": rollout});
    cluster.put_profile("default", spec.clone());
    cluster.advance(130);
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 21);
    delete_without_operator(&mut cluster, spec.clone());
    let plan = cluster.plan();
    plan.actions
        .into_iter()
        .for_each(|action| cluster.write(action));
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 50);
    cluster.run();
    assert_eq!(
        cluster.nodes_with_mode("iptables"),
        ["n1"],
        "from the start"
    );

    spec["paused"] = true.into();
    delete_without_operator(&mut cluster, spec.clone());
    cluster.advance(600);
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 50);
    spec["paused"] = false.into();
    cluster.put_profile("default", spec);
    cluster.advance(600);
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 50);
}

/// Failure story T211. Nodes without a NodeProxy got what had failed.
#[test]
fn t211_after_a_failure_no_node_comes_back_with_what_failed() {
    for on_failure in ["Rollback", "Halt"] {
        let mut cluster = Cluster::with_nodes(20);
        cluster.broken_mode = Some("iptables");
        let spec = json!({"mode": "iptables", "rollout": {"onFailure": on_failure}});
        cluster.put_profile("default", spec.clone());
        cluster.advance(121);
        delete_without_operator(&mut cluster, spec);
        cluster.advance(600);
        assert_eq!(cluster.nodes_with_mode("nftables").len(), 20);

        // The user returns to what all of them have.
        delete_without_operator(&mut cluster, json!({}));
        cluster.run();
        assert_eq!(cluster.assigned.len(), 20, "once each");
        assert_eq!(cluster.nodes_with_mode("nftables").len(), 20);
    }
}

/// Failure story T211. The one that is left was lost long ago, with an older configuration.
#[test]
fn t211_what_is_proven_counts_more_than_what_one_node_has() {
    let mut cluster = Cluster::with_nodes(20);
    cluster.lose_kubelet("n7");
    cluster.mute.insert("n7".into());
    let n7 = cluster.proxies["n7"].clone();
    cluster.put_profile("default", iptables());
    cluster.advance(3600);
    cluster.proxies = [("n7".to_owned(), n7)].into();
    cluster.broken_mode = Some("ipvs");
    cluster.put_profile("default", json!({"mode": "ipvs"}));
    cluster.restart_operator();
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 18);
    let changed = cluster.nodes_with_mode("ipvs");
    assert_eq!(changed, ["n1", "n7"], "the canary, and the lost node");
}

#[test]
fn node_proxies_deleted_in_the_middle_of_a_rollout_come_back_as_they_were() {
    let mut cluster = silent_fleet();
    cluster.put_profile("default", iptables());
    cluster.run();
    cluster.delete_proxies();
    assert_only_the_canary_changes(cluster);
}

#[test]
fn another_node_of_the_same_name_gets_what_its_profile_says() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.remove_profile("default");
    cluster.run();
    cluster.add_node("n1", json!({}));
    cluster.put_profile("default", iptables());
    cluster.run();
    assert!(cluster.nodes_with_mode("iptables").contains(&"n1"));
}

#[test]
fn a_default_written_out_reaches_nodes_a_few_at_a_time() {
    let mut cluster = Cluster::with_nodes(50);
    cluster.mute = cluster.nodes.keys().cloned().collect();
    cluster.put_profile("default", json!({"ipvs": {"strictARP": false}}));
    cluster.run();
    assert_eq!(cluster.assigned.len(), 5, "{:?}", cluster.assigned);
    cluster.mute.clear();
    cluster.run();
    assert_eq!(cluster.assigned.len(), 50, "each once");
    let written = &cluster.proxies["n50"]["spec"]["writtenFields"];
    assert_eq!(*written, json!(["ipvs.strictARP"]));
}

#[test]
fn a_node_that_joins_in_a_rollout_gets_what_is_proven_and_is_no_canary() {
    let mut cluster = Cluster::with_nodes(20);
    cluster.mute.insert("n1".into());
    cluster.put_profile("default", iptables());
    cluster.run();
    cluster.add_node("n0", json!({}));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"]);
    assert!(
        cluster
            .assignments()
            .contains(&"n0 default nftables".to_owned())
    );
    cluster.say("n1", json!({"Ready": "True"}));
    cluster.run();
    assert_eq!(
        cluster.nodes_with_mode("iptables").len(),
        21,
        "it has its turn like any other"
    );
    cluster.add_node("n99", json!({}));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 22);
}

#[test]
fn a_pause_leaves_no_node_with_what_failed_and_is_no_new_attempt() {
    let mut cluster = Cluster::with_nodes(5);
    cluster.broken_mode = Some("iptables");
    cluster.put_profile("default", iptables());
    cluster.run();
    cluster.now += jiff::SignedDuration::from_secs(121);
    // The profile is paused after the rollback was decided and before it is carried out.
    let plan = cluster.fleet.plan(cluster.now, cluster.instant());
    assert!(!plan.actions.is_empty());
    for paused in [true, false] {
        let mut spec = iptables();
        spec["paused"] = paused.into();
        cluster.put_profile("default", spec);
        cluster.advance(600);
        assert_eq!(cluster.nodes_with_mode("nftables").len(), 5, "{paused}");
        assert_eq!(
            cluster.condition("default", "Progressing"),
            "False/RolledBack"
        );
    }
    cluster.broken_mode = None;
    cluster.put_profile("default", json!({"mode": "iptables", "priority": 7}));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 5);
}

#[test]
fn what_an_operator_decided_before_another_wrote_is_not_written_any_more() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.put_profile("default", iptables());
    for report in cluster.fleet.plan(cluster.now, cluster.instant()).actions {
        cluster.write(report);
    }
    let late = cluster.fleet.plan(cluster.now, cluster.instant());
    let has_stamp = |action: &Action| matches!(action, Action::Assign { .. });
    assert!(late.actions.iter().any(has_stamp));
    // The machine of the operator is paused; another operator rolls out the profile's next version
    // to every node.
    cluster.restart_operator();
    cluster.put_profile("default", json!({"mode": "ipvs"}));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("ipvs").len(), 3);
    for action in late.actions {
        cluster.write(action);
    }
    assert_eq!(cluster.nodes_with_mode("ipvs").len(), 3);
}

/// Failure story T213.
#[test]
fn t213_what_an_operator_decided_before_another_created_it_is_not_written_any_more() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.add_node("n4", json!({}));
    let late = cluster.fleet.plan(cluster.now, cluster.instant());
    cluster.restart_operator();
    cluster.put_profile("default", iptables());
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 4);
    for action in late.actions {
        cluster.write(action);
    }
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 4);
}

/// Failure story T218. The generations of a new profile begin at 1, and the nodes have those of the
/// old one.
#[test]
fn t218_in_a_profile_made_again_a_node_lost_long_before_an_undo_takes_nothing_back() {
    for is_operator_running in [true, false] {
        let mut cluster = Cluster::with_nodes(9);
        for minutes in 1..=5 {
            let other = json!({"mode": "iptables", "syncPeriod": format!("{minutes}m")});
            cluster.put_profile("default", other);
            cluster.run();
        }
        cluster.put_profile("default", iptables());
        cluster.run();
        cluster.remove_profile("default");
        if is_operator_running {
            cluster.run();
        }
        cluster.put_profile("default", iptables());
        if !is_operator_running {
            cluster.restart_operator();
        }
        cluster.advance(3600);
        cluster.mute.insert("n1".into());
        cluster.put_profile("default", json!({"mode": "ipvs"}));
        cluster.run();
        assert_eq!(cluster.nodes_with_mode("ipvs"), ["n1"], "the canary");
        cluster.lose_kubelet("n9");
        cluster.mute.clear();
        cluster.put_profile("default", iptables());
        cluster.run();
        cluster.advance(3600);
        let has_now = |proxy: &&Value| proxy["spec"]["config"]["syncPeriod"] == "30s";
        assert_eq!(cluster.proxies.values().filter(has_now).count(), 9);
        let progressing = cluster.condition("default", "Progressing");
        assert_ne!(progressing, "False/RolledBack", "{is_operator_running}");
    }
}

/// Failure story T195. The restored objects are older than those that the operator had read, and
/// it went on with the latter.
#[test]
fn t195_after_a_restore_of_etcd_the_operator_works_with_what_was_restored() {
    let mut cluster = Cluster::with_nodes(5);
    let backup = (cluster.proxies.clone(), cluster.profiles.clone());
    cluster.put_profile("default", iptables());
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 5);
    (cluster.proxies, cluster.profiles) = backup;
    cluster.relist();
    cluster.forget_writes();
    cluster.advance(600);
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 5);
    assert_eq!(cluster.assigned, [""; 0]);
    assert_eq!(cluster.condition("default", "Progressing"), "False/Settled");
}

/// A list shows the state at its request; the answer to a write may come before the list does.
#[test]
fn an_answer_to_a_write_is_newer_than_a_list_that_was_requested_before() {
    let mut cluster = Cluster::with_nodes(2);
    let listed = cluster.proxies.values().map(proxy_record).collect();
    cluster
        .fleet
        .apply(Event::Proxy(ObjectChange::ListRequested));
    cluster.put_profile("default", iptables());
    cluster.run();
    cluster.forget_writes();
    cluster
        .fleet
        .apply(Event::Proxy(ObjectChange::Listed(listed)));
    cluster.run();
    assert_eq!(cluster.assigned, [""; 0]);
}
