//! Rollouts while the operator cannot list or watch nodes or their NodeProxies.

use jiff::SignedDuration;
use serde_json::json;

use super::{Cluster, iptables, proxy_record};
use crate::fleet::{Event, ObjectChange, WatchSignal};

/// A cluster of three nodes whose first one has just been given a change and has not reported. By default it has
/// ten minutes to be ready.
fn with_a_canary() -> Cluster {
    let mut cluster = Cluster::with_nodes(3);
    cluster.mute.insert("n1".into());
    cluster.put_profile("default", iptables(json!({})));
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"]);
    cluster
}

impl Cluster {
    /// The watch of NodeProxies fails for this long. It is tried every 30 s.
    fn fail_to_watch(&mut self, seconds: i64) {
        self.is_deaf = true;
        for _ in 0..seconds / 30 {
            self.signal("NodeProxy", WatchSignal::Failed);
            self.advance(30);
        }
    }

    /// NodeProxies are listed again.
    fn hear_again(&mut self) {
        self.is_deaf = false;
        let proxies = self.proxies.values().map(proxy_record).collect();
        self.fleet.apply(Event::Proxy(ObjectChange::ListRequested));
        self.fleet
            .apply(Event::Proxy(ObjectChange::Listed(proxies)));
        self.signal("NodeProxy", WatchSignal::Recovered);
    }

    fn rollout_waits_for(&self) -> String {
        let rollout = self.status("default").rollout;
        rollout.expect("a rollout").waiting_for
    }

    fn progressing(&self) -> String {
        self.condition("default", "Progressing")
    }
}

/// Failure story T408. The role lost the verb, and the operator may still write.
#[test]
fn t408_a_node_that_is_ready_fails_no_rollout_while_reports_cannot_be_watched() {
    let mut cluster = with_a_canary();
    cluster.fail_to_watch(30);
    cluster.say("n1", json!({"Ready": "True"}));
    cluster.forget_writes();
    cluster.fail_to_watch(3600);
    assert_eq!(cluster.progressing(), "True/RollingOut");
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"]);
    assert_eq!(
        cluster.rollout_waits_for(),
        "Nodes and NodeProxies to be listed and watched again; no node changes or fails meanwhile"
    );
    assert_eq!(cluster.assigned, [""; 0]);
    assert!(cluster.reported.len() <= 1, "{:?}", cluster.reported);

    cluster.mute.clear();
    cluster.hear_again();
    cluster.run();
    assert_eq!(cluster.progressing(), "False/Settled");
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 3);
}

/// Failure story T408.
#[test]
fn t408_a_node_that_is_new_gets_a_configuration_meanwhile() {
    let mut cluster = with_a_canary();
    cluster.fail_to_watch(120);
    cluster.add_node("n4", json!({}));
    cluster.run();
    assert_eq!(cluster.assignments()[3], "n4 default nftables");
    cluster.put_profile("default", json!({"mode": "ipvs"}));
    cluster.add_node("n5", json!({}));
    cluster.fail_to_watch(60);
    assert_eq!(
        cluster.assignments(),
        [
            "n1 default iptables",
            "n2 default nftables",
            "n3 default nftables",
            "n4 default nftables",
            "n5 default nftables"
        ]
    );
    cluster.mute.clear();
    cluster.hear_again();
    cluster.advance(601);
    assert_eq!(cluster.nodes_with_mode("ipvs").len(), 5);
}

/// Failure story T408. Agents that could not report either need time.
#[test]
fn t408_a_deadline_that_nearly_passed_leaves_agents_the_time_to_report() {
    let mut cluster = with_a_canary();
    cluster.advance(595);
    cluster.fail_to_watch(900);
    cluster.hear_again();
    cluster.advance(115);
    assert_eq!(cluster.progressing(), "True/RollingOut");
    cluster.mute.clear();
    cluster.say("n1", json!({"Ready": "True"}));
    cluster.run();
    assert_eq!(cluster.progressing(), "False/Settled");
}

