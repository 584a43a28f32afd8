//! Profiles that take Services over while something would start kube-proxy again.

use crds::starter::KubeProxyDaemonSet;
use serde_json::{Value, json};

use super::{
    Cluster,
    handover::{install, nodes_with},
    object, *,
};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

impl Cluster {
    /// Creates or replaces DaemonSet kube-system/kube-proxy, for nodes with these labels.
    fn put_kube_proxy(&mut self, selector: Value) {
        let pod = json!({"nodeSelector": selector, "containers": [], "tolerations": [{"operator": "Exists"}]});
        self.put_kube_proxy_as(json!({}), pod);
    }

    fn put_kube_proxy_as(&mut self, labels: Value, pod: Value) {
        let set = object(&json!({
            "metadata": {"name": "kube-proxy", "namespace": "kube-system", "labels": labels},
            "spec": {"selector": {}, "template": {"spec": pod}},
        }));
        let change = ObjectChange::Applied(Box::new(crate::kube_proxy_daemon_set::parse(set)));
        self.know(KubeProxyDaemonSetState::after(change).expect("it is known"));
    }

    fn know(&mut self, kube_proxy: KubeProxyDaemonSetState) {
        self.kube_proxy = kube_proxy.clone();
        self.fleet.apply(Event::KubeProxyDaemonSet(kube_proxy));
    }

    /// The agents of all nodes report rules of kube-proxy.
    fn find_rules(&mut self, status: &str) {
        for node in self.proxies.keys().cloned().collect::<Vec<_>>() {
            self.say(
                &node,
                json!({"Ready": "True", "ForeignProxyDetected": status}),
            );
        }
        self.run();
    }

    /// Sets what the nodes say about their distribution.
    fn mark_nodes(&mut self, labels: &Value, annotations: &Value, kubelet_version: &str) {
        for name in self.nodes.keys().cloned().collect::<Vec<_>>() {
            let mut node = self.nodes[&name].clone();
            node["metadata"]["labels"] = labels.clone();
            node["metadata"]["annotations"] = annotations.clone();
            node["status"] = json!({"nodeInfo": {"kubeletVersion": kubelet_version}});
            self.put_node(&name, node);
        }
    }

    /// DaemonSet kube-system/kube-proxy is deleted.
    fn delete_kube_proxy(&mut self) {
        self.know(
            KubeProxyDaemonSetState::after(ObjectChange::Deleted("kube-proxy".into()))
                .expect("known"),
        );
        self.run();
    }

    fn waits_for(&self) -> String {
        let rollout = self.status("default").rollout;
        rollout.expect("there was a rollout").waiting_for
    }

    fn rollout_phase(&self) -> String {
        self.condition("default", "Progressing")
    }
}

fn stopped() -> Value {
    json!({"signpost.dev/kube-proxy": "wanted"})
}

#[test]
fn t293_no_node_is_taken_over_while_the_daemon_set_of_kube_proxy_selects_it() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.put_kube_proxy(json!({}));
    cluster.find_rules("True");
    cluster.forget_writes();
    cluster.put_profile("default", json!({"handover": "Takeover"}));
    cluster.advance(24 * 3600);
    assert_eq!(cluster.assigned, [""; 0]);
    assert_eq!(cluster.rollout_phase(), "True/RollingOut");
    let text = cluster.waits_for();
    assert_eq!(
        text,
        "kube-proxy to stay stopped: 4 nodes: DaemonSet kube-system/kube-proxy selects the node, and starts kube-proxy \
         on it again (next, on all nodes of the cluster: kubectl -n kube-system patch daemonset kube-proxy -p '{\"spec\":{\"template\":{\"spec\":\
         {\"nodeSelector\":{\"signpost.dev/kube-proxy\":\"wanted\"}}}}}') on n1, n2, n3, n4"
    );

    cluster.put_kube_proxy(stopped());
    cluster.run();
    assert_eq!(cluster.assigned, NODES, "it goes on by itself");
    assert_eq!(cluster.rollout_phase(), "False/Settled");
    assert_eq!(cluster.waits_for(), "");
}

#[test]
fn t293_a_daemon_set_that_is_deleted_holds_no_node() {
    let mut cluster = Cluster::with_nodes(2);
    cluster.put_kube_proxy(json!({}));
    cluster.put_profile("default", json!({"handover": "Takeover"}));
    cluster.run();
    assert_eq!(nodes_with(&cluster, "Takeover"), [""; 0]);
    cluster.delete_kube_proxy();
    assert_eq!(nodes_with(&cluster, "Takeover"), ["n1", "n2"]);
}

