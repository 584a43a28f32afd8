//! Which nodes count as failed: those that are worse than before the change for long enough.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Cluster, iptables};

/// The conditions of a healthy agent.
fn well() -> Value {
    json!({"Ready": "True", "Degraded": "False"})
}

#[test]
fn t108_nodes_lost_after_a_change_keep_their_places_and_take_it_back() {
    for ready in ["Unknown", "False"] {
        let mut cluster = Cluster::with_nodes(50);
        cluster.put_profile("default", iptables(json!({"minReady": "1m"})));
        let mut given: Vec<(String, i64)> = Vec::new();
        for second in 0..200 {
            cluster.advance(1);
            let news = cluster.assigned.iter().skip(given.len());
            given.extend(news.map(|name| (name.clone(), second)).collect::<Vec<_>>());
            // Each node is lost twenty seconds after its change; the last report of its agent
            // remains.
            for (name, changed) in &given {
                if changed + 20 == second {
                    cluster.set_node_ready(name, ready);
                }
            }
        }
        let tried: BTreeSet<&String> = given.iter().map(|(name, _)| name).collect();
        assert_eq!(tried.len(), 1, "{ready}: {given:?}");
        assert_eq!(
            cluster.condition("default", "Progressing"),
            "False/RolledBack"
        );
        assert!(
            cluster
                .message("default", "Progressing")
                .contains("its Node is not Ready"),
            "{}",
            cluster.message("default", "Progressing")
        );
        assert_eq!(cluster.nodes_with_mode("nftables").len(), 50);
    }
}

/// Failure story T184.
#[test]
fn t184_a_change_after_which_new_connections_fail_is_taken_back() {
    let mut cluster = Cluster::with_nodes(50);
    cluster.put_profile("default", iptables(json!({"minReady": "1m"})));
    for _ in 0..200 {
        cluster.advance(1);
        let changed = cluster.nodes_with_mode("iptables");
        let changed: Vec<String> = changed.iter().map(ToString::to_string).collect();
        for node in changed {
            let conditions = json!({"Ready": "True", "Degraded": "True"});
            cluster.say_because(&node, "ConnectionFailed", conditions);
        }
    }
    let tried: BTreeSet<&String> = cluster.assigned.iter().collect();
    assert_eq!(tried.len(), 1, "{tried:?}");
    let message = cluster.message("default", "Progressing");
    assert!(message.contains("ConnectionFailed"), "{message}");
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 50);
}

/// The agent of `node` reports that it is degraded, because the kernel refuses a Service.
fn say_services_rejected(cluster: &mut Cluster, node: &str) {
    let conditions = json!({"Ready": "True", "Degraded": "True"});
    cluster.say_because(node, "ServicesRejected", conditions);
}

/// The agent of `node` also reports that connections to the API server's Service fail.
fn say_connection_failed(cluster: &mut Cluster, node: &str) {
    say_services_rejected(cluster, node);
    let proxy = &cluster.proxies[node];
    let mut status = proxy["status"].clone();
    let failed = json!({
        "type": "APIServiceReachable", "status": "False", "reason": "ConnectionFailed",
        "message": "10.96.0.1:443: timed out", "observedGeneration": status["observedGeneration"],
        "lastTransitionTime": cluster.now,
    });
    let conditions = status["conditions"].as_array_mut();
    conditions.expect("conditions").push(failed);
    cluster.change_status(node, status);
}

/// Failure story T214. Degraded names one reason, and the refused Service comes before the failed
/// connections.
#[test]
fn t214_failed_connections_count_on_nodes_that_are_degraded_for_another_reason() {
    let mut cluster = Cluster::with_nodes(50);
    for number in 1..=50 {
        say_services_rejected(&mut cluster, &format!("n{number}"));
    }
    cluster.mute = cluster.nodes.keys().cloned().collect();
    cluster.run();
    cluster.put_profile("default", iptables(json!({"minReady": "1m"})));
    for _ in 0..200 {
        cluster.advance(1);
        let changed = cluster.nodes_with_mode("iptables");
        let changed: Vec<String> = changed.iter().map(ToString::to_string).collect();
        for node in changed {
            say_connection_failed(&mut cluster, &node);
        }
    }
    let tried: BTreeSet<&String> = cluster.assigned.iter().collect();
    assert_eq!(tried.len(), 1, "{tried:?}");
    let message = cluster.message("default", "Progressing");
    assert!(message.contains("ConnectionFailed"), "{message}");
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 50);
}