/// Failure story T408. No deadline runs, and nothing said why.
#[test]
fn t408_a_rollout_says_that_it_waits_for_reports_after_a_failed_watch() {
    let mut cluster = with_a_canary();
    cluster.fail_to_watch(300);
    cluster.hear_again();
    cluster.run();
    assert_eq!(
        cluster.rollout_waits_for(),
        "1 node of wave 1 to be available: n1; \
         and for agents to report what they could not while a watch failed; no time counts meanwhile"
    );
    cluster.forget_writes();
    cluster.advance(115);
    assert_eq!(cluster.reported, [""; 0]);
    cluster.advance(6);
    assert_eq!(
        cluster.rollout_waits_for(),
        "1 node of wave 1 to be available: n1"
    );
}

/// Failure story T408. The time before counts.
#[test]
fn t408_a_change_that_fails_is_rolled_back_once_reports_are_watched_again() {
    for node_is_found in [false, true] {
        let mut cluster = with_a_canary();
        if node_is_found {
            cluster.restart_operator();
        }
        cluster.advance(300);
        cluster.fail_to_watch(900);
        cluster.hear_again();
        cluster.advance(415);
        assert_eq!(cluster.progressing(), "True/RollingOut", "{node_is_found}");
        cluster.advance(10);
        assert_eq!(cluster.progressing(), "False/RolledBack", "{node_is_found}");
        assert_eq!(cluster.nodes_with_mode("nftables").len(), 3);
    }
}

/// Failure story T408. A node that is worse than before for long, but not longer than may be.
#[test]
fn t408_a_node_that_was_lost_meanwhile_has_its_grace_period() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.put_profile("default", iptables(json!({"minReady": "10m"})));
    cluster.advance(60);
    cluster.lose_kubelet("n1");
    cluster.advance(100);
    cluster.fail_to_watch(600);
    cluster.hear_again();
    cluster.advance(110);
    assert_eq!(cluster.progressing(), "True/RollingOut");
    cluster.set_node_ready("n1", "True");
    cluster.advance(3 * 610);
    assert_eq!(cluster.progressing(), "False/Settled");
}

/// Failure story T408. Readiness from before the failure, which may be gone.
#[test]
fn t408_time_that_nobody_watched_proves_no_node() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.put_profile("default", iptables(json!({"minReady": "5m"})));
    cluster.advance(60);
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"]);
    cluster.fail_to_watch(900);
    cluster.hear_again();
    cluster.advance(350);
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1"]);
    cluster.advance(15);
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 2);
}

/// Failure story T408. The deadline of the first change had passed meanwhile by the times of its writes, and what the
/// change had done to the node counted as the node's state before the second one.
#[test]
fn t408_a_change_that_broke_a_node_while_nobody_watched_is_no_excuse_for_the_next_one() {
    let mut cluster = with_a_canary();
    cluster.fail_to_watch(900);
    cluster.hear_again();
    cluster.put_profile("default", json!({"mode": "ipvs", "rollout": {}}));
    cluster.advance(1300);
    assert_eq!(cluster.progressing(), "False/RolledBack");
    assert_eq!(cluster.nodes_with_mode("ipvs"), [""; 0]);
}

/// Failure story T408. A rollback that goes on knows how many nodes serve.
#[test]
fn t408_no_node_that_serves_goes_back_while_reports_cannot_be_watched() {
    let rollout = json!({"maxUnavailable": 1, "maxFailures": 1, "minReady": "0s", "waves": [50]});
    let mut cluster = Cluster::with_nodes(6);
    cluster.mute.insert("n4".into());
    cluster.put_profile("default", iptables(rollout.clone()));
    cluster.run();
    let mut aborted = rollout;
    aborted["abort"] = cluster.status("default").target_hash.into();
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 4);
    cluster.fail_to_watch(60);
    cluster.put_profile("default", iptables(aborted));
    cluster.fail_to_watch(600);
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 3);
    assert!(
        cluster
            .rollout_waits_for()
            .starts_with("Nodes and NodeProxies")
    );
    cluster.mute.clear();
    cluster.hear_again();
    cluster.advance(60);
    assert_eq!(cluster.progressing(), "False/RolledBack");
    assert_eq!(cluster.nodes_with_mode("nftables").len(), 6);
}

