//! Which events trigger an evaluation of the whole fleet.

use serde_json::{Value, json};

use super::Cluster;

/// The agent of n1 renews its report: only the time of the last sync differs.
fn renew(cluster: &mut Cluster, second: i64) {
    let mut status = cluster.proxies["n1"]["status"].clone();
    status["lastSyncTime"] = format!("2026-01-01T00:00:{second:02}Z").into();
    cluster.change_status("n1", status);
}

fn settled(heartbeat: Value) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.heartbeat = heartbeat;
    for node in ["n1", "n2"] {
        cluster.add_node(node, json!({}));
    }
    cluster.put_profile("default", json!({}));
    cluster.run();
    renew(&mut cluster, 1);
    cluster.run();
    assert!(!cluster.fleet.has_changes());
    cluster
}

#[test]
fn t160_a_report_that_says_the_same_again_costs_no_plan_of_all_nodes() {
    let mut cluster = settled("Lease".into());
    renew(&mut cluster, 2);
    assert!(!cluster.fleet.has_changes());
    cluster.say("n1", json!({"Ready": "False"}));
    assert!(cluster.fleet.has_changes());
}

#[test]
fn t160_a_connection_that_succeeds_costs_no_plan_of_all_nodes() {
    let mut cluster = settled("Lease".into());
    let reports = [("True", false), ("False", true)];
    for (status, has_changes) in reports {
        let mut report = cluster.proxies["n1"]["status"].clone();
        let conditions = report["conditions"].as_array_mut().expect("conditions");
        conditions.push(json!({
            "type": "APIServiceReachable", "status": status, "reason": "Said", "message": "",
            "lastTransitionTime": cluster.now,
        }));
        cluster.change_status("n1", report);
        assert_eq!(cluster.fleet.has_changes(), has_changes, "{status}");
    }
}

#[test]
fn an_agent_without_a_lease_lives_by_the_time_of_its_report() {
    let mut cluster = settled(Value::Null);
    renew(&mut cluster, 2);
    assert!(cluster.fleet.has_changes());
}

#[test]
fn t160_a_kubelet_that_says_the_same_again_costs_no_plan_of_all_nodes() {
    let mut cluster = settled("Lease".into());
    cluster.relabel_node("n1", json!({}));
    assert!(!cluster.fleet.has_changes());
    cluster.relabel_node("n1", json!({"a": "b"}));
    assert!(cluster.fleet.has_changes());
}

#[test]
fn a_report_that_is_no_news_is_the_version_that_the_next_write_is_about() {
    let mut cluster = settled("Lease".into());
    renew(&mut cluster, 2);
    cluster.put_profile(
        "default",
        json!({"mode": "iptables", "rollout": {"canary": 2}}),
    );
    // The API server rejects the writes of this plan because of an old resource version.
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 2);
}
