//! Tests of the fleet in an in-memory cluster: objects are JSON, versions and generations increase
//! as in an API server, and agents report what the test sets.

mod accidents;
mod assignment;
mod clocks;
mod cost;
mod failing_watches;
mod handover;
mod min_ready;
mod newcomers;
mod news;
mod outage;
mod preflight;
mod progress;
mod properties;
mod refused_reports;
mod revisions;
mod rollback;
mod rollout;
mod silence;
mod skew;
mod status;
mod unchanged;
mod undo;
mod verdict;
mod waves;

use std::collections::{BTreeMap, BTreeSet};

use crds::profile::status::ProxyProfileStatus;
use jiff::{SignedDuration, Timestamp};
use kube::core::DynamicObject;
use runtime::without_fields;
use serde_json::{Value, json};

use super::*;
use crate::records::{Record, SPEC_FIELD_MANAGER, SharedSpecs, SlimNode};

/// A profile with mode iptables, which no node has at first.
fn iptables(rollout: Value) -> Value {
    json!({"mode": "iptables", "rollout": rollout})
}

/// The time at which tests begin.
const START: Timestamp = Timestamp::constant(1_800_000_000, 0);

/// A cluster with its operator.
struct Cluster {
    fleet: Fleet,
    profiles: BTreeMap<String, Value>,
    nodes: BTreeMap<String, Value>,
    proxies: BTreeMap<String, Value>,
    /// The DaemonSets of agents.
    agent_daemon_sets: Vec<AgentDaemonSet>,
    /// The DaemonSet of kube-proxy.
    kube_proxy: KubeProxyDaemonSetState,
    now: Timestamp,
    /// When the test began, at [`START`].
    began: Instant,
    /// Whether the watch of NodeProxies fails: the operator knows only what it writes itself.
    is_deaf: bool,
    /// How far the clock of the API server is ahead of the operator's.
    api_server_ahead: SignedDuration,
    version: u64,
    /// Nodes whose agents do not report by themselves.
    mute: BTreeSet<String>,
    /// The `heartbeat` field of the agents' status.
    heartbeat: Value,
    /// The mode with which agents report that they are degraded.
    broken_mode: Option<&'static str>,
    /// The names of the NodeProxies that were written, in order.
    assigned: Vec<String>,
    /// The names of the profiles whose status was written.
    reported: Vec<String>,
    /// The nodes whose agents were marked as silent.
    marked_unknown: Vec<String>,
    /// The fields of a profile's status that the API server does not know.
    unknown_fields: BTreeSet<String>,
    /// When the last plan asked to be woken.
    requeue_at: Option<Timestamp>,
}

impl Cluster {
    fn new() -> Self {
        let mut cluster = Self {
            fleet: Fleet::default(),
            profiles: BTreeMap::new(),
            nodes: BTreeMap::new(),
            proxies: BTreeMap::new(),
            agent_daemon_sets: Vec::new(),
            kube_proxy: KubeProxyDaemonSetState::Absent,
            now: START,
            began: Instant::now(),
            is_deaf: false,
            api_server_ahead: SignedDuration::ZERO,
            version: 1,
            mute: BTreeSet::new(),
            heartbeat: Value::Null,
            broken_mode: None,
            assigned: Vec::new(),
            reported: Vec::new(),
            marked_unknown: Vec::new(),
            unknown_fields: BTreeSet::new(),
            requeue_at: None,
        };
        cluster.restart_operator();
        cluster
    }

    /// Creates this many nodes n1, n2, … whose agents report at once, and the settled profile
    /// `default`.
    fn with_nodes(count: usize) -> Self {
        let mut cluster = Self::new();
        for number in 1..=count {
            cluster.add_node(&format!("n{number}"), json!({}));
        }
        cluster.put_profile("default", json!({}));
        cluster.run();
        cluster.forget_writes();
        cluster
    }

    /// An operator starts, and measures the clock of the API server.
    fn restart_operator(&mut self) {
        self.fleet = Fleet::new(ClockOffset::ahead(self.api_server_ahead));
        self.relist();
    }

