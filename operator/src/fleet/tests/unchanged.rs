//! Nodes that have a configuration that a rollout does not change: they can neither fail in it nor
//! go back with it.

use crds::profile::progress::RolloutPhase;
use serde_json::json;

use super::{Cluster, iptables};

/// Creates nine nodes of profile `default` and n10 of profile `edge`, in mode ipvs.
fn two_profiles() -> Cluster {
    let mut cluster = Cluster::with_nodes(9);
    let selector = json!({"matchLabels": {"role": "edge"}});
    let edge = json!({"priority": 5, "mode": "ipvs", "nodeSelector": selector});
    cluster.put_profile("edge", edge);
    cluster.add_node("n10", json!({"role": "edge"}));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("ipvs"), ["n10"]);
    cluster
}

/// Failure story T397. A profile with the same configuration takes over from another one.
#[test]
fn t397_a_failure_takes_no_node_to_what_another_profile_gave() {
    for is_aborted in [false, true] {
        let mut cluster = two_profiles();
        cluster.mute.insert("n10".into());
        cluster.put_profile("prod", json!({"priority": 3}));
        cluster.run();
        assert_eq!(cluster.nodes_with_mode("ipvs"), [""; 0], "n10 has changed");
        if is_aborted {
            let target = cluster.status("prod").target_hash;
            let abort = json!({"priority": 3, "rollout": {"abort": target}});
            cluster.put_profile("prod", abort);
        }
        cluster.advance(7200);
        cluster.mute.clear();
        cluster.advance(600);
        assert_eq!(cluster.condition("prod", "Progressing"), "False/RolledBack");
        assert_eq!(cluster.nodes_with_mode("ipvs"), ["n10"], "{is_aborted}");
        // Failure story T400: no node is still to return.
        let phase = cluster.status("prod").rollout.map(|rollout| rollout.phase);
        assert_eq!(phase, Some(RolloutPhase::RolledBack));
    }
}

/// Failure story T397. They could return to what they had before an earlier change.
#[test]
fn t397_a_failure_takes_no_node_to_what_it_had_before_an_earlier_rollout() {
    let mut cluster = two_profiles();
    cluster.put_profile("default", iptables(json!({})));
    cluster.advance(3600);
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 9);
    cluster.mute.insert("n10".into());
    cluster.put_profile("prod", json!({"priority": 3, "mode": "iptables"}));
    cluster.advance(7200);
    cluster.mute.clear();
    cluster.advance(600);
    assert_eq!(cluster.condition("prod", "Progressing"), "False/RolledBack");
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 9);
    assert_eq!(cluster.nodes_with_mode("ipvs"), ["n10"]);
}

/// Failure story T397. It was well before a change of its former profile.
#[test]
fn t397_a_node_that_has_been_ill_for_weeks_fails_no_profile_that_takes_over_from_another() {
    // Another change follows before the deadline of the first, or later.
    for seconds in [400, 3600] {
        let mut cluster = two_profiles();
        cluster.put_profile("default", iptables(json!({})));
        cluster.advance(3600);
        let ill = json!({"Ready": "False", "Degraded": "True"});
        cluster.say("n9", ill.clone());
        cluster.mute.insert("n9".into());
        cluster.advance(3600);
        for (mode, seconds) in [("iptables", seconds), ("nftables", 3600)] {
            cluster.put_profile("prod", json!({"priority": 3, "mode": mode}));
            for _ in 0..seconds / 20 {
                cluster.advance(20);
                if cluster.nodes_with_mode(mode).contains(&"n9") {
                    cluster.say("n9", ill.clone());
                }
            }
            let progressing = cluster.condition("prod", "Progressing");
            assert_ne!(progressing, "False/RolledBack", "{mode} after {seconds} s");
        }
        assert_eq!(cluster.nodes_with_mode("nftables").len(), 10);
    }
}

/// Failure story T397. As T208, with a default that is written out.
#[test]
fn t397_a_return_that_is_written_otherwise_takes_no_node_to_what_was_before() {
    let mut cluster = Cluster::with_nodes(9);
    cluster.put_profile("default", iptables(json!({})));
    cluster.advance(3600);
    cluster.mute.insert("n1".into());
    cluster.put_profile("default", json!({"mode": "ipvs"}));
    cluster.run();
    let rollout = json!({"maxUnavailable": "50%", "maxFailures": 1});
    let spec = json!({"mode": "iptables", "ipvs": {"strictARP": false}, "rollout": rollout});
    cluster.put_profile("default", spec);
    cluster.advance(60);
    let written = &cluster.proxies["n2"]["spec"]["writtenFields"];
    assert!(written.to_string().contains("strictARP"), "{written}");
    cluster.advance(7200);
    assert_eq!(
        cluster.condition("default", "Progressing"),
        "False/RolledBack"
    );
    assert!(cluster.nodes_with_mode("iptables").len() >= 8);
}

