//! The status of a profile and the summary of its nodes' reports.

use serde_json::json;

use super::Cluster;

#[test]
fn the_reports_of_the_nodes_are_summed_up() {
    let mut cluster = Cluster::with_nodes(3);
    for (node, p50, p99) in [
        ("n1", 1_000, 9_000),
        ("n2", 3_000, 2_000_000),
        ("n3", 1_830, 48_000),
    ] {
        let mut status = cluster.proxies[node]["status"].clone();
        let total = json!({"p50Microseconds": p50, "p99Microseconds": p99, "maxMicroseconds": p99});
        let none = json!({"p50Microseconds": 0, "p99Microseconds": 0, "maxMicroseconds": 0});
        status["syncLatency"] = json!({
            "window": "5m", "decode": none, "compile": none, "commit": none, "total": total, "p99": "x",
        });
        cluster.change_status(node, status);
    }
    cluster.run();
    let status = cluster.status("default");
    assert_eq!(
        (
            status.matched_nodes,
            status.updated_nodes,
            status.ready_nodes,
            status.degraded_nodes
        ),
        (3, 3, 3, 0)
    );
    assert_eq!(status.current_hash, status.target_hash);
    let latency = status.sync_latency.expect("nodes reported one");
    assert_eq!(
        (latency.p50_microseconds.count(), latency.p99.as_str()),
        (2_000, "2s")
    );
    let worst: Vec<_> = status
        .worst_nodes
        .iter()
        .map(|node| (node.name.as_str(), node.reason.as_str()))
        .collect();
    assert_eq!(worst, [("n2", "Slow")]);
}

#[test]
fn what_nodes_report_besides_their_health_is_summed_up_by_kind() {
    let mut cluster = Cluster::with_nodes(10);
    for number in 1..=7 {
        let node = format!("n{number}");
        cluster.say(
            &node,
            json!({"Ready": "True", "ForeignProxyDetected": "True"}),
        );
    }
    cluster.say(
        "n8",
        json!({"Ready": "True", "ConntrackPressure": "True", "RulesContested": "False"}),
    );
    cluster.say("n9", json!({"Ready": "True", "RulesContested": "True"}));
    cluster.say_because("n10", "HandedBack", json!({"Ready": "False"}));
    for (node, version) in [("n1", "0.2.0"), ("n2", "0.2.0"), ("n3", "0.1.0")] {
        let mut status = cluster.proxies[node]["status"].clone();
        status["agentVersion"] = json!(version);
        status["drift"] = json!([{
            "program": "nft", "continues": false, "repairs": 1, "lastFound": "2026-01-01T00:00:00Z",
            "elements": 1, "objects": 0,
        }]);
        cluster.change_status(node, status);
    }
    cluster.run();
    let status = cluster.status("default");
    let found = |kind: &str, nodes: u32, first: &[&str]| json!({"type": kind, "nodes": nodes, "firstNodes": first});
    assert_eq!(
        json!(status.node_findings),
        json!([
            found("ForeignProxyDetected", 7, &["n1", "n2", "n3", "n4", "n5"]),
            found("RulesContested", 1, &["n9"]),
            found("RulesDrifted", 3, &["n1", "n2", "n3"]),
            found("ConntrackPressure", 1, &["n8"]),
            found("HandedBack", 1, &["n10"]),
        ])
    );
    assert_eq!(
        json!(status.agent_versions),
        json!([{"version": "0.2.0", "nodes": 2}, {"version": "0.1.0", "nodes": 1}])
    );
}

#[test]
fn no_more_than_ten_nodes_are_named_and_the_degraded_ones_first() {
    let mut cluster = Cluster::with_nodes(14);
    for number in 1..=12 {
        cluster.say(&format!("n{number}"), json!({"Ready": "False"}));
    }
    cluster.say("n13", json!({"Ready": "True", "Degraded": "True"}));
    cluster.run();
    let status = cluster.status("default");
    assert_eq!(
        (
            status.ready_nodes,
            status.degraded_nodes,
            status.worst_nodes.len()
        ),
        (2, 1, 10)
    );
    assert_eq!(status.worst_nodes[0].name, "n13");
    assert_eq!(
        cluster.condition("default", "Degraded"),
        "True/NodesDegraded"
    );
}