    /// The operator's watches end, and it lists everything anew.
    fn relist(&mut self) {
        self.fleet
            .apply(Event::Profile(ObjectChange::ListRequested));
        self.fleet.apply(Event::Node(ObjectChange::ListRequested));
        self.fleet.apply(Event::Proxy(ObjectChange::ListRequested));
        let profiles = self.profiles.values().map(profile_record).collect();
        let nodes = self.nodes.values().map(node_record).collect();
        let proxies = self.proxies.values().map(proxy_record).collect();
        self.fleet
            .apply(Event::Profile(ObjectChange::Listed(profiles)));
        self.fleet.apply(Event::Node(ObjectChange::Listed(nodes)));
        self.fleet
            .apply(Event::Proxy(ObjectChange::Listed(proxies)));
        let agent_daemon_sets = self.agent_daemon_sets.clone();
        self.fleet.apply(Event::AgentDaemonSet(ObjectChange::Listed(
            agent_daemon_sets,
        )));
        self.fleet
            .apply(Event::KubeProxyDaemonSet(self.kube_proxy.clone()));
    }

    /// Creates the DaemonSet of agents with this Pod spec, or replaces it.
    fn put_daemon_set(&mut self, name: &str, mut pod: Value) {
        pod["containers"] = json!([]);
        let daemon_set = json!({
            "metadata": {"name": name, "uid": name, "resourceVersion": self.next_version()},
            "spec": {"selector": {}, "template": {"spec": pod}},
        });
        let daemon_set = AgentDaemonSet::parse(object(&daemon_set));
        self.agent_daemon_sets.retain(|known| known.name() != name);
        self.agent_daemon_sets.push(daemon_set.clone());
        self.fleet
            .apply(Event::AgentDaemonSet(ObjectChange::Applied(Box::new(
                daemon_set,
            ))));
    }

    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    fn add_node(&mut self, name: &str, labels: Value) {
        let version = self.next_version();
        let node = json!({"metadata": {
            "name": name, "uid": format!("uid-{name}-{version}"), "resourceVersion": version, "labels": labels,
        }});
        self.put_node(name, node);
    }

    fn relabel_node(&mut self, name: &str, labels: Value) {
        let mut node = self.nodes[name].clone();
        node["metadata"]["labels"] = labels;
        self.put_node(name, node);
    }

    fn taint_node(&mut self, name: &str, taint: Value) {
        let mut node = self.nodes[name].clone();
        node["spec"] = json!({"taints": [taint]});
        self.put_node(name, node);
    }

    fn lose_kubelet(&mut self, name: &str) {
        self.set_node_ready(name, "Unknown");
    }

    /// Sets the condition Ready of the Node.
    fn set_node_ready(&mut self, name: &str, status: &str) {
        let mut node = self.nodes[name].clone();
        let changed = self.now + self.api_server_ahead;
        node["status"] = json!({"conditions": [
            {"type": "Ready", "status": status, "lastTransitionTime": changed},
        ]});
        self.put_node(name, node);
    }

    fn put_node(&mut self, name: &str, mut node: Value) {
        node["metadata"]["resourceVersion"] = self.next_version().into();
        self.fleet
            .apply(Event::Node(ObjectChange::Applied(Box::new(node_record(
                &node,
            )))));
        self.nodes.insert(name.into(), node);
    }

    fn remove_node(&mut self, name: &str) {
        self.nodes.remove(name);
        self.fleet
            .apply(Event::Node(ObjectChange::Deleted(name.into())));
    }