/// Failure story T408. The watch ends now and then, as with each API server that restarts, and Leases may not be
/// listed: none of it makes reports old for long.
#[test]
fn t408_a_watch_that_fails_now_and_then_holds_no_rollout_up() {
    let mut cluster = with_a_canary();
    for _ in 0..11 {
        cluster.signal("NodeProxy", WatchSignal::Interrupted);
        cluster.signal("Lease", WatchSignal::Failed);
        cluster.signal("DaemonSet", WatchSignal::Failed);
        cluster.advance(60);
    }
    assert_eq!(cluster.progressing(), "False/RolledBack");

    let mut cluster = with_a_canary();
    for _ in 0..20 {
        cluster.signal("Node", WatchSignal::Failed);
        cluster.advance(1);
        cluster.signal("Node", WatchSignal::Recovered);
        cluster.advance(180);
    }
    assert_eq!(cluster.progressing(), "False/RolledBack");
}

/// Failure story T408. A quiet watch says nothing, so that it works again once it has not failed for long.
#[test]
fn t408_a_quiet_watch_works_again_after_a_while() {
    let mut cluster = with_a_canary();
    cluster.signal("NodeProxy", WatchSignal::Failed);
    cluster.signal("Node", WatchSignal::Failed);
    cluster.signal("Node", WatchSignal::Recovered);
    cluster.advance(170);
    assert!(
        cluster
            .rollout_waits_for()
            .starts_with("Nodes and NodeProxies")
    );
    cluster.advance(15);
    assert_eq!(
        cluster.rollout_waits_for(),
        "1 node of wave 1 to be available: n1"
    );
    cluster.advance(590);
    assert_eq!(cluster.progressing(), "True/RollingOut");
    cluster.advance(10);
    assert_eq!(cluster.progressing(), "False/RolledBack");
}

/// Failure story T408. A deadline that stands still must not be waited for again and again.
#[test]
fn t408_nothing_is_planned_again_before_the_watch_can_work() {
    let mut cluster = with_a_canary();
    cluster.advance(590);
    cluster.signal("NodeProxy", WatchSignal::Failed);
    cluster.run();
    let requeue_at = cluster.plan().requeue_at.expect("something to wait for");
    assert_eq!(
        requeue_at.duration_since(cluster.now),
        SignedDuration::from_secs(180)
    );
    assert_eq!(cluster.progressing(), "True/RollingOut");
    cluster.advance(60);
    cluster.signal("NodeProxy", WatchSignal::Recovered);
    cluster.run();
    let requeue_at = cluster.plan().requeue_at.expect("something to wait for");
    assert_eq!(
        requeue_at.duration_since(cluster.now),
        SignedDuration::from_secs(60)
    );
}

/// Failure story T408. Nothing is said between the pages of a list, of which there may be many.
#[test]
fn t408_a_list_that_takes_long_is_waited_for() {
    let mut cluster = with_a_canary();
    cluster.is_deaf = true;
    cluster.signal("NodeProxy", WatchSignal::ListFailed);
    cluster.advance(300);
    cluster.say("n1", json!({"Ready": "True"}));
    cluster.advance(1500);
    assert_eq!(cluster.progressing(), "True/RollingOut");
    cluster.mute.clear();
    cluster.hear_again();
    cluster.run();
    assert_eq!(cluster.progressing(), "False/Settled");
}

/// Failure story T408. A profile that takes nodes over writes nothing that is based on what may be old.
#[test]
fn t408_no_node_is_written_anew_while_reports_cannot_be_watched() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.put_profile("default", iptables(json!({"minReady": "0s"})));
    cluster.advance(10);
    assert_eq!(cluster.nodes_with_mode("iptables").len(), 3);
    cluster.fail_to_watch(30);
    cluster.forget_writes();
    let mut other = iptables(json!({"minReady": "0s"}));
    other["priority"] = 10.into();
    cluster.put_profile("other", other);
    cluster.fail_to_watch(120);
    assert_eq!(cluster.assigned, [""; 0]);
    cluster.hear_again();
    cluster.advance(130);
    let taken = ["n1", "n2", "n3"].map(|node| format!("{node} other iptables"));
    assert_eq!(cluster.assignments(), taken);
}

/// Failure story T408. Failures that follow one another stop no time for longer than they last.
#[test]
fn t408_short_failures_again_and_again_do_not_stop_a_rollout() {
    let mut cluster = with_a_canary();
    for _ in 0..30 {
        cluster.signal("Node", WatchSignal::Failed);
        cluster.advance(1);
        cluster.signal("Node", WatchSignal::Recovered);
        cluster.advance(100);
    }
    assert_eq!(cluster.progressing(), "False/RolledBack");
}
