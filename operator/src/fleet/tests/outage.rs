//! Outages of the way to the API server in a rollout: the operator reaches it, and the nodes do not.

use jiff::SignedDuration;
use serde_json::json;

use super::{Cluster, iptables, silence::Watched};

impl Watched {
    /// Lets time pass until this many nodes have the change.
    fn pass_until_given(&mut self, nodes: usize) {
        for _ in 0..200 {
            if self.cluster.nodes_with_mode("iptables").len() >= nodes {
                return;
            }
            self.pass(15, &[]);
        }
        panic!("{:?}", self.cluster.assignments());
    }

    /// These nodes do not reach the API server for this time.
    fn cut_off(&mut self, nodes: &[&str], seconds: u64) {
        self.pass(45, nodes);
        for node in nodes {
            self.cluster.lose_kubelet(node);
            self.cluster.mute.insert((*node).to_owned());
        }
        self.pass(seconds - 45, nodes);
    }

    /// The way of these nodes to the API server works again, except for `others`.
    fn reconnect(&mut self, nodes: &[&str], others: &[&str]) {
        for node in nodes {
            self.cluster.set_node_ready(node, "True");
            self.cluster.mute.remove(*node);
            self.cluster.say(node, json!({"Ready": "True"}));
        }
        self.pass(30, others);
    }

    fn progressing(&self) -> String {
        self.cluster.condition("default", "Progressing")
    }

    fn assert_settles(&mut self) {
        self.pass(3600, &[]);
        assert_eq!(self.progressing(), "False/Settled");
        let changed = self.cluster.nodes_with_mode("iptables").len();
        assert_eq!(changed, self.cluster.nodes.len());
    }
}

fn names(count: usize) -> Vec<String> {
    (1..=count).map(|number| format!("n{number}")).collect()
}

/// Failure story T216. Nodes without the change are lost like those with it.
#[test]
fn t216_an_outage_of_the_way_to_the_api_server_in_a_wave_fails_no_node() {
    let all = names(50);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    for given in [1, 4] {
        let mut watched = Watched::with_nodes(50);
        let rollout = json!({"minReady": "1m", "waves": [8]});
        watched.cluster.put_profile("default", iptables(rollout));
        watched.pass_until_given(given);
        watched.cluster.forget_writes();
        watched.cut_off(&all, 240);
        assert_eq!(watched.cluster.assigned, [""; 0]);
        assert_eq!(watched.progressing(), "True/RollingOut");
        let rollout = watched.cluster.status("default").rollout;
        assert_eq!(
            rollout.expect("it is there").waiting_for,
            "contact with 50 of 50 nodes to return; no node changes or fails meanwhile"
        );
        // The last nodes return when the outage is over for the others.
        watched.reconnect(&all[3..], &all[..3]);
        watched.reconnect(&all[2..3], &all[..2]);
        assert_eq!(watched.progressing(), "True/RollingOut");
        watched.reconnect(&all[..2], &[]);
        watched.assert_settles();
    }
}

/// Failure story T216. No node is left without the change to compare with.
#[test]
fn t216_an_outage_of_the_way_to_the_api_server_in_the_last_wave_fails_no_node() {
    for count in [2, 3, 50] {
        let all = names(count);
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let mut watched = Watched::with_nodes(count);
        let rollout = json!({"minReady": "1m", "waves": [20]});
        watched.cluster.put_profile("default", iptables(rollout));
        watched.pass_until_given(count);
        watched.cluster.forget_writes();
        watched.cut_off(&all, 240);
        assert_eq!(watched.progressing(), "True/RollingOut", "{count}");
        watched.reconnect(&all[1..], &all[..1]);
        watched.reconnect(&all[..1], &[]);
        watched.assert_settles();
        assert_eq!(watched.cluster.assigned, [""; 0], "{count}");
    }
}

/// Failure story T216. The operator starts anew meanwhile, and remembers nothing of before.
#[test]
fn t216_an_operator_that_starts_in_an_outage_fails_no_node() {
    let all = names(50);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    // With an API server that is behind, the nodes seemed to be lost before the change.
    for ahead in [-7200, 0, 7200] {
        let mut watched = Watched::with_nodes(50);
        watched.cluster.api_server_ahead = SignedDuration::from_secs(ahead);
        watched.cluster.restart_operator();
        let rollout = json!({"minReady": "1m", "waves": [8]});
        watched.cluster.put_profile("default", iptables(rollout));
        watched.pass_until_given(4);
        watched.cut_off(&all, 150);
        watched.cluster.restart_operator();
        watched.cluster.forget_writes();
        watched.pass(300, &all);
        assert_eq!(watched.cluster.assigned, [""; 0], "{ahead}");
        watched.reconnect(&all, &[]);
        watched.assert_settles();
    }
}

