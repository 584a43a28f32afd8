//! Control of a rollout through fields: abort, retry, and the history.

use jiff::SignedDuration;
use serde_json::json;

use super::{Cluster, iptables};

fn target(cluster: &Cluster) -> String {
    let status = cluster.status("default");
    status.target_hash.expect("the profile is valid")
}

/// Returns the generation and phase of each revision, newest first.
fn history(cluster: &Cluster) -> Vec<(i64, String)> {
    let history = cluster.status("default").history;
    let revisions = history.iter();
    revisions
        .map(|revision| (revision.generation, format!("{:?}", revision.phase)))
        .collect()
}

#[test]
fn t158_an_aborted_rollout_reaches_no_further_node_and_is_taken_back() {
    for on_failure in ["Rollback", "Halt"] {
        let mut cluster = Cluster::with_nodes(4);
        cluster.mute = (1..=4).map(|number| format!("n{number}")).collect();
        cluster.put_profile("default", iptables(json!({"onFailure": on_failure})));
        cluster.run();
        assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"]);
        let abort = json!({"onFailure": on_failure, "abort": target(&cluster)});
        cluster.put_profile("default", iptables(abort));
        cluster.mute.clear();
        cluster.run();
        cluster.advance(3600);
        assert_eq!(cluster.nodes_with_mode("nftables").len(), 4, "{on_failure}");
        assert_eq!(
            cluster.condition("default", "Progressing"),
            "False/RolledBack"
        );
        let verdict = cluster.status("default").rollout.and_then(|r| r.verdict);
        assert_eq!(verdict.expect("a verdict").reason, "Aborted");
        cluster.forget_writes();
        cluster.restart_operator();
        cluster.run();
        assert_eq!((cluster.assigned.len(), cluster.reported.len()), (0, 0));
    }
}

#[test]
fn t158_a_paused_rollout_can_be_aborted() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.mute.insert("n1".into());
    cluster.put_profile("default", iptables(json!({})));
    cluster.run();
    let mut paused = iptables(json!({}));
    paused["paused"] = true.into();
    cluster.put_profile("default", paused.clone());
    cluster.run();
    assert_eq!(cluster.condition("default", "Progressing"), "False/Paused");
    paused["rollout"]["abort"] = target(&cluster).into();
    cluster.put_profile("default", paused);
    cluster.mute.clear();
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 4);
}

/// Failure story T400. Nothing was before it.
#[test]
fn t400_an_aborted_first_configuration_ends_and_says_what_nodes_keep() {
    let mut cluster = Cluster::new();
    cluster.mute = ["n1", "n2"].map(str::to_owned).into();
    for node in ["n1", "n2"] {
        cluster.add_node(node, json!({}));
    }
    cluster.put_profile("default", json!({}));
    cluster.run();
    let abort = json!({"rollout": {"abort": target(&cluster)}});
    cluster.put_profile("default", abort);
    cluster.run();
    let rollout = cluster.status("default").rollout.expect("a rollout");
    assert_eq!(format!("{:?}", rollout.phase), "RolledBack");
    assert_eq!(rollout.waiting_for, "");
    let ready = cluster.message("default", "Ready");
    assert!(
        ready.ends_with("these keep the failed one: n1, n2"),
        "{ready}"
    );
}

#[test]
fn t158_to_abort_a_configuration_that_every_node_has_changes_nothing() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.put_profile("default", iptables(json!({})));
    cluster.run();
    assert_eq!(cluster.condition("default", "Progressing"), "False/Settled");
    let abort = json!({"abort": target(&cluster)});
    cluster.put_profile("default", iptables(abort));
    cluster.run();
    cluster.advance(3600);
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 4);
    assert_eq!(cluster.condition("default", "Progressing"), "False/Settled");
}

#[test]
fn t158_another_configuration_is_rolled_out_although_the_one_before_was_aborted() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.mute = (1..=4).map(|number| format!("n{number}")).collect();
    cluster.put_profile("default", iptables(json!({})));
    cluster.run();
    let abort = json!({"abort": target(&cluster)});
    cluster.put_profile("default", iptables(abort.clone()));
    cluster.mute.clear();
    cluster.run();
    let other = json!({"mode": "iptables", "syncPeriod": "1m", "rollout": abort});
    cluster.put_profile("default", other);
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 4);
}

#[test]
fn another_number_of_the_attempt_tries_a_failed_rollout_again() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.broken_mode = Some("iptables");
    cluster.put_profile("default", iptables(json!({})));
    cluster.advance(121);
    cluster.broken_mode = None;
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 4);
    cluster.put_profile("default", iptables(json!({"attempt": 1})));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 4);
    assert_eq!(cluster.condition("default", "Progressing"), "False/Settled");
}

