//! How long a node that is ready with a change waits before the next one follows.

use std::collections::BTreeSet;

use serde_json::json;

use super::iptables;
use super::silence::Watched;

/// Failure story T217. The agent was found to be silent only after the next wave had begun.
#[test]
fn t217_an_agent_that_falls_silent_right_after_its_report_lets_no_other_node_follow() {
    let mut watched = Watched::with_nodes(50);
    let rollout = json!({"minReady": "1m", "waves": [1, 5, 25], "maxFailures": "10%"});
    watched.cluster.put_profile("default", iptables(rollout));
    watched.pass(300, &["n1"]);
    let tried: BTreeSet<&String> = watched.cluster.assigned.iter().collect();
    assert_eq!(tried.len(), 1, "{tried:?}");
    assert_eq!(
        watched.cluster.condition("default", "Progressing"),
        "False/RolledBack"
    );
}

/// Failure story T268. With a short `minReady` the change reached other nodes before the first had
/// forwarded a packet with it.
#[test]
fn t268_no_node_counts_before_a_connection_went_through_its_new_rules() {
    for (min_ready, is_proven) in [("0s", true), ("20s", true), ("0s", false), ("20s", false)] {
        let mut watched = Watched::with_nodes(50);
        let cluster = &mut watched.cluster;
        cluster.mute.insert("n1".into());
        let rollout = json!({"minReady": min_ready});
        cluster.put_profile("default", iptables(rollout));
        cluster.run();
        cluster.say(
            "n1",
            json!({"Ready": "True", "APIServiceReachable": "Unknown"}),
        );
        watched.pass(30, &[]);
        assert_eq!(watched.cluster.nodes_with_mode("iptables"), ["n1"]);
        if is_proven {
            let proven = json!({"Ready": "True", "APIServiceReachable": "True"});
            watched.cluster.say("n1", proven);
            watched.cluster.run();
        } else {
            // It has no endpoint to connect to: it does not hold the rollout up for long.
            watched.pass(15, &[]);
        }
        assert!(watched.cluster.nodes_with_mode("iptables").len() > 1);
    }
}

/// Failure story T217.
#[test]
fn t217_an_agent_that_renews_its_lease_late_lets_the_next_one_follow_then() {
    let mut watched = Watched::with_nodes(50);
    let rollout = json!({"minReady": "1m"});
    watched.cluster.put_profile("default", iptables(rollout));
    watched.pass(75, &["n1"]);
    assert_eq!(watched.cluster.nodes_with_mode("iptables"), ["n1"]);
    watched.pass(30, &[]);
    assert!(watched.cluster.nodes_with_mode("iptables").len() > 1);
}

/// Failure story T217. Without the right to list Leases, it would wait forever.
#[test]
fn t217_an_operator_that_cannot_list_leases_goes_on_later() {
    let mut watched = Watched::with_nodes(50);
    let cluster = &mut watched.cluster;
    let rollout = json!({"minReady": "1m"});
    cluster.put_profile("default", iptables(rollout));
    cluster.advance(130);
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"]);
    cluster.advance(10);
    assert!(cluster.nodes_with_mode("iptables").len() > 1);
}
