//! Nodes that join a profile whose rollout has ended.

use serde_json::{Value, json};

use super::Cluster;

/// Nodes n1 to n5 with mode nftables and n6 with profile `edge`, all settled long ago.
fn settled() -> Cluster {
    settled_with(json!({}))
}

fn settled_with(rollout: Value) -> Cluster {
    let mut cluster = Cluster::with_nodes(6);
    let selector = json!({"matchLabels": {"role": "edge"}});
    let edge =
        json!({"priority": 10, "mode": "iptables", "nodeSelector": selector, "rollout": rollout});
    cluster.put_profile("edge", edge);
    cluster.relabel_node("n6", json!({"role": "edge"}));
    cluster.run();
    assert_eq!(cluster.condition("edge", "Progressing"), "False/Settled");
    cluster.advance(3600);
    cluster.forget_writes();
    cluster
}

fn move_five_to_edge(cluster: &mut Cluster) {
    for number in 1..=5 {
        cluster.relabel_node(&format!("n{number}"), json!({"role": "edge"}));
    }
    cluster.run();
}

#[test]
fn where_one_that_had_another_configuration_fails_the_others_keep_theirs() {
    let mut cluster = settled();
    cluster.broken_mode = Some("iptables");
    move_five_to_edge(&mut cluster);
    cluster.advance(121);
    assert_eq!(cluster.assigned, ["n1"]);
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1", "n6"]);
    let said = "4 keep their configuration: 1 of 6 nodes failed: n1 (Said: by the test)";
    for (kind, status) in [("Progressing", "False"), ("Degraded", "True")] {
        assert_eq!(
            cluster.condition("edge", kind),
            format!("{status}/HeldBack")
        );
        assert_eq!(cluster.message("edge", kind), said);
    }

    cluster.forget_writes();
    for _ in 0..2 {
        cluster.restart_operator();
        cluster.run();
        cluster.advance(3600);
        assert_eq!((cluster.assigned.len(), cluster.reported.len()), (0, 0));
    }

    cluster.add_node("n7", json!({"role": "edge"}));
    cluster.run();
    assert_eq!(cluster.assigned, ["n7"], "it has nothing to lose");

    cluster.broken_mode = None;
    cluster.say("n1", json!({"Ready": "True"}));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 7);
    assert_eq!(cluster.condition("edge", "Progressing"), "False/Settled");
}

#[test]
fn one_that_says_nothing_holds_the_others_back_until_it_goes() {
    let mut cluster = settled();
    cluster.mute.insert("n1".into());
    move_five_to_edge(&mut cluster);
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1", "n6"]);
    assert_eq!(
        cluster.message("edge", "Progressing"),
        "2 of 6 nodes have been assigned the profile's configuration"
    );
    cluster.advance(601);
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1", "n6"]);
    assert_eq!(cluster.condition("edge", "Degraded"), "True/HeldBack");
    cluster.relabel_node("n1", json!({}));
    cluster.run();
    assert_eq!(
        cluster.nodes_with_mode("iptables"),
        ["n2", "n3", "n4", "n5", "n6"]
    );
    assert_eq!(cluster.condition("edge", "Progressing"), "False/Settled");
}

#[test]
fn those_that_fail_count_among_those_that_may_be_unavailable() {
    let mut cluster = settled_with(json!({"maxUnavailable": 2, "canary": 0}));
    cluster.mute = (1..=5).map(|number| format!("n{number}")).collect();
    move_five_to_edge(&mut cluster);
    assert_eq!(cluster.assigned, ["n1", "n2"]);
    cluster.say("n1", json!({"Ready": "False", "Degraded": "True"}));
    cluster.say("n2", json!({"Ready": "True"}));
    cluster.run();
    assert_eq!(
        cluster.assigned,
        ["n1", "n2", "n3"],
        "one fails, one changes"
    );
    cluster.say("n3", json!({"Ready": "False", "Degraded": "True"}));
    cluster.advance(121);
    assert_eq!(cluster.assigned, ["n1", "n2", "n3"]);
    assert_eq!(cluster.condition("edge", "Progressing"), "False/HeldBack");
}

