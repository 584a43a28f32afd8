//! What starts kube-proxy on a node, and whether it starts it again once it is stopped. Pure.
//!
//! docs/migrate.md says the same for the reader of each distribution.

use std::collections::BTreeMap;

use crds::placement::{Candidate, Placement, Pods};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use serde_json::to_value;

use super::Serving;
use super::obstacle::{Obstacle, Warning};
use crate::advice::page;
use crate::migrate::KUBE_PROXY;

/// What the cluster says about the ways in which kube-proxy is started.
#[derive(Debug)]
pub(super) struct Starters<'a> {
    /// The DaemonSet kube-system/kube-proxy, unless it is being deleted.
    daemon_set: Option<OwnDaemonSet>,
    nodes: &'a [Node],
}

/// The DaemonSet of kube-proxy.
#[derive(Debug)]
struct OwnDaemonSet {
    placement: Placement,
    /// Whether an add-on manager keeps it as it was (`cluster/addons/addon-manager` in Kubernetes).
    is_reconciled: bool,
}

/// The distribution of a node, as far as it decides how kube-proxy is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Distribution {
    K3s,
    Rke2,
    Eks,
    EksAuto,
    Aks,
    Gke,
    Other,
}

/// Whether k3s or RKE2 starts kube-proxy, by the arguments of its servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Embedded {
    Enabled,
    Disabled,
    /// No server says it, or they say different things.
    Unknown,
}

/// The command that stops kube-proxy on all nodes without removing it.
pub(super) const STOP_KUBE_PROXY: &str = "kubectl -n kube-system patch daemonset kube-proxy -p \
    '{\"spec\":{\"template\":{\"spec\":{\"nodeSelector\":{\"signpost.dev/kube-proxy\":\"wanted\"}}}}}'";
pub(super) const STOP_STATIC_POD: &str = concat!(
    page!("migrate.md"),
    " says for each distribution how to stop kube-proxy so that it stays stopped"
);

/// The label by which an add-on manager knows what it keeps as it was. AKS has it on its DaemonSet.
const ADD_ON: (&str, &str) = ("addonmanager.kubernetes.io/mode", "Reconcile");
/// The annotations with the arguments of k3s and RKE2 on a node (`pkg/nodeconfig` in k3s).
const K3S: &str = "k3s.io/node-args";
const RKE2: &str = "rke2.io/node-args";
/// The flag of their servers.
const DISABLE: &str = "--disable-kube-proxy";

/// Returns the kube-proxy Pods that have not ended, by node: those of the DaemonSet and static
/// Pods.
pub(super) fn kube_proxy_pods(pods: &[Pod]) -> BTreeMap<&str, &Pod> {
    let of_node = pods.iter().filter_map(|pod| {
        let node = pod.spec.as_ref()?.node_name.as_deref()?;
        let phase = pod.status.as_ref()?.phase.as_deref();
        let has_ended = matches!(phase, Some("Succeeded" | "Failed"));
        let is_kube_proxy = pod.owner_references().iter().any(|owner| {
            match owner.kind.as_str() {
                "DaemonSet" => owner.name == KUBE_PROXY,
                // A kubelet appends the node's name to the name of a static Pod, and the Node owns
                // it.
                "Node" => pod.name_any() == format!("{KUBE_PROXY}-{node}"),
                _ => false,
            }
        });
        (is_kube_proxy && !has_ended).then_some((node, pod))
    });
    of_node.collect()
}

// === impl Starters ===

