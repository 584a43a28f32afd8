//! `kubectl signpost migrate` up to the point where it queries agents: no kubelet runs them here.

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};
use tests::deadline::wait_for;

use crate::cluster::Cluster;
use crate::command_line::CommandLine;
use crate::operator::Operator;
use crate::{DEADLINE, NAMESPACE, NODES};

const READY: (&str, &str, &str) = ("Ready", "True", "Programmed");
const BACK: (&str, &str, &str) = ("Ready", "False", "HandedBack");
const FOUND: (&str, &str, &str) = ("ForeignProxyDetected", "True", "KubeProxyNftables");
const FOUND_IPVS: (&str, &str, &str) = ("ForeignProxyDetected", "True", "KubeProxyIpvs");
const NONE_FOUND: (&str, &str, &str) = ("ForeignProxyDetected", "False", "NoneFound");

impl Cluster {
    /// Reports these conditions as the agent of `node`.
    fn report_conditions(&self, node: &str, of: &[(&str, &str, &str)]) -> Result<()> {
        let conditions = of.iter().map(|(kind, status, reason)| {
            json!({
                "type": kind, "status": status, "reason": reason, "message": "",
                "lastTransitionTime": Timestamp::now(),
            })
        });
        let conditions: Vec<Value> = conditions.collect();
        self.report_as(Some(node), node, &json!({"conditions": conditions}))
    }

    /// Creates a Pod that is running on `node` according to the API.
    fn run_pod(&self, pod: Value, node: &str) -> Result<()> {
        self.run_pod_at(pod, node, &json!([]), &json!([]))
    }

    /// Creates a Pod that is running on `node`, with these ports and addresses.
    fn run_pod_at(&self, mut pod: Value, node: &str, ports: &Value, ips: &Value) -> Result<()> {
        let name = pod["metadata"]["name"].as_str().context("it has a name")?;
        let (name, namespace) = (format!("pod/{name}"), pod["metadata"]["namespace"].clone());
        let namespace = namespace.as_str().context("it has a namespace")?;
        let container = json!({"name": "agent", "image": "any:1", "ports": ports});
        pod["spec"] = json!({"nodeName": node, "containers": [container]});
        // The service account of a namespace is created a moment after it.
        wait_for(&format!("{name} to be accepted"), DEADLINE, || {
            Ok(self.control_plane.apply(&pod.to_string()).ok())
        })?;
        let running = json!({"status": {"phase": "Running", "podIP": ips[0]["ip"], "podIPs": ips}});
        self.control_plane
            .patch_status(&name, namespace, &running.to_string())
    }

    fn run_agent(&self, node: &str) -> Result<()> {
        let labels =
            json!({"app.kubernetes.io/name": "signpost", "app.kubernetes.io/component": "agent"});
        let metadata =
            json!({"name": format!("agent-{node}"), "namespace": NAMESPACE, "labels": labels});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata});
        self.run_pod(pod, node)
    }

    /// Creates a static Pod as a kubelet does.
    fn run_kube_proxy(&self, node: &str) -> Result<()> {
        let object = self.get("node", node)?.context("the node is there")?;
        let uid = &object["metadata"]["uid"];
        let owner = json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid});
        let metadata = json!({
            "name": format!("kube-proxy-{node}"), "namespace": "kube-system",
            "ownerReferences": [owner],
        });
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata});
        self.run_pod(pod, node)
    }
}

fn expect_words(text: &str, words: &[&str]) -> Result<()> {
    for word in words {
        ensure!(text.contains(word), "no {word:?} in\n{text}");
    }
    Ok(())
}

