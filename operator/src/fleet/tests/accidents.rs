//! Events that must not change a whole fleet at once: deleted objects, explicit defaults, a pause,
//! a delayed operator.

use serde_json::{Value, json};

use super::{Cluster, proxy_record};
use crate::fleet::{Change, Event};

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
    assert_eq!(cluster.given().len(), 0);
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
    assert_eq!(cluster.stamped.len(), 5, "{:?}", cluster.stamped);
    cluster.mute.clear();
    cluster.run();
    assert_eq!(cluster.stamped.len(), 50, "each once");
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
    assert!(cluster.given().contains(&"n0 default nftables".to_owned()));
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
    let plan = cluster.fleet.plan(cluster.now);
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
    let late = cluster.fleet.plan(cluster.now);
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
    let late = cluster.fleet.plan(cluster.now);
    cluster.restart_operator();
    cluster.put_profile("default", iptables());
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 4);
    for action in late.actions {
        cluster.write(action);
    }
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 4);
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
    assert_eq!(cluster.stamped, [""; 0]);
    assert_eq!(cluster.condition("default", "Progressing"), "False/Settled");
}

/// A list shows the state at its request; the answer to a write may come before the list does.
#[test]
fn an_answer_to_a_write_is_newer_than_a_list_that_was_requested_before() {
    let mut cluster = Cluster::with_nodes(2);
    let listed = cluster.proxies.values().map(proxy_record).collect();
    cluster.fleet.apply(Event::Proxy(Change::Relisting));
    cluster.put_profile("default", iptables());
    cluster.run();
    cluster.forget_writes();
    cluster.fleet.apply(Event::Proxy(Change::Listed(listed)));
    cluster.run();
    assert_eq!(cluster.stamped, [""; 0]);
}