#[test]
fn an_edit_of_how_a_change_spreads_begins_no_other_rollout_also_when_that_fails() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.broken_mode = Some("iptables");
    cluster.put_profile("default", iptables(json!({})));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"]);
    cluster.put_profile("default", iptables(json!({"progressDeadline": "20m"})));
    cluster.advance(3600);
    let rollout = cluster.status("default").rollout.expect("a rollout");
    assert_eq!((rollout.generation, rollout.wave), (2, 1));
    assert_eq!(cluster.assigned, ["n1", "n1"], "given once, and taken back");
}

#[test]
fn the_history_has_the_current_configuration_and_five_before_it() {
    let mut cluster = Cluster::with_nodes(2);
    let begun = cluster.status("default").history.len();
    assert_eq!(begun, 1, "the configuration that the nodes had at first");
    for minutes in 1..=7 {
        cluster.put_profile("default", json!({"syncPeriod": format!("{minutes}m")}));
        cluster.run();
    }
    let settled = |generation| (generation, "Settled".to_owned());
    assert_eq!(history(&cluster), [8, 7, 6, 5, 4, 3].map(settled));
    let newest = &cluster.status("default").history[0];
    assert_eq!(newest.spec["syncPeriod"], "7m");
    assert!(newest.spec.get("rollout").is_none(), "{}", newest.spec);
    // A configuration that returns.
    cluster.put_profile("default", json!({"syncPeriod": "5m"}));
    cluster.run();
    assert_eq!(history(&cluster), [9, 8, 7, 5, 4, 3].map(settled));
}

#[test]
fn the_history_says_what_became_of_a_configuration() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.broken_mode = Some("iptables");
    cluster.put_profile("default", iptables(json!({})));
    cluster.advance(121);
    let phases: Vec<_> = history(&cluster)
        .into_iter()
        .map(|(_, phase)| phase)
        .collect();
    assert_eq!(phases, ["RolledBack", "Settled"]);
}

/// Failure story T399. The operator is restarted between the pause and its end, or after it.
#[test]
fn t399_a_pause_of_a_failed_rollout_is_no_new_attempt() {
    for restarts in [[false, true], [true, false], [true, true]] {
        let mut cluster = Cluster::with_nodes(4);
        cluster.broken_mode = Some("iptables");
        cluster.put_profile("default", iptables(json!({})));
        cluster.advance(600);
        let rolled_back = "False/RolledBack";
        assert_eq!(cluster.condition("default", "Progressing"), rolled_back);
        cluster.forget_writes();
        for (is_paused, is_restarted) in [true, false].into_iter().zip(restarts) {
            let mut spec = iptables(json!({}));
            spec["paused"] = is_paused.into();
            cluster.put_profile("default", spec);
            if is_restarted {
                cluster.restart_operator();
            }
            cluster.advance(600);
        }
        assert_eq!(cluster.assigned, [""; 0], "{restarts:?}");
        assert_eq!(cluster.condition("default", "Progressing"), rolled_back);
        // Another attempt, of which only the next operator hears.
        cluster.put_profile("default", iptables(json!({"attempt": 1})));
        cluster.restart_operator();
        cluster.run();
        assert_eq!(cluster.assigned, ["n1"], "{restarts:?}");
    }
}

/// Failure story T399. Another version of the operator may write another hash of the same fields.
#[test]
fn t399_an_upgrade_of_the_operator_makes_no_pause_a_new_attempt() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.broken_mode = Some("iptables");
    cluster.put_profile("default", iptables(json!({})));
    cluster.advance(600);
    let rolled_back = "False/RolledBack";
    assert_eq!(cluster.condition("default", "Progressing"), rolled_back);
    let profile = cluster.profiles.get_mut("default").expect("the profile");
    let written = &mut profile["status"]["rollout"]["requestHash"];
    assert!(written.is_string(), "{written}");
    *written = "by-another-version".into();
    cluster.restart_operator();
    cluster.advance(600);
    cluster.forget_writes();
    for is_paused in [true, false] {
        let mut spec = iptables(json!({}));
        spec["paused"] = is_paused.into();
        cluster.put_profile("default", spec);
        cluster.advance(600);
    }
    assert_eq!(cluster.assigned, [""; 0]);
    assert_eq!(cluster.condition("default", "Progressing"), rolled_back);
    cluster.put_profile("default", iptables(json!({"attempt": 1})));
    cluster.run();
    assert_eq!(cluster.assigned[0], "n1");
}