impl<'a> Starters<'a> {
    pub(super) fn of(daemon_set: Option<&DaemonSet>, nodes: &'a [Node]) -> Starters<'a> {
        let daemon_set = daemon_set.filter(|set| set.metadata.deletion_timestamp.is_none());
        Starters {
            daemon_set: daemon_set.map(OwnDaemonSet::of),
            nodes,
        }
    }

    /// Returns what to do so that kube-proxy stays stopped on `node`, which is `None` if the user
    /// may not read it.
    pub(super) fn stop(&self, node: Option<&Node>) -> String {
        let distribution = node.map_or(Distribution::Other, Distribution::of);
        let text = match (distribution, &self.daemon_set) {
            (Distribution::Eks, _) => {
                return format!(
                    "if kube-proxy is a managed add-on, first `aws eks delete-addon --cluster-name C --addon-name kube-proxy \
                     --preserve`, which leaves its DaemonSet; then {STOP_KUBE_PROXY}"
                );
            }
            (Distribution::EksAuto, _) => {
                "there is no way to stop kube-proxy on nodes of EKS Auto Mode: do not install Signpost on them"
            }
            (Distribution::Aks, _) => {
                "a kube-proxy configuration with `enabled: false` (`az aks update --kube-proxy-config`, a preview feature) \
                 removes it; without that AKS reverts a patch: stay with kube-proxy"
            }
            (_, Some(set)) if set.is_reconciled => {
                "take kube-proxy out of the add-ons of the cluster, then delete DaemonSet kube-system/kube-proxy"
            }
            (_, Some(_)) => STOP_KUBE_PROXY,
            (Distribution::K3s, None) => {
                "`disable-kube-proxy: true` in /etc/rancher/k3s/config.yaml, or --disable-kube-proxy, on all servers; \
                 restart k3s on servers, then on agents"
            }
            (Distribution::Rke2, None) => {
                "`disable-kube-proxy: true` in /etc/rancher/rke2/config.yaml of all servers; restart them, then remove \
                 /var/lib/rancher/rke2/agent/pod-manifests/kube-proxy.yaml on each node if it is still there"
            }
            (Distribution::Gke, None) => {
                "there is no supported way to stop the static Pod of GKE's node image: stay with kube-proxy"
            }
            (Distribution::Other, None) => STOP_STATIC_POD,
        };
        text.to_owned()
    }

    /// Returns what certainly starts kube-proxy on `node`, where no Pod of it runs now.
    pub(super) fn next_start(&self, node: &Node, serving: Serving) -> Option<Obstacle> {
        let of_distribution = || match serving {
            // A kube-proxy would have written its rules.
            Serving::Signpost => None,
            _ => self.of_distribution(node),
        };
        let what = self.next_pod(node).or_else(of_distribution)?;
        Some(Obstacle {
            what: what.to_owned(),
            next: self.stop(Some(node)),
            // It follows from labels and versions. Where kube-proxy answers on a node, the agent
            // refuses by itself.
            yields_to_force: true,
        })
    }

    fn next_pod(&self, node: &Node) -> Option<&'static str> {
        let set = self.daemon_set.as_ref()?;
        if set.selects(node) {
            Some(
                "DaemonSet kube-system/kube-proxy selects the node, and starts kube-proxy on it again",
            )
        } else if set.is_reconciled {
            Some(
                "an add-on manager keeps DaemonSet kube-system/kube-proxy as it was, and starts kube-proxy again",
            )
        } else {
            None
        }
    }