/// kube-proxy is stopped pool by pool.
#[test]
fn t293_nodes_that_the_daemon_set_does_not_select_go_first_and_the_others_once_they_may() {
    let mut cluster = Cluster::with_nodes(4);
    for node in ["n1", "n3"] {
        cluster.relabel_node(node, json!({"pool": "old"}));
    }
    cluster.put_kube_proxy(json!({"pool": "old"}));
    cluster.find_rules("True");
    cluster.put_profile("default", json!({"handover": "Takeover"}));
    cluster.run();
    assert_eq!(nodes_with(&cluster, "Takeover"), ["n2", "n4"]);
    let text = cluster.waits_for();
    assert!(text.ends_with("on n1, n3"), "{text}");
    cluster.restart_operator();
    cluster.advance(3600);
    assert_eq!(nodes_with(&cluster, "Takeover"), ["n2", "n4"]);
    cluster.relabel_node("n1", json!({}));
    cluster.relabel_node("n3", json!({}));
    cluster.run();
    assert_eq!(nodes_with(&cluster, "Takeover"), NODES);
}

#[test]
fn t293_a_daemon_set_that_comes_back_changes_nothing_on_nodes_that_were_taken_over() {
    let mut cluster = Cluster::with_nodes(2);
    cluster.put_profile("default", json!({"handover": "Takeover"}));
    cluster.run();
    cluster.put_kube_proxy(json!({}));
    cluster.forget_writes();
    cluster.advance(3600);
    assert_eq!(cluster.assigned, [""; 0]);
    cluster.put_profile(
        "default",
        json!({"handover": "Takeover", "mode": "iptables"}),
    );
    cluster.run();
    assert_eq!(cluster.nodes_with_mode("iptables"), ["n1", "n2"]);
    cluster.put_profile(
        "default",
        json!({"handover": "Handback", "mode": "iptables"}),
    );
    cluster.run();
    assert_eq!(nodes_with(&cluster, "Handback"), ["n1", "n2"]);
}

/// A node that is new gets a configuration at once, and no other proxy serves it.
#[test]
fn t293_a_new_node_that_the_daemon_set_selects_is_served_beside_kube_proxy_at_first() {
    let mut cluster = Cluster::with_nodes(2);
    cluster.put_profile("default", json!({"handover": "Takeover"}));
    cluster.run();
    cluster.put_kube_proxy(json!({"pool": "old"}));
    cluster.add_node("n3", json!({"pool": "old"}));
    cluster.add_node("n4", json!({}));
    cluster.run();
    assert_eq!(nodes_with(&cluster, "Takeover"), ["n1", "n2", "n4"]);
    assert!(cluster.proxies.contains_key("n3"), "it is served");
    let text = cluster.waits_for();
    assert!(text.ends_with("on n3"), "{text}");
    cluster.put_kube_proxy(stopped());
    cluster.run();
    assert_eq!(nodes_with(&cluster, "Takeover"), NODES);
    assert_eq!(cluster.waits_for(), "");
}

#[test]
fn t293_a_new_installation_waits_for_kube_proxy_and_serves_beside_it() {
    let mut cluster = Cluster::new();
    cluster.put_kube_proxy(json!({}));
    let nodes = install(&mut cluster, 3, json!({"handover": "Takeover"}));
    cluster.mute.clear();
    cluster.advance(3600);
    assert_eq!(cluster.assigned, nodes, "each has a configuration");
    assert_eq!(nodes_with(&cluster, "Takeover"), [""; 0]);
    cluster.put_kube_proxy(stopped());
    cluster.run();
    assert_eq!(nodes_with(&cluster, "Takeover"), nodes);
}

/// kube-proxy was started again before the profile hands back, as the documentation says.
#[test]
fn t293_a_node_that_joins_a_handback_is_not_taken_over_first() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.put_profile("default", json!({"handover": "Takeover"}));
    cluster.run();
    cluster.put_kube_proxy(json!({}));
    cluster.mute = cluster.nodes.keys().cloned().collect();
    cluster.put_profile("default", json!({"handover": "Handback"}));
    cluster.run();
    cluster.add_node("n4", json!({}));
    cluster.run();
    assert!(cluster.proxies.contains_key("n4"), "it is served");
    assert!(!nodes_with(&cluster, "Takeover").contains(&"n4".to_owned()));
}