#[test]
fn a_status_that_was_not_written_is_still_to_be_written() {
    let mut cluster = Cluster::with_nodes(2);
    cluster.say("n1", json!({"Ready": "False"}));
    let first = cluster.fleet.plan(cluster.now, cluster.instant());
    assert_eq!(first.actions.len(), 1);
    assert_eq!(cluster.fleet.plan(cluster.now, cluster.instant()), first);
}

#[test]
fn the_time_of_transition_stays_while_nothing_changes() {
    let mut cluster = Cluster::with_nodes(2);
    let before = cluster.status("default");
    cluster.now += jiff::SignedDuration::from_secs(100);
    cluster.add_node("n3", json!({}));
    cluster.run();
    let after = cluster.status("default");
    assert_eq!(after.matched_nodes, 3);
    let accepted = |status: &crds::profile::status::ProxyProfileStatus| {
        status
            .conditions
            .iter()
            .find(|condition| condition.type_ == "Accepted")
            .cloned()
    };
    assert_eq!(accepted(&before), accepted(&after));
}

#[test]
fn t5_two_profiles_of_one_priority_have_one_winner_and_both_say_so() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.now += jiff::SignedDuration::from_secs(10);
    cluster.put_profile("another", json!({"mode": "iptables"}));
    cluster.run();
    assert_eq!(
        cluster.nodes_with_mode("nftables").len(),
        3,
        "the oldest decides"
    );
    assert_eq!(
        cluster.condition("another", "Conflict"),
        "True/SamePriority"
    );
    assert_eq!(
        cluster.message("another", "Conflict"),
        "same priority, same nodes: default applies to 3 nodes"
    );
    assert_eq!(
        cluster.condition("default", "Conflict"),
        "True/SamePriority"
    );
    assert_eq!(
        cluster.message("default", "Conflict"),
        "same priority, same nodes: applies to 3 nodes instead of another"
    );
    cluster.put_profile("another", json!({"mode": "iptables", "priority": 2000}));
    cluster.run();
    assert_eq!(cluster.condition("another", "Conflict"), "False/Overridden");
    assert_eq!(cluster.condition("default", "Conflict"), "False/NoConflict");
}

#[test]
fn an_invalid_profile_is_named_holds_its_nodes_and_disturbs_no_other() {
    let mut cluster = Cluster::with_nodes(2);
    cluster.put_profile(
        "edge",
        json!({"priority": 10, "nodeSelector": {"matchLabels": {"role": "edge"}}}),
    );
    cluster.relabel_node("n2", json!({"role": "edge"}));
    cluster.run();
    cluster.put_profile(
        "edge",
        json!({"priority": 10, "mode": "iptables", "minSyncPeriod": "1h"}),
    );
    cluster.put_profile("default", json!({"mode": "ipvs"}));
    cluster.run();
    assert_eq!(
        cluster.assignments(),
        ["n1 default ipvs", "n2 edge nftables"]
    );
    assert_eq!(cluster.condition("edge", "Accepted"), "False/InvalidField");
    assert!(
        cluster
            .message("edge", "Accepted")
            .starts_with("spec.minSyncPeriod: "),
        "{}",
        cluster.message("edge", "Accepted")
    );
    // Failure story T403: no alert asks for Accepted.
    let degraded = cluster.condition("edge", "Degraded");
    assert_eq!(degraded, "True/InvalidField");
    assert_eq!(cluster.condition("edge", "Ready"), "False/InvalidField");
    assert_eq!(
        cluster.condition("default", "Ready"),
        "True/AllNodesProgrammed"
    );
}