pub(crate) fn t170_no_node_moves_while_kube_proxy_runs_and_the_first_failure_stops_the_others(
    cluster: &mut Cluster,
) -> Result<()> {
    let cli = CommandLine::of(cluster)?;
    let _operator = Operator::start_with_profile(cluster)?;
    for node in NODES {
        cluster.run_agent(node)?;
    }
    cluster.report_conditions("n1", &[READY, FOUND])?;
    cluster.report_conditions("n2", &[READY, FOUND])?;
    cluster.report_conditions("n3", &[READY, NONE_FOUND])?;
    cluster.run_kube_proxy("n1")?;
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "kube-proxy", "namespace": "kube-system"},
        "data": {"config.conf": "kind: KubeProxyConfiguration\n\
                                 apiVersion: kubeproxy.config.k8s.io/v1alpha1\n"},
    });
    cluster.control_plane.apply(&map.to_string())?;

    let text = cli.expect(3, &["migrate", "plan", "--output=json"])?;
    let plan: Value = serde_json::from_str(&text)?;
    for (node, serving, step) in [
        (0, "both", "stopKubeProxy"),
        (1, "both", "takeover"),
        (2, "signpost", "none"),
    ] {
        let node = &plan["nodes"][node];
        ensure!(
            node["serving"] == serving && node["step"] == step,
            "{node:#}"
        );
    }
    ensure!(plan["configuration"][0]["field"] == "mode", "{text}");
    let text = cli.expect(3, &["migrate", "plan"])?;
    expect_words(
        &text,
        &["n1: a Pod of kube-proxy runs\n  next: ", "  mode: "],
    )?;

    let text = cli.expect(3, &["migrate", "takeover", "--node=n1"])?;
    expect_words(
        &text,
        &["Skipped nodes", "n1: a Pod of kube-proxy runs\n  next: "],
    )?;
    let text = cli.expect(0, &["migrate", "takeover", "--node=n3"])?;
    expect_words(&text, &["skipped, already served by Signpost: n3"])?;
    let text = cli.expect(3, &["migrate", "handback"])?;
    expect_words(
        &text,
        &[
            "n1: failed: failed to run a command in the agent's Pod on node n1",
            "stopped after a failure; not started on: n2, n3\n  next: ",
        ],
    )?;
    cli.expect(1, &["migrate", "plan", "--node=no-such"])?;
    cli.expect(2, &["migrate", "takeover", "--dry-run", "--force"])?;

    cluster.report_conditions("n1", &[BACK, FOUND])?;
    let text = cli.expect(0, &["migrate", "handback", "--node=n1"])?;
    expect_words(&text, &["skipped, already served by kube-proxy: n1"])?;
    let arguments = [
        "delete",
        "pod",
        "kube-proxy-n1",
        "--namespace=kube-system",
        "--force",
    ];
    cluster.control_plane.kubectl(&arguments)?;
    let text = cli.expect(0, &["migrate", "plan"])?;
    expect_words(&text, &["ready for a takeover: n1, n2\n"])?;
    for node in ["n1", "n2"] {
        cluster.report_conditions(node, &[READY, NONE_FOUND])?;
    }
    let text = cli.expect(0, &["migrate", "plan"])?;
    expect_words(&text, &["Signpost alone serves 3 nodes"])
}