/// Failure story T214.
#[test]
fn t214_connections_that_failed_before_a_change_are_not_held_against_it() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.mute = cluster.nodes.keys().cloned().collect();
    for number in 1..=3 {
        say_connection_failed(&mut cluster, &format!("n{number}"));
    }
    cluster.run();
    cluster.put_profile("default", iptables(json!({})));
    for _ in 0..10 {
        cluster.advance(60);
        let changed = cluster.nodes_with_mode("iptables");
        let changed: Vec<String> = changed.iter().map(ToString::to_string).collect();
        for node in changed {
            say_connection_failed(&mut cluster, &node);
        }
    }
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 3);
    assert_eq!(cluster.condition("default", "Progressing"), "False/Settled");
}

#[test]
fn a_node_lost_after_its_wave_still_takes_up_a_place() {
    let mut cluster = Cluster::with_nodes(9);
    cluster.mute = (3..=9).map(|number| format!("n{number}")).collect();
    cluster.put_profile("default", iptables(json!({"maxUnavailable": 2})));
    cluster.run();
    assert_eq!(
        cluster.nodes_with_mode("iptables"),
        ["n1", "n2", "n3", "n4"]
    );
    cluster.lose_kubelet("n1");
    cluster.say("n3", json!({"Ready": "True"}));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 4, "n1 and n4");
    cluster.set_node_ready("n1", "True");
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 5);
}

#[test]
fn t108_an_agent_that_falls_silent_after_a_change_takes_it_back() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.put_profile("default", iptables(json!({"minReady": "1h"})));
    cluster.run();
    let mut status = cluster.proxies["n1"]["status"].clone();
    status["lastSyncTime"] = json!(cluster.now);
    cluster.change_status("n1", status);
    cluster.advance(19 * 60);
    assert_eq!(
        cluster.message("default", "Progressing"),
        "1 of 3 nodes failed: n1 (its agent has stopped reporting)"
    );
    assert_eq!(cluster.assigned, ["n1", "n1"]);
}

#[test]
fn t109_losing_the_api_server_takes_nothing_back() {
    let mut cluster = Cluster::with_nodes(20);
    cluster.put_profile(
        "default",
        iptables(json!({"minReady": "1m", "maxUnavailable": 5})),
    );
    cluster.advance(70);
    cluster.advance(30);
    let all: Vec<String> = cluster.proxies.keys().cloned().collect();
    for reason in ["SourceStale", "ListsPending"] {
        for node in &all {
            cluster.say_because(node, reason, json!({"Ready": "False", "Degraded": "True"}));
        }
        cluster.advance(30);
        assert_eq!(
            cluster.condition("default", "Progressing"),
            "True/RollingOut"
        );
    }
    for _ in 0..20 {
        cluster.advance(60);
    }
    assert_ne!(
        cluster.condition("default", "Progressing"),
        "False/RolledBack",
        "however long it lasts"
    );
    for node in &all {
        cluster.say(node, well());
    }
    for _ in 0..20 {
        cluster.advance(61);
    }
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 20);
    assert_eq!(cluster.condition("default", "Progressing"), "False/Settled");
}

#[test]
fn t109_what_passes_within_the_grace_takes_nothing_back() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.put_profile("default", iptables(json!({"minReady": "1m"})));
    cluster.advance(10);
    cluster.say("n1", json!({"Ready": "False", "Degraded": "True"}));
    cluster.advance(100);
    cluster.set_node_ready("n1", "False");
    cluster.advance(15);
    cluster.set_node_ready("n1", "True");
    cluster.say("n1", well());
    cluster.advance(55);
    assert_eq!(
        cluster.nodes_with_mode("iptables"),
        ["n1"],
        "it has to be ready without interruption"
    );
    cluster.advance(6);
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1", "n2"]);
}

#[test]
fn an_agent_that_starts_anew_on_a_degraded_node_takes_nothing_back() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.say("n1", json!({"Ready": "True", "Degraded": "True"}));
    cluster.run();
    cluster.put_profile("default", iptables(json!({})));
    cluster.mute.insert("n1".into());
    cluster.run();
    // The status is lost; the next report and its times are new.
    cluster.change_status("n1", json!({"conditions": []}));
    cluster.advance(5);
    cluster.say("n1", json!({"Ready": "True", "Degraded": "True"}));
    for _ in 0..10 {
        cluster.advance(60);
    }
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 3);
    assert_eq!(cluster.condition("default", "Progressing"), "False/Settled");
}