/// A hundred nodes with mode nftables, and a profile with mode iptables, on one node, that has been
/// settled for long.
fn large_fleet(waves: Value) -> Cluster {
    let mut cluster = Cluster::with_nodes(101);
    let selector = json!({"matchLabels": {"role": "edge"}});
    let rollout = json!({"maxUnavailable": "20%", "waves": waves, "minReady": "60s"});
    let edge =
        json!({"priority": 10, "mode": "iptables", "nodeSelector": selector, "rollout": rollout});
    cluster.put_profile("edge", edge);
    cluster.relabel_node("n101", json!({"role": "edge"}));
    cluster.advance(3600);
    assert_eq!(cluster.condition("edge", "Progressing"), "False/Settled");
    cluster.forget_writes();
    cluster
}

fn move_to_edge(cluster: &mut Cluster, numbers: std::ops::RangeInclusive<usize>) {
    for number in numbers {
        cluster.relabel_node(&format!("n{number}"), json!({"role": "edge"}));
    }
    cluster.run();
}

/// Failure story T219. The node that had had the configuration all along counted as the canary.
#[test]
fn t219_nodes_that_move_together_begin_with_a_canary_and_go_in_waves() {
    let mut cluster = large_fleet(json!([5, 25]));
    move_to_edge(&mut cluster, 1..=100);
    assert_eq!(cluster.assigned, ["n1"], "the canary");
    cluster.advance(50);
    assert_eq!(cluster.assigned.len(), 1, "rollout.minReady");
    cluster.advance(15);
    assert_eq!(cluster.assigned.len(), 5);
    cluster.advance(60);
    assert_eq!(cluster.assigned.len(), 25);
    cluster.advance(600);
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 101);
    assert_eq!(cluster.condition("edge", "Progressing"), "False/Settled");

    // Those that moved are no canaries for the next ones.
    cluster.forget_writes();
    for node in ["n102", "n103"] {
        cluster.add_node(node, json!({}));
    }
    cluster.run();
    move_to_edge(&mut cluster, 102..=103);
    assert_eq!(cluster.assigned, ["n102", "n103", "n102"]);
}

/// Failure story T219. A tenth of all nodes could fail.
#[test]
fn t219_of_nodes_that_move_together_no_more_may_fail_than_of_their_waves() {
    let mut cluster = large_fleet(json!([5, 25]));
    let mut edge = cluster.profiles["edge"]["spec"].clone();
    edge["rollout"]["maxFailures"] = "10%".into();
    cluster.put_profile("edge", edge);
    move_to_edge(&mut cluster, 1..=1);
    cluster.advance(3600);
    cluster.forget_writes();
    cluster.broken_mode = Some("iptables");
    move_to_edge(&mut cluster, 2..=100);
    cluster.advance(3600);
    assert_eq!(cluster.assigned.len(), 1, "the canary");
    assert_eq!(cluster.condition("edge", "Progressing"), "False/HeldBack");
    cluster.restart_operator();
    cluster.advance(3600);
    assert_eq!(cluster.assigned.len(), 1);

    cluster.broken_mode = None;
    let canary = cluster.assigned[0].clone();
    cluster.say(&canary, json!({"Ready": "True"}));
    cluster.run();
    cluster.mute.extend(cluster.nodes.keys().cloned());
    cluster.advance(60);
    assert!(cluster.assigned.len() <= 5, "{:?}", cluster.assigned);
    cluster.advance(3600);
    assert!(cluster.assigned.len() <= 5, "{:?}", cluster.assigned);
    assert_eq!(cluster.condition("edge", "Progressing"), "False/HeldBack");
}

/// Failure story T219. Without its profile, a node gets what the next profile has given to others.
#[test]
fn t219_nodes_whose_profile_is_deleted_begin_with_a_canary() {
    let mut cluster = large_fleet(json!([5, 25]));
    move_to_edge(&mut cluster, 1..=90);
    let rollout = json!({"maxUnavailable": "20%", "waves": [5, 25]});
    cluster.put_profile("default", json!({"syncPeriod": "1m", "rollout": rollout}));
    cluster.advance(3600);
    cluster.forget_writes();
    cluster.mute = cluster.nodes.keys().cloned().collect();
    cluster.remove_profile("edge");
    cluster.run();
    assert_eq!(cluster.assigned.len(), 1, "{:?}", cluster.assigned);
    cluster.restart_operator();
    cluster.run();
    assert_eq!(cluster.assigned.len(), 1, "{:?}", cluster.assigned);
}

