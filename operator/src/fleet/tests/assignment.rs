//! Which configuration each node is assigned.

use crds::node_proxy::NodeProxySpec;
use serde_json::json;

use super::{super::*, Cluster};

#[test]
fn every_node_is_given_the_profile_at_once() {
    let cluster = Cluster::with_nodes(3);
    assert_eq!(
        cluster.assignments(),
        [
            "n1 default nftables",
            "n2 default nftables",
            "n3 default nftables"
        ]
    );
    assert_eq!(
        cluster.condition("default", "Ready"),
        "True/AllNodesProgrammed"
    );
    assert_eq!(cluster.condition("default", "Progressing"), "False/Settled");
}

#[test]
fn nothing_is_written_before_every_watch_has_listed() {
    let cluster = Cluster::with_nodes(3);
    let mut fleet = Fleet::default();
    fleet.apply(Event::Node(ObjectChange::Listed(
        cluster.nodes.values().map(super::node_record).collect(),
    )));
    fleet.apply(Event::Proxy(ObjectChange::Listed(
        cluster.proxies.values().map(super::proxy_record).collect(),
    )));
    assert_eq!(
        fleet.plan(cluster.now, cluster.instant()).actions,
        [],
        "no profile is known, which does not mean that there is none"
    );
    fleet.apply(Event::Profile(ObjectChange::Listed(Vec::new())));
    assert_eq!(
        fleet.plan(cluster.now, cluster.instant()).actions,
        [],
        "no DaemonSet is known either"
    );
    fleet.apply(Event::AgentDaemonSet(ObjectChange::Listed(Vec::new())));
    assert!(!fleet.is_complete(), "nor is that of kube-proxy");
    fleet.apply(Event::KubeProxyDaemonSet(KubeProxyDaemonSetState::Absent));
    assert_eq!(
        fleet.plan(cluster.now, cluster.instant()).actions.len(),
        3,
        "now it does"
    );
}

#[test]
fn an_operator_that_starts_again_writes_nothing() {
    let mut cluster = Cluster::with_nodes(5);
    cluster.restart_operator();
    assert_eq!(
        cluster.fleet.plan(cluster.now, cluster.instant()).actions,
        []
    );
}

#[test]
fn a_node_that_joins_is_given_its_profile_and_does_not_make_it_progress() {
    let mut cluster = Cluster::with_nodes(2);
    cluster.add_node("n3", json!({}));
    cluster.mute.insert("n3".into());
    cluster.run();
    assert_eq!(cluster.assigned, ["n3"]);
    assert_eq!(cluster.condition("default", "Progressing"), "False/Settled");
    assert_eq!(cluster.condition("default", "Ready"), "False/NodesNotReady");
    assert_eq!(
        cluster.message("default", "Ready"),
        "2 of 3 nodes are ready with it; not ready: n3 (NotReported)"
    );
}

#[test]
fn a_node_that_leaves_takes_its_configuration_along() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.remove_node("n2");
    cluster.run();
    assert_eq!(
        cluster.assignments(),
        ["n1 default nftables", "n3 default nftables"]
    );
    assert_eq!(cluster.status("default").matched_nodes, 2);
}

#[test]
fn a_node_that_comes_back_as_another_one_owns_its_configuration() {
    let mut cluster = Cluster::with_nodes(1);
    cluster.add_node("n1", json!({}));
    cluster.run();
    assert_eq!(
        cluster.proxies["n1"]["metadata"]["ownerReferences"][0]["uid"],
        cluster.nodes["n1"]["metadata"]["uid"]
    );
    assert_eq!(cluster.assigned, ["n1"]);
}

#[test]
fn a_relabelled_node_changes_its_profile() {
    let mut cluster = Cluster::with_nodes(2);
    cluster.put_profile("edge", json!({"priority": 10, "mode": "iptables", "nodeSelector": {"matchLabels": {"role": "edge"}}}));
    cluster.run();
    assert_eq!(cluster.assigned, [""; 0], "it selects no node yet");
    assert_eq!(
        cluster.condition("edge", "Ready"),
        "Unknown/NoMatchingNodes"
    );
    cluster.relabel_node("n2", json!({"role": "edge"}));
    cluster.run();
    assert_eq!(
        cluster.assignments(),
        ["n1 default nftables", "n2 edge iptables"]
    );
    cluster.relabel_node("n2", json!({}));
    cluster.run();
    assert_eq!(
        cluster.assignments(),
        ["n1 default nftables", "n2 default nftables"]
    );
}

