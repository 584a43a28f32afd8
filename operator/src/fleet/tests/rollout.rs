//! How a change spreads over the nodes, and how it is rolled back.

use serde_json::json;

use super::{Cluster, iptables};

#[test]
fn the_canary_goes_first_and_then_as_many_as_may_be_unavailable() {
    let mut cluster = Cluster::with_nodes(9);
    cluster.mute = (1..=9).map(|number| format!("n{number}")).collect();
    cluster.put_profile("default", iptables(json!({"maxUnavailable": 3})));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"]);
    assert_eq!(
        cluster.condition("default", "Progressing"),
        "True/RollingOut"
    );
    cluster.say("n1", json!({"Ready": "True"}));
    cluster.run();
    assert_eq!(
        cluster.nodes_with_mode("iptables"),
        ["n1", "n2", "n3", "n4"]
    );
    cluster.say("n3", json!({"Ready": "True"}));
    cluster.run();
    assert_eq!(
        cluster.nodes_with_mode("iptables"),
        ["n1", "n2", "n3", "n4", "n5"]
    );
    cluster.mute.clear();
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 9);
    assert_eq!(cluster.condition("default", "Progressing"), "False/Settled");
    assert_eq!(
        cluster.condition("default", "Ready"),
        "True/AllNodesProgrammed"
    );
    assert_eq!(cluster.status("default").updated_nodes, 9);
}

#[test]
fn a_share_is_rounded_down_and_never_to_nothing() {
    for (share, at_once) in [("10%", 1), ("25%", 2), ("50%", 4)] {
        let mut cluster = Cluster::with_nodes(9);
        cluster.mute = (1..=9).map(|number| format!("n{number}")).collect();
        cluster.put_profile(
            "default",
            iptables(json!({"maxUnavailable": share, "canary": 0})),
        );
        cluster.run();
        assert_eq!(
            cluster.nodes_with_mode("iptables").len(),
            at_once,
            "{share}"
        );
    }
}

#[test]
fn a_canary_that_is_degraded_takes_the_change_back() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.broken_mode = Some("iptables");
    cluster.put_profile("default", iptables(json!({})));
    cluster.advance(121);
    assert_eq!(
        cluster.assigned,
        ["n1", "n1"],
        "one node was tried and went back"
    );
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 4);
    assert_eq!(
        cluster.condition("default", "Progressing"),
        "False/RolledBack"
    );
    assert_eq!(cluster.condition("default", "Degraded"), "True/RolledBack");
    assert_eq!(cluster.condition("default", "Ready"), "False/NodesNotReady");
    assert_eq!(
        cluster.message("default", "Progressing"),
        "1 of 4 nodes failed: n1 (Said: by the test)"
    );
}

#[test]
fn a_rollout_that_failed_is_not_tried_again_by_an_operator_that_starts() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.broken_mode = Some("iptables");
    cluster.put_profile("default", iptables(json!({})));
    cluster.advance(121);
    cluster.forget_writes();
    cluster.restart_operator();
    cluster.run();
    cluster.advance(3600);
    assert_eq!((cluster.assigned.len(), cluster.reported.len()), (0, 0));
}

#[test]
fn an_edit_after_a_failure_is_another_attempt() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.broken_mode = Some("iptables");
    cluster.put_profile("default", iptables(json!({})));
    cluster.advance(121);
    cluster.broken_mode = None;
    cluster.put_profile("default", iptables(json!({"maxUnavailable": 2})));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 4);
    assert_eq!(cluster.condition("default", "Degraded"), "False/AsExpected");
    assert_eq!(
        cluster.condition("default", "Ready"),
        "True/AllNodesProgrammed"
    );
}

