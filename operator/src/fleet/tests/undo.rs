//! `rollout.undo`: nodes leave the configuration that it names, and get the one before it.

use std::collections::BTreeMap;

use crds::profile::progress::RolloutPhase;
use serde_json::{Value, json};

use super::{Cluster, handover::nodes_with, iptables};

fn target(cluster: &Cluster) -> String {
    let status = cluster.status("default");
    status.target_hash.expect("the profile is valid")
}

fn phase(cluster: &Cluster) -> RolloutPhase {
    let rollout = cluster.status("default").rollout;
    rollout.expect("a rollout").phase
}

/// Ten nodes with mode iptables, which had mode nftables before. Returns the hashes of both.
fn changed_fleet() -> (Cluster, String, String) {
    let mut cluster = Cluster::with_nodes(10);
    let earlier = target(&cluster);
    cluster.put_profile("default", iptables(json!({})));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 10);
    let undone = target(&cluster);
    cluster.forget_writes();
    (cluster, earlier, undone)
}

/// The same after the change was undone.
fn undone_fleet() -> (Cluster, String, String) {
    let (mut cluster, earlier, undone) = changed_fleet();
    cluster.put_profile("default", iptables(json!({"undo": undone})));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 10);
    cluster.forget_writes();
    (cluster, earlier, undone)
}

fn mute_all(cluster: &mut Cluster) {
    cluster.mute = cluster.nodes.keys().cloned().collect();
}

/// Asserts that nothing is written, whatever time passes and whichever operator leads.
fn assert_rest(cluster: &mut Cluster) {
    cluster.forget_writes();
    cluster.restart_operator();
    cluster.run();
    cluster.advance(7200);
    assert_eq!((&cluster.assigned, &cluster.reported), (&vec![], &vec![]));
}

#[test]
fn t307_a_settled_change_is_undone_in_waves_by_one_field_and_stays_undone() {
    let (mut cluster, earlier, undone) = changed_fleet();
    mute_all(&mut cluster);
    let spec = iptables(json!({"undo": undone}));
    cluster.put_profile("default", spec.clone());
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("nftables"), ["n1"], "the canary");
    assert_eq!(target(&cluster), earlier);
    assert_eq!(phase(&cluster), RolloutPhase::RollingOut);
    cluster.mute.clear();
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 10);
    assert_eq!(cluster.assigned.len(), 10, "each once");
    assert_eq!(cluster.condition("default", "Progressing"), "False/Settled");
    assert_rest(&mut cluster);

    // What else users and programs do with a profile.
    cluster.put_profile("default", spec);
    cluster.run();
    for paused in [true, false] {
        let rollout = json!({"undo": undone, "canary": 2});
        let edit = json!({"mode": "iptables", "paused": paused, "priority": 7, "rollout": rollout});
        cluster.put_profile("default", edit);
        cluster.advance(3600);
    }
    assert_eq!(cluster.assigned, [""; 0]);
    assert_eq!(target(&cluster), earlier);
}

#[test]
fn t307_the_status_says_what_is_undone_by_what_and_how_to_end_it() {
    let (mut cluster, earlier, undone) = changed_fleet();
    cluster.mute.insert("n1".into());
    cluster.put_profile("default", iptables(json!({"undo": undone})));
    cluster.run();
    let expected = format!(
        "rollout.undo: generation 2 ({undone}) is undone, and nodes get generation 3 of status.history ({earlier}); \
         to end this, remove rollout.undo, which rolls generation 2 out again, or edit the profile"
    );
    let progressing = cluster.message("default", "Progressing");
    assert_eq!(
        progressing,
        format!("0 of 10 nodes have applied it; {expected}")
    );
    let history = cluster.status("default").history;
    let listed = history.iter().map(|it| (it.generation, &*it.config_hash));
    let listed: Vec<_> = listed.collect();
    assert_eq!(listed, [(3, &*earlier), (2, &*undone)]);
    let modes = history.iter().map(|it| it.spec["mode"].clone());
    assert_eq!(modes.collect::<Vec<_>>(), ["nftables", "iptables"]);

    // A verdict is repeated by operators that start, so that nothing may be added to it.
    cluster.advance(3600);
    assert_eq!(
        cluster.condition("default", "Progressing"),
        "False/RolledBack"
    );
    let progressing = cluster.message("default", "Progressing");
    assert!(!progressing.contains("rollout.undo"), "{progressing}");
    let ready = cluster.message("default", "Ready");
    assert!(ready.ends_with(&expected), "{ready}");
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 10);
    cluster.mute.clear();
    cluster.run();
    assert_rest(&mut cluster);

    // Another attempt.
    let again = json!({"undo": undone, "attempt": 1});
    cluster.put_profile("default", iptables(again));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 10);
    let progressing = cluster.message("default", "Progressing");
    assert!(progressing.contains("rollout.undo"), "{progressing}");
    assert_rest(&mut cluster);
}

