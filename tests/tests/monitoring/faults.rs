//! A fault for each alert, and the end of the fault, which clears the alert.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dashboards::alert::alerts;
use serde_json::{Value, json};
use testkit::address_plan as addresses;
use tests::cluster::resources::is_node_ready;
use tests::cluster::shop::WEB;
use tests::cluster::{Cluster, DEADLINE};
use tests::deadline::wait_for;
use tests::network::Process;

use crate::conntrack_table;
use crate::prometheus::Prometheus;

/// How long a series of faults may take to make its alerts fire, or their end to clear them.
const SOON: Duration = Duration::from_secs(180);
/// New profiles with each interruption. The operator, which may not write their statuses, tries
/// each again after 1, 2, 4 and 8 s: too seldom for the shortened alert with one profile.
const PROFILES: usize = 4;
/// What a busy machine causes by itself: no answer to a scrape in time, and slow changes.
const OF_A_BUSY_MACHINE: [&str; 2] = ["SignpostAgentDown", "SignpostChangesSlow"];

/// A node whose rules cannot be written, and a rollout that waits for it. Alerts are named as
/// [`Prometheus::firing`] does.
const OF_A_LASTING_FAULT: &[&str] = &[
    "SignpostNodeNotReady node-3",
    "SignpostNodeDegraded node-3",
    "SignpostSyncsFail node-3",
    "SignpostChangesWait node-3",
    "SignpostProfileDegraded",
];
const OF_A_STUCK_ROLLOUT: &[&str] = &["SignpostRolloutStuck"];
/// A program that takes the table over again and again, and an operator that may not write.
const OF_INTERRUPTIONS: &[&str] = &[
    "SignpostRulesDrifted node-1",
    "SignpostChangesSlow node-1",
    "SignpostOperatorWritesFail",
];
/// What interruptions also make fire if they are long or frequent enough.
const OF_LONG_INTERRUPTIONS: &[&str] = &[
    "SignpostNodeNotReady node-1",
    "SignpostNodeDegraded node-1",
    "SignpostSyncsFail node-1",
    "SignpostChangesWait node-1",
];
/// An operator that may not list the agents' Leases.
const OF_A_FAILING_WATCH: &[&str] = &["SignpostOperatorWatchFails"];
/// A DaemonSet of agents that excludes two nodes.
const OF_A_WRONG_SELECTOR: &[&str] = &["SignpostNodesExcluded"];
const OF_AN_ABSENT_AGENT: &[&str] = &["SignpostAgentDown node-2"];
/// An agent that starts and finds a kernel without IPv6 for it, and a Service that is rejected.
const OF_A_RESTART: &[&str] = &[
    "SignpostNodeNotReady node-2",
    "SignpostNodeDegraded node-2",
    "SignpostServicesRejected node-1",
    "SignpostServicesRejected node-2",
    "SignpostServicesRejected node-3",
];
const OF_A_FULL_TABLE: &[&str] = &[
    "SignpostConntrackFilling node-1",
    "SignpostConntrackDrops node-1",
];
/// An API server that does not answer, so that the operator loses its lease.
const OF_AN_OUTAGE: &[&str] = &[
    "SignpostSourceStale node-1",
    "SignpostSourceStale node-2",
    "SignpostSourceStale node-3",
    "SignpostOperatorAbsent",
];
/// What an outage also makes fire if it is long enough.
const OF_A_LONG_OUTAGE: &[&str] = &[
    "SignpostNodeDegraded node-1",
    "SignpostNodeDegraded node-2",
    "SignpostNodeDegraded node-3",
    "SignpostProfileDegraded",
];

/// The cluster, its Prometheus, and what has fired.
struct Trial<'a> {
    cluster: &'a mut Cluster,
    prometheus: &'a Prometheus,
    /// The alerts that the faults may make fire.
    may_fire: BTreeSet<&'static str>,
    /// Those that no fault can make fire on this machine.
    skipped: &'static [&'static str],
    began: Instant,
}

