use crds::starter::{ADD_ON, K3S, RKE2, STOP_STATIC_POD};
use serde_json::{Value, json};

use super::super::tests;
use super::*;

/// A node of k3s, RKE2 or another distribution, with the arguments of its process.
fn node(version: &str, labels: Value, arguments: Option<(&str, &str)>) -> Node {
    let annotations = arguments.map(|(key, arguments)| json!({key: arguments}));
    let info = json!({
        "kubeletVersion": version, "architecture": "", "bootID": "", "containerRuntimeVersion": "",
        "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "operatingSystem": "linux",
        "osImage": "", "systemUUID": "",
    });
    let node = json!({
        "metadata": {"name": "n1", "labels": labels, "annotations": annotations},
        "status": {"nodeInfo": info},
    });
    serde_json::from_value(node).expect("a Node")
}

/// What certainly starts kube-proxy on the first node, or else what may, and what to do.
fn found(nodes: &[Node], daemon_set: Option<&DaemonSet>) -> [Option<String>; 3] {
    let daemon_set = daemon_set.and_then(super::daemon_set);
    let starters = Starters::of(daemon_set.as_ref(), nodes.iter().map(marks));
    let certain = next_start(&starters, &nodes[0], Serving::Both);
    let doubt = doubt(&starters, &nodes[0], Serving::Both);
    [
        certain.map(|certain| certain.what),
        doubt.map(|doubt| doubt.what),
        Some(starters.stop(Some(marks(&nodes[0]))).to_owned()),
    ]
}

fn begins(text: &Option<String>, beginning: &str) -> bool {
    match text {
        Some(text) => !beginning.is_empty() && text.starts_with(beginning),
        None => beginning.is_empty(),
    }
}

#[test]
fn t198_k3s_and_rke2_run_kube_proxy_unless_their_servers_disable_it() {
    for (version, key, certain, doubt) in [
        (
            "v1.33.1+k3s1",
            K3S,
            "k3s runs kube-proxy",
            "k3s may run kube-proxy",
        ),
        (
            "v1.33.1+rke2r1",
            RKE2,
            "RKE2 starts the static Pod",
            "RKE2 may start kube-proxy",
        ),
    ] {
        let of = |arguments: &str| node(version, json!({}), Some((key, arguments)));
        let agent = of(r#"["agent","--server","https://192.168.0.1:6443"]"#);
        for (servers, expected) in [
            (vec![r#"["server"]"#], (certain, "")),
            (vec![r#"["server","--disable-kube-proxy"]"#], ("", "")),
            (
                vec![r#"["server","--disable-kube-proxy","true","-c","x"]"#],
                ("", ""),
            ),
            (
                vec![r#"["server","--disable-kube-proxy","false"]"#],
                (certain, ""),
            ),
            (
                vec![r#"["--debug","server","--cni","cilium"]"#],
                (certain, ""),
            ),
            (
                vec![r#"["server","--disable-kube-proxy"]"#, r#"["server"]"#],
                (certain, ""),
            ),
            (vec![], ("", doubt)),
            (vec!["no list"], ("", doubt)),
        ] {
            let mut nodes = vec![agent.clone()];
            nodes.extend(servers.iter().map(|arguments| of(arguments)));
            let [is_certain, is_doubtful, stop] = found(&nodes, None);
            let is_as_expected =
                begins(&is_certain, expected.0) && begins(&is_doubtful, expected.1);
            assert!(
                is_as_expected,
                "{servers:?}: {is_certain:?}, {is_doubtful:?}"
            );
            assert!(stop.is_some_and(|stop| stop.starts_with("`disable-kube-proxy: true` in ")));
        }
        let nodes = [agent, of(r#"["server"]"#)];
        let starters = Starters::of(None, nodes.iter().map(marks));
        assert_eq!(next_start(&starters, &nodes[0], Serving::Signpost), None);
        let unknown = Starters::of(None, nodes[..1].iter().map(marks));
        assert!(super::doubt(&unknown, &nodes[0], Serving::Signpost).is_none());
    }
}

#[test]
fn t198_add_ons_that_restore_the_daemon_set_are_named() {
    let stopped = tests::daemon_set(&json!({"signpost.dev/kube-proxy": "wanted"}));
    let mut reconciled = stopped.clone();
    let (label, value) = ADD_ON;
    reconciled
        .labels_mut()
        .insert(label.to_owned(), value.to_owned());
    let eks = || node("v1.33.1-eks-113cf36", json!({}), None);
    let group = || node("v1.33.1", json!({"eks.amazonaws.com/nodegroup": "a"}), None);
    let auto = node(
        "v1.33.1-eks-113cf36",
        json!({"eks.amazonaws.com/compute-type": "auto"}),
        None,
    );
    let aks = || {
        node(
            "v1.33.1",
            json!({"kubernetes.azure.com/cluster": "c"}),
            None,
        )
    };
    let gke = || {
        node(
            "v1.33.1-gke.1",
            json!({"cloud.google.com/gke-nodepool": "p"}),
            None,
        )
    };
    let plain = || node("v1.33.1", json!({}), None);
    let (keeps, eks_add_on) = (
        "an add-on manager keeps",
        "an update of the managed add-on of EKS",
    );
    let delete = "if kube-proxy is a managed add-on, first `aws eks delete-addon";
    let azure = "a kube-proxy configuration with `enabled: false`";
    let patch = "kubectl -n kube-system patch daemonset";
    for (node, set, certain, doubt, stop) in [
        (eks(), Some(&stopped), "", eks_add_on, delete),
        (group(), Some(&stopped), "", eks_add_on, delete),
        (eks(), None, "", "", delete),
        (
            auto,
            None,
            "EKS Auto Mode runs kube-proxy",
            "",
            "there is no way to stop kube-proxy",
        ),
        (aks(), Some(&stopped), "", "AKS may restore", azure),
        (aks(), Some(&reconciled), keeps, "AKS may restore", azure),
        (aks(), None, "", "", azure),
        (
            gke(),
            None,
            "",
            "the node image of GKE",
            "there is no supported way to stop",
        ),
        (gke(), Some(&stopped), "", "", patch),
        (plain(), Some(&stopped), "", "", patch),
        (
            plain(),
            Some(&reconciled),
            keeps,
            "",
            "take kube-proxy out of the add-ons",
        ),
        (plain(), None, "", "", STOP_STATIC_POD),
    ] {
        let nodes = [node];
        let found = found(&nodes, set);
        let expected = [certain, doubt, stop];
        let is_as_expected = found
            .iter()
            .zip(expected)
            .all(|(found, expected)| begins(found, expected));
        assert!(is_as_expected, "{expected:?} is not\n{found:?}");
    }
}

#[test]
fn a_daemon_set_that_is_being_deleted_starts_nothing() {
    let mut set = tests::daemon_set(&json!({}));
    let nodes = [node("v1.33.1", json!({}), None)];
    let is_certain = |set: &DaemonSet| found(&nodes, Some(set))[0].is_some();
    assert!(is_certain(&set));
    let now = serde_json::from_value(json!("2026-01-01T00:00:00Z"));
    set.metadata.deletion_timestamp = Some(now.expect("a time"));
    assert!(!is_certain(&set));
}