/// Failure story T211. Of many edits in a row none may be rolled out.
#[test]
fn t211_the_history_never_loses_the_last_configuration_that_every_node_had() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.mute = cluster.nodes.keys().cloned().collect();
    for minutes in 1..=8 {
        let rollout = json!({"progressDeadline": "1h"});
        let spec = json!({"syncPeriod": format!("{minutes}m"), "rollout": rollout});
        cluster.put_profile("default", spec);
        cluster.run();
    }
    let generations: Vec<i64> = history(&cluster).into_iter().map(|(g, _)| g).collect();
    assert_eq!(generations, [9, 8, 7, 6, 5, 1]);
    cluster.proxies.clear();
    cluster.restart_operator();
    let plan = cluster.plan();
    for action in plan.actions {
        cluster.write(action);
    }
    for (node, proxy) in &cluster.proxies {
        assert_eq!(proxy["spec"]["config"]["syncPeriod"], "30s", "{node}");
    }
}

/// A user may edit a profile several times before its first node comes.
#[test]
fn t211_what_no_node_ever_had_is_given_to_none_that_joins() {
    let mut cluster = Cluster::new();
    for mode in ["nftables", "iptables", "ipvs"] {
        cluster.put_profile("default", json!({"mode": mode}));
        cluster.run();
    }
    cluster.add_node("n1", json!({}));
    cluster.add_node("n2", json!({}));
    cluster.run();
    assert_eq!(cluster.assigned, ["n1", "n2"]);
    assert_eq!(cluster.nodes_with_mode("ipvs").len(), 2);
}

/// Two rollouts may end within the same second, and a status has whole seconds.
#[test]
fn t211_after_an_undo_the_configuration_before_it_is_the_proven_one() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.put_profile("default", iptables(json!({})));
    cluster.run();
    cluster.mute = cluster.nodes.keys().cloned().collect();
    cluster.put_profile("default", json!({}));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("nftables"), ["n1"]);
    cluster.add_node("n0", json!({}));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n0", "n2", "n3"]);
}

/// An operator on a machine with a fast clock may have written when a rollout ended.
#[test]
fn t211_a_fast_clock_makes_no_configuration_the_proven_one_for_long() {
    let hour = SignedDuration::from_hours(1);
    let mut cluster = Cluster::with_nodes(3);
    cluster.now += hour;
    cluster.put_profile("default", iptables(json!({})));
    cluster.run();
    cluster.now -= hour;
    cluster.restart_operator();
    cluster.put_profile("default", json!({}));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 3);
    cluster.mute = cluster.nodes.keys().cloned().collect();
    cluster.put_profile("default", json!({"mode": "ipvs"}));
    cluster.run();
    cluster.add_node("n0", json!({}));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("nftables"), ["n0", "n2", "n3"]);
}

/// The node that a change broke does not recover when the user undoes it.
#[test]
fn t211_after_an_undo_that_fails_nodes_join_with_what_the_others_have() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.put_profile("default", iptables(json!({})));
    cluster.run();
    cluster.mute.insert("n1".into());
    cluster.put_profile("default", json!({"mode": "ipvs"}));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("ipvs"), ["n1"]);
    cluster.put_profile("default", iptables(json!({})));
    cluster.advance(3600);
    cluster.add_node("n9", json!({}));
    cluster.run();
    assert_eq!(
        cluster.nodes_with_mode("iptables"),
        ["n1", "n2", "n3", "n4", "n9"]
    );
}

/// The last wave may have all nodes but the canary.
#[test]
fn t211_nodes_join_without_a_change_that_most_nodes_have_not_shown_to_work() {
    let mut cluster = Cluster::with_nodes(10);
    cluster.mute = cluster.nodes.keys().cloned().collect();
    cluster.mute.remove("n1");
    cluster.put_profile("default", iptables(json!({"maxUnavailable": "100%"})));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 10);
    cluster.mute.insert("n90".into());
    cluster.add_node("n90", json!({}));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("nftables"), ["n90"]);
}

/// A cluster may grow all the time. A node that boots reports late.
#[test]
fn t211_few_nodes_that_join_do_not_keep_a_change_from_those_that_follow() {
    let mut cluster = Cluster::with_nodes(10);
    cluster.mute.insert("n1".into());
    cluster.put_profile("default", iptables(json!({})));
    cluster.run();
    cluster.mute.insert("n90".into());
    cluster.add_node("n90", json!({}));
    cluster.run();
    cluster.mute.remove("n1");
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("nftables"), ["n90"], "unheard");
    cluster.mute.insert("n91".into());
    cluster.add_node("n91", json!({}));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("nftables"), ["n90"]);
}