#[test]
fn halting_leaves_everything_as_it_is() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.broken_mode = Some("iptables");
    cluster.put_profile("default", iptables(json!({"onFailure": "Halt"})));
    cluster.run();
    cluster.advance(3600);
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"]);
    assert_eq!(cluster.condition("default", "Progressing"), "False/Halted");
    cluster.forget_writes();
    cluster.restart_operator();
    cluster.run();
    assert_eq!((cluster.assigned.len(), cluster.reported.len()), (0, 0));
    cluster.put_profile("default", json!({}));
    cluster.run();
    assert_eq!(
        cluster.nodes_with_mode("nftables").len(),
        4,
        "reverting the profile mends it"
    );
}

#[test]
fn a_canary_that_says_nothing_fails_at_the_deadline() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.mute.insert("n1".into());
    cluster.put_profile("default", iptables(json!({"progressDeadline": "60s"})));
    cluster.run();
    cluster.advance(50);
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"]);
    cluster.advance(11);
    assert_eq!(cluster.nodes_with_mode("iptables"), [""; 0]);
    assert_eq!(
        cluster.condition("default", "Progressing"),
        "False/RolledBack"
    );
    assert!(
        cluster
            .message("default", "Progressing")
            .contains("no report that it is ready after 1m")
    );
}

#[test]
fn a_late_failure_brings_back_every_node_also_those_that_were_ready() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.mute.insert("n3".into());
    cluster.put_profile("default", iptables(json!({"progressDeadline": "60s"})));
    cluster.run();
    assert_eq!(
        cluster.nodes_with_mode("iptables").len(),
        3,
        "no node is left that still has the old configuration"
    );
    cluster.restart_operator();
    cluster.mute.clear();
    cluster.say("n3", json!({"Ready": "False"}));
    cluster.advance(61);
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 3);
    assert_eq!(
        cluster.condition("default", "Progressing"),
        "False/RolledBack"
    );
}

#[test]
fn fewer_failures_than_may_be_unavailable_do_not_stop_the_change() {
    let mut cluster = Cluster::with_nodes(10);
    cluster.mute.insert("n5".into());
    cluster.put_profile(
        "default",
        iptables(json!({"maxUnavailable": 2, "progressDeadline": "60s"})),
    );
    cluster.run();
    cluster.advance(61);
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 10);
    assert_eq!(
        cluster.condition("default", "Progressing"),
        "False/DeadlineExceeded"
    );
    assert_eq!(
        cluster.condition("default", "Degraded"),
        "True/DeadlineExceeded"
    );
    cluster.mute.clear();
    cluster.run();
    assert_eq!(cluster.condition("default", "Progressing"), "False/Settled");
    assert_eq!(cluster.condition("default", "Degraded"), "False/AsExpected");
}

#[test]
fn a_node_that_fails_long_after_the_rollout_does_not_undo_it() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.put_profile("default", iptables(json!({})));
    cluster.run();
    cluster.advance(3600);
    for node in ["n1", "n2"] {
        cluster.say(node, json!({"Ready": "False", "Degraded": "True"}));
    }
    cluster.run();
    cluster.restart_operator();
    cluster.advance(3600);
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 3);
    assert_eq!(
        cluster.condition("default", "Degraded"),
        "True/NodesDegraded"
    );
}

#[test]
fn a_node_that_was_degraded_before_does_not_fail_the_change() {
    let mut cluster = Cluster::with_nodes(1);
    cluster.say("n1", json!({"Ready": "True", "Degraded": "True"}));
    cluster.run();
    let before = cluster.proxies["n1"]["status"]["conditions"].clone();
    cluster.now += jiff::SignedDuration::from_secs(60);
    cluster.mute.insert("n1".into());
    cluster.put_profile("default", iptables(json!({})));
    cluster.run();
    let mut conditions = before;
    for condition in conditions.as_array_mut().expect("a list") {
        condition["observedGeneration"] = cluster.proxies["n1"]["metadata"]["generation"].clone();
    }
    let proxy = cluster.proxies["n1"].clone();
    cluster.change_status(
        "n1",
        json!({
            "observedGeneration": proxy["metadata"]["generation"],
            "appliedHash": proxy["spec"]["configHash"],
            "conditions": conditions,
        }),
    );
    cluster.run();
    assert_eq!(cluster.condition("default", "Progressing"), "False/Settled");
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"]);
}