#[test]
fn a_node_no_profile_selects_any_more_loses_its_object() {
    let mut cluster = Cluster::with_nodes(2);
    cluster.put_profile(
        "default",
        json!({"nodeSelector": {"matchLabels": {"role": "edge"}}}),
    );
    cluster.run();
    assert_eq!(cluster.assignments(), [""; 0]);
    cluster.relabel_node("n1", json!({"role": "edge"}));
    cluster.run();
    assert_eq!(cluster.assignments(), ["n1 default nftables"]);
    cluster.remove_profile("default");
    cluster.run();
    assert_eq!(cluster.assignments(), [""; 0]);
}

/// Failure story T401. Another program has put a finalizer on the object.
#[test]
fn t401_an_object_whose_deletion_waits_is_not_deleted_again_and_is_still_written() {
    let mut cluster = Cluster::with_nodes(2);
    let mut ending = cluster.proxies["n1"].clone();
    ending["metadata"]["deletionTimestamp"] = json!(cluster.now);
    ending["metadata"]["finalizers"] = json!(["example.com/wait"]);
    ending["metadata"]["resourceVersion"] = cluster.next_version().into();
    cluster.remove_profile("default");
    cluster.put_proxy("n1", ending);
    cluster.run();
    assert_eq!(cluster.assignments(), ["n1 default nftables"]);
    cluster.put_profile("own", json!({"mode": "iptables"}));
    cluster.run();
    assert_eq!(
        cluster.assignments(),
        ["n1 own iptables", "n2 own iptables"]
    );
}

#[test]
fn what_reaches_no_agent_stamps_no_node() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.put_profile("default", json!({"syncPeriod": "30s"}));
    cluster.run();
    assert_eq!(
        cluster.assigned, [""; 0],
        "the same configuration in another generation"
    );
    assert_eq!(cluster.status("default").observed_generation, Some(2));
    let own = [
        json!({"priority": 7}),
        json!({"priority": 7, "paused": true}),
        json!({"rollout": {"canary": 2, "maxUnavailable": 3}}),
        json!({"nodeSelector": {"matchExpressions": [{"key": "spare", "operator": "DoesNotExist"}]}}),
    ];
    for spec in own {
        cluster.put_profile("default", spec.clone());
        cluster.run();
        assert_eq!(cluster.assigned, [""; 0], "only the operator reads {spec}");
    }
    assert_eq!(cluster.status("default").observed_generation, Some(6));
}

#[test]
fn an_answer_of_the_api_server_is_not_undone_by_an_older_event() {
    let mut cluster = Cluster::with_nodes(1);
    let before = cluster.proxies["n1"].clone();
    cluster.put_profile("default", json!({"mode": "iptables"}));
    cluster.run();
    cluster
        .fleet
        .apply(Event::Proxy(ObjectChange::Applied(Box::new(
            super::proxy_record(&before),
        ))));
    assert_eq!(
        cluster.fleet.plan(cluster.now, cluster.instant()).actions,
        []
    );
}

#[test]
fn a_user_who_edits_a_nodes_object_is_corrected() {
    let mut cluster = Cluster::with_nodes(2);
    let mut proxy = cluster.proxies["n1"].clone();
    proxy["spec"]["profileName"] = "mine".into();
    proxy["metadata"]["resourceVersion"] = cluster.next_version().into();
    cluster.put_proxy("n1", proxy);
    cluster.run();
    assert_eq!(
        (
            cluster.assigned.as_slice(),
            cluster.assignments()[0].as_str()
        ),
        (&["n1".to_owned()][..], "n1 default nftables")
    );
}

#[test]
fn an_object_without_a_configuration_is_written_anew() {
    let mut cluster = Cluster::with_nodes(1);
    let mut proxy = cluster.proxies["n1"].clone();
    proxy["spec"] = json!("nothing that a spec has");
    proxy["metadata"]["resourceVersion"] = cluster.next_version().into();
    cluster.put_proxy("n1", proxy);
    cluster.run();
    assert_eq!(cluster.assignments(), ["n1 default nftables"]);
}

#[test]
fn names_too_long_for_a_label_go_without() {
    let spec = NodeProxySpec {
        profile_name: "p".repeat(64),
        ..NodeProxySpec::default()
    };
    assert_eq!(
        labels("n1", &spec).collect::<Vec<_>>(),
        [("signpost.dev/node", "n1")]
    );
}