    fn of_distribution(&self, node: &Node) -> Option<&'static str> {
        match Distribution::of(node) {
            Distribution::EksAuto => Some("EKS Auto Mode runs kube-proxy on its nodes itself"),
            Distribution::K3s if self.embedded(K3S) == Embedded::Enabled => {
                Some("k3s runs kube-proxy in its own process")
            }
            Distribution::Rke2 if self.embedded(RKE2) == Embedded::Enabled => {
                Some("RKE2 starts the static Pod of kube-proxy again when it starts")
            }
            _ => None,
        }
    }

    /// Returns what may start kube-proxy on `node` again. That it does is not certain.
    pub(super) fn doubt(&self, node: &Node) -> Option<Warning> {
        let has_daemon_set = self.daemon_set.is_some();
        let what = match Distribution::of(node) {
            Distribution::Eks if has_daemon_set => {
                "an update of the managed add-on of EKS may restore DaemonSet kube-system/kube-proxy"
            }
            Distribution::Aks if has_daemon_set => {
                "AKS may restore DaemonSet kube-system/kube-proxy"
            }
            Distribution::Gke if !has_daemon_set => {
                "the node image of GKE starts kube-proxy as a static Pod: a node that is created again has it again"
            }
            Distribution::K3s if self.embedded(K3S) == Embedded::Unknown => {
                "k3s may run kube-proxy: the annotations k3s.io/node-args of its servers do not say"
            }
            Distribution::Rke2 if self.embedded(RKE2) == Embedded::Unknown => {
                "RKE2 may start kube-proxy again: the annotations rke2.io/node-args of its servers do not say"
            }
            _ => return None,
        };
        Some(Warning {
            what: what.to_owned(),
            next: self.stop(Some(node)),
        })
    }

    /// Reads from the arguments of servers, which are in annotation `key` since they started,
    /// whether they disable kube-proxy. Agents follow their servers.
    fn embedded(&self, key: &str) -> Embedded {
        let all = self.nodes.iter();
        let arguments = all.filter_map(|node| -> Option<Vec<String>> {
            serde_json::from_str(node.annotations().get(key)?).ok()
        });
        let servers = arguments.filter(|arguments| {
            let mut words = arguments.iter().map(String::as_str);
            words.find(|word| matches!(*word, "server" | "agent")) == Some("server")
        });
        let mut is_disabled = servers.map(|arguments| disables(&arguments));
        let Some(first) = is_disabled.next() else {
            return Embedded::Unknown;
        };
        match (first, is_disabled.all(|other| other == first)) {
            (_, false) => Embedded::Unknown,
            (true, true) => Embedded::Disabled,
            (false, true) => Embedded::Enabled,
        }
    }
}

/// Whether these arguments of a server disable kube-proxy. Those of its configuration file have
/// their value as the next argument.
fn disables(arguments: &[String]) -> bool {
    let last = arguments.iter().rposition(|argument| argument == DISABLE);
    last.is_some_and(|at| arguments.get(at + 1).is_none_or(|value| value != "false"))
}

// === impl OwnDaemonSet ===

impl OwnDaemonSet {
    fn of(set: &DaemonSet) -> OwnDaemonSet {
        let (label, value) = ADD_ON;
        let spec = to_value(&set.spec).unwrap_or_default();
        OwnDaemonSet {
            placement: Placement::parse(set.name_any(), &spec),
            is_reconciled: set.labels().get(label).is_some_and(|mode| mode == value),
        }
    }

    fn selects(&self, node: &Node) -> bool {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
        let candidate = Candidate {
            name: &node.name_any(),
            labels: node.labels(),
            taints: taints.unwrap_or_default(),
        };
        self.placement.exclusion(candidate, Pods::All).is_none()
    }
}

// === impl Distribution ===

impl Distribution {
    fn of(node: &Node) -> Distribution {
        let info = node
            .status
            .as_ref()
            .and_then(|status| status.node_info.as_ref());
        let version = info.map_or("", |info| info.kubelet_version.as_str());
        let label = |key: &str| node.labels().get(key).map(String::as_str);
        if label("eks.amazonaws.com/compute-type") == Some("auto") {
            Distribution::EksAuto
        } else if label("eks.amazonaws.com/nodegroup").is_some() || version.contains("-eks-") {
            Distribution::Eks
        } else if label("kubernetes.azure.com/cluster").is_some() {
            Distribution::Aks
        } else if label("cloud.google.com/gke-nodepool").is_some() {
            Distribution::Gke
        } else if version.contains("+k3s") {
            Distribution::K3s
        } else if version.contains("+rke2") {
            Distribution::Rke2
        } else {
            Distribution::Other
        }
    }
}

#[cfg(test)]
mod tests;