/// Makes each alert fire and clear. No other alert fires.
pub(crate) fn make(cluster: &mut Cluster, prometheus: &Prometheus) -> Result<()> {
    // The longest pause between two attempts, shortened like the alerts.
    let of_trial =
        json!({"syncPeriod": "1s", "rollout": {"minReady": "0s", "progressDeadline": "24h"}});
    cluster.patch_profile("default", &of_trial)?;
    cluster.wait_until_ready(DEADLINE)?;
    let mut trial = Trial {
        cluster,
        prometheus,
        may_fire: BTreeSet::new(),
        skipped: &[],
        began: Instant::now(),
    };
    trial.wait_until_quiet()?;
    trial.began = Instant::now();

    // It clears three minutes after the last failure, while other faults are made.
    trial.forbid_a_list()?;
    trial.exclude_nodes()?;
    let lasting = trial.stick_a_rollout()?;
    trial.interrupt_changes()?;
    trial.wait_until_fired(OF_A_LASTING_FAULT)?;
    trial.restart_an_agent()?;
    trial.wait_until_fired(OF_A_STUCK_ROLLOUT)?;
    // The table is removed with its owner.
    drop(lasting);
    trial.wait_until_clear(OF_A_LASTING_FAULT)?;
    trial.wait_until_clear(OF_A_STUCK_ROLLOUT)?;
    trial.stop_the_api_server()?;
    trial.wait_until_quiet()?;
    trial.each_alert_fired_for_its_fault()
}

// === impl Trial ===