/// Failure story T219. The one that failed was the canary of all that moved later.
#[test]
fn t219_a_node_that_failed_when_it_moved_holds_back_none_that_moves_later() {
    let mut cluster = settled_with(json!({"maxUnavailable": 3}));
    cluster.broken_mode = Some("iptables");
    cluster.relabel_node("n1", json!({"role": "edge"}));
    cluster.run();
    cluster.advance(3600);
    cluster.broken_mode = None;
    cluster.relabel_node("n2", json!({"role": "edge"}));
    cluster.run();
    cluster.advance(3600);
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1", "n2", "n6"]);
}

#[test]
fn while_they_are_held_back_no_node_goes_in_place_of_one_that_was_ready() {
    let mut cluster = settled_with(json!({"maxUnavailable": 3, "canary": 3}));
    cluster.mute = (1..=5).map(|number| format!("n{number}")).collect();
    move_five_to_edge(&mut cluster);
    cluster.say("n1", json!({"Ready": "False", "Degraded": "True"}));
    cluster.say("n2", json!({"Ready": "True"}));
    cluster.advance(121);
    assert_eq!(cluster.condition("edge", "Progressing"), "False/HeldBack");
    cluster.say("n6", json!({"Ready": "False"}));
    cluster.run();
    assert_eq!(cluster.assigned, ["n1", "n2", "n3"]);
}

#[test]
fn one_that_fails_long_after_its_change_holds_back_no_other() {
    let mut cluster = settled();
    cluster.relabel_node("n1", json!({"role": "edge"}));
    cluster.run();
    cluster.advance(3600);
    cluster.say("n1", json!({"Ready": "False", "Degraded": "True"}));
    move_five_to_edge(&mut cluster);
    cluster.advance(121);
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 6);
    assert_eq!(cluster.condition("edge", "Progressing"), "False/Settled");
}

#[test]
fn those_that_join_the_cluster_and_fail_are_named_and_keep_no_other_from_joining() {
    let mut cluster = Cluster::with_nodes(2);
    cluster.broken_mode = Some("nftables");
    for node in ["n3", "n4", "n5"] {
        cluster.add_node(node, json!({}));
    }
    cluster.run();
    assert_eq!(cluster.assigned, ["n3", "n4", "n5"]);
    assert_eq!(cluster.condition("default", "Progressing"), "False/Settled");
    assert_eq!(
        cluster.message("default", "Degraded"),
        "3 of 5 nodes are degraded: n3 (Said), n4 (Said), n5 (Said)"
    );
    cluster.mute.insert("n6".into());
    cluster.add_node("n6", json!({}));
    cluster.advance(3600);
    assert_eq!(cluster.assignments().len(), 6);
    let ready = cluster.message("default", "Ready");
    assert!(ready.ends_with("n6 (NotReported)"), "{ready}");
}

/// Failure story T272. A pause holds the first node by name with the configuration of another profile:
/// the proven one was taken for that of a stranger, and nodes that joined got the change.
#[test]
fn t272_a_node_joins_with_the_proven_configuration_whatever_holds_the_first_one() {
    let mut cluster = Cluster::with_nodes(20);
    let selector = json!({"matchLabels": {"pool": "one"}});
    cluster.relabel_node("n1", json!({"pool": "one"}));
    cluster.put_profile("own", json!({"priority": 10, "nodeSelector": selector}));
    cluster.run();
    assert_eq!(cluster.assignments()[0], "n1 own nftables");
    cluster.put_profile("default", json!({"mode": "iptables", "paused": true}));
    cluster.remove_profile("own");
    cluster.run();
    assert_eq!(cluster.assignments()[0], "n1 own nftables", "it is held");
    cluster.add_node("n99", json!({}));
    cluster.run();
    assert_eq!(
        cluster.assignments().last().map(String::as_str),
        Some("n99 default nftables")
    );
}

/// Failure story T272. A node that is deleted while the wave waits for it leaves its place.
#[test]
fn t272_a_node_that_is_deleted_does_not_hold_its_place_in_the_wave() {
    let mut cluster = Cluster::with_nodes(20);
    cluster.mute.insert("n1".into());
    let rollout = json!({"minReady": "1m"});
    cluster.put_profile("default", json!({"mode": "iptables", "rollout": rollout}));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"]);
    cluster.remove_node("n1");
    cluster.run();
    assert_eq!(
        cluster.nodes_with_mode("iptables"),
        ["n10"],
        "the next canary"
    );
    cluster.advance(1800);
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 19);
    assert_eq!(cluster.condition("default", "Progressing"), "False/Settled");
}