#[test]
fn a_node_that_reports_nothing_changes_last_and_fails_nothing() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.lose_kubelet("n1");
    cluster.mute.insert("n1".into());
    cluster.put_profile("default", iptables(json!({"progressDeadline": "60s"})));
    cluster.run();
    cluster.advance(120);
    assert_eq!(cluster.assigned, ["n2", "n3", "n1"]);
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 3);
    assert_eq!(
        cluster.condition("default", "Progressing"),
        "False/DeadlineExceeded"
    );
}

#[test]
fn a_paused_profile_changes_no_node_but_serves_those_that_join() {
    let mut cluster = Cluster::with_nodes(2);
    cluster.put_profile("default", json!({"mode": "iptables", "paused": true}));
    cluster.add_node("n3", json!({}));
    cluster.run();
    assert_eq!(
        cluster.assignments(),
        [
            "n1 default nftables",
            "n2 default nftables",
            "n3 default nftables"
        ]
    );
    assert_eq!(cluster.condition("default", "Progressing"), "False/Paused");
    cluster.put_profile("default", json!({"mode": "iptables"}));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 3);
}

/// Failure story T267. A user who paused the rollout to look at its canary did not learn of the failure.
#[test]
fn t267_a_node_that_fails_in_a_pause_is_told_and_counts_after_it() {
    let mut cluster = Cluster::with_nodes(20);
    let mut profile = iptables(json!({"minReady": "10m"}));
    cluster.put_profile("default", profile.clone());
    cluster.run();
    profile["paused"] = true.into();
    cluster.put_profile("default", profile.clone());
    cluster.run();
    let waits_for = |cluster: &Cluster| {
        let rollout = cluster.status("default").rollout;
        rollout.expect("it is there").waiting_for
    };
    assert_eq!(waits_for(&cluster), "");
    cluster.say("n1", json!({"Ready": "True", "Degraded": "True"}));
    cluster.advance(130);
    assert_eq!(
        waits_for(&cluster),
        "spec.paused to become false; 1 node failed meanwhile, and will count then: n1 (Said)"
    );
    assert_eq!(
        cluster
            .status("default")
            .rollout
            .expect("it is there")
            .waves[0]
            .failed,
        1
    );
    assert_eq!(
        cluster.condition("default", "Degraded"),
        "True/NodesDegraded"
    );
    assert_eq!(cluster.condition("default", "Progressing"), "False/Paused");
    assert_eq!(
        cluster.nodes_with_mode("iptables"),
        ["n1"],
        "it stays as it is"
    );
    profile["paused"] = false.into();
    cluster.put_profile("default", profile);
    cluster.run();
    assert_eq!(
        cluster.condition("default", "Progressing"),
        "False/RolledBack"
    );
    assert_eq!(cluster.nodes_with_mode("iptables"), [""; 0]);
}

#[test]
fn an_operator_that_starts_in_the_middle_goes_on_where_the_last_one_stopped() {
    let mut cluster = Cluster::with_nodes(6);
    cluster.mute = (3..=6).map(|number| format!("n{number}")).collect();
    cluster.put_profile(
        "default",
        iptables(json!({"maxUnavailable": 2, "progressDeadline": "60s"})),
    );
    cluster.run();
    cluster.forget_writes();
    cluster.restart_operator();
    cluster.run();
    assert_eq!(
        (cluster.assigned.len(), cluster.reported.len()),
        (0, 0),
        "nothing happened meanwhile"
    );
    cluster.mute.clear();
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 6);
    assert_eq!(cluster.condition("default", "Progressing"), "False/Settled");
}

#[test]
fn a_node_that_joins_after_a_rollback_gets_what_the_others_have() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.broken_mode = Some("iptables");
    cluster.put_profile("default", iptables(json!({})));
    cluster.advance(121);
    cluster.add_node("n4", json!({}));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 4);
}