/// A node that the rollout has changed goes back although it was written otherwise meanwhile.
#[test]
fn a_changed_node_that_is_written_otherwise_meanwhile_goes_back() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.put_profile("default", iptables(json!({})));
    cluster.mute = ["n3", "n4"].map(str::to_owned).into();
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1", "n2", "n3"]);
    let rollout = json!({"maxUnavailable": 4, "maxFailures": 1});
    let spec = json!({"mode": "iptables", "ipvs": {"strictARP": false}, "rollout": rollout});
    cluster.put_profile("default", spec);
    cluster.advance(60);
    let written = &cluster.proxies["n1"]["spec"]["writtenFields"];
    assert!(written.to_string().contains("strictARP"), "{written}");
    cluster.advance(7200);
    assert_eq!(
        cluster.condition("default", "Progressing"),
        "False/RolledBack"
    );
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 4);
}

/// Failure story T397. A profile takes nodes over while they get a configuration that proves bad: no
/// other profile judges that change any more.
#[test]
fn t397_a_profile_that_takes_over_a_change_under_way_takes_it_back() {
    let mut cluster = Cluster::with_nodes(6);
    cluster.put_profile("default", iptables(json!({"minReady": "10m"})));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"]);
    let rollout = json!({"minReady": "10m"});
    let spec = json!({"priority": 3, "mode": "iptables", "rollout": rollout});
    cluster.put_profile("prod", spec);
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"]);
    cluster.mute.insert("n1".into());
    cluster.say("n1", json!({"Ready": "False"}));
    cluster.advance(3600);
    cluster.mute.clear();
    cluster.advance(600);
    assert_eq!(cluster.condition("prod", "Progressing"), "False/RolledBack");
    assert_eq!(cluster.nodes_with_mode("iptables"), [""; 0]);
}

/// Failure story T410. The time in which the state before a change counts began anew with the words.
#[test]
fn t410_a_node_that_has_been_ill_for_days_fails_no_profile_that_takes_over_after_other_words() {
    let ill = json!({"Ready": "False", "Degraded": "True"});
    for (is_restarted, mode) in [
        (false, "iptables"),
        (true, "iptables"),
        (false, "nftables"),
        (true, "nftables"),
    ] {
        let mut cluster = two_profiles();
        cluster.put_profile("default", iptables(json!({})));
        cluster.advance(3600);
        cluster.say("n9", ill.clone());
        cluster.mute.insert("n9".into());
        cluster.advance(3 * 86_400);
        if is_restarted {
            cluster.restart_operator();
            cluster.advance(3600);
        }
        let words = json!({"mode": "iptables", "ipvs": {"strictARP": false}});
        cluster.put_profile("default", words);
        cluster.advance(20);
        let written = &cluster.proxies["n9"]["spec"]["writtenFields"];
        assert!(written.to_string().contains("strictARP"), "{written}");
        cluster.say("n9", ill.clone());
        cluster.advance(120);
        cluster.put_profile("prod", json!({"priority": 3, "mode": mode}));
        for _ in 0..180 {
            cluster.advance(20);
            cluster.say("n9", ill.clone());
        }
        let progressing = cluster.condition("prod", "Progressing");
        assert_ne!(progressing, "False/RolledBack", "{mode} {is_restarted}");
        assert_eq!(cluster.nodes_with_mode(mode).len(), 10);
    }
}

/// Other words while nodes change must not make up for one that the change made ill.
#[test]
fn t410_other_words_excuse_no_node_that_a_change_made_ill() {
    let mut cluster = Cluster::with_nodes(9);
    let change = |words: bool| {
        let ipvs = words.then(|| json!({"strictARP": false}));
        let rollout =
            json!({"maxUnavailable": 5, "maxFailures": 2, "minReady": "10m", "waves": [40]});
        let mut spec = json!({"mode": "iptables", "rollout": rollout});
        if let Some(ipvs) = ipvs {
            spec["ipvs"] = ipvs;
        }
        spec
    };
    cluster.put_profile("default", change(false));
    cluster.advance(620);
    let given = cluster.nodes_with_mode("iptables");
    assert_eq!(given, ["n1", "n2", "n3", "n4"]);
    let ill = json!({"Ready": "False"});
    cluster.mute = ["n3", "n4"].map(str::to_owned).into();
    cluster.say("n3", ill.clone());
    cluster.advance(130);
    cluster.put_profile("default", change(true));
    cluster.advance(20);
    let written = &cluster.proxies["n3"]["spec"]["writtenFields"];
    assert!(written.to_string().contains("strictARP"), "{written}");
    cluster.say("n3", ill.clone());
    cluster.say("n4", ill);
    cluster.advance(590);
    assert_eq!(
        cluster.condition("default", "Progressing"),
        "True/RollingOut"
    );
    cluster.advance(130);
    assert_eq!(
        cluster.condition("default", "Progressing"),
        "False/RolledBack"
    );
}