#[test]
fn t293_a_node_that_waits_does_not_keep_others_from_being_changed_or_proven() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.relabel_node("n1", json!({"pool": "old"}));
    cluster.put_kube_proxy(json!({"pool": "old"}));
    cluster.find_rules("True");
    cluster.say(
        "n4",
        json!({"Ready": "False", "ForeignProxyDetected": "True"}),
    );
    cluster.put_profile(
        "default",
        json!({"handover": "Takeover", "mode": "iptables"}),
    );
    cluster.advance(3600);
    assert_eq!(
        nodes_with(&cluster, "Takeover"),
        ["n2", "n3", "n4"],
        "ready or not"
    );
    cluster.add_node("n5", json!({}));
    cluster.forget_writes();
    cluster.run();
    assert_eq!(cluster.assigned, ["n5"], "once, with what is proven");
    assert_eq!(
        cluster.nodes_with_mode("iptables"),
        ["n2", "n3", "n4", "n5"]
    );
}

#[test]
fn t293_what_a_distribution_starts_again_is_waited_for_as_well() {
    let mut cluster = Cluster::with_nodes(2);
    let arguments = json!({"k3s.io/node-args": "[\"server\"]"});
    cluster.mark_nodes(&json!({}), &arguments, "v1.33.1+k3s1");
    cluster.find_rules("True");
    cluster.put_profile("default", json!({"handover": "Takeover"}));
    cluster.run();
    assert_eq!(nodes_with(&cluster, "Takeover"), [""; 0]);
    let text = cluster.waits_for();
    assert!(
        text.contains("k3s runs kube-proxy in its own process (next: `disable-kube-proxy: true`"),
        "{text}"
    );
    // k3s is restarted, server by server. The other one still runs kube-proxy.
    for (node, asked) in [("n1", &[][..]), ("n2", &["n1", "n2"])] {
        let mut object = cluster.nodes[node].clone();
        let arguments = "[\"server\",\"--disable-kube-proxy\"]";
        object["metadata"]["annotations"] = json!({"k3s.io/node-args": arguments});
        cluster.put_node(node, object);
        cluster.run();
        assert_eq!(nodes_with(&cluster, "Takeover"), asked);
    }
}

#[test]
fn t335_rke2_that_writes_the_static_pod_again_is_waited_for_until_its_servers_disable_kube_proxy() {
    let mut cluster = Cluster::with_nodes(2);
    let arguments = |arguments: &str| json!({"rke2.io/node-args": arguments});
    let version = "v1.33.1+rke2r1";
    cluster.mark_nodes(&json!({}), &arguments("[\"server\"]"), version);
    cluster.find_rules("True");
    cluster.put_profile("default", json!({"handover": "Takeover"}));
    cluster.advance(3600);
    assert_eq!(nodes_with(&cluster, "Takeover"), [""; 0]);
    assert_eq!(cluster.rollout_phase(), "True/RollingOut");
    let text = cluster.waits_for();
    assert!(
        text.contains(
            "RKE2 starts the static Pod of kube-proxy again when it starts (next: `disable-kube-proxy: true` in \
             /etc/rancher/rke2/config.yaml of all servers"
        ),
        "{text}"
    );
    assert!(text.ends_with("on n1, n2"), "{text}");
    let disabled = arguments("[\"server\",\"--disable-kube-proxy\",\"true\"]");
    cluster.mark_nodes(&json!({}), &disabled, version);
    cluster.run();
    assert_eq!(nodes_with(&cluster, "Takeover"), ["n1", "n2"]);
    assert_eq!(cluster.waits_for(), "");
}

#[test]
fn t335_on_aks_a_daemon_set_that_is_restored_is_waited_for_until_it_is_gone() {
    let mut cluster = Cluster::with_nodes(2);
    let labels = json!({"kubernetes.azure.com/cluster": "a"});
    cluster.mark_nodes(&labels, &json!({}), "v1.33.1");
    // Patched so that it selects no node, which lasts until it is reconciled.
    let reconciled = json!({"addonmanager.kubernetes.io/mode": "Reconcile"});
    cluster.put_kube_proxy_as(
        reconciled,
        json!({"nodeSelector": stopped(), "containers": []}),
    );
    cluster.find_rules("True");
    cluster.put_profile("default", json!({"handover": "Takeover"}));
    cluster.advance(3600);
    assert_eq!(nodes_with(&cluster, "Takeover"), [""; 0]);
    let text = cluster.waits_for();
    assert!(
        text.contains(
            "an add-on manager keeps DaemonSet kube-system/kube-proxy as it was, and starts kube-proxy again (next: a \
             kube-proxy configuration with `enabled: false`"
        ),
        "{text}"
    );
    cluster.delete_kube_proxy();
    assert_eq!(nodes_with(&cluster, "Takeover"), ["n1", "n2"]);
    assert_eq!(cluster.waits_for(), "");
}