#[test]
fn t307_a_change_is_undone_before_it_has_reached_every_node() {
    for paused in [false, true] {
        let mut cluster = Cluster::with_nodes(10);
        cluster.mute.insert("n1".into());
        cluster.put_profile("default", iptables(json!({})));
        cluster.run();
        let mut spec = iptables(json!({"undo": target(&cluster)}));
        spec["paused"] = paused.into();
        cluster.put_profile("default", spec.clone());
        cluster.mute.clear();
        cluster.run();
        if paused {
            assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"]);
            spec["paused"] = false.into();
            cluster.put_profile("default", spec);
            cluster.run();
        }
        assert_eq!(cluster.assigned, ["n1", "n1"], "given once, and taken back");
        assert_eq!(cluster.nodes_with_mode("nftables").len(), 10);
        assert_eq!(cluster.condition("default", "Progressing"), "False/Settled");
        assert_rest(&mut cluster);
    }
}

#[test]
fn t307_a_change_that_failed_or_was_aborted_is_undone_without_a_further_change_of_nodes() {
    for abort in [false, true] {
        let mut cluster = Cluster::with_nodes(10);
        cluster.broken_mode = Some("iptables");
        cluster.put_profile("default", iptables(json!({})));
        cluster.run();
        let undone = target(&cluster);
        let mut rollout = json!({});
        if abort {
            rollout["abort"] = undone.clone().into();
        }
        cluster.put_profile("default", iptables(rollout.clone()));
        cluster.advance(3600);
        assert_eq!(
            cluster.condition("default", "Progressing"),
            "False/RolledBack"
        );
        cluster.forget_writes();
        rollout["undo"] = undone.into();
        rollout["attempt"] = 1.into();
        cluster.put_profile("default", iptables(rollout));
        cluster.advance(3600);
        assert_eq!(cluster.assigned, [""; 0]);
        assert_eq!(cluster.condition("default", "Progressing"), "False/Settled");
        assert_rest(&mut cluster);
    }
}

#[test]
fn t307_an_undo_is_aborted_like_any_other_rollout() {
    let (mut cluster, earlier, undone) = changed_fleet();
    cluster.mute.insert("n1".into());
    cluster.put_profile("default", iptables(json!({"undo": undone})));
    cluster.run();
    let rollout = json!({"undo": undone, "abort": earlier});
    cluster.put_profile("default", iptables(rollout));
    cluster.mute.clear();
    cluster.advance(3600);
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 10);
    assert_eq!(
        cluster.condition("default", "Progressing"),
        "False/RolledBack"
    );
}

/// The handover is one of a configuration's fields, nodeSelector is not.
#[test]
fn t307_a_takeover_is_undone_too_on_the_nodes_that_the_profile_selects_now() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.put_profile("default", json!({"handover": "Takeover"}));
    cluster.run();
    assert_eq!(nodes_with(&cluster, "Takeover").len(), 3);
    cluster.add_node("n4", json!({"role": "edge"}));
    cluster.run();
    let rollout = json!({"undo": target(&cluster)});
    let selector = json!({"matchLabels": {"role": "edge"}});
    let spec = json!({"handover": "Takeover", "nodeSelector": selector, "rollout": rollout});
    cluster.put_profile("default", spec);
    cluster.run();
    assert_eq!(cluster.assignments(), ["n4 default nftables"]);
    assert_eq!(nodes_with(&cluster, "Takeover"), [""; 0]);
    assert_rest(&mut cluster);
}

#[test]
fn t308_nodes_that_join_get_the_earlier_configuration_and_never_the_undone_one() {
    let (mut cluster, _, undone) = changed_fleet();
    cluster.mute.insert("n1".into());
    cluster.put_profile("default", iptables(json!({"undo": undone})));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("nftables"), ["n1"]);
    cluster.add_node("n90", json!({}));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("nftables"), ["n1", "n90"]);
    cluster.restart_operator();
    cluster.add_node("n91", json!({}));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("nftables"), ["n1", "n90", "n91"]);
    // After a failure the others have gone back to what is undone.
    cluster.advance(3600);
    assert_eq!(
        cluster.condition("default", "Progressing"),
        "False/RolledBack"
    );
    cluster.add_node("n92", json!({}));
    cluster.run();
    assert!(cluster.nodes_with_mode("iptables").contains(&"n92"));

    let (mut cluster, ..) = undone_fleet();
    cluster.add_node("n93", json!({}));
    cluster.run();
    assert_eq!(cluster.assigned, ["n93"]);
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 11);
}

