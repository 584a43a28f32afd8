//! How nodes whose kubelets or agents are lost go back after a failure.

use serde_json::json;

use super::{Cluster, silence::Watched};

const ZONE: [&str; 7] = ["n1", "n2", "n3", "n4", "n5", "n6", "n7"];

/// Failure story T215. They counted as nodes that have nothing to lose, and all changed at once.
#[test]
fn t215_nodes_that_lost_only_their_kubelets_go_back_as_few_at_a_time_as_others() {
    for ready in ["False", "Unknown"] {
        let mut cluster = Cluster::with_nodes(20);
        cluster.mute.insert("n9".into());
        let rollout = json!({"maxUnavailable": 2});
        cluster.put_profile("default", json!({"mode": "iptables", "rollout": rollout}));
        cluster.run();
        assert_eq!(cluster.nodes_with_mode("iptables").len(), 20);
        for node in ZONE {
            cluster.set_node_ready(node, ready);
        }
        cluster.mute = cluster.nodes.keys().cloned().collect();
        cluster.forget_writes();
        cluster.advance(121);
        let progressing = cluster.condition("default", "Progressing");
        assert_eq!(progressing, "False/RolledBack");
        assert_eq!(
            cluster.assigned.len(),
            3,
            "{ready}: two that serve, and the one that never reported: {:?}",
            cluster.assigned
        );
        cluster.mute.clear();
        cluster.run();
        assert_eq!(cluster.nodes_with_mode("nftables").len(), 20, "{ready}");
    }
}

/// Failure story T215. A zone that returns carries out at once what it was given meanwhile.
#[test]
fn t215_lost_nodes_go_back_as_few_with_each_deadline_as_may_be_unavailable() {
    let mut watched = Watched::with_nodes(20);
    let cluster = &mut watched.cluster;
    cluster.mute.insert("n9".into());
    let rollout = json!({"maxUnavailable": 2});
    cluster.put_profile("default", json!({"mode": "iptables", "rollout": rollout}));
    cluster.run();
    cluster.mute.extend(ZONE.map(str::to_owned));
    for node in ZONE {
        cluster.lose_kubelet(node);
    }
    let gone_back = |watched: &Watched| {
        let back = watched.cluster.nodes_with_mode("nftables");
        back.iter().filter(|node| ZONE.contains(node)).count()
    };
    watched.pass(105, &ZONE);
    watched.cluster.mute.remove("n9");
    watched.pass(105, &ZONE);
    let back = watched.cluster.nodes_with_mode("nftables");
    assert_eq!(back.len(), 13 + 2, "the others do not wait: {back:?}");
    assert_eq!(gone_back(&watched), 2);
    watched.pass(500, &ZONE);
    assert_eq!(gone_back(&watched), 2);
    watched.pass(150, &ZONE);
    assert_eq!(gone_back(&watched), 4);
    watched.pass(1230, &ZONE);
    assert_eq!(gone_back(&watched), 7);
}

/// Failure story T409. It does not say its former configuration, because it was not ready with it, and most nodes
/// had another one.
#[test]
fn t409_a_node_returns_to_its_former_configuration_that_only_other_nodes_know() {
    let mut cluster = Cluster::new();
    for (node, team) in [
        ("n1", "a"),
        ("n2", "a"),
        ("n3", "a"),
        ("n4", "b"),
        ("n5", "b"),
    ] {
        cluster.add_node(node, json!({"team": team}));
    }
    for (team, mode) in [("a", "nftables"), ("b", "ipvs")] {
        let of_team = json!({"matchLabels": {"team": team}});
        cluster.put_profile(team, json!({"mode": mode, "nodeSelector": of_team}));
    }
    cluster.run();
    cluster.say("n5", json!({"Ready": "False"}));
    cluster.advance(3600);
    cluster.mute.insert("n3".into());
    let rollout = json!({"maxUnavailable": "100%", "maxFailures": 1});
    let spec = json!({"mode": "iptables", "priority": 3, "rollout": rollout});
    cluster.put_profile("prod", spec);
    cluster.advance(60);
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 5);
    cluster.mute.insert("n5".into());
    cluster.advance(3600);
    assert_eq!(cluster.condition("prod", "Progressing"), "False/RolledBack");
    assert_eq!(cluster.nodes_with_mode("nftables"), ["n1", "n2", "n3"]);
    assert_eq!(cluster.nodes_with_mode("ipvs"), ["n4", "n5"]);
    let ready = cluster.message("prod", "Ready");
    assert!(!ready.contains("keep the failed one"), "{ready}");
}
