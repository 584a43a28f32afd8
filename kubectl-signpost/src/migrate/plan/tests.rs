use std::collections::BTreeMap;

use crds::effective::hash::ConfigHash;
use crds::starter::{STOP_KUBE_PROXY, STOP_STATIC_POD};
use crds::{EffectiveConfig, NodeProxySpec, NodeProxyStatus};
use serde_json::{Value, json};

use super::*;
use crate::arguments::Format;
use crate::migrate::KUBE_PROXY;
use crate::migrate::text::render;
use crate::output::Paint;
use crate::pod_network;
use crate::trouble::tests::condition;

/// The type, status and reason of a condition.
pub(in crate::migrate) type Said = (&'static str, &'static str, &'static str);

pub(in crate::migrate) const READY_TRUE: Said = ("Ready", "True", "Programmed");
pub(in crate::migrate) const READY_BACK: Said = ("Ready", "False", "HandedBack");
pub(in crate::migrate) const NONE_FOUND: Said = (FOREIGN_PROXY_DETECTED, "False", "NoneFound");
pub(in crate::migrate) const FOUND: Said = (FOREIGN_PROXY_DETECTED, "True", "KubeProxyNftables");

pub(in crate::migrate) fn conditions(of: &[Said]) -> Vec<Condition> {
    let conditions = of.iter();
    conditions
        .map(|(kind, status, reason)| condition(kind, status, reason, "said"))
        .collect()
}

fn proxy(name: &str, of: &[Said]) -> NodeProxy {
    let config = EffectiveConfig::default();
    let spec = NodeProxySpec {
        profile_name: "default".to_owned(),
        config_hash: ConfigHash::of(&config),
        config,
        ..NodeProxySpec::default()
    };
    let mut proxy = NodeProxy::new(name, spec);
    proxy.status = Some(NodeProxyStatus {
        conditions: conditions(of),
        ..NodeProxyStatus::default()
    });
    proxy
}

fn pod(name: &str, node: &str, owner: (&str, &str), phase: &str) -> Pod {
    let (kind, by) = owner;
    let owner = json!({"apiVersion": "v1", "kind": kind, "name": by, "uid": "1"});
    let pod = json!({
        "metadata": {"name": name, "namespace": "kube-system", "ownerReferences": [owner]},
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": phase},
    });
    serde_json::from_value(pod).expect("a Pod")
}

fn agent(node: &str) -> Agent {
    let pod = json!({
        "metadata": {"name": format!("agent-{node}"), "namespace": "signpost-system", "labels": {
            "app.kubernetes.io/name": "signpost", "app.kubernetes.io/component": "agent",
        }},
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Running"},
    });
    let pod: Pod = serde_json::from_value(pod).expect("a Pod");
    Agent::among(&[pod]).remove(0)
}

/// The DaemonSet of kube-proxy, for nodes with these labels.
pub(in crate::migrate) fn daemon_set(selector: &Value) -> DaemonSet {
    let pod = json!({"nodeSelector": selector, "containers": [], "tolerations": [{"operator": "Exists"}]});
    let set = json!({
        "metadata": {"name": "kube-proxy", "namespace": "kube-system"},
        "spec": {"selector": {}, "template": {"spec": pod}},
    });
    serde_json::from_value(set).expect("a DaemonSet")
}

fn node(name: &str, spec: &Value) -> Node {
    let labels = json!({"kubernetes.io/os": "linux"});
    let node = json!({"metadata": {"name": name, "labels": labels}, "spec": spec});
    serde_json::from_value(node).expect("a Node")
}

/// Nodes with agents.
pub(in crate::migrate) fn evidence(nodes: &[(&str, &[Said])]) -> Evidence {
    let proxies = nodes.iter().map(|(name, of)| proxy(name, of));
    Evidence {
        proxies: Read {
            objects: proxies.collect(),
            unreadable: Vec::new(),
        },
        agents: nodes.iter().map(|(name, _)| agent(name)).collect(),
        daemon_set: Some(daemon_set(&json!({"signpost.dev/kube-proxy": "wanted"}))),
        ..Evidence::default()
    }
}

pub(in crate::migrate) fn plan(evidence: &Evidence) -> Plan {
    Plan::of(evidence, &[]).expect("all nodes are known")
}

pub(in crate::migrate) fn run_kube_proxy(evidence: &mut Evidence, node: &str) {
    let of_set = ("DaemonSet", KUBE_PROXY);
    let pod = pod(&format!("kube-proxy-{node}-x"), node, of_set, "Running");
    evidence.system_pods.push(pod);
}

#[test]
fn t170_conditions_say_which_proxy_serves() {
    let unread = (FOREIGN_PROXY_DETECTED, "Unknown", "LegacyRulesUnread");
    let unreadable = (FOREIGN_PROXY_DETECTED, "Unknown", "RulesUnreadable");
    for (of, expected) in [
        (vec![READY_TRUE, NONE_FOUND], Serving::Signpost),
        (vec![READY_TRUE, FOUND], Serving::Both),
        (vec![READY_TRUE, unread], Serving::Signpost),
        (vec![READY_TRUE, unreadable], Serving::Unknown),
        (vec![READY_TRUE], Serving::Unknown),
        (vec![], Serving::Unknown),
        (vec![READY_BACK, FOUND], Serving::KubeProxy),
        (vec![READY_BACK, unread], Serving::KubeProxy),
        (vec![READY_BACK, NONE_FOUND], Serving::Neither),
    ] {
        assert_eq!(Serving::of(&conditions(&of)), expected, "{of:?}");
    }
}

#[test]
fn t170_a_kube_proxy_that_runs_comes_before_a_takeover() {
    let mut evidence = evidence(&[
        ("n1", &[READY_TRUE, FOUND]),
        ("n2", &[READY_TRUE, FOUND]),
        ("n3", &[READY_TRUE, NONE_FOUND]),
        ("n4", &[READY_BACK, FOUND]),
    ]);
    run_kube_proxy(&mut evidence, "n1");
    let plan = plan(&evidence);
    let steps: Vec<Step> = plan.nodes.iter().map(|node| node.step).collect();
    let expected = [
        Step::StopKubeProxy,
        Step::Takeover,
        Step::None,
        Step::Takeover,
    ];
    assert_eq!(steps, expected);
    assert_eq!(plan.ending(), Ending::ProblemFound);
    let expected = format!(
        "NODE   SERVED-BY    KUBE-PROXY   STEP              OBSTACLES\n\
         n1     both         runs         stop kube-proxy   1\n\
         n2     both         -            takeover          -\n\
         n3     Signpost     -            -                 -\n\
         n4     kube-proxy   -            takeover          -\n\
         \n\
         n1: a Pod of kube-proxy runs\n  \
           next: {STOP_KUBE_PROXY}\n\
         \n\
         ready for a takeover: n2, n4\n  \
           next: `kubectl signpost migrate takeover --dry-run` prints what the agents find; then without --dry-run\n"
    );
    assert_eq!(render(&plan, Format::Text, Paint::Plain), expected);
}

#[test]
fn pods_of_kube_proxy_are_known_by_their_owners() {
    let of_set = ("DaemonSet", KUBE_PROXY);
    let pods = [
        pod("kube-proxy-x", "n1", of_set, "Running"),
        pod("kube-proxy-n2", "n2", ("Node", "n2"), "Pending"),
        pod("kube-proxy-y", "n3", of_set, "Failed"),
        pod("kube-apiserver-n4", "n4", ("Node", "n4"), "Running"),
        pod("kube-proxy-z", "n5", ("DaemonSet", "other"), "Running"),
    ];
    let found: BTreeMap<&str, String> = kube_proxy_pods(&pods)
        .into_iter()
        .map(|(node, pod)| (node, pod.name_any()))
        .collect();
    let expected = [("n1", "kube-proxy-x"), ("n2", "kube-proxy-n2")];
    let expected = expected.map(|(node, pod)| (node, pod.to_owned()));
    assert_eq!(found, BTreeMap::from(expected));
}

#[test]
fn a_static_pod_is_not_stopped_by_a_patch() {
    let mut evidence = evidence(&[("n1", &[READY_TRUE, FOUND])]);
    run_kube_proxy(&mut evidence, "n1");
    evidence.daemon_set = None;
    let plan = plan(&evidence);
    assert_eq!(plan.nodes[0].obstacles[0].next, STOP_STATIC_POD);
}

#[test]
fn what_an_agent_warns_of_is_an_obstacle_until_signpost_serves_alone() {
    let degraded = ("Degraded", "True", "SourceStale");
    let failed = ("Ready", "False", "CommitFailed");
    let ipvs = (FOREIGN_PROXY_DETECTED, "True", "KubeProxyIpvs");
    let evidence = evidence(&[
        ("n1", &[failed, FOUND]),
        ("n2", &[READY_TRUE, degraded, NONE_FOUND]),
        // The agent takes over from mode ipvs as well.
        ("n3", &[READY_TRUE, ipvs]),
        ("n4", &[]),
    ]);
    let plan = plan(&evidence);
    let text = render(&plan, Format::Text, Paint::Plain);
    for line in [
        "n1: Ready is False, CommitFailed: said\n  next: The kernel refused",
        "n4: the agent does not know whether the node has rules of kube-proxy\n  next: wait",
    ] {
        assert!(text.contains(line), "no {line:?} in\n{text}");
    }
    assert!(!text.contains("n2:") && !text.contains("n3:"), "{text}");
    let obstacles = plan.nodes.iter().flat_map(|node| &node.obstacles);
    for obstacle in obstacles {
        assert!(obstacle.yields_to_force, "{obstacle:?}");
        assert!(!obstacle.next.is_empty(), "{obstacle:?}");
    }
}

#[test]
fn nodes_without_agent_or_configuration_are_named_and_windows_is_not() {
    let mut evidence = evidence(&[("n1", &[READY_TRUE, FOUND])]);
    evidence.agents.clear();
    let with_system = |name: &str, system: &str| -> Node {
        let labels = json!({"kubernetes.io/os": system});
        let node: Value = json!({"metadata": {"name": name, "labels": labels}});
        serde_json::from_value(node).expect("a Node")
    };
    evidence.nodes = vec![
        with_system("n1", "linux"),
        with_system("n2", "linux"),
        with_system("w1", "windows"),
    ];
    let plan = plan(&evidence);
    let text = render(&plan, Format::Text, Paint::Plain);
    assert!(text.contains("\nn1, n2: no agent runs\n"), "{text}");
    assert!(text.contains("\nn2: the node has no NodeProxy\n"), "{text}");
    assert!(!text.contains("w1"), "{text}");
    assert!(Plan::of(&evidence, &["n3".to_owned()]).is_err());
    let one = Plan::of(&evidence, &["n2".to_owned()]).expect("it is known");
    assert_eq!(one.nodes.len(), 1);
}

/// Failure story T198.
#[test]
fn t198_a_daemon_set_that_selects_a_node_without_a_pod_comes_before_a_takeover() {
    let mut evidence = evidence(&[
        ("n1", &[READY_TRUE, FOUND]),
        ("n2", &[READY_TRUE, NONE_FOUND]),
    ]);
    evidence.nodes = ["n1", "n2", "n3"].map(|name| node(name, &json!({}))).into();
    let steps = |evidence: &Evidence| -> Vec<Step> {
        let plan = plan(evidence);
        plan.nodes.iter().map(|node| node.step).collect()
    };
    let (stopped, selected) = (steps(&evidence), [Step::StopKubeProxy; 3]);
    assert_eq!(stopped, [Step::Takeover, Step::None, Step::Takeover]);
    evidence.daemon_set = Some(daemon_set(&json!({"kubernetes.io/os": "linux"})));
    assert_eq!(steps(&evidence), selected);
    let plan = plan(&evidence);
    assert_eq!(plan.ending(), Ending::ProblemFound);
    let text = render(&plan, Format::Text, Paint::Plain);
    let expected = format!(
        "\nn1, n2, n3: DaemonSet kube-system/kube-proxy selects the node, and starts kube-proxy on it again\n  \
         next: {STOP_KUBE_PROXY}\n"
    );
    assert!(text.contains(&expected), "{text}");
}

/// Failure story T197.
#[test]
fn t197_pods_outside_of_the_pod_cidrs_stop_a_takeover_by_node_cidr() {
    let mut evidence = evidence(&[
        ("n1", &[READY_TRUE, FOUND]),
        ("n2", &[READY_TRUE, FOUND]),
        ("n3", &[READY_TRUE, FOUND]),
        ("n4", &[READY_TRUE, NONE_FOUND]),
    ]);
    let nodes = ["n1", "n2", "n3", "n4"];
    evidence.nodes = nodes
        .map(|name| node(name, &json!({"podCIDRs": ["10.0.1.0/24"]})))
        .into();
    let by_prefix = &mut evidence.proxies.objects[2].spec.config.detect_local;
    by_prefix.mode = DetectLocalMode::InterfaceNamePrefix;
    let pods = nodes.map(|node| pod_network::tests::pod(node, node, &["10.8.0.7"], &json!([])));
    evidence.network.pods = pods.iter().filter_map(PodNetwork::of).collect();
    let inside = pod_network::tests::pod("inside", "n1", &["10.0.1.7"], &json!([]));
    evidence.network.pods.extend(PodNetwork::of(&inside));
    let plan = plan(&evidence);
    let counts: Vec<usize> = plan.nodes.iter().map(|node| node.obstacles.len()).collect();
    assert_eq!(counts, [1, 1, 0, 0], "{plan:#?}");
    assert!(plan.nodes[0].obstacles[0].yields_to_force);
    let text = render(&plan, Format::Text, Paint::Plain);
    let expected = "\nn1, n2: detectLocal.mode is NodeCIDR, and 2 of 3 Pods have addresses outside of the podCIDRs of their \
                    nodes: shop/n1 (10.8.0.7 on n1), shop/n2 (10.8.0.7 on n2)\n  next: set spec.detectLocal";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn warnings_are_printed_and_stop_nothing() {
    let mut evidence = evidence(&[("n1", &[READY_TRUE, FOUND])]);
    let mut of_gke = node("n1", &json!({}));
    let label = ("cloud.google.com/gke-nodepool", "default");
    of_gke
        .labels_mut()
        .insert(label.0.to_owned(), label.1.to_owned());
    evidence.nodes = vec![of_gke];
    evidence.daemon_set = None;
    let plan = plan(&evidence);
    assert_eq!(plan.ending(), Ending::Success);
    let text = render(&plan, Format::Text, Paint::Plain);
    assert!(
        text.contains("\nn1: warning: the node image of GKE starts kube-proxy"),
        "{text}"
    );
    assert!(text.contains("\nready for a takeover: n1\n"), "{text}");
}

#[test]
fn a_migration_that_is_over_has_no_obstacles() {
    let plan = plan(&evidence(&[("n1", &[READY_TRUE, NONE_FOUND])]));
    assert_eq!(plan.ending(), Ending::Success);
    let text = render(&plan, Format::Text, Paint::Plain);
    assert!(text.ends_with("\nSignpost alone serves 1 node\n"), "{text}");
}
