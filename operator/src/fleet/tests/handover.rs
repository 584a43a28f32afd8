//! Profiles that move their nodes from one service proxy to another.

use serde_json::{Value, json};

use super::Cluster;

/// Returns the nodes whose configuration has this `handover`.
fn nodes_with(cluster: &Cluster, handover: &str) -> Vec<String> {
    let nodes = cluster.proxies.iter();
    let with = nodes.filter(|(_, proxy)| proxy["spec"]["config"]["handover"] == handover);
    with.map(|(name, _)| name.clone()).collect()
}

/// The agent of n1 reports these conditions for its spec, but has applied the configuration that n2
/// still has.
fn say_without_applying(cluster: &mut Cluster, reason: &str, conditions: Value) {
    cluster.say_because("n1", reason, conditions);
    let mut status = cluster.proxies["n1"]["status"].clone();
    status["appliedHash"] = cluster.proxies["n2"]["spec"]["configHash"].clone();
    cluster.change_status("n1", status);
}

#[test]
fn t171_a_takeover_that_the_first_node_refuses_reaches_no_second_one() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.mute.insert("n1".into());
    cluster.put_profile("default", json!({"handover": "Takeover"}));
    cluster.run();
    assert_eq!(nodes_with(&cluster, "Takeover"), ["n1"]);
    say_without_applying(
        &mut cluster,
        "HandoverRefused",
        json!({"Ready": "True", "Degraded": "True"}),
    );
    cluster.mute.clear();
    cluster.run();
    cluster.advance(3600);
    assert_eq!(cluster.stamped, ["n1", "n1"], "it was tried and went back");
    assert_eq!(
        cluster.condition("default", "Progressing"),
        "False/RolledBack"
    );
    let message = cluster.message("default", "Progressing");
    assert!(
        message.contains("n1 (HandoverRefused: by the test)"),
        "{message}"
    );
}

#[test]
fn t171_nodes_that_are_handed_back_as_asked_let_the_others_follow() {
    let mut cluster = Cluster::with_nodes(4);
    let nodes: Vec<String> = (1..=4).map(|number| format!("n{number}")).collect();
    cluster.mute = nodes.iter().cloned().collect();
    cluster.put_profile("default", json!({"handover": "Handback"}));
    cluster.run();
    assert_eq!(nodes_with(&cluster, "Handback"), ["n1"]);
    for (done, node) in nodes.iter().enumerate() {
        assert_eq!(nodes_with(&cluster, "Handback").len(), done + 1);
        cluster.say_because(node, "HandedBack", json!({"Ready": "True"}));
        cluster.run();
    }
    assert_eq!(nodes_with(&cluster, "Handback"), nodes);
    cluster.advance(60);
    assert_eq!(cluster.condition("default", "Progressing"), "False/Settled");
    assert_eq!(
        cluster.condition("default", "Ready"),
        "True/AllNodesProgrammed"
    );
}

#[test]
fn t171_a_node_that_was_handed_back_by_a_command_is_done_only_once_it_has_taken_over() {
    let mut cluster = Cluster::with_nodes(3);
    for node in ["n1", "n2", "n3"] {
        cluster.say_because(node, "HandedBack", json!({"Ready": "False"}));
    }
    cluster.run();
    cluster.mute = ["n1", "n2", "n3"].map(str::to_owned).into();
    cluster.put_profile("default", json!({"handover": "Takeover"}));
    cluster.run();
    assert_eq!(nodes_with(&cluster, "Takeover"), ["n1"]);
    say_without_applying(
        &mut cluster,
        "HandedBack",
        json!({"Ready": "False", "Progressing": "True"}),
    );
    cluster.advance(60);
    assert_eq!(nodes_with(&cluster, "Takeover"), ["n1"]);
    cluster.say("n1", json!({"Ready": "True"}));
    cluster.run();
    assert_eq!(nodes_with(&cluster, "Takeover"), ["n1", "n2"]);
}

/// Failure story T192. The canary was a node that the change does not touch.
#[test]
fn t192_a_node_that_another_proxy_serves_is_no_canary() {
    let mut cluster = Cluster::with_nodes(5);
    cluster.say_because("n1", "HandedBack", json!({"Ready": "False"}));
    cluster.run();
    cluster.mute = cluster.nodes.keys().cloned().collect();
    let rollout = json!({"maxUnavailable": 2});
    cluster.put_profile("default", json!({"mode": "iptables", "rollout": rollout}));
    cluster.run();
    assert_eq!(
        cluster.nodes_with_mode("iptables"),
        ["n1", "n2"],
        "n2 is the canary"
    );
}
