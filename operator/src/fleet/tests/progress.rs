//! The machine-readable progress of a rollout.

use crds::profile::progress::{RolloutPhase, RolloutStatus, WaveStatus};
use serde_json::json;

use super::Cluster;

fn rollout(cluster: &Cluster) -> RolloutStatus {
    let status = cluster.status("default");
    status
        .rollout
        .expect("a valid profile says how its rollout is")
}

fn mute(cluster: &mut Cluster, count: usize) {
    cluster.mute = (1..=count).map(|number| format!("n{number}")).collect();
}

#[test]
fn t130_a_rollout_says_which_wave_it_is_in_since_when_and_what_it_waits_for() {
    let mut cluster = Cluster::with_nodes(9);
    let settled = rollout(&cluster);
    assert_eq!(settled.phase, RolloutPhase::Settled);
    assert_eq!(settled.waiting_for, "");
    mute(&mut cluster, 9);
    let spec = json!({"mode": "iptables", "rollout": {"maxUnavailable": 3, "minReady": "1m"}});
    cluster.put_profile("default", spec);
    cluster.run();
    let start = rollout(&cluster);
    let status = cluster.status("default");
    assert_eq!(Some(&start.config_hash), status.target_hash.as_ref());
    assert_eq!(
        (start.phase, start.wave, start.generation),
        (RolloutPhase::RollingOut, 1, 2)
    );
    assert_eq!(start.waiting_for, "1 node of wave 1 to be available: n1");
    cluster.say("n1", json!({"Ready": "True"}));
    cluster.advance(30);
    let canary = rollout(&cluster);
    assert_eq!(canary.since, start.since, "phase and wave are the same");
    let first = WaveStatus {
        nodes: 1,
        updated: 1,
        ..WaveStatus::default()
    };
    assert_eq!(canary.waves[0], first, "it is not available yet");
    cluster.advance(31);
    let second = rollout(&cluster);
    assert_eq!(second.wave, 2);
    assert_ne!(second.since, start.since);
    let first = WaveStatus {
        available: 1,
        ..first
    };
    assert_eq!(second.waves[0], first);
    cluster.restart_operator();
    cluster.run();
    assert_eq!(rollout(&cluster), second, "whichever operator says so");
}

#[test]
fn t130_a_failed_rollout_names_the_node_and_the_reason() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.broken_mode = Some("iptables");
    cluster.put_profile("default", json!({"mode": "iptables"}));
    cluster.advance(121);
    let said = rollout(&cluster);
    assert_eq!(said.phase, RolloutPhase::RolledBack);
    let verdict = said.verdict.clone().expect("a verdict");
    assert_eq!(
        (
            verdict.failed_nodes,
            verdict.node.as_str(),
            verdict.reason.as_str()
        ),
        (1, "n1", "Said")
    );
    cluster.restart_operator();
    cluster.run();
    assert_eq!(rollout(&cluster), said);
}

#[test]
fn t131_a_few_lost_nodes_leave_a_profile_available() {
    let mut cluster = Cluster::with_nodes(20);
    for (lost, available) in [
        ("n1", "True/EnoughNodesReady"),
        ("n2", "True/EnoughNodesReady"),
        ("n3", "False/TooFewNodesReady"),
    ] {
        cluster.say(lost, json!({"Ready": "False"}));
        cluster.run();
        assert_eq!(cluster.condition("default", "Available"), available);
        assert_eq!(cluster.condition("default", "Ready"), "False/NodesNotReady");
    }
    let mut alone = Cluster::with_nodes(1);
    alone.say("n1", json!({"Ready": "False"}));
    alone.run();
    assert_eq!(
        alone.condition("default", "Available"),
        "False/TooFewNodesReady",
        "one node may be unavailable, but not the only one"
    );
}