/// There is no object by which it could be stopped, so that its nodes wait for ever; others do not.
#[test]
fn t335_nodes_of_eks_auto_mode_are_not_taken_over_and_keep_no_other_from_it() {
    let mut cluster = Cluster::with_nodes(2);
    cluster.relabel_node("n1", json!({"eks.amazonaws.com/compute-type": "auto"}));
    cluster.find_rules("True");
    cluster.put_profile("default", json!({"handover": "Takeover"}));
    cluster.advance(3600);
    assert_eq!(nodes_with(&cluster, "Takeover"), ["n2"]);
    let text = cluster.waits_for();
    assert!(
        text.contains(
            "1 node: EKS Auto Mode runs kube-proxy on its nodes itself (next: there is no way to stop kube-proxy on \
             nodes of EKS Auto Mode: do not install Signpost on them) on n1"
        ),
        "{text}"
    );
    cluster.restart_operator();
    cluster.advance(3600);
    assert_eq!(nodes_with(&cluster, "Takeover"), ["n2"]);
}

/// The managed add-on of EKS restores its DaemonSet at its next update only, if it is still one.
#[test]
fn t336_what_may_start_kube_proxy_again_is_said_and_holds_no_node() {
    let mut cluster = Cluster::with_nodes(2);
    let labels = json!({"eks.amazonaws.com/nodegroup": "a"});
    cluster.mark_nodes(&labels, &json!({}), "v1.33.1-eks-1");
    cluster.put_kube_proxy(stopped());
    cluster.find_rules("True");
    let said = |cluster: &Cluster| cluster.message("default", "Progressing");
    let is_said = |cluster: &Cluster| said(cluster).contains("may be started again");
    assert!(!is_said(&cluster), "no node takes anything over");

    cluster.mute.insert("n1".into());
    cluster.put_profile("default", json!({"handover": "Takeover"}));
    cluster.run();
    assert_eq!(nodes_with(&cluster, "Takeover"), ["n1"]);
    let doubt = "kube-proxy may be started again: 2 nodes: an update of the managed add-on of EKS may restore DaemonSet \
                 kube-system/kube-proxy (next: if kube-proxy is a managed add-on, first `aws eks delete-addon";
    assert!(said(&cluster).contains(doubt), "{}", said(&cluster));
    let text = cluster.waits_for();
    assert_eq!(text, "1 node of wave 1 to be available: n1");

    cluster.mute.clear();
    cluster.run();
    assert_eq!(nodes_with(&cluster, "Takeover"), ["n1", "n2"]);
    assert_eq!(cluster.rollout_phase(), "False/Settled");
    assert_eq!(cluster.waits_for(), "");
    assert!(said(&cluster).contains(doubt), "{}", said(&cluster));
    let end = "; the note stays until DaemonSet kube-system/kube-proxy is deleted) on n1, n2";
    assert!(said(&cluster).ends_with(end), "{}", said(&cluster));

    cluster.delete_kube_proxy();
    assert_eq!(said(&cluster), "every node has the profile's configuration");
}

/// A kube-proxy in the process of k3s would have written its rules, so that the doubt ends.
#[test]
fn t336_that_k3s_may_run_kube_proxy_is_said_until_signpost_alone_serves_the_nodes() {
    for version in ["v1.33.1+k3s1", "v1.33.1+rke2r1"] {
        let mut cluster = Cluster::with_nodes(2);
        cluster.mark_nodes(&json!({}), &json!({}), version);
        cluster.find_rules("True");
        cluster.put_profile("default", json!({"handover": "Takeover"}));
        cluster.run();
        let said = cluster.message("default", "Progressing");
        assert!(said.contains("kube-proxy may be started again"), "{said}");
        cluster.find_rules("False");
        let said = cluster.message("default", "Progressing");
        assert_eq!(said, "every node has the profile's configuration");
    }
}

