//! Agents that become silent, and agents that return.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::Cluster;
use crate::fleet::{Action, Event, WatchSignal};

/// A settled cluster whose agents renew Leases, which the operator lists every 15 s.
pub(super) struct Watched {
    pub(super) cluster: Cluster,
    clock: Instant,
    versions: BTreeMap<String, String>,
    sync: u64,
}

impl Watched {
    pub(super) fn with_nodes(count: usize) -> Self {
        let mut cluster = Cluster::with_nodes(count);
        cluster.heartbeat = "Lease".into();
        let nodes: Vec<String> = cluster.proxies.keys().cloned().collect();
        for node in &nodes {
            cluster.say(node, json!({"Ready": "True"}));
        }
        let mut watched = Self {
            cluster,
            clock: Instant::now(),
            versions: BTreeMap::new(),
            sync: 0,
        };
        watched.pass(15, &[]);
        watched
    }

    /// Lets this time pass while all agents except `silent` renew their Leases.
    pub(super) fn pass(&mut self, seconds: u64, silent: &[&str]) {
        for _ in 0..seconds / 15 {
            self.clock += Duration::from_secs(15);
            self.sync += 1;
            for node in self.cluster.nodes.keys() {
                if !silent.contains(&node.as_str()) {
                    self.versions.insert(node.clone(), self.sync.to_string());
                }
            }
            self.list();
            self.cluster.advance(15);
        }
    }

    fn list(&mut self) {
        let (versions, at) = (self.versions.clone(), self.clock);
        self.cluster.fleet.apply(Event::Leases { versions, at });
    }

    /// Returns `Status/Reason` of the node's condition Ready.
    fn ready(&self, node: &str) -> String {
        let conditions = &self.cluster.proxies[node]["status"]["conditions"];
        let mut conditions = conditions.as_array().expect("conditions").iter();
        let ready = conditions.find(|condition| condition["type"] == "Ready");
        let text = |field: &str| ready.and_then(|ready| ready[field].as_str());
        format!(
            "{}/{}",
            text("status").unwrap_or("?"),
            text("reason").unwrap_or("?")
        )
    }
}

#[test]
fn t160_a_list_of_renewed_leases_costs_no_plan_of_all_nodes() {
    let mut watched = Watched::with_nodes(3);
    for second in [15, 30] {
        watched.clock += Duration::from_secs(15);
        let renewed = watched.versions.values_mut();
        renewed.for_each(|version| *version = format!("9{second}"));
        watched.list();
        assert!(!watched.cluster.fleet.has_changes());
    }
    for _ in 0..6 {
        watched.clock += Duration::from_secs(15);
        watched.list();
    }
    assert!(watched.cluster.fleet.has_changes(), "all agents are silent");
}

#[test]
fn t136_a_node_whose_agent_does_not_renew_its_lease_is_unknown_until_it_is_heard_again() {
    let mut watched = Watched::with_nodes(3);
    watched.pass(75, &["n1"]);
    assert!(watched.cluster.marked_unknown.is_empty());
    watched.pass(15, &["n1"]);
    assert_eq!(watched.ready("n1"), "Unknown/AgentSilent");
    let cluster = &watched.cluster;
    assert_eq!(cluster.condition("default", "Ready"), "False/NodesNotReady");
    assert_eq!(cluster.condition("default", "Degraded"), "True/AgentSilent");
    assert_eq!(cluster.status("default").ready_nodes, 2);
    watched.pass(600, &["n1"]);
    assert_eq!(watched.cluster.marked_unknown, ["n1"], "it is said once");

    // The agent reports before the operator has listed its Lease.
    watched.cluster.say("n1", json!({"Ready": "True"}));
    watched.cluster.run();
    watched.pass(600, &[]);
    assert_eq!(watched.ready("n1"), "True/Said");
    assert_eq!(watched.cluster.marked_unknown, ["n1"]);
    assert_eq!(
        watched.cluster.condition("default", "Ready"),
        "True/AllNodesProgrammed"
    );
}