impl Trial<'_> {
    fn forbid_a_list(&mut self) -> Result<()> {
        let role = ["--namespace=signpost-system", "role", "signpost-operator"];
        let rules = self.cluster.get::<Value>(&role)?["rules"].clone();
        let rules_left = rules.as_array().context("a role has rules")?.iter();
        let rules_left: Vec<&Value> = rules_left
            .filter(|rule| rule["verbs"] != json!(["create", "list"]))
            .collect();
        self.set_rules_of(&role, &json!(rules_left))?;
        self.wait_until_fired(OF_A_FAILING_WATCH)?;
        self.set_rules_of(&role, &rules)
    }

    /// Two nodes come on which the agents' DaemonSet runs no Pod. The agents of the others report on.
    fn exclude_nodes(&mut self) -> Result<()> {
        let labels =
            json!({"app.kubernetes.io/name": "signpost", "app.kubernetes.io/component": "agent"});
        let container = json!({"name": "agent", "image": "signpost.invalid/agent"});
        let pod = json!({"nodeSelector": {"pool": "wbe"}, "containers": [container]});
        let daemon_set = json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": "agents", "namespace": "signpost-system", "labels": labels},
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
        });
        let mut objects = vec![daemon_set];
        for name in ["excluded-1", "excluded-2"] {
            objects.push(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}));
        }
        let objects = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let control_plane = self.cluster.control_plane();
        control_plane.apply(&objects.to_string())?;
        self.wait_until_fired(OF_A_WRONG_SELECTOR)?;
        let control_plane = self.cluster.control_plane();
        control_plane.kubectl(&["delete", "node", "excluded-1", "excluded-2"])?;
        control_plane
            .kubectl(&[
                "delete",
                "--namespace=signpost-system",
                "daemonset",
                "agents",
            ])
            .map(drop)
    }

    /// On node 3 another program owns the table; then the profile changes. A rollout does not fail
    /// by a node that was not ready before, but waits for it.
    fn stick_a_rollout(&mut self) -> Result<Process> {
        let owner = own_table(self.cluster, 3, "ip6")?;
        self.cluster
            .wait_for_node_proxies("node-3 not to be ready", DEADLINE, |proxies| {
                proxies
                    .get(&*addresses::node_name(3))
                    .is_some_and(|proxy| !is_node_ready(proxy))
            })?;
        self.cluster
            .patch_profile("default", &json!({"minSyncPeriod": "2ms"}))?;
        self.cluster
            .wait_for_profile("default", "the rollout to wait", DEADLINE, |profile| {
                let status = profile.status.as_ref();
                status.is_some_and(|status| status.updated_nodes == 2)
            })?;
        Ok(owner)
    }

    /// Changes on node 1 wait for another program again and again; the operator may not write
    /// statuses; node 2 is handed back, so that no change is waited for there.
    fn interrupt_changes(&mut self) -> Result<()> {
        self.may_fire.extend(OF_LONG_INTERRUPTIONS);
        self.cluster.run_on_node(2, &["handback", "--force"])?;
        let rules = self.forbid_statuses()?;
        let mut change = 0;
        wait_for(
            "interrupted changes to be slow, and writes to fail",
            SOON,
            || {
                change += 1;
                let profiles = profiles_of_no_node(change);
                self.cluster.control_plane().apply(&profiles)?;
                self.interrupt_a_change(change)?;
                self.have_fired(OF_INTERRUPTIONS)
            },
        )?;
        self.set_rules(&rules)?;
        let unused = ["delete", "proxyprofiles", "--selector=of=no-node"];
        self.cluster.control_plane().kubectl(&unused)?;
        let waits = waits_for_kernel(2, "IPv4");
        let waiting = self
            .prometheus
            .query(&format!("max_over_time(({waits})[10s:1s]) > 0"))?;
        ensure!(
            waiting.is_empty(),
            "changes wait on node 2, although it was handed back: {waiting:?}"
        );
        self.cluster.run_on_node(2, &["takeover", "--force"])?;
        self.cluster.delete_slices(&["a"])
    }

    fn interrupt_a_change(&self, change: usize) -> Result<()> {
        let owner = own_table(self.cluster, 1, "ip")?;
        self.cluster.apply_slice("a", &[WEB[change % WEB.len()]])?;
        let waits = waits_for_kernel(1, "IPv4");
        let queued = queued(1, "IPv4");
        self.wait_for_series(&format!("({waits}) > 0 and (time() - {queued} > 1.5)"))?;
        // The table is removed with its owner.
        drop(owner);
        self.wait_for_series(&format!("({waits}) <= 0"))
    }

    /// Node 2: its agent is killed. While it is away, another program takes a table, so that the
    /// kernel refuses the first attempt of the next agent: it does without IPv6. Node 1: the
    /// conntrack table is full. And a Service asks for a scheduler that does not exist.
    fn restart_an_agent(&mut self) -> Result<()> {
        self.annotate("=none-has-this-name")?;
        self.cluster.take_agent(2)?.kill()?;
        self.wait_until_fired(OF_AN_ABSENT_AGENT)?;
        let owner = own_table(self.cluster, 2, "ip6")?;
        self.cluster.start_agent(2)?;
        self.wait_until_clear(OF_AN_ABSENT_AGENT)?;
        let too_large = conntrack_table::too_large(self.cluster.topology().node(1)?)?;
        match too_large {
            Some(reason) => {
                println!("    SKIPPED: {OF_A_FULL_TABLE:?}: {reason}");
                self.skipped = OF_A_FULL_TABLE;
            }
            None => self.fill_the_conntrack_table()?,
        }
        self.wait_until_fired(OF_A_RESTART)?;
        drop(owner);
        self.annotate("-")?;
        self.wait_until_clear(OF_A_RESTART)
    }

    fn fill_the_conntrack_table(&mut self) -> Result<()> {
        let node = self.cluster.topology().node(1)?.clone();
        conntrack_table::fill(&node)?;
        let client = node.enter(|| UdpSocket::bind("127.0.0.1:0"))??;
        let mut port = (1024..u16::MAX).cycle();
        let mut refused = 0_usize;
        wait_for("a full table to be reported", SOON, || {
            let port = port.by_ref().take(4);
            let sent = port.map(|port| client.send_to(b"packet", ("127.0.0.1", port)));
            // The kernel refuses the packet of a connection that it cannot track.
            refused += sent.filter(Result::is_err).count();
            self.have_fired(OF_A_FULL_TABLE)
        })?;
        ensure!(refused > 0, "the table is not full");
        self.wait_for_series(&format!(
            r#"signpost_conntrack_drop_total{{node="node-1"}} >= {refused}"#
        ))?;
        conntrack_table::clear(&node)?;
        self.wait_until_clear(OF_A_FULL_TABLE)
    }

    fn stop_the_api_server(&mut self) -> Result<()> {
        self.may_fire.extend(OF_A_LONG_OUTAGE);
        self.cluster.control_plane_mut().stop_api_server();
        self.wait_until_fired(OF_AN_OUTAGE)?;
        self.cluster.control_plane_mut().start_api_server()?;
        self.cluster.start_operator()?;
        self.wait_until_clear(OF_AN_OUTAGE)
    }

    /// Takes the right to write statuses of profiles from the operator. Returns the rules before.
    fn forbid_statuses(&self) -> Result<Value> {
        let role: Value = self.cluster.get(&["clusterrole", "signpost-operator"])?;
        let rules = role["rules"].as_array().context("a role has rules")?;
        let is_of_statuses = |rule: &&Value| rule["resources"][0] != "proxyprofiles/status";
        let left: Vec<&Value> = rules.iter().filter(is_of_statuses).collect();
        ensure!(left.len() + 1 == rules.len(), "{rules:?}");
        self.set_rules(&json!(left))?;
        Ok(role["rules"].clone())
    }

    fn set_rules(&self, rules: &Value) -> Result<()> {
        self.set_rules_of(&["clusterrole", "signpost-operator"], rules)
    }

    fn set_rules_of(&self, role: &[&str], rules: &Value) -> Result<()> {
        let patch = json!({"rules": rules}).to_string();
        let change = ["--type=merge", "--patch", &patch];
        self.cluster
            .control_plane()
            .kubectl(&[&["patch"], role, &change].concat())
            .map(drop)
    }

    fn annotate(&self, value: &str) -> Result<()> {
        let annotation = format!("signpost.dev/scheduler{value}");
        let service = [
            "annotate",
            "--overwrite",
            "--namespace=shop",
            "service",
            "web",
        ];
        self.cluster
            .control_plane()
            .kubectl(&[&service[..], &[&annotation]].concat())
            .map(drop)
    }

    /// Whether all of these have fired, which they may.
    fn have_fired(&mut self, expected: &[&'static str]) -> Result<Option<()>> {
        self.may_fire.extend(expected);
        let fired = self.fired()?;
        Ok(expected
            .iter()
            .all(|name| fired.contains(*name))
            .then_some(()))
    }

    /// Returns all that have fired since the first fault.
    fn fired(&self) -> Result<BTreeSet<String>> {
        self.prometheus.fired_within(self.began.elapsed())
    }

    fn wait_until_fired(&mut self, expected: &[&'static str]) -> Result<()> {
        let waited = wait_for(&format!("{expected:?} to fire"), SOON, || {
            self.have_fired(expected)
        });
        waited.with_context(|| format!("these have fired: {:?}", self.fired()))
    }

    /// Waits until none of these fires.
    fn wait_until_clear(&self, ended: &[&str]) -> Result<()> {
        let waited = wait_for(&format!("{ended:?} to clear"), SOON, || {
            let firing = self.prometheus.firing()?;
            Ok((!ended.iter().any(|name| firing.contains(*name))).then_some(()))
        });
        waited.with_context(|| format!("these fire: {:?}", self.prometheus.firing()))
    }

    /// Waits until no alert fires.
    fn wait_until_quiet(&self) -> Result<()> {
        let waited = wait_for("all alerts to clear", SOON, || {
            Ok(self.prometheus.firing()?.is_empty().then_some(()))
        });
        waited.with_context(|| format!("these fire: {:?}", self.prometheus.firing()))
    }

    fn wait_for_series(&self, expression: &str) -> Result<()> {
        wait_for(expression, SOON, || {
            Ok((!self.prometheus.query(expression)?.is_empty()).then_some(()))
        })
    }

    /// Every alert has fired, and none of a node or of an object that had no such fault.
    fn each_alert_fired_for_its_fault(&self) -> Result<()> {
        let fired = self.fired()?;
        let of_machine = |name: &str| {
            OF_A_BUSY_MACHINE
                .iter()
                .any(|known| name.starts_with(known))
        };
        let more: Vec<&String> = fired
            .iter()
            .filter(|name| !self.may_fire.contains(name.as_str()) && !of_machine(name))
            .collect();
        ensure!(more.is_empty(), "fired without a fault: {more:?}");
        let known = self.may_fire.iter().chain(self.skipped);
        let known: BTreeSet<&str> = known.filter_map(|name| name.split(' ').next()).collect();
        let alerts = alerts();
        let without: Vec<&str> = alerts
            .iter()
            .map(|alert| alert.name)
            .filter(|name| !known.contains(name))
            .collect();
        ensure!(without.is_empty(), "no fault makes these fire: {without:?}");
        println!(
            "    {} alerts fired and cleared, in {:.0?}",
            alerts.len() - self.skipped.len(),
            self.began.elapsed()
        );
        Ok(())
    }
}

/// Lets another program own Signpost's table on a node until it is dropped: the kernel permits the
/// agent no change.
fn own_table(cluster: &Cluster, node: u8, family: &str) -> Result<Process> {
    let mut command = cluster.topology().node(node)?.command("nft");
    command.arg("-i");
    let mut owner = Process::start("nft", command)?;
    let table = format!("table {family} signpost");
    owner.write_line(&format!(
        "add {table}; delete {table}; add {table} {{ flags owner; }}"
    ))?;
    Ok(owner)
}

fn queued(node: u8, family: &str) -> String {
    format!(
        r#"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{{node="node-{node}",ip_family="{family}"}}"#
    )
}

/// For how long the last change came after the last write: more than 0 while a change waits.
fn waits_for_kernel(node: u8, family: &str) -> String {
    let queued = queued(node, family);
    let written = queued.replace("last_queued_timestamp", "last_timestamp");
    format!("{queued} - {written}")
}

fn profiles_of_no_node(change: usize) -> String {
    let profile = |number| {
        json!({
            "apiVersion": "signpost.dev/v1alpha1",
            "kind": "ProxyProfile",
            "metadata": {"name": format!("spare-{change}-{number}"), "labels": {"of": "no-node"}},
            "spec": {
                "priority": 1001 + PROFILES * change + number,
                "nodeSelector": {"matchLabels": {"has": "no-node"}},
            },
        })
    };
    let profiles: Vec<Value> = (0..PROFILES).map(profile).collect();
    json!({"apiVersion": "v1", "kind": "List", "items": profiles}).to_string()
}
