//! The waves of a change over a fleet: the canary, then increasing waves, across all zones,
//! control-plane nodes last.

use std::collections::BTreeMap;

use crds::profile::{
    progress::{RolloutPhase, WaveStatus},
    status::ProxyProfileStatus,
};
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::Cluster;

/// How long an agent takes to report on a change, in seconds.
const REPORT: i64 = 20;
/// `rollout.minReady` in seconds.
const SOAK: i64 = 60;

/// A profile with the default waves.
fn iptables(rollout: Value) -> Value {
    let mut rollout = rollout;
    for (field, value) in [
        ("waves", json!([1, 5, 25])),
        ("minReady", json!("1m")),
        ("maxFailures", json!("10%")),
    ] {
        if rollout[field].is_null() {
            rollout[field] = value;
        }
    }
    json!({"mode": "iptables", "rollout": rollout})
}

/// A settled fleet with this many nodes in three zones; one in a hundred is a control-plane node.
fn fleet(count: usize) -> Cluster {
    let mut cluster = Cluster::new();
    for number in 0..count {
        let zone =
            ["a", "b", "c"][usize::from(number * 2 > count) + usize::from(number * 4 > count * 3)];
        let mut labels = json!({"topology.kubernetes.io/zone": zone});
        if number < count / 100 {
            labels["node-role.kubernetes.io/control-plane"] = "".into();
        }
        cluster.add_node(&format!("n{number:04}"), labels);
    }
    cluster.put_profile("default", json!({}));
    cluster.run();
    cluster.forget_writes();
    cluster
}

/// Runs operator and agents for the time that an agent takes to report.
fn step(cluster: &mut Cluster) {
    cluster.report();
    // A wave begins once the status has it.
    for _ in 0..2 {
        for action in cluster.fleet.plan(cluster.now, cluster.instant()).actions {
            cluster.write(action);
        }
    }
    cluster.now += SignedDuration::from_secs(REPORT);
}

fn status(cluster: &Cluster) -> ProxyProfileStatus {
    cluster.status("default")
}

/// Runs a rollout over `count` nodes; returns its duration and the minimum that its waves and nodes
/// need.
fn play(count: usize, rollout: Value) -> (i64, i64) {
    let mut cluster = fleet(count);
    cluster.put_profile("default", iptables(rollout));
    let start = cluster.now;
    let mut least = 0;
    for look in 0..1000 {
        step(&mut cluster);
        let said = status(&cluster).rollout.expect("a rollout");
        if look == 0 {
            let at_once = u32::try_from(count / 10).expect("small").max(1);
            let batches = |wave: &WaveStatus| i64::from(wave.nodes.div_ceil(at_once));
            least = said.waves.iter().map(batches).sum::<i64>() * (REPORT + SOAK);
        }
        for (number, waves) in said.waves.windows(2).enumerate() {
            let begun = waves[1].waiting < waves[1].nodes;
            let soaked = waves[0].available == waves[0].nodes;
            assert!(soaked || !begun, "wave {} of {waves:?}", number + 2);
        }
        if said.phase == RolloutPhase::Settled {
            return ((cluster.now - start).get_seconds(), least);
        }
        assert_eq!(said.phase, RolloutPhase::RollingOut);
    }
    panic!("it does not end: {:?}", status(&cluster).rollout);
}

#[test]
fn t132_a_rollout_takes_at_most_twice_what_its_waves_and_nodes_need() {
    for count in [10, 100, 1000] {
        let (took, least) = play(count, json!({}));
        assert!(
            took <= 2 * least,
            "{count} nodes: {took} s, least {least} s"
        );
        println!("{count} nodes: {took} s, least {least} s");
    }
}

#[test]
fn t132_so_does_one_of_five_thousand_nodes() {
    let (took, least) = play(5000, json!({}));
    assert!(took <= 2 * least, "{took} s, least {least} s");
    println!("5000 nodes: {took} s, least {least} s");
}

#[test]
fn t132_waves_grow_over_all_zones_and_the_control_plane_comes_last() {
    let mut cluster = fleet(200);
    cluster.put_profile("default", iptables(json!({"maxUnavailable": "100%"})));
    step(&mut cluster);
    let sizes: Vec<u32> = status(&cluster)
        .rollout
        .expect("a rollout")
        .waves
        .iter()
        .map(|wave| wave.nodes)
        .collect();
    assert_eq!(sizes, [1, 1, 8, 40, 150]);
    for _ in 0..8 {
        step(&mut cluster);
    }
    let mut zones: BTreeMap<&str, usize> = BTreeMap::new();
    let mut until_third: Vec<&str> = Vec::new();
    for name in cluster.assigned.iter().take(10) {
        let labels = &cluster.nodes[name]["metadata"]["labels"];
        let zone = labels["topology.kubernetes.io/zone"].as_str();
        *zones.entry(zone.expect("a zone")).or_default() += 1;
        until_third.push(name);
    }
    assert!(
        zones.values().all(|count| (2..=4).contains(count)) && zones.len() == 3,
        "{zones:?}: {until_third:?}"
    );
    let mut steps = 0;
    while cluster.nodes_with_mode("iptables").len() < 200 && steps < 100 {
        step(&mut cluster);
        steps += 1;
    }
    // The last wave is written in the order of names. No control-plane node is written before it.
    let before_the_last = &cluster.assigned[..50];
    let is_control_plane = |name: &&String| name.as_str() < "n0002";
    assert_eq!(before_the_last.iter().filter(is_control_plane).count(), 0);
}

#[test]
fn t133_a_wave_fails_by_its_own_size_and_not_by_that_of_the_fleet() {
    let mut cluster = fleet(400);
    cluster.mute = (0..40).map(|number| format!("n{number:04}")).collect();
    cluster.put_profile("default", iptables(json!({"progressDeadline": "60s"})));
    // The canary and the second wave, of three more nodes, are healthy; in the third, of twenty in
    // all, two nodes are not.
    for _ in 0..100 {
        for name in ["n0004", "n0005"] {
            cluster.mute.remove(name);
        }
        step(&mut cluster);
    }
    let said = status(&cluster).rollout.expect("a rollout");
    let verdict = said.verdict.expect("a verdict");
    assert!(verdict.failed_nodes <= 6, "{verdict:?}");
    assert_eq!(said.phase, RolloutPhase::RolledBack);
    let mut tried = cluster.assigned.clone();
    tried.sort();
    tried.dedup();
    assert!(tried.len() <= 20, "{} nodes were given it", tried.len());
}

#[test]
fn t133_max_failures_says_how_many_nodes_may_fail() {
    let broken = |rollout: Value| {
        let mut cluster = fleet(100);
        cluster.mute = ["n0099", "n0098", "n0097"].map(str::to_owned).into();
        cluster.put_profile("default", iptables(rollout));
        for _ in 0..100 {
            step(&mut cluster);
        }
        status(&cluster).rollout.expect("a rollout").phase
    };
    let deadline = |failures: u32| json!({"maxFailures": failures, "progressDeadline": "60s", "maxUnavailable": "50%"});
    assert_eq!(broken(deadline(3)), RolloutPhase::RolledBack);
    assert_eq!(broken(deadline(4)), RolloutPhase::DeadlineExceeded);
}