    /// Creates the profile or replaces its spec. By default a node is available as soon as it is
    /// ready, no waves come between the canary and all nodes, and the failure tolerance equals
    /// `maxUnavailable`.
    fn put_profile(&mut self, name: &str, mut spec: Value) {
        let rollout = &mut spec["rollout"];
        if rollout["minReady"].is_null() {
            rollout["minReady"] = "0s".into();
        }
        if rollout["waves"].is_null() {
            rollout["waves"] = json!([]);
        }
        if rollout["maxFailures"].is_null() && !rollout["maxUnavailable"].is_null() {
            rollout["maxFailures"] = rollout["maxUnavailable"].clone();
        }
        let version = self.next_version();
        let (now, known) = (self.now, self.profiles.get(name));
        let mut profile = known.cloned().unwrap_or_else(|| {
            json!({"metadata": {
                "name": name, "uid": format!("uid-{name}"), "generation": 0, "creationTimestamp": now,
            }})
        });
        let generation = profile["metadata"]["generation"]
            .as_i64()
            .expect("a number");
        if profile["spec"] != spec {
            profile["metadata"]["generation"] = (generation + 1).into();
        }
        profile["metadata"]["resourceVersion"] = version.into();
        profile["spec"] = spec;
        self.fleet
            .apply(Event::Profile(ObjectChange::Applied(Box::new(
                profile_record(&profile),
            ))));
        self.profiles.insert(name.into(), profile);
    }

    /// `kubectl delete nodeproxies --all`, or the CustomResourceDefinition is deleted and
    /// recreated.
    fn delete_proxies(&mut self) {
        self.proxies.clear();
        self.fleet
            .apply(Event::Proxy(ObjectChange::Listed(Vec::new())));
    }

    fn remove_profile(&mut self, name: &str) {
        self.profiles.remove(name);
        self.fleet
            .apply(Event::Profile(ObjectChange::Deleted(name.into())));
    }

    /// Returns the present time on the monotonic clock.
    fn instant(&self) -> Instant {
        let passed = self.now.duration_since(START);
        self.began + Duration::try_from(passed).expect("a time since the start")
    }

    /// Something happens to the watch of `kind`.
    fn signal(&mut self, kind: &'static str, signal: WatchSignal) {
        let at = self.instant();
        self.fleet.apply(Event::Watch { kind, signal, at });
    }

    /// Returns what the operator would write now.
    fn plan(&mut self) -> Plan {
        let is_made = self.fleet.has_changes()
            || self
                .requeue_at
                .is_some_and(|requeue_at| requeue_at <= self.now);
        let plan = self.fleet.plan(self.now, self.instant());
        self.requeue_at = plan.requeue_at;
        assert!(
            is_made || plan.actions.is_empty(),
            "without news before its time: {:?}",
            plan.actions
        );
        plan
    }

    /// Runs operator and agents until nothing is left to do without waiting for a deadline.
    fn run(&mut self) {
        for _ in 0..1000 {
            let plan = self.plan();
            let soon = plan
                .requeue_at
                .filter(|requeue_at| *requeue_at <= self.now + SignedDuration::from_secs(1));
            if plan.actions.is_empty() && !self.report() {
                match soon {
                    Some(_) => self.now += SignedDuration::from_secs(1),
                    None => return,
                }
            }
            for action in plan.actions {
                self.write(action);
            }
        }
        panic!("there is always something to do: {:?}", self.plan().actions);
    }

    /// Lets this time pass while operator and agents do their work.
    fn advance(&mut self, seconds: i64) {
        let end = self.now + SignedDuration::from_secs(seconds);
        self.run();
        while self.now < end {
            let requeue_at = self.plan().requeue_at;
            let next = requeue_at.filter(|requeue_at| *requeue_at > self.now && *requeue_at < end);
            self.now = next.unwrap_or(end);
            self.run();
        }
    }