#[test]
fn t308_lost_node_proxies_come_back_with_the_earlier_configuration() {
    for is_operator_running in [true, false] {
        let (mut cluster, ..) = undone_fleet();
        if is_operator_running {
            cluster.delete_proxies();
        } else {
            cluster.proxies.clear();
            cluster.restart_operator();
        }
        let plan = cluster.plan();
        let actions = plan.actions.into_iter();
        actions.for_each(|action| cluster.write(action));
        assert_eq!(cluster.nodes_with_mode("nftables").len(), 10);
        cluster.run();
        assert_eq!(cluster.assigned.len(), 10, "each once");
        assert_rest(&mut cluster);
    }
    // Which nodes had returned, nothing says.
    let (mut cluster, _, undone) = changed_fleet();
    mute_all(&mut cluster);
    cluster.put_profile("default", iptables(json!({"undo": undone})));
    cluster.run();
    cluster.proxies.clear();
    cluster.restart_operator();
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 10);
}

/// A new profile has no history, and nothing to return to.
#[test]
fn t308_a_profile_deleted_and_made_again_while_undone_changes_no_node_outside_a_wave() {
    for is_operator_running in [true, false] {
        let (mut cluster, _, undone) = undone_fleet();
        mute_all(&mut cluster);
        cluster.remove_profile("default");
        if is_operator_running {
            cluster.run();
        }
        cluster.put_profile("default", iptables(json!({"undo": undone})));
        if !is_operator_running {
            cluster.restart_operator();
        }
        cluster.run();
        assert_eq!(cluster.nodes_with_mode("nftables").len(), 10, "{undone}");
        let message = cluster.message("default", "Progressing");
        assert!(message.contains("no further node gets"), "{message}");
    }
}

/// Without the history, as where this version cannot read it, nothing says what nodes had before.
#[test]
fn t308_where_the_history_is_gone_no_node_gets_what_is_undone() {
    let (mut cluster, ..) = undone_fleet();
    let mut status = cluster.status("default");
    status.history.clear();
    cluster.profiles.get_mut("default").expect("there")["status"] =
        serde_json::to_value(status).expect("JSON");
    cluster.restart_operator();
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 10);
    assert_rest(&mut cluster);
}

/// An entry of a newer version, of which this one does not know a field.
#[test]
fn t308_where_the_earlier_configuration_cannot_be_read_no_node_gets_what_is_undone() {
    let (mut cluster, ..) = undone_fleet();
    let mut status = cluster.status("default");
    status.history[0].spec["unknown"] = json!("field");
    cluster.profiles.get_mut("default").expect("there")["status"] =
        serde_json::to_value(status).expect("JSON");
    cluster.restart_operator();
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 10);
    assert_rest(&mut cluster);
}

/// Renames a hash wherever the cluster has it, as if another version had rendered the configuration.
fn rename(cluster: &mut Cluster, hash: &str, other: &str) {
    let renamed = |objects: &BTreeMap<String, Value>| {
        let text = serde_json::to_string(objects).expect("JSON");
        serde_json::from_str(&text.replace(hash, other)).expect("JSON")
    };
    cluster.profiles = renamed(&cluster.profiles);
    cluster.proxies = renamed(&cluster.proxies);
}

#[test]
fn t308_an_operator_of_another_version_keeps_undone_what_it_renders_to_another_hash() {
    for is_settled in [true, false] {
        let (mut cluster, earlier, undone) = changed_fleet();
        if !is_settled {
            cluster.mute.insert("n1".into());
        }
        cluster.put_profile("default", iptables(json!({"undo": undone})));
        cluster.run();
        rename(&mut cluster, &undone, "undone-then");
        rename(&mut cluster, &earlier, "earlier-then");
        cluster.mute.clear();
        cluster.forget_writes();
        cluster.restart_operator();
        let before = cluster.nodes_with_mode("nftables").len();
        for _ in 0..200 {
            let actions = cluster.plan().actions;
            actions.into_iter().for_each(|action| cluster.write(action));
            assert!(cluster.nodes_with_mode("nftables").len() >= before);
            cluster.report();
            cluster.now += jiff::SignedDuration::from_secs(1);
        }
        assert_eq!(cluster.nodes_with_mode("nftables").len(), 10);
        assert_eq!(target(&cluster), earlier);
        let message = cluster.message("default", "Progressing");
        assert!(message.contains("generation 2 (undone-then)"), "{message}");
        assert_rest(&mut cluster);

        // Edits do not push the entry out that says which fields the name stands for.
        for minutes in 1..=8 {
            let rollout = json!({"undo": "undone-then"});
            let edit = json!({"syncPeriod": format!("{minutes}m"), "rollout": rollout});
            cluster.put_profile("default", edit);
            cluster.run();
        }
        let undo = json!({"undo": "undone-then"});
        cluster.put_profile("default", iptables(undo));
        cluster.run();
        assert!(cluster.nodes_with_mode("iptables").is_empty());
    }
}