#[test]
fn a_configuration_no_node_was_ever_ready_with_can_be_replaced() {
    let mut cluster = Cluster::new();
    for node in ["n1", "n2", "n3"] {
        cluster.add_node(node, json!({}));
    }
    cluster.broken_mode = Some("iptables");
    cluster.put_profile("default", iptables(json!({})));
    cluster.advance(121);
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 3);
    cluster.put_profile("default", json!({}));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 3);
    assert_eq!(
        cluster.condition("default", "Ready"),
        "True/AllNodesProgrammed"
    );
}

#[test]
fn nodes_that_are_well_go_back_as_few_at_a_time_as_they_came() {
    let mut cluster = Cluster::with_nodes(20);
    let rollout = json!({"maxUnavailable": 2, "progressDeadline": "60s"});
    cluster.put_profile("default", iptables(rollout));
    // The last two nodes in the order.
    cluster.mute = ["n8", "n9"].map(str::to_owned).into();
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 20);
    cluster.mute = cluster.nodes.keys().cloned().collect();
    cluster.forget_writes();
    cluster.advance(60);
    assert_eq!(
        cluster.condition("default", "Progressing"),
        "False/RolledBack"
    );
    assert_eq!(
        cluster.assigned.len(),
        4,
        "two that fail and two that are well: {:?}",
        cluster.assigned
    );
    cluster.mute.clear();
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 20);
}

/// Failure story T189. The node failed with this configuration weeks after an earlier rollout of it,
/// and counted as a failure of the return to it: the healthy nodes went back to what was before.
#[test]
fn t189_a_node_lost_long_before_an_undo_takes_nothing_back() {
    let mut cluster = Cluster::with_nodes(9);
    cluster.put_profile("default", iptables(json!({})));
    cluster.run();
    cluster.advance(3600);
    cluster.lose_kubelet("n9");
    cluster.advance(600);
    cluster.mute.insert("n1".into());
    cluster.put_profile("default", json!({"mode": "ipvs"}));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("ipvs"), ["n1"]);
    cluster.mute.clear();
    cluster.put_profile("default", iptables(json!({})));
    cluster.run();
    cluster.advance(3600);
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 9);
}

/// Failure story T190. No other node could change, and nothing said so.
#[test]
fn t190_a_rollout_whose_failures_use_up_the_budget_ends() {
    let mut cluster = Cluster::with_nodes(20);
    cluster.mute.insert("n11".into());
    let rollout = json!({"maxUnavailable": 1, "maxFailures": 5, "progressDeadline": "60s"});
    cluster.put_profile("default", iptables(rollout));
    cluster.run();
    cluster.advance(3600);
    assert_eq!(
        cluster.condition("default", "Progressing"),
        "False/RolledBack"
    );
}

/// Failure story T191.
#[test]
fn t191_a_status_of_a_newer_operator_still_says_that_the_rollout_failed() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.broken_mode = Some("iptables");
    cluster.put_profile("default", iptables(json!({})));
    cluster.advance(121);
    let profile = cluster.profiles.get_mut("default").expect("it is there");
    let finding = json!({"type": "Invented", "nodes": 1, "firstNodes": ["n1"]});
    profile["status"]["nodeFindings"] = json!([finding]);
    cluster.forget_writes();
    cluster.restart_operator();
    cluster.run();
    assert_eq!(cluster.assigned, [""; 0]);
    assert_eq!(cluster.status("default").history.len(), 2);
}

/// Failure story T191.
#[test]
fn t191_a_word_of_a_newer_agent_fails_no_node() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.put_profile("default", iptables(json!({"minReady": "1h"})));
    cluster.run();
    let mut status = cluster.proxies["n1"]["status"].clone();
    status["heartbeat"] = "Watch".into();
    cluster.change_status("n1", status);
    cluster.advance(600);
    assert_eq!(
        cluster.condition("default", "Progressing"),
        "True/RollingOut"
    );
}