    fn write(&mut self, action: Action) {
        match action {
            Action::UpdateStatus {
                profile,
                status,
                version: decided_by,
                ..
            } => {
                let version = self.next_version();
                let Some(known) = self.profiles.get_mut(&profile) else {
                    return;
                };
                if known["metadata"]["resourceVersion"] != json!(decided_by) {
                    return;
                }
                // A round trip through JSON: times lose the precision that an API server does not
                // keep.
                let status = serde_json::to_value(&status).expect("JSON");
                known["status"] = without_fields(status, &self.unknown_fields);
                known["metadata"]["resourceVersion"] = version.into();
                self.fleet.apply(Event::Reported {
                    record: Box::new(profile_record(known)),
                    unknown_fields: self.unknown_fields.clone(),
                });
                self.reported.push(profile);
            }
            Action::Assign {
                node,
                owner,
                spec,
                previous,
                baseline,
                version: decided_by,
            } => {
                let known = self.proxies.get(&node);
                let known_version = known.map(|known| &known["metadata"]["resourceVersion"]);
                if known_version != decided_by.map(Value::from).as_ref() {
                    return;
                }
                let spec = serde_json::to_value(&*spec).expect("JSON");
                let version = self.next_version();
                let known = self
                    .proxies
                    .get(&node)
                    .cloned()
                    .unwrap_or_else(|| json!({"metadata": {"generation": 0}}));
                let changed = known["spec"] != spec;
                let generation = known["metadata"]["generation"].as_i64().expect("a number")
                    + i64::from(changed);
                let mut proxy = json!({"metadata": {
                    "name": node, "uid": format!("uid-proxy-{node}"), "generation": generation,
                    "resourceVersion": version,
                    "labels": {"signpost.dev/node": node, "signpost.dev/profile": spec["profileName"]},
                    "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": owner}],
                    "managedFields": [{"manager": SPEC_FIELD_MANAGER, "operation": "Apply", "time": self.now + self.api_server_ahead}],
                }, "spec": spec, "status": known["status"]});
                let annotations = &mut proxy["metadata"]["annotations"];
                if let Some(previous) = previous {
                    let previous = serde_json::to_string(&*previous).expect("JSON");
                    annotations["signpost.dev/previous"] = previous.into();
                }
                if let Some(baseline) = baseline {
                    let baseline = serde_json::to_string(&baseline).expect("JSON");
                    annotations["signpost.dev/baseline"] = baseline.into();
                }
                self.put_proxy(&node, proxy);
                self.assigned.push(node);
            }
            Action::MarkUnknown {
                node,
                ready,
                version: decided_by,
            } => {
                let known = &self.proxies[&node];
                if known["metadata"]["resourceVersion"] != json!(decided_by) {
                    return;
                }
                let mut status = known["status"].clone();
                let conditions = status["conditions"].as_array_mut().expect("conditions");
                conditions.retain(|condition| condition["type"] != "Ready");
                conditions.push(serde_json::to_value(&ready).expect("JSON"));
                self.change_status(&node, status);
                self.marked_unknown.push(node);
            }
            Action::Delete {
                node,
                uid,
                version: decided_by,
            } => {
                let known = self
                    .proxies
                    .remove(&node)
                    .expect("only what is there is removed");
                assert_eq!(known["metadata"]["uid"], uid);
                assert_eq!(known["metadata"]["resourceVersion"], json!(decided_by));
                self.fleet.apply(Event::Proxy(ObjectChange::Deleted(node)));
            }
        }
    }

    fn put_proxy(&mut self, node: &str, proxy: Value) {
        self.fleet
            .apply(Event::Proxy(ObjectChange::Applied(Box::new(proxy_record(
                &proxy,
            )))));
        self.proxies.insert(node.into(), proxy);
    }

    /// Every agent that is not mute reports on its spec. Returns whether any report changed.
    fn report(&mut self) -> bool {
        let mut news = false;
        for name in self.proxies.keys().cloned().collect::<Vec<_>>() {
            let proxy = &self.proxies[&name];
            let fresh = proxy["status"]["observedGeneration"] != proxy["metadata"]["generation"];
            if fresh && !self.mute.contains(&name) && self.nodes.contains_key(&name) {
                let broken = self
                    .broken_mode
                    .is_some_and(|mode| proxy["spec"]["config"]["mode"] == mode);
                self.say(
                    &name,
                    if broken {
                        json!({"Ready": "False", "Degraded": "True"})
                    } else {
                        json!({"Ready": "True"})
                    },
                );
                news = true;
            }
        }
        news
    }

    /// The agent of `node` reports these conditions for its spec, which it has applied.
    fn say(&mut self, node: &str, conditions: Value) {
        self.say_because(node, "Said", conditions);
    }

    /// Like [`Self::say`] with this reason.
    fn say_because(&mut self, node: &str, reason: &str, conditions: Value) {
        let mut proxy = self.proxies[node].clone();
        let generation = proxy["metadata"]["generation"].clone();
        let conditions: Vec<Value> = conditions
            .as_object()
            .expect("conditions")
            .iter()
            .map(|(kind, status)| {
                json!({
                    "type": kind, "status": status, "reason": reason, "message": "by the test",
                    "observedGeneration": generation, "lastTransitionTime": self.now,
                })
            })
            .collect();
        proxy["status"] = json!({
            "observedGeneration": generation,
            "appliedHash": proxy["spec"]["configHash"],
            "mode": proxy["spec"]["config"]["mode"],
            "heartbeat": self.heartbeat,
            "conditions": conditions,
        });
        self.change_status(node, proxy["status"].clone());
    }

    fn change_status(&mut self, node: &str, status: Value) {
        let mut proxy = self.proxies[node].clone();
        proxy["status"] = status;
        let time = self.now + self.api_server_ahead;
        let fields = &mut proxy["metadata"]["managedFields"];
        if let Some(fields) = fields.as_array_mut() {
            fields.retain(|entry| entry["manager"] != "signpost-agent");
            fields
                .push(json!({"manager": "signpost-agent", "subresource": "status", "time": time}));
        }
        proxy["metadata"]["resourceVersion"] = self.next_version().into();
        if self.is_deaf {
            self.proxies.insert(node.into(), proxy);
        } else {
            self.put_proxy(node, proxy);
        }
    }

    fn forget_writes(&mut self) {
        self.assigned.clear();
        self.reported.clear();
    }

    /// Returns the profile and mode assigned to each node.
    fn assignments(&self) -> Vec<String> {
        let given = |(name, proxy): (&String, &Value)| {
            let text = |pointer: &str| {
                proxy
                    .pointer(pointer)
                    .and_then(Value::as_str)
                    .unwrap_or("?")
                    .to_owned()
            };
            format!(
                "{name} {} {}",
                text("/spec/profileName"),
                text("/spec/config/mode")
            )
        };
        self.proxies.iter().map(given).collect()
    }

    fn nodes_with_mode(&self, mode: &str) -> Vec<&str> {
        let has = |proxy: &Value| proxy["spec"]["config"]["mode"] == mode;
        self.proxies
            .iter()
            .filter(|(_, proxy)| has(proxy))
            .map(|(name, _)| name.as_str())
            .collect()
    }

    fn status(&self, profile: &str) -> ProxyProfileStatus {
        profile_record(&self.profiles[profile]).status()
    }

    /// Returns `True/Reason` of a profile's condition.
    fn condition(&self, profile: &str, kind: &str) -> String {
        let status = self.status(profile);
        let condition = status
            .conditions
            .iter()
            .find(|condition| condition.type_ == kind);
        condition.map_or("absent".into(), |condition| {
            format!("{}/{}", condition.status, condition.reason)
        })
    }

    fn message(&self, profile: &str, kind: &str) -> String {
        let status = self.status(profile);
        let condition = status
            .conditions
            .into_iter()
            .find(|condition| condition.type_ == kind);
        condition.expect("the condition is there").message
    }
}

fn object(value: &Value) -> DynamicObject {
    serde_json::from_value(value.clone()).expect("an object")
}

fn profile_record(value: &Value) -> ProfileRecord {
    ProfileRecord::parse(object(value))
}

fn proxy_record(value: &Value) -> NodeProxyRecord {
    NodeProxyRecord::parse(object(value), &mut SharedSpecs::default())
}

fn node_record(value: &Value) -> NodeRecord {
    NodeRecord::parse(serde_json::from_value::<SlimNode>(value.clone()).expect("a node"))
}