#[test]
fn a_profile_that_cannot_be_read_is_named_and_holds_its_nodes() {
    let mut cluster = Cluster::with_nodes(2);
    cluster.put_profile("default", json!({"mode": "teleport"}));
    cluster.put_profile("spare", json!({"priority": 5000, "mode": "iptables"}));
    cluster.run();
    assert_eq!(
        cluster.assignments(),
        ["n1 default nftables", "n2 default nftables"]
    );
    assert_eq!(cluster.condition("default", "Accepted"), "False/Unreadable");
    assert!(
        cluster.message("default", "Accepted").contains("spec.mode"),
        "{}",
        cluster.message("default", "Accepted")
    );
    cluster.put_profile("default", json!({"mode": "ipvs"}));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("ipvs").len(), 2);
}

#[test]
fn a_field_of_a_newer_version_does_not_take_the_profile_away() {
    let mut cluster = Cluster::with_nodes(1);
    cluster.put_profile(
        "default",
        json!({"mode": "iptables", "invented": {"later": 1}}),
    );
    cluster.run();
    assert_eq!(cluster.assignments(), ["n1 default iptables"]);
    assert_eq!(cluster.condition("default", "Accepted"), "True/Valid");
}

#[test]
fn what_agents_do_not_carry_out_reaches_the_profile() {
    let mut cluster = Cluster::with_nodes(2);
    cluster.say("n2", json!({"Ready": "True", "FeaturesHonoured": "False"}));
    cluster.say("n1", json!({"Ready": "True", "FeaturesHonoured": "True"}));
    cluster.run();
    assert_eq!(
        cluster.condition("default", "FeaturesHonoured"),
        "False/FieldNotHonoured"
    );
    assert_eq!(
        cluster.message("default", "FeaturesHonoured"),
        "on 1 of 2 nodes, such as n2: by the test"
    );
    let exhausted = json!({"Ready": "True", "FeaturesHonoured": "False"});
    cluster.say_because("n2", "AffinityExhausted", exhausted);
    cluster.run();
    assert_eq!(
        cluster.condition("default", "FeaturesHonoured"),
        "False/AffinityExhausted"
    );
    cluster.say("n2", json!({"Ready": "True", "FeaturesHonoured": "True"}));
    cluster.run();
    assert_eq!(
        cluster.condition("default", "FeaturesHonoured"),
        "True/AllHonoured"
    );
}

#[test]
fn an_agent_that_has_gone_silent_is_noticed_although_nothing_is_heard() {
    let mut cluster = Cluster::with_nodes(2);
    let mut status = cluster.proxies["n1"]["status"].clone();
    status["lastSyncTime"] = json!(cluster.now);
    cluster.change_status("n1", status);
    cluster.run();
    assert_eq!(
        cluster.condition("default", "Ready"),
        "True/AllNodesProgrammed"
    );
    let requeue_at = cluster
        .fleet
        .plan(cluster.now, cluster.instant())
        .requeue_at
        .expect("something to wait for");
    cluster.now = requeue_at;
    cluster.run();
    assert_eq!(cluster.condition("default", "Ready"), "False/NodesNotReady");
    assert_eq!(cluster.condition("default", "Degraded"), "True/AgentSilent");
}

#[test]
fn a_node_that_was_handed_back_stops_no_change_and_is_not_called_silent() {
    let mut cluster = Cluster::with_nodes(5);
    cluster.put_profile("default", json!({"syncPeriod": "20s"}));
    cluster.run();
    // The agent reports on its spec but programs nothing.
    let mut status = cluster.proxies["n1"]["status"].clone();
    status["conditions"][0]["status"] = "False".into();
    status["conditions"][0]["reason"] = "HandedBack".into();
    status["lastSyncTime"] = json!(cluster.now);
    cluster.change_status("n1", status);
    cluster.mute.insert("n1".into());
    cluster.put_profile("default", json!({"syncPeriod": "25s"}));
    cluster.run();
    for _ in 0..4 {
        cluster.advance(1200);
    }
    assert_eq!(cluster.condition("default", "Progressing"), "False/Settled");
    assert_ne!(cluster.condition("default", "Degraded"), "True/AgentSilent");
    for node in ["n1", "n2", "n3", "n4", "n5"] {
        let config = &cluster.proxies[node]["spec"]["config"];
        assert_eq!(config["syncPeriod"], "25s", "{node}");
    }
}

