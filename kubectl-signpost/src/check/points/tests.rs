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
        placements: Vec::new(),
        forwarding: Vec::new(),
        kube_proxy: None,
        kube_proxy_configuration: None,
        definitions: [None, None],
        profiles: None,
        proxies: None,
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

fn profile(mode: DetectLocalMode) -> ProxyProfile {
    let mut profile = ProxyProfile::new("default", crds::ProxyProfileSpec::default());
    profile.spec.detect_local.mode = mode;
    profile
}

/// Clusters whose network plugin has its own addresses were refused, although the chart can be told.
#[test]
fn pods_outside_of_their_nodes_pod_cidrs_are_a_note_until_a_profile_says_otherwise() {
    let mut evidence = evidence();
    let outside = pod("b", "n1", "192.168.7.7", &json!({}));
    evidence.pods.extend(networks(&[outside]));
    let points = before(&evidence);
    assert_eq!(ending(&points), Ending::Success);
    let said = text(&points);
    let note = "note   of 2 Pods, 1 has an address outside of the podCIDRs of its node: shop/b (192.168.7.7 on n1)\n\
               \x20      next: give the chart profile.spec.detectLocal";
    assert!(said.contains(note), "{said}");
    evidence.profiles = Some(vec![profile(DetectLocalMode::NodeCidr)]);
    let points = before(&evidence);
    assert_eq!(ending(&points), Ending::ProblemFound);
    assert!(text(&points).contains("fault  of 2 Pods, 1 has"));
    evidence.profiles = Some(vec![profile(DetectLocalMode::InterfaceNamePrefix)]);
    assert_eq!(ending(&before(&evidence)), Ending::Success);
}

#[test]
fn only_pods_of_nodes_that_detect_by_pod_cidrs_are_compared() {
    let mut evidence = evidence();
    evidence.nodes.push(node("n2", "6.18.4"));
    let other = pod("b", "n2", "192.168.7.7", &json!({}));
    evidence.pods.extend(networks(&[other]));
    let modes = [
        DetectLocalMode::NodeCidr,
        DetectLocalMode::InterfaceNamePrefix,
    ];
    evidence.profiles = Some(modes.map(profile).to_vec());
    assert!(text(&before(&evidence)).contains("of 2 Pods, 1 has"));
    let proxy = |name: &str, mode: DetectLocalMode| {
        let mut spec = crds::NodeProxySpec::default();
        spec.config.detect_local.mode = mode;
        NodeProxy::new(name, spec)
    };
    evidence.proxies = Some(vec![
        proxy("n1", DetectLocalMode::NodeCidr),
        proxy("n2", DetectLocalMode::InterfaceNamePrefix),
    ]);
    let said = text(&before(&evidence));
    assert!(said.contains("ok     the addresses of 1 Pod are"), "{said}");
}

/// Nodes that can have no agent made `check` fail for ever.
#[test]
fn nodes_on_which_no_agent_may_run_are_not_counted() {
    let mut evidence = evidence();
    let labels =
        json!({"app.kubernetes.io/name": "signpost", "app.kubernetes.io/component": "agent"});
    evidence
        .signpost
        .push(pod("agent-1", "n1", "10.0.0.1", &labels));
    let mut virtual_node = node("n2", "6.18.4");
    let type_label = ("type".to_owned(), "virtual-kubelet".to_owned());
    virtual_node.labels_mut().extend([type_label]);
    evidence.nodes.push(virtual_node);
    evidence.nodes.push(node("n3", "6.18.4"));
    let said = text(&after(&evidence));
    assert!(
        said.contains("no agent is ready on 1 Linux node: n3\n"),
        "{said}"
    );
    let only_n1 = json!({"template": {"spec": {"affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
        ]},
    }}}}});
    evidence.placements = vec![Placement::parse("signpost-agent".to_owned(), &only_n1)];
    let said = text(&after(&evidence));
    let fine = "ok     an agent is ready on each of 1 Linux node; the DaemonSet leaves out n3\n";
    assert!(said.contains(fine), "{said}");
    evidence.signpost.clear();
    let nowhere = json!({"template": {"spec": {"nodeSelector": {"no": "node"}}}});
    evidence.placements = vec![Placement::parse("signpost-agent".to_owned(), &nowhere)];
    let said = text(&after(&evidence));
    let fault = "fault  the DaemonSet of the agents leaves out every Linux node: n1, ";
    assert!(said.contains(fault), "{said}");
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
    evidence.kube_proxy_configuration = None;
    let said = text(&before(&evidence));
    let unknown = "note   kube-proxy runs on 2 nodes; its mode is not known: no ConfigMap kube-system/kube-proxy with";
    assert!(said.contains(unknown), "{said}");
    let configured = |data: &str| {
        let data = json!({"data": {"config.conf": data}});
        Some(from_value(data).expect("a map"))
    };
    // EKS has only a kubeconfig there.
    evidence.kube_proxy_configuration = configured("kind: Config\nclusters: []\n");
    assert!(text(&before(&evidence)).contains(unknown));
    evidence.kube_proxy_configuration = configured("kind: KubeProxyConfiguration\nmode: ''\n");
    let said = text(&before(&evidence));
    assert!(said.contains("in mode iptables, the default\n"), "{said}");
}