/// Failure stories T197, T198 and T293: what stops a takeover, or changes with it, is named before it.
pub(crate) fn t197_t198_the_plan_names_what_local_detection_daemon_set_and_host_ports_have_against_it(
    cluster: &mut Cluster,
) -> Result<()> {
    let cli = CommandLine::of(cluster)?;
    let _operator = Operator::start_with_profile(cluster)?;
    for node in NODES {
        cluster.run_agent(node)?;
        cluster.report_conditions(node, &[READY, FOUND])?;
        let number = node.trim_start_matches('n');
        let range = format!("10.0.{number}.0/24");
        let patch = json!({"spec": {"podCIDR": range, "podCIDRs": [range]}}).to_string();
        let patch = ["patch", "node", node, "--patch", &patch];
        cluster.control_plane.kubectl(&patch)?;
    }
    // Signpost's rules are not there yet.
    cluster.report_conditions("n3", &[BACK, FOUND])?;
    let text = cli.expect(0, &["migrate", "plan"])?;
    expect_words(&text, &["ready for a takeover: n1, n2, n3\n"])?;

    // Nothing schedules the Pods of the DaemonSet here.
    cluster
        .control_plane
        .kubectl(&["label", "node", "n1", "proxy=kube-proxy"])?;
    let labels = json!({"k8s-app": "kube-proxy"});
    let pod = json!({
        "metadata": {"labels": labels},
        "spec": {"nodeSelector": {"proxy": "kube-proxy"}, "containers": [{"name": "p", "image": "any:1"}]},
    });
    let daemon_set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "kube-proxy", "namespace": "kube-system"},
        "spec": {"selector": {"matchLabels": labels}, "template": pod},
    });
    cluster.control_plane.apply(&daemon_set.to_string())?;
    let metadata = |name: &str| json!({"name": name, "namespace": "default"});
    let pod = |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata(name)});
    let outside = json!([{"ip": "10.8.0.7"}]);
    cluster.run_pod_at(pod("outside"), "n2", &json!([]), &outside)?;
    let port = json!([{"containerPort": 80, "hostPort": 30080}]);
    let inside = json!([{"ip": "10.0.3.7"}]);
    cluster.run_pod_at(pod("inside"), "n3", &port, &inside)?;
    // Failure story T331: where they are, the Service answers already.
    let beside = json!([{"ip": "10.0.1.7"}]);
    cluster.run_pod_at(pod("beside"), "n1", &port, &beside)?;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata("cart"),
        "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]},
    });
    cluster.control_plane.apply(&service.to_string())?;

    let text = cli.expect(3, &["migrate", "plan"])?;
    expect_words(
        &text,
        &[
            "n1: DaemonSet kube-system/kube-proxy selects the node, and starts kube-proxy on it again\n  next: kubectl",
            "n2: detectLocal.mode is NodeCIDR, and 1 of 3 Pods have addresses outside of the podCIDRs of their nodes: \
             default/outside (10.8.0.7 on n2)\n  next: set spec.detectLocal",
            "n3: warning: host port 30080/TCP (default/inside) is also a node port of Service default/cart",
            "ready for a takeover: n3\n",
        ],
    )?;
    ensure!(!text.contains("default/beside"), "{text}");
    let text = cli.expect(3, &["migrate", "takeover", "--node=n1", "--node=n2"])?;
    expect_words(
        &text,
        &["Skipped nodes", "n1: DaemonSet", "n2: detectLocal.mode"],
    )?;

    // Failure story T306: in that mode it is certain that the Pod answers until the takeover.
    cluster.report_conditions("n3", &[BACK, FOUND_IPVS])?;
    let expected = "n3: host port 30080/TCP (default/inside) is also a node port of Service default/cart: in kube-proxy's \
                    mode ipvs the Pod answers, in Signpost's mode nftables the Service answers\n  next: give the Pods";
    let text = cli.expect(3, &["migrate", "plan"])?;
    expect_words(&text, &[expected])?;
    ensure!(!text.contains("ready for a takeover"), "{text}");
    let text = cli.expect(3, &["migrate", "takeover", "--node=n3"])?;
    expect_words(&text, &["Skipped nodes", expected])?;
    waits_for_the_daemon_set(cluster, &cli)
}

/// Failure story T293: the profile's field asks no node that DaemonSet kube-proxy selects, which is
/// n1 here, and goes on once it is deleted.
fn waits_for_the_daemon_set(cluster: &Cluster, cli: &CommandLine) -> Result<()> {
    for node in NODES {
        cluster.report_ready(node)?;
    }
    cluster.put_profile("default", json!({"handover": "Takeover"}))?;
    for node in ["n2", "n3"] {
        cluster.wait_for_takeover(node)?;
        cluster.report_ready(node)?;
    }
    let what =
        "kube-proxy to stay stopped: 1 node: DaemonSet kube-system/kube-proxy selects the node";
    cluster.wait_until_it_waits_for(what)?;
    let text = cli.expect(3, &["status"])?;
    expect_words(
        &text,
        &[
            // It may wait for a node of the last wave to be available, too.
            &format!("for {what}"),
            "(next, on all nodes of the cluster: kubectl -n kube-system patch",
            " on n1\n",
        ],
    )?;
    let proxy = cluster.get("nodeproxy", "n1")?.context("it has one")?;
    ensure!(proxy["spec"]["config"]["handover"].is_null(), "{proxy:#}");

    let delete = [
        "delete",
        "daemonset",
        "kube-proxy",
        "--namespace=kube-system",
    ];
    cluster.control_plane.kubectl(&delete)?;
    cluster.wait_for_takeover("n1")?;
    cluster.report_ready("n1")?;
    let settled = cluster.wait_for_condition("default", "Progressing", "False/Settled")?;
    ensure!(
        settled["status"]["rollout"]["waitingFor"].is_null(),
        "{settled:#}"
    );
    Ok(())
}