#[test]
fn the_word_of_an_agent_that_is_back_stands() {
    let mut watched = Watched::with_nodes(1);
    watched.pass(75, &["n1"]);
    watched.clock += Duration::from_secs(15);
    watched.list();
    let plan = watched
        .cluster
        .fleet
        .plan(watched.cluster.now, watched.cluster.instant());
    let is_silence = |action: &Action| matches!(action, Action::MarkUnknown { .. });
    assert!(plan.actions.iter().any(is_silence), "{plan:?}");
    // The agent has written another status meanwhile.
    watched
        .cluster
        .say("n1", json!({"Ready": "True", "Degraded": "True"}));
    for action in plan.actions {
        watched.cluster.write(action);
    }
    watched.cluster.run();
    assert!(watched.cluster.marked_unknown.is_empty());
    assert_eq!(watched.ready("n1"), "True/Said");
}

#[test]
fn t137_neither_a_start_of_the_operator_nor_an_outage_of_the_api_server_makes_an_agent_silent() {
    let mut watched = Watched::with_nodes(3);
    let all = ["n1", "n2", "n3"];
    watched.pass(60, &all);
    watched.cluster.restart_operator();
    watched.pass(75, &all);
    assert!(watched.cluster.marked_unknown.is_empty());
    watched.pass(60, &[]);
    // Neither the agents nor the operator reach the API server.
    watched.clock += Duration::from_secs(300);
    watched.pass(60, &all);
    watched.pass(60, &[]);
    assert!(watched.cluster.marked_unknown.is_empty());
}

#[test]
fn t138_an_agent_that_promises_no_lease_has_fifteen_minutes() {
    let mut watched = Watched::with_nodes(2);
    watched.cluster.heartbeat = Value::Null;
    watched.cluster.say("n1", json!({"Ready": "True"}));
    let mut status = watched.cluster.proxies["n1"]["status"].clone();
    status["lastSyncTime"] = json!(watched.cluster.now);
    watched.cluster.change_status("n1", status);
    watched.pass(15 * 60, &["n1"]);
    let degraded = |watched: &Watched| watched.cluster.condition("default", "Degraded");
    assert_eq!(degraded(&watched), "False/AsExpected");
    watched.pass(120, &["n1"]);
    assert_eq!(degraded(&watched), "True/AgentSilent");
    assert!(
        watched.cluster.marked_unknown.is_empty(),
        "it writes again within five minutes, if it lives"
    );
}

#[test]
fn t136_an_agent_that_falls_silent_after_a_change_takes_it_back() {
    let mut watched = Watched::with_nodes(3);
    let rollout = json!({"minReady": "1h"});
    let profile = json!({"mode": "iptables", "rollout": rollout});
    watched.cluster.put_profile("default", profile);
    watched.pass(15, &[]);
    assert_eq!(watched.cluster.nodes_with_mode("iptables"), ["n1"]);
    watched.pass(80 + 120 + 30, &["n1"]);
    assert_eq!(
        watched.cluster.message("default", "Progressing"),
        "1 of 3 nodes failed: n1 (its agent has stopped reporting)"
    );
    assert!(watched.cluster.nodes_with_mode("iptables").is_empty());
}

#[test]
fn a_node_that_was_silent_before_a_change_goes_back_to_what_it_had() {
    let mut watched = Watched::with_nodes(1);
    let profile = json!({"mode": "iptables"});
    watched.cluster.put_profile("default", profile);
    watched.pass(60, &[]);
    watched.cluster.mute.insert("n1".into());
    watched.pass(90, &["n1"]);
    assert_eq!(watched.ready("n1"), "Unknown/AgentSilent");
    watched
        .cluster
        .put_profile("default", json!({"mode": "ipvs"}));
    watched.pass(15, &["n1"]);
    let proxy = &watched.cluster.proxies["n1"];
    assert_eq!(proxy["spec"]["config"]["mode"], "ipvs");
    let previous = &proxy["metadata"]["annotations"]["signpost.dev/previous"];
    let previous = previous.as_str().expect("it is written down");
    assert!(previous.contains("iptables"), "{previous}");
}

#[test]
fn an_agent_that_has_handed_its_node_back_is_not_called_silent() {
    let mut watched = Watched::with_nodes(2);
    let handed_back = json!({"Ready": "False"});
    watched.cluster.say_because("n1", "HandedBack", handed_back);
    watched.pass(300, &["n1"]);
    assert_eq!(watched.ready("n1"), "False/HandedBack");
}

