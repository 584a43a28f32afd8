use serde_json::{Value, from_value, json};

use super::*;

fn node(name: &str, kernel: &str) -> Node {
    from_value(json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"}},
        "spec": {"podCIDRs": ["10.0.1.0/24"]},
        "status": {"nodeInfo": {
            "kernelVersion": kernel, "architecture": "", "bootID": "", "containerRuntimeVersion": "", "kubeProxyVersion": "",
            "kubeletVersion": "", "machineID": "", "operatingSystem": "linux", "osImage": "", "systemUUID": "",
        }},
    }))
    .expect("a Node")
}

fn pod(name: &str, node: &str, ip: &str, labels: &Value) -> Pod {
    from_value(json!({
        "metadata": {"name": name, "namespace": "shop", "labels": labels},
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Running", "podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]},
    }))
    .expect("a Pod")
}

fn networks(pods: &[Pod]) -> Vec<PodNetwork> {
    pods.iter().filter_map(PodNetwork::of).collect()
}

fn evidence() -> Evidence {
    Evidence {
        version: ("1".to_owned(), "36".to_owned()),
        nodes: vec![node("n1", "6.18.4")],
        pods: networks(&[pod("a", "n1", "10.0.1.9", &json!({}))]),
        signpost: Vec::new(),
        forwarding: Vec::new(),
        kube_proxy: None,
        kube_proxy_configuration: None,
        definitions: [None, None],
        profiles: None,
        rights: vec![Right {
            resource: "clusterroles",
            allowed: true,
        }],
    }
}

fn text(points: &[Point]) -> String {
    render(points, Paint::Plain)
}

#[test]
fn a_cluster_without_faults_can_be_installed_on() {
    let points = before(&evidence());
    assert_eq!(ending(&points), Ending::Success);
    assert_eq!(
        text(&points),
        "ok     Kubernetes 1.36\n\
         ok     1 Linux node, none with a kernel before 5.10\n\
         ok     the addresses of 1 Pod are in the podCIDRs of their nodes\n\
         note   no Pods of a DaemonSet kube-system/kube-proxy run\n\
        \x20      next: if kube-proxy is started in another way (k3s, RKE2, GKE), see https://github.com/signpost/signpost/blob/main/docs/migrate.md\n\
         ok     you may create the objects of the chart\n"
    );
}

#[test]
fn pods_outside_of_their_nodes_pod_cidrs_are_a_fault_of_the_default_profile() {
    let mut evidence = evidence();
    let outside = pod("b", "n1", "192.168.7.7", &json!({}));
    evidence.pods.extend(networks(&[outside]));
    let points = before(&evidence);
    assert_eq!(ending(&points), Ending::ProblemFound);
    let said = text(&points);
    assert!(
        said.contains("fault  the addresses of 1 of 2 Pods are outside"),
        "{said}"
    );
    assert!(said.contains("shop/b (192.168.7.7 on n1)"), "{said}");
    let mut profile = ProxyProfile::new("default", crds::ProxyProfileSpec::default());
    profile.spec.detect_local.mode = DetectLocalMode::InterfaceNamePrefix;
    evidence.profiles = Some(vec![profile]);
    assert_eq!(ending(&before(&evidence)), Ending::Success);
}

#[test]
fn what_an_installation_lacks_is_named() {
    let mut evidence = evidence();
    evidence.version.1 = "31+".to_owned();
    evidence.nodes.push(node("n2", "5.4.0-91-generic"));
    let labels =
        json!({"app.kubernetes.io/name": "signpost", "app.kubernetes.io/component": "agent"});
    evidence
        .signpost
        .push(pod("agent-1", "n1", "10.0.0.1", &labels));
    let said = text(&after(&evidence));
    for expected in [
        "fault  Kubernetes 1.31+\n",
        "note   2 Linux nodes, some with kernels that no test runs on: 5.4.0-91-generic on 1\n",
        "fault  0 of 2 CustomResourceDefinitions are established\n",
        "fault  no operator is ready\n",
        "fault  no agent is ready on 1 Linux node: n2\n",
        "fault  there is no ProxyProfile",
    ] {
        assert!(said.contains(expected), "{expected:?} is not in\n{said}");
    }
}

/// `check` counted Pods of phase Running, as that of a container that is restarted again and again.
#[test]
fn t237_a_pod_that_is_not_ready_is_named_with_what_it_waits_for() {
    let mut evidence = evidence();
    for (component, name) in [("agent", "agent-1"), ("operator", "operator-1")] {
        let labels =
            json!({"app.kubernetes.io/name": "signpost", "app.kubernetes.io/component": component});
        let mut crashing = pod(name, "n1", "10.0.0.1", &labels);
        let waiting = json!({
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "False"}],
            "containerStatuses": [{"name": component, "image": "", "imageID": "", "ready": false, "restartCount": 9,
                                   "state": {"waiting": {"reason": "CrashLoopBackOff"}}}],
        });
        crashing.status = from_value(waiting).expect("a status");
        evidence.signpost.push(crashing);
    }
    let points = after(&evidence);
    assert_eq!(ending(&points), Ending::ProblemFound);
    let said = text(&points);
    for expected in [
        "fault  no operator is ready (operator-1: CrashLoopBackOff)\n",
        "fault  no agent is ready on 1 Linux node: n1 (agent-1: CrashLoopBackOff)\n",
    ] {
        assert!(said.contains(expected), "{expected:?} is not in\n{said}");
    }
}

/// `check --pre` approved of clusters whose network plugin forwards Services.
#[test]
fn t240_a_network_plugin_that_may_forward_services_is_named() {
    let set = |name: &str, env: Value| -> DaemonSet {
        from_value(json!({
            "metadata": {"name": name, "namespace": "kube-system"},
            "spec": {
                "selector": {},
                "template": {"spec": {"containers": [{"name": "main", "env": env}]}},
            },
        }))
        .expect("a DaemonSet")
    };
    let bpf = |value: &str| json!([{"name": "FELIX_BPFENABLED", "value": value}]);
    let sets = [
        set("cilium", json!([])),
        set("calico-node", bpf("true")),
        set("calico-node-2", bpf("false")),
        set("kube-proxy", json!([])),
        set("cilium-envoy", json!([])),
    ];
    let mut evidence = evidence();
    evidence.forwarding = sets.iter().filter_map(name_forwarding).collect();
    let said = text(&before(&evidence));
    let expected = "note   the network plugin may forward Services itself: DaemonSet kube-system/cilium, kube-system/calico-node\n";
    assert!(said.contains(expected), "{said}");
    assert!(text(&after(&evidence)).contains(expected));
}

#[test]
fn kube_proxys_mode_is_read_from_its_configuration() {
    let mut evidence = evidence();
    let status = json!({"currentNumberScheduled": 2, "desiredNumberScheduled": 2, "numberMisscheduled": 0, "numberReady": 2});
    evidence.kube_proxy =
        Some(from_value(json!({"metadata": {}, "status": status})).expect("a set"));
    let data = json!({"data": {"config.conf": "kind: KubeProxyConfiguration\nmode: ipvs\n"}});
    evidence.kube_proxy_configuration = Some(from_value(data).expect("a map"));
    let said = text(&before(&evidence));
    assert!(
        said.contains("note   kube-proxy runs on 2 nodes, in mode ipvs\n"),
        "{said}"
    );
}