/// A verdict that the definition does not know is read from the message by an operator that starts.
#[test]
fn t336_what_may_start_kube_proxy_again_is_no_part_of_a_verdict() {
    let mut cluster = Cluster::with_nodes(2);
    let eks = |role: &str| json!({"eks.amazonaws.com/nodegroup": "a", "role": role});
    cluster.mark_nodes(&eks("other"), &json!({}), "v1.33.1-eks-1");
    cluster.put_kube_proxy(stopped());
    cluster.unknown_fields = ["rollout.verdict".to_owned()].into();
    cluster.relabel_node("n2", eks("edge"));
    let selector = json!({"matchLabels": {"role": "edge"}});
    let edge = json!({"priority": 10, "mode": "iptables", "handover": "Takeover", "nodeSelector": selector});
    cluster.put_profile("edge", edge);
    cluster.run();
    cluster.advance(3600);
    let said = |cluster: &Cluster| cluster.message("edge", "Progressing");
    assert!(said(&cluster).contains("may be started again"));

    cluster.add_node("n3", eks("other"));
    cluster.run();
    cluster.broken_mode = Some("iptables");
    for node in ["n1", "n3"] {
        cluster.relabel_node(node, eks("edge"));
    }
    cluster.advance(121);
    assert_eq!(cluster.condition("edge", "Progressing"), "False/HeldBack");
    let verdict = said(&cluster);
    assert!(!verdict.contains("may be started again"), "{verdict}");
    for _ in 0..2 {
        cluster.restart_operator();
        cluster.advance(10);
        assert_eq!(said(&cluster), verdict);
    }
}

#[test]
fn t294_an_operator_that_may_not_read_the_daemon_set_takes_no_services_over_and_says_so() {
    let mut cluster = Cluster::with_nodes(2);
    cluster.find_rules("True");
    cluster.know(KubeProxyDaemonSetState::Forbidden);
    cluster.put_profile("default", json!({"mode": "iptables"}));
    cluster.run();
    assert_eq!(
        cluster.nodes_with_mode("iptables"),
        ["n1", "n2"],
        "nothing else waits"
    );
    cluster.find_rules("True");
    cluster.put_profile("default", json!({"handover": "Takeover"}));
    cluster.advance(3600);
    assert_eq!(nodes_with(&cluster, "Takeover"), [""; 0]);
    let text = cluster.waits_for();
    assert!(
        text.contains("the operator may not read DaemonSet kube-system/kube-proxy"),
        "{text}"
    );
    assert!(
        text.contains("grant it Role signpost-operator-kube-proxy of namespace kube-system"),
        "{text}"
    );
    cluster.find_rules("False");
    assert_eq!(
        nodes_with(&cluster, "Takeover"),
        ["n1", "n2"],
        "nothing changes hands there"
    );
}

/// The DaemonSet controller writes the status of the DaemonSet with each Pod that starts.
#[test]
fn t293_a_daemon_set_that_says_the_same_again_costs_no_plan_of_all_nodes() {
    let mut cluster = Cluster::with_nodes(2);
    cluster.put_kube_proxy(stopped());
    cluster.run();
    cluster.put_kube_proxy(stopped());
    assert!(!cluster.fleet.has_changes());
    cluster.put_kube_proxy(json!({}));
    assert!(cluster.fleet.has_changes());
}

#[test]
fn names_of_many_nodes_fit_into_the_status() {
    let mut cluster = Cluster::new();
    cluster.put_kube_proxy(json!({}));
    for number in 0..9 {
        cluster.add_node(&format!("{number}{}", "n".repeat(252)), json!({}));
    }
    cluster.put_profile("default", json!({}));
    cluster.run();
    cluster.put_profile("default", json!({"handover": "Takeover"}));
    cluster.run();
    let text = cluster.waits_for();
    assert!(text.contains("9 nodes") && text.len() <= 4096, "{text}");
}

#[test]
fn a_daemon_set_that_is_being_deleted_is_none() {
    let set = json!({
        "metadata": {"name": "kube-proxy", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"selector": {}, "template": {"spec": {"containers": []}}},
    });
    let parsed: Option<KubeProxyDaemonSet> = crate::kube_proxy_daemon_set::parse(object(&set));
    let known = KubeProxyDaemonSetState::after(ObjectChange::Listed(vec![parsed]));
    assert_eq!(known, Some(KubeProxyDaemonSetState::Absent));
}