#[test]
fn nodes_without_an_agent_are_left_out_and_named() {
    let mut cluster = Cluster::with_nodes(2);
    cluster.add_node("w1", json!({"kubernetes.io/os": "windows"}));
    cluster.add_node(
        "w2",
        json!({"type": "virtual-kubelet", "kubernetes.io/os": "linux"}),
    );
    cluster.run();
    assert_eq!(cluster.assignments().len(), 2);
    assert_eq!(cluster.status("default").matched_nodes, 2);
    assert_eq!(
        cluster.condition("default", "Ready"),
        "True/AllNodesProgrammed"
    );
    let said = cluster.message("default", "Ready");
    let names = "w1 (kubernetes.io/os=windows), w2 (type=virtual-kubelet)";
    assert!(said.ends_with(names), "{said}");
}

#[test]
fn t186_nodes_without_a_pod_of_the_agents_daemon_sets_are_left_out_and_named() {
    let mut cluster = Cluster::with_nodes(2);
    cluster.put_daemon_set("linux", json!({"nodeSelector": {"pool": "web"}}));
    cluster.add_node("n3", json!({}));
    cluster.run();
    // The agents of n1 and n2 report, whatever the DaemonSet says by now.
    assert_eq!(cluster.assignments().len(), 2);
    assert_eq!(cluster.status("default").matched_nodes, 2);
    assert_eq!(
        cluster.condition("default", "Ready"),
        "True/AllNodesProgrammed"
    );
    let said = cluster.message("default", "Ready");
    assert!(
        said.ends_with("n3 (nodeSelector pool=web of DaemonSet linux)"),
        "{said}"
    );

    cluster.put_daemon_set("arm", json!({"nodeSelector": {"pool": "arm"}}));
    cluster.add_node("n4", json!({"pool": "arm"}));
    cluster.relabel_node("n3", json!({"pool": "web"}));
    cluster.run();
    assert_eq!(cluster.assignments().len(), 4, "one DaemonSet is enough");

    cluster.restart_operator();
    cluster.forget_writes();
    cluster.run();
    assert_eq!(cluster.assigned, [""; 0]);
    assert_eq!(cluster.assignments().len(), 4, "and nothing is removed");
}

#[test]
fn t186_a_deleted_node_proxy_comes_back_where_a_taint_leaves_the_agent() {
    let mut cluster = Cluster::with_nodes(2);
    cluster.put_daemon_set("agents", json!({}));
    let taint = json!({"key": "dedicated", "value": "db", "effect": "NoSchedule"});
    cluster.taint_node("n1", taint);
    cluster.run();
    cluster.delete_proxies();
    cluster.run();
    assert_eq!(cluster.assignments().len(), 2);
}

#[test]
fn a_profile_without_nodes_is_not_on_its_way() {
    let mut cluster = Cluster::with_nodes(2);
    let selector = json!({"matchLabels": {"role": "edge"}});
    cluster.put_profile("edge", json!({"priority": 10, "nodeSelector": selector}));
    cluster.run();
    assert_eq!(
        cluster.condition("edge", "Progressing"),
        "False/NoMatchingNodes"
    );
}

#[test]
fn t135_latencies_that_wander_a_little_are_not_written_again() {
    let mut cluster = Cluster::with_nodes(3);
    for sync in 0..20 {
        for node in ["n1", "n2", "n3"] {
            let mut status = cluster.proxies[node]["status"].clone();
            let (p50, p99) = (1_300 + sync, 1_200_000 + sync * 3);
            let total =
                json!({"p50Microseconds": p50, "p99Microseconds": p99, "maxMicroseconds": p99});
            status["syncLatency"] = json!({
                "window": "5m", "decode": total, "compile": total, "commit": total, "total": total, "p99": "x",
            });
            cluster.change_status(node, status);
        }
        cluster.run();
    }
    assert_eq!(
        cluster.reported,
        ["default"],
        "the first report of a latency"
    );
    let latency = cluster.status("default").sync_latency.expect("one");
    assert_eq!(
        (latency.p50_microseconds.count(), latency.p99.as_str()),
        (2_000, "2s")
    );
}