/// The same configuration may stand in the history twice, under the hashes of two versions.
#[test]
fn t308_nodes_do_not_return_to_the_undone_configuration_as_another_version_rendered_it() {
    let (mut cluster, earlier, undone) = changed_fleet();
    rename(&mut cluster, &undone, "undone-then");
    cluster.restart_operator();
    cluster.run();
    assert_eq!(target(&cluster), undone, "rolled out anew");
    cluster.put_profile("default", iptables(json!({"undo": undone})));
    cluster.run();
    assert_eq!(target(&cluster), earlier);
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 10);
}

#[test]
fn t309_where_there_is_nothing_to_return_to_the_user_is_told_and_nothing_else_happens() {
    let mut cluster = Cluster::with_nodes(3);
    let first = target(&cluster);
    cluster.put_profile("default", json!({"rollout": {"undo": first}}));
    cluster.advance(3600);
    assert_eq!(cluster.assigned, [""; 0]);
    assert_eq!(target(&cluster), first);
    let said = "; rollout.undo names the profile's configuration, which no further node gets: status.history has no other \
                configuration that every node had and that this operator can read as a whole";
    let message = cluster.message("default", "Progressing");
    assert!(message.ends_with(said), "{message}");
    assert_rest(&mut cluster);

    // A rollout that failed is not tried again by it.
    let mut cluster = Cluster::with_nodes(3);
    cluster.put_profile("default", iptables(json!({})));
    cluster.broken_mode = Some("iptables");
    cluster.advance(3600);
    assert_eq!(
        cluster.condition("default", "Progressing"),
        "False/RolledBack"
    );
    let mut status = cluster.status("default");
    status.history.truncate(1);
    cluster.profiles.get_mut("default").expect("there")["status"] =
        serde_json::to_value(status).expect("JSON");
    cluster.restart_operator();
    cluster.run();
    cluster.forget_writes();
    let undo = json!({"undo": target(&cluster)});
    cluster.put_profile("default", iptables(undo));
    cluster.advance(3600);
    assert_eq!(cluster.assigned, [""; 0]);
    let message = cluster.message("default", "Ready");
    assert!(message.ends_with(said), "{message}");
}

#[test]
fn t309_an_undo_has_no_effect_on_the_next_change_nor_on_one_that_it_does_not_name() {
    let (mut cluster, earlier, undone) = undone_fleet();
    let next = json!({"mode": "ipvs", "rollout": {"undo": undone}});
    cluster.put_profile("default", next);
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("ipvs").len(), 10);
    let message = cluster.message("default", "Progressing");
    assert!(!message.contains("rollout.undo"), "{message}");
    assert_rest(&mut cluster);
    // The fields of the earlier one are a change like any other.
    for other in [json!({"undo": earlier}), json!({"undo": "ffff"})] {
        cluster.put_profile("default", iptables(other));
        cluster.run();
        assert_eq!(cluster.nodes_with_mode("iptables").len(), 10);
    }
    // What was the last that all nodes had is returned to, not what was it when the field was set.
    let next = json!({"mode": "ipvs", "rollout": {"undo": undone}});
    cluster.put_profile("default", next);
    cluster.run();
    cluster.put_profile("default", iptables(json!({"undo": undone})));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("ipvs").len(), 10);
    assert_rest(&mut cluster);
}

#[test]
fn t309_without_the_field_the_change_is_rolled_out_again() {
    let (mut cluster, _, undone) = undone_fleet();
    mute_all(&mut cluster);
    cluster.put_profile("default", iptables(json!({})));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"], "the canary");
    cluster.mute.clear();
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 10);
    assert_eq!(target(&cluster), undone);
}