/// Failure story T271. More nodes than may be unavailable have been dead for long, which only the
/// operator before knew: the next one waited for them for ever.
#[test]
fn t271_an_operator_that_starts_does_not_take_nodes_that_have_long_been_dead_for_an_outage() {
    let dead = names(20);
    let dead: Vec<&str> = dead[8..].iter().map(String::as_str).collect();
    let seconds_ahead = [-7200, 20, 7200].into_iter();
    for (ahead, written_by_the_node_controller) in
        seconds_ahead.flat_map(|ahead| [(ahead, true), (ahead, false)])
    {
        let mut watched = Watched::with_nodes(20);
        watched.cluster.api_server_ahead = SignedDuration::from_secs(ahead);
        watched.cluster.restart_operator();
        if written_by_the_node_controller {
            watched.cut_off(&dead, 600);
        } else {
            watched.pass(600, &dead);
        }
        let rollout = json!({
            "minReady": "1m", "progressDeadline": "5m", "waves": [30], "maxUnavailable": 3,
        });
        watched.cluster.put_profile("default", iptables(rollout));
        watched
            .cluster
            .mute
            .extend(dead.iter().map(ToString::to_string));
        watched.pass(90, &dead);
        let given = watched.cluster.nodes_with_mode("iptables").len();
        assert!((1..8).contains(&given), "in the middle: {given}");
        watched.cluster.restart_operator();
        watched.pass(7200, &dead);
        let given = watched.cluster.nodes_with_mode("iptables").len();
        assert_eq!(given, 20, "{ahead}");
        assert_eq!(watched.progressing(), "False/DeadlineExceeded", "{ahead}");
    }
}

/// Failure story T216. Nodes return one after another.
#[test]
fn t216_nodes_that_return_last_have_time_from_the_end_of_the_outage() {
    let mut cluster = Cluster::with_nodes(50);
    cluster.put_profile("default", iptables(json!({"minReady": "1h"})));
    cluster.run();
    for node in names(50) {
        cluster.lose_kubelet(&node);
    }
    cluster.run();
    cluster.now += SignedDuration::from_secs(119);
    for node in names(50) {
        if node != "n1" {
            cluster.set_node_ready(&node, "True");
        }
    }
    cluster.advance(110);
    let progressing = cluster.condition("default", "Progressing");
    assert_eq!(progressing, "True/RollingOut");
    cluster.advance(15);
    let progressing = cluster.condition("default", "Progressing");
    assert_eq!(progressing, "False/RolledBack");
}

/// Failure story T216. The nodes without the change are still there.
#[test]
fn t216_a_change_that_disconnects_nodes_later_is_taken_back() {
    let mut watched = Watched::with_nodes(50);
    let rollout = json!({"minReady": "1m", "waves": [60]});
    watched.cluster.put_profile("default", iptables(rollout));
    watched.pass_until_given(28);
    let changed = watched.cluster.nodes_with_mode("iptables");
    let changed: Vec<String> = changed.iter().map(ToString::to_string).collect();
    let changed: Vec<&str> = changed.iter().map(String::as_str).collect();
    watched.cut_off(&changed, 240);
    assert_eq!(watched.progressing(), "False/RolledBack");
}

/// Failure story T216. A single node that is lost is no outage, however small the fleet.
#[test]
fn t216_in_a_small_fleet_a_canary_that_is_lost_still_fails_the_rollout() {
    for count in [1, 2, 3] {
        for given in 1..=count {
            let mut watched = Watched::with_nodes(count);
            let rollout = json!({"minReady": "1m"});
            watched.cluster.put_profile("default", iptables(rollout));
            watched.pass_until_given(given);
            watched.cut_off(&[&format!("n{given}")], 240);
            assert_eq!(watched.progressing(), "False/RolledBack", "{given}/{count}");
        }
    }
}

