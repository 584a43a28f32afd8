//! Profiles that move their nodes from one service proxy to another.

use serde_json::{Value, json};

use super::Cluster;

/// Returns the nodes whose configuration has this `handover`.
pub(super) fn nodes_with(cluster: &Cluster, handover: &str) -> Vec<String> {
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
    assert_eq!(cluster.assigned, ["n1", "n1"], "it was tried and went back");
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
        // Its agent tries no connection through rules of another proxy.
        let handed_back = json!({"Ready": "True", "APIServiceReachable": "Unknown"});
        cluster.say_because(node, "HandedBack", handed_back);
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

/// Creates nodes that have no configuration yet, n01, n02, …, and a profile that moves them. The agents
/// report when the test says so.
pub(super) fn install(cluster: &mut Cluster, count: usize, profile: Value) -> Vec<String> {
    let nodes: Vec<String> = (1..=count).map(|number| format!("n{number:02}")).collect();
    for node in &nodes {
        cluster.add_node(node, json!({}));
    }
    cluster.mute = nodes.iter().cloned().collect();
    cluster.put_profile("default", profile);
    cluster.run();
    nodes
}

#[test]
fn t223_a_new_installation_that_takes_over_asks_no_second_node_after_the_first_refuses() {
    let mut cluster = Cluster::new();
    let nodes = install(&mut cluster, 12, json!({"handover": "Takeover"}));
    assert_eq!(cluster.assigned, nodes, "each has a configuration at once");
    assert_eq!(nodes_with(&cluster, "Takeover"), [""; 0]);
    for node in &nodes {
        cluster.say(node, json!({"Ready": "True"}));
    }
    cluster.run();
    assert_eq!(nodes_with(&cluster, "Takeover"), ["n01"]);
    cluster.say_because(
        "n01",
        "HandoverRefused",
        json!({"Ready": "True", "Degraded": "True"}),
    );
    cluster.mute.clear();
    cluster.run();
    cluster.advance(3600);
    assert_eq!(
        cluster.assigned[12..],
        ["n01", "n01"],
        "it was tried and went back"
    );
    assert_eq!(
        cluster.condition("default", "Progressing"),
        "False/RolledBack"
    );
    cluster.restart_operator();
    cluster.add_node("n13", json!({}));
    cluster.advance(3600);
    assert_eq!(nodes_with(&cluster, "Takeover"), [""; 0]);
    for node in nodes.iter().map(String::as_str).chain(["n13"]) {
        cluster.remove_node(node);
    }
    cluster.run();
    cluster.add_node("n14", json!({}));
    cluster.advance(3600);
    assert_eq!(
        nodes_with(&cluster, "Takeover"),
        [""; 0],
        "all were replaced"
    );
}

#[test]
fn t223_a_new_installation_that_takes_over_settles_node_by_node() {
    let mut cluster = Cluster::new();
    let nodes = install(&mut cluster, 4, json!({"handover": "Takeover"}));
    for node in &nodes {
        cluster.say(node, json!({"Ready": "True"}));
    }
    for (done, node) in nodes.iter().enumerate() {
        cluster.run();
        assert_eq!(nodes_with(&cluster, "Takeover").len(), done + 1);
        cluster.say(node, json!({"Ready": "True"}));
    }
    cluster.run();
    assert_eq!(cluster.condition("default", "Progressing"), "False/Settled");
    cluster.add_node("n05", json!({}));
    cluster.run();
    assert_eq!(nodes_with(&cluster, "Takeover").len(), 5, "it is proven");
}

#[test]
fn t223_a_new_installation_that_hands_back_programs_nothing_first() {
    let mut cluster = Cluster::new();
    let nodes = install(&mut cluster, 3, json!({"handover": "Handback"}));
    assert_eq!(nodes_with(&cluster, "Handback"), nodes);
}

/// A rollout over no node ends at once, and proves nothing.
#[test]
fn t223_nodes_that_come_after_the_profile_do_not_all_take_over_at_once() {
    let mut cluster = Cluster::new();
    install(&mut cluster, 0, json!({"handover": "Takeover"}));
    cluster.restart_operator();
    let nodes = install(&mut cluster, 12, json!({"handover": "Takeover"}));
    assert_eq!(nodes_with(&cluster, "Takeover"), [""; 0]);
    for node in &nodes {
        cluster.say(node, json!({"Ready": "True"}));
    }
    cluster.run();
    assert_eq!(nodes_with(&cluster, "Takeover"), ["n01"]);
}

#[test]
fn t223_a_new_profile_that_is_paused_moves_no_node() {
    let mut cluster = Cluster::new();
    let nodes = install(
        &mut cluster,
        3,
        json!({"handover": "Takeover", "paused": true}),
    );
    cluster.mute.clear();
    cluster.advance(3600);
    assert_eq!(cluster.assigned, nodes);
    assert_eq!(nodes_with(&cluster, "Takeover"), [""; 0]);
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