/// Such a node would stay NotReady for ever, and take a place in every wave.
#[test]
fn t186_a_node_that_loses_its_agent_to_the_daemon_set_is_left_out_once_it_is_silent() {
    let mut watched = Watched::with_nodes(3);
    let cluster = &mut watched.cluster;
    cluster.put_daemon_set("agents", json!({"nodeSelector": {"pool": "web"}}));
    for node in ["n2", "n3"] {
        cluster.relabel_node(node, json!({"pool": "web"}));
    }
    watched.pass(75, &["n1"]);
    assert_eq!(watched.cluster.assignments().len(), 3);
    watched.pass(30, &["n1"]);
    assert_eq!(watched.cluster.nodes_with_mode("nftables"), ["n2", "n3"]);
    let ready = watched.cluster.condition("default", "Ready");
    assert_eq!(ready, "True/AllNodesProgrammed");
    let ready = watched.cluster.message("default", "Ready");
    assert!(
        ready.ends_with("n1 (nodeSelector pool=web of DaemonSet agents)"),
        "{ready}"
    );

    let cluster = &mut watched.cluster;
    cluster.relabel_node("n1", json!({"pool": "web"}));
    cluster.run();
    assert_eq!(cluster.assignments().len(), 3, "it is back");
}

/// Failure story T404. The selector of the DaemonSet is wrong. Nodes that cannot have an agent anyway do not count.
#[test]
fn t404_nodes_that_the_daemon_set_excludes_are_counted_and_others_without_an_agent_are_not() {
    let mut watched = Watched::with_nodes(20);
    let cluster = &mut watched.cluster;
    cluster.add_node("windows", json!({"kubernetes.io/os": "windows"}));
    let counts = |watched: &mut Watched| {
        let (now, instant) = (watched.cluster.now, watched.cluster.instant());
        let counts = watched.cluster.fleet.plan(now, instant).counts["default"];
        (counts.matched, counts.excluded, counts.max_unavailable)
    };
    cluster.put_daemon_set("agents", json!({}));
    watched.pass(15, &[]);
    assert_eq!(counts(&mut watched), (20, 0, 2));
    let pod = json!({"nodeSelector": {"pool": "wbe"}});
    watched.cluster.put_daemon_set("agents", pod);
    watched.pass(105, &["n1", "n2", "n3"]);
    assert_eq!(counts(&mut watched), (17, 3, 2), "17 agents report still");
    let nodes: Vec<String> = watched.cluster.nodes.keys().cloned().collect();
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    watched.pass(105, &nodes);
    assert_eq!(counts(&mut watched), (0, 20, 2));
    watched.cluster.put_daemon_set("agents", json!({}));
    watched.cluster.run();
    assert_eq!(counts(&mut watched), (20, 0, 2), "it is right again");
}

/// A Pod stays where a taint NoSchedule comes after it, so the agent is expected back.
#[test]
fn t186_a_node_with_a_new_taint_is_silent_and_not_left_out() {
    let mut watched = Watched::with_nodes(2);
    let cluster = &mut watched.cluster;
    cluster.put_daemon_set("agents", json!({}));
    cluster.taint_node(
        "n1",
        json!({"key": "dedicated", "value": "db", "effect": "NoSchedule"}),
    );
    watched.pass(105, &["n1"]);
    assert_eq!(watched.ready("n1"), "Unknown/AgentSilent");
    watched.pass(15, &[]);
    assert_eq!(watched.cluster.assignments().len(), 2);
}

/// Failure story T402.
#[test]
fn t402_a_watch_that_fails_is_counted_until_it_has_long_not_failed() {
    let mut cluster = Cluster::with_nodes(1);
    for _ in 0..20 {
        cluster.signal("NodeProxy", WatchSignal::Failed);
        cluster.advance(140);
    }
    let failing = |cluster: &Cluster| cluster.fleet.failing_watches(cluster.instant()).next();
    let since_first = Duration::from_secs(19 * 140);
    assert_eq!(failing(&cluster), Some(("NodeProxy", since_first)));
    cluster.advance(60);
    assert_eq!(failing(&cluster), Some(("NodeProxy", Duration::ZERO)));
}