/// Failure story T205. Something else than the change is wrong: the rollback fails as well.
#[test]
fn t205_a_rollback_after_which_nodes_fail_takes_no_healthy_node_along() {
    let mut cluster = Cluster::with_nodes(20);
    let rollout = json!({"maxUnavailable": 2, "progressDeadline": "60s"});
    cluster.put_profile("default", iptables(rollout));
    cluster.mute = ["n8", "n9"].map(str::to_owned).into();
    cluster.run();
    cluster.broken_mode = Some("nftables");
    cluster.mute.clear();
    cluster.say("n8", json!({"Ready": "False"}));
    cluster.say("n9", json!({"Ready": "False"}));
    cluster.advance(3600);
    assert_eq!(
        cluster.nodes_with_mode("nftables").len(),
        4,
        "two that failed, and two that were the first to follow"
    );
    let rollout = cluster.status("default").rollout.expect("it is there");
    assert_eq!(
        rollout.waiting_for,
        "16 nodes to roll back, which waits for nodes that failed after going back: \
         n1 (Said), n10 (Said)"
    );
    cluster.restart_operator();
    cluster.advance(3600);
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 4);
    cluster.broken_mode = None;
    for node in ["n1", "n10"] {
        cluster.say(node, json!({"Ready": "True"}));
    }
    cluster.advance(600);
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 20);
}

/// Failure story T205.
#[test]
fn t205_a_node_that_went_back_keeps_its_place_until_it_is_available() {
    let mut cluster = Cluster::with_nodes(6);
    let rollout = json!({"maxUnavailable": 1, "minReady": "60s", "canary": 0, "waves": [100]});
    cluster.put_profile("default", iptables(rollout.clone()));
    cluster.advance(170);
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 3);
    let mut aborted = rollout;
    aborted["abort"] = cluster.status("default").target_hash.into();
    cluster.put_profile("default", iptables(aborted));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 2);
    cluster.advance(50);
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 2);
    cluster.advance(11);
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 1);
}

/// Failure story T205. They had come from the configuration that failed now, and were never changed
/// back.
#[test]
fn t205_nodes_that_another_rollout_changed_stop_no_rollback() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.put_profile("default", iptables(json!({})));
    cluster.run();
    cluster.lose_kubelet("n3");
    cluster.mute = ["n2", "n3"].map(str::to_owned).into();
    cluster.advance(3600);
    cluster.put_profile("default", json!({}));
    cluster.advance(3600);
    let progressing = cluster.condition("default", "Progressing");
    assert_eq!(progressing, "False/RolledBack");
    cluster.mute.clear();
    cluster.advance(600);
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 3);
}

/// Failure story T208. Those nodes had the configuration all along.
#[test]
fn t208_a_return_that_fails_takes_no_node_to_what_was_before() {
    let mut cluster = Cluster::with_nodes(9);
    cluster.put_profile("default", iptables(json!({})));
    cluster.run();
    cluster.advance(3600);
    cluster.mute.insert("n1".into());
    cluster.put_profile("default", json!({"mode": "ipvs"}));
    cluster.run();
    cluster.put_profile("default", iptables(json!({})));
    cluster.advance(7200);
    let progressing = cluster.condition("default", "Progressing");
    assert_eq!(progressing, "False/RolledBack");
    assert!(cluster.nodes_with_mode("iptables").len() >= 8);
}

/// The API server refuses a status with a longer text, and the verdict would not be written.
#[test]
fn a_long_message_of_an_agent_is_cut() {
    let mut cluster = Cluster::with_nodes(2);
    cluster.mute.insert("n1".into());
    cluster.put_profile("default", iptables(json!({})));
    cluster.run();
    cluster.say("n1", json!({"Ready": "False", "Degraded": "True"}));
    let mut status = cluster.proxies["n1"]["status"].clone();
    for condition in status["conditions"].as_array_mut().expect("conditions") {
        condition["message"] = "ä".repeat(40_000).into();
    }
    cluster.change_status("n1", status);
    cluster.advance(600);
    let verdict = cluster.status("default").rollout.and_then(|r| r.verdict);
    let message = verdict.expect("it failed").message;
    assert_eq!(message.chars().count(), 32_768);
}
