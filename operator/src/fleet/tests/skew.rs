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
    assert_eq!(cluster.stamped, [""; 0]);
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
    assert_eq!(cluster.stamped, ["n1"], "it has nothing to return to");
    assert_eq!(
        cluster.proxies["n1"]["metadata"]["annotations"]["signpost.dev/previous"],
        Value::Null
    );
    assert_eq!(cluster.nodes_with_mode("ebpf").len(), 9);
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