/// Failure story T265. The rollback went on over unreachable nodes, and all of them carried
/// it out together when they returned.
#[test]
fn t265_a_rollback_gives_nothing_in_an_outage_and_goes_on_after_it() {
    let mut watched = Watched::with_nodes(20);
    let all = names(20);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let rollout = json!({"minReady": "1m", "progressDeadline": "5m", "maxUnavailable": 2});
    watched
        .cluster
        .put_profile("default", iptables(rollout.clone()));
    watched.pass_until_given(10);
    let abort = watched.cluster.status("default").target_hash;
    let mut aborted = iptables(rollout);
    aborted["rollout"]["abort"] = json!(abort);
    watched.cluster.put_profile("default", aborted);
    watched.pass(15, &[]);
    let given = watched.cluster.nodes_with_mode("iptables").len();
    assert!(given > 4, "two at a time go back: {given}");
    watched.cut_off(&all, 150);
    let given = watched.cluster.nodes_with_mode("iptables").len();
    watched.cluster.forget_writes();
    watched.pass(3600, &all);
    assert_eq!(watched.cluster.assigned, [""; 0], "of {given}");
    let rollout = watched.cluster.status("default").rollout;
    assert_eq!(
        rollout.expect("it is there").waiting_for,
        format!(
            "contact with {0} of {0} nodes to return; no node changes or fails meanwhile",
            20 - given
        )
    );
    watched.reconnect(&all, &[]);
    watched.pass(3600, &[]);
    assert_eq!(watched.cluster.nodes_with_mode("iptables"), [""; 0]);
    assert_eq!(watched.progressing(), "False/RolledBack");
}

/// Failure story T265. Nodes that move to a profile have waves of their own.
#[test]
fn t265_an_outage_fails_no_node_that_moves_to_another_profile() {
    let mut watched = Watched::with_nodes(50);
    let all = names(50);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let rollout = json!({"minReady": "1m", "waves": [8]});
    let selector = json!({"matchLabels": {"pool": "new"}});
    let profile =
        json!({"mode": "iptables", "priority": 10, "nodeSelector": selector, "rollout": rollout});
    watched.cluster.relabel_node("n50", json!({"pool": "new"}));
    watched.cluster.put_profile("new", profile);
    watched.pass(600, &[]);
    assert_eq!(
        watched.cluster.condition("new", "Progressing"),
        "False/Settled"
    );
    for node in &all[..49] {
        watched.cluster.relabel_node(node, json!({"pool": "new"}));
    }
    watched.pass_until_given(2);
    watched.cut_off(&all, 240);
    assert_eq!(
        watched.cluster.condition("new", "Progressing"),
        "False/Settled"
    );
    watched.cluster.forget_writes();
    watched.pass(1800, &all);
    assert_eq!(watched.cluster.assigned, [""; 0]);
    watched.reconnect(&all, &[]);
    watched.pass(3600, &[]);
    assert_eq!(watched.cluster.nodes_with_mode("iptables").len(), 50);
}

/// Failure story T216. Nodes that were lost long before say nothing about the change.
#[test]
fn t216_nodes_lost_before_a_change_do_not_excuse_what_it_does() {
    let mut watched = Watched::with_nodes(20);
    let lost = names(20);
    let mut lost: Vec<&str> = lost[8..].iter().map(String::as_str).collect();
    watched.cut_off(&lost, 600);
    let rollout = json!({"minReady": "1m", "waves": [30], "maxUnavailable": 3});
    watched.cluster.put_profile("default", iptables(rollout));
    watched.pass(15, &lost);
    assert_eq!(watched.cluster.nodes_with_mode("iptables"), ["n1"]);
    lost.push("n1");
    watched.cut_off(&lost, 240);
    assert_eq!(watched.progressing(), "False/RolledBack");
}

/// Failure story T216. Each lost node was given the change and excused after its deadline, until all
/// had it, and all of them applied it when they returned.
#[test]
fn t216_an_edit_while_no_node_can_be_reached_waits_for_one() {
    let mut watched = Watched::with_nodes(20);
    let all = names(20);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    watched.cut_off(&all, 600);
    let rollout =
        json!({"minReady": "1m", "progressDeadline": "5m", "waves": [30], "maxUnavailable": 3});
    watched.cluster.put_profile("default", iptables(rollout));
    watched.cut_off(&all, 3600);
    assert_eq!(watched.cluster.nodes_with_mode("iptables"), [""; 0]);
    watched.reconnect(&all[4..5], &all[..4]);
    assert_eq!(watched.cluster.nodes_with_mode("iptables"), ["n5"]);
    watched.reconnect(&all, &[]);
    watched.assert_settles();
}