#[test]
fn t110_what_ailed_a_node_before_a_change_is_not_held_against_that_change() {
    for ill in [
        json!({"Ready": "True", "Degraded": "True"}),
        json!({"Ready": "False", "Degraded": "True"}),
    ] {
        let mut cluster = Cluster::with_nodes(12);
        cluster.put_profile("default", json!({"syncPeriod": "20s"}));
        cluster.run();
        cluster.advance(3600);
        // n1 fails long after it applied a change successfully.
        cluster.say("n1", ill.clone());
        cluster.mute.insert("n1".into());
        cluster.run();
        cluster.put_profile("default", iptables(json!({})));
        for _ in 0..30 {
            cluster.advance(60);
            if cluster.nodes_with_mode("iptables").contains(&"n1") {
                cluster.say("n1", ill.clone());
            }
        }
        assert_eq!(cluster.nodes_with_mode("iptables").len(), 12, "{ill}");
        assert_ne!(
            cluster.condition("default", "Progressing"),
            "False/RolledBack"
        );
    }
}

/// Failure story T110. What a node was like before the first change was forgotten at the second one.
#[test]
fn t110_a_node_that_is_ill_all_along_stops_none_of_several_rollouts() {
    // It is degraded and applies each change, or its agent ends again and again before it does.
    for is_applying in [true, false] {
        let mut cluster = Cluster::with_nodes(12);
        cluster.say("n1", json!({"Ready": "False", "Degraded": "True"}));
        cluster.mute.insert("n1".into());
        cluster.advance(3600);
        for mode in ["iptables", "ipvs", "nftables"] {
            cluster.put_profile("default", json!({"mode": mode}));
            for _ in 0..60 {
                cluster.advance(60);
                if is_applying && cluster.nodes_with_mode(mode).contains(&"n1") {
                    cluster.say("n1", json!({"Ready": "False", "Degraded": "True"}));
                }
            }
            let case = format!("{mode}, {is_applying}");
            assert_eq!(cluster.nodes_with_mode(mode).len(), 12, "{case}");
            let progressing = cluster.condition("default", "Progressing");
            assert_ne!(progressing, "False/RolledBack", "{case}");
            assert_ne!(progressing, "True/RollingOut", "{case}");
        }
    }
}

/// Failure story T398. Its agent was not ready, and then its kubelet went.
#[test]
fn t398_a_node_whose_agent_was_not_ready_before_fails_no_rollout_when_its_kubelet_goes() {
    let mut cluster = Cluster::with_nodes(5);
    cluster.mute.insert("n1".into());
    cluster.say("n1", json!({"Ready": "False"}));
    cluster.advance(3600);
    let rollout = json!({"maxFailures": 1, "maxUnavailable": 2});
    cluster.put_profile("default", iptables(rollout));
    cluster.advance(5);
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 5);
    cluster.set_node_ready("n1", "False");
    cluster.advance(3600);
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 5);
    let progressing = cluster.condition("default", "Progressing");
    assert_ne!(progressing, "False/RolledBack");
}

/// As T398, but the change makes the agents ready, and then takes one node after another.
#[test]
fn a_change_that_heals_agents_and_loses_nodes_fails() {
    let mut cluster = Cluster::with_nodes(5);
    for node in ["n1", "n2", "n3", "n4", "n5"] {
        cluster.mute.insert(node.into());
        cluster.say(node, json!({"Ready": "False"}));
    }
    cluster.advance(3600);
    cluster.put_profile("default", iptables(json!({})));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"]);
    cluster.say("n1", json!({"Ready": "True"}));
    cluster.run();
    cluster.set_node_ready("n1", "False");
    cluster.advance(60);
    // What the operator writes once the agent is silent.
    cluster.say("n1", json!({"Ready": "Unknown"}));
    cluster.advance(600);
    let progressing = cluster.condition("default", "Progressing");
    assert_eq!(progressing, "False/RolledBack");
    assert!(cluster.nodes_with_mode("iptables").len() <= 1);
}

#[test]
fn a_change_that_follows_at_once_is_judged_by_what_was_before_both() {
    let mut cluster = Cluster::with_nodes(1);
    cluster.broken_mode = Some("iptables");
    cluster.put_profile("default", iptables(json!({})));
    cluster.run();
    // The first change broke the node. It must not excuse the next change.
    let next = json!({"mode": "iptables", "syncPeriod": "20s"});
    cluster.put_profile("default", next);
    cluster.advance(121);
    assert_eq!(
        cluster.condition("default", "Progressing"),
        "False/RolledBack"
    );
    assert_eq!(cluster.assignments(), ["n1 default nftables"]);
}

#[test]
fn t111_clocks_of_nodes_decide_nothing() {
    for behind in [-7200, 7200] {
        let mut cluster = Cluster::with_nodes(3);
        cluster.put_profile("default", iptables(json!({})));
        cluster.mute.insert("n1".into());
        cluster.run();
        let (now, skew) = (cluster.now, jiff::SignedDuration::from_secs(behind));
        cluster.now += skew;
        cluster.say("n1", json!({"Ready": "True", "Degraded": "True"}));
        cluster.now = now;
        cluster.run();
        cluster.advance(121);
        assert_eq!(
            cluster.condition("default", "Progressing"),
            "False/RolledBack",
            "a clock {behind} s off"
        );
    }
}

/// Failure story T111. The deadline of a node was a time of the API server.
#[test]
fn t111_the_clock_of_the_api_server_moves_no_deadline() {
    for ahead in [-7200, 7200] {
        let mut cluster = Cluster::with_nodes(3);
        cluster.api_server_ahead = jiff::SignedDuration::from_secs(ahead);
        cluster.mute.insert("n1".into());
        cluster.put_profile("default", iptables(json!({"progressDeadline": "600s"})));
        cluster.advance(590);
        assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"], "{ahead}");
        cluster.advance(20);
        let progressing = cluster.condition("default", "Progressing");
        assert_eq!(progressing, "False/RolledBack", "{ahead}");
    }
}

#[test]
fn nodes_that_are_unavailable_already_count_among_those_that_may_be() {
    let mut cluster = Cluster::with_nodes(9);
    cluster.lose_kubelet("n9");
    cluster.say("n8", json!({"Ready": "False"}));
    cluster.mute = (1..=9).map(|number| format!("n{number}")).collect();
    cluster.put_profile(
        "default",
        iptables(json!({"maxUnavailable": 4, "canary": 0})),
    );
    cluster.run();
    assert_eq!(
        cluster.nodes_with_mode("iptables"),
        ["n1", "n2", "n8", "n9"],
        "two that are ready, and the two that are not"
    );

    let mut cluster = Cluster::with_nodes(5);
    for node in ["n4", "n5"] {
        cluster.lose_kubelet(node);
    }
    cluster.mute = (1..=5).map(|number| format!("n{number}")).collect();
    cluster.put_profile("default", iptables(json!({"maxUnavailable": 2})));
    cluster.run();
    assert_eq!(
        cluster.nodes_with_mode("iptables"),
        ["n1"],
        "one at a time rather than none"
    );
}

#[test]
fn an_operator_that_starts_finds_the_baseline_and_takes_the_change_back() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.put_profile("default", iptables(json!({"minReady": "1m"})));
    cluster.advance(20);
    cluster.lose_kubelet("n1");
    cluster.advance(100);
    cluster.restart_operator();
    cluster.advance(117);
    assert_eq!(
        cluster.nodes_with_mode("iptables"),
        ["n1"],
        "it cannot know for how long"
    );
    cluster.advance(4);
    assert_eq!(
        cluster.condition("default", "Progressing"),
        "False/RolledBack"
    );
}

/// Failure story T206. The time of its change counted as the time of its report.
#[test]
fn t206_an_operator_that_starts_takes_no_late_report_for_an_old_one() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.mute.insert("n1".into());
    cluster.put_profile("default", iptables(json!({"minReady": "60s"})));
    cluster.advance(300);
    cluster.say("n1", json!({"Ready": "True"}));
    cluster.run();
    cluster.restart_operator();
    cluster.advance(50);
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"]);
    cluster.advance(20);
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1", "n2"]);
}

/// Failure story T207. Nodes that were lost did not count, so that all of a zone was given the
/// change at once.
#[test]
fn t207_nodes_lost_before_their_turn_change_no_more_at_once_than_others() {
    let mut cluster = Cluster::with_nodes(10);
    cluster.mute.insert("n1".into());
    let rollout = json!({"maxUnavailable": 2, "maxFailures": 5});
    cluster.put_profile("default", iptables(rollout));
    cluster.run();
    let zone = ["n6", "n7", "n8", "n9"];
    for node in zone {
        cluster.lose_kubelet(node);
        cluster.mute.insert(node.into());
    }
    cluster.say("n1", json!({"Ready": "True"}));
    cluster.run();
    let changed = |cluster: &Cluster| {
        let changed = cluster.nodes_with_mode("iptables");
        changed.iter().filter(|node| zone.contains(node)).count()
    };
    assert_eq!(changed(&cluster), 2);
    assert_eq!(
        cluster.condition("default", "Progressing"),
        "True/RollingOut"
    );
    cluster.advance(601);
    assert_eq!(changed(&cluster), 4);
    cluster.advance(601);
    assert_eq!(
        cluster.condition("default", "Progressing"),
        "False/DeadlineExceeded"
    );
}
