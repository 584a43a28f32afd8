//! What starts kube-proxy on a node, and whether it starts it again once it is stopped. Pure.
//!
//! docs/migrate.md says the same for the reader of each distribution.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::Serialize;
use serde_json::Value;

use crate::{
    condition::{
        FOREIGN_PROXY_DETECTED, READY, Status,
        reason::{HANDED_BACK, LEGACY_RULES_UNREAD},
        status_of,
    },
    placement::{Candidate, Placement, Pods},
};

/// The namespace of kube-proxy's Pods in every distribution that has them.
pub const NAMESPACE: &str = "kube-system";
/// The name of the DaemonSet, and of its ConfigMap.
pub const KUBE_PROXY: &str = "kube-proxy";

/// What the cluster says about the ways in which kube-proxy is started.
#[derive(Clone, Debug)]
pub struct Starters<'a> {
    daemon_set: Option<&'a KubeProxyDaemonSet>,
    k3s: Embedded,
    rke2: Embedded,
}

/// DaemonSet kube-system/kube-proxy.
#[derive(Clone, Debug, PartialEq)]
pub struct KubeProxyDaemonSet {
    placement: Placement,
    reversion: RestoreRisk,
}

/// What becomes of a change of the DaemonSet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RestoreRisk {
    /// An add-on manager reverts it (`cluster/addons/addon-manager` in Kubernetes).
    AddOnManager,
    /// Nothing in the DaemonSet says that it is reverted.
    Unknown,
}

/// What a Node says about how kube-proxy is started on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeMarks {
    distribution: Distribution,
    k3s: Option<Server>,
    rke2: Option<Server>,
}

/// Whether a server of k3s or RKE2 disables kube-proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    Enables,
    Disables,
}

/// The distribution of a node, as far as it decides how kube-proxy is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Embedded {
    /// A server does, and perhaps others no longer: agents still run it until they restart.
    Enabled,
    Disabled,
    /// No server says it.
    Unknown,
}

/// Which proxy serves a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Serving {
    /// Signpost; the node has no kube-proxy rules.
    Signpost,
    /// Both: the rules of both proxies are on the node.
    Both,
    /// kube-proxy: the node was handed back.
    KubeProxy,
    /// Neither: the node was handed back and has no kube-proxy rules.
    Neither,
    /// The agent has not reported.
    Unknown,
}

/// With this begins what the message of a profile's Progressing says about what may start kube-proxy
/// again.
pub const MAY_BE_STARTED: &str = "kube-proxy may be started again: ";

macro_rules! stop_kube_proxy {
    () => {
        "kubectl -n kube-system patch daemonset kube-proxy -p \
         '{\"spec\":{\"template\":{\"spec\":{\"nodeSelector\":{\"signpost.dev/kube-proxy\":\"wanted\"}}}}}'"
    };
}

macro_rules! stop_add_on {
    () => {
        concat!(
            "if kube-proxy is a managed add-on, first `aws eks delete-addon --cluster-name C --addon-name kube-proxy \
             --preserve`, which leaves its DaemonSet; then ",
            stop_kube_proxy!()
        )
    };
}

/// The command that stops kube-proxy on all nodes without removing it.
pub const STOP_KUBE_PROXY: &str = stop_kube_proxy!();
/// What to do where nothing is known of what starts kube-proxy.
pub const STOP_STATIC_POD: &str = concat!(
    concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/migrate.md"),
    " says for each distribution how to stop kube-proxy so that it stays stopped"
);

/// The label by which an add-on manager knows what it keeps as it was. AKS has it on its DaemonSet.
pub const ADD_ON: (&str, &str) = ("addonmanager.kubernetes.io/mode", "Reconcile");
/// The annotation with the arguments of k3s on a node (`pkg/nodeconfig` in k3s).
pub const K3S: &str = "k3s.io/node-args";
/// The same of RKE2.
pub const RKE2: &str = "rke2.io/node-args";
/// The flag of their servers.
const DISABLE: &str = "--disable-kube-proxy";

// === impl Starters ===

impl<'a> Starters<'a> {
    /// Sums up what the DaemonSet, unless there is none, and all `nodes` of the cluster say.
    #[must_use]
    pub fn of(
        daemon_set: Option<&'a KubeProxyDaemonSet>,
        nodes: impl Iterator<Item = NodeMarks> + Clone,
    ) -> Self {
        Self {
            daemon_set,
            k3s: Embedded::of(nodes.clone().filter_map(|marks| marks.k3s)),
            rke2: Embedded::of(nodes.filter_map(|marks| marks.rke2)),
        }
    }

    /// Returns what to do so that kube-proxy stays stopped on a node with these `marks`, which are
    /// `None` where its Node cannot be read.
    #[must_use]
    pub fn stop(&self, marks: Option<NodeMarks>) -> &'static str {
        let distribution = marks.map_or(Distribution::Other, |marks| marks.distribution);
        match (distribution, self.daemon_set) {
            (Distribution::Eks, _) => stop_add_on!(),
            (Distribution::EksAuto, _) => {
                "there is no way to stop kube-proxy on nodes of EKS Auto Mode: do not install Signpost on them"
            }
            (Distribution::Aks, _) => {
                "a kube-proxy configuration with `enabled: false` (`az aks update --kube-proxy-config`, a preview feature) \
                 removes it; without that AKS reverts a patch: stay with kube-proxy"
            }
            (_, Some(set)) if set.reversion == RestoreRisk::AddOnManager => {
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
        }
    }

    /// Returns what certainly starts kube-proxy on `node`, where it does not run now.
    #[must_use]
    pub fn next_start(
        &self,
        node: Candidate<'_>,
        marks: NodeMarks,
        serving: Serving,
    ) -> Option<&'static str> {
        let (pods, of_distribution) = match serving {
            // A kube-proxy would have written its rules.
            Serving::Signpost => (Pods::All, None),
            _ => (Pods::Running, self.of_distribution(marks)),
        };
        self.next_pod(node, pods).or(of_distribution)
    }

    fn next_pod(&self, node: Candidate<'_>, pods: Pods) -> Option<&'static str> {
        let set = self.daemon_set?;
        if set.placement.exclusion(node, pods).is_none() {
            Some(
                "DaemonSet kube-system/kube-proxy selects the node, and starts kube-proxy on it again",
            )
        } else if set.reversion == RestoreRisk::AddOnManager {
            Some(
                "an add-on manager keeps DaemonSet kube-system/kube-proxy as it was, and starts kube-proxy again",
            )
        } else {
            None
        }
    }

    fn of_distribution(&self, marks: NodeMarks) -> Option<&'static str> {
        match marks.distribution {
            Distribution::EksAuto => Some("EKS Auto Mode runs kube-proxy on its nodes itself"),
            Distribution::K3s if self.k3s == Embedded::Enabled => {
                Some("k3s runs kube-proxy in its own process")
            }
            Distribution::Rke2 if self.rke2 == Embedded::Enabled => {
                Some("RKE2 starts the static Pod of kube-proxy again when it starts")
            }
            _ => None,
        }
    }

    /// Returns what to do about [`Self::doubt`], so that it ends, on a node with these `marks`.
    #[must_use]
    pub fn end_doubt(&self, marks: NodeMarks) -> &'static str {
        match (marks.distribution, self.daemon_set) {
            // Nothing shows whether it is still an add-on.
            (Distribution::Eks, Some(_)) => concat!(
                stop_add_on!(),
                "; the note stays until DaemonSet kube-system/kube-proxy is deleted"
            ),
            _ => self.stop(Some(marks)),
        }
    }

    /// Returns what may start kube-proxy again on a node with these `marks`. That it does is not
    /// certain.
    #[must_use]
    pub fn doubt(&self, marks: NodeMarks, serving: Serving) -> Option<&'static str> {
        let has_daemon_set = self.daemon_set.is_some();
        // A kube-proxy would have written its rules.
        let may_run = |embedded| embedded == Embedded::Unknown && serving != Serving::Signpost;
        match marks.distribution {
            Distribution::Eks if has_daemon_set => Some(
                "an update of the managed add-on of EKS may restore DaemonSet kube-system/kube-proxy",
            ),
            Distribution::Aks if has_daemon_set => {
                Some("AKS may restore DaemonSet kube-system/kube-proxy")
            }
            Distribution::Gke if !has_daemon_set => Some(
                "the node image of GKE starts kube-proxy as a static Pod: a node that is created again has it again",
            ),
            Distribution::K3s if may_run(self.k3s) => Some(
                "k3s may run kube-proxy: the annotations k3s.io/node-args of its servers do not say",
            ),
            Distribution::Rke2 if may_run(self.rke2) => Some(
                "RKE2 may start kube-proxy again: the annotations rke2.io/node-args of its servers do not say",
            ),
            _ => None,
        }
    }
}

// === impl KubeProxyDaemonSet ===

impl KubeProxyDaemonSet {
    /// Parses the `metadata` and the `spec` of the DaemonSet; `None` if it is being deleted.
    #[must_use]
    pub fn parse(metadata: &ObjectMeta, spec: &Value) -> Option<Self> {
        if metadata.deletion_timestamp.is_some() {
            return None;
        }
        let (label, value) = ADD_ON;
        let labels = metadata.labels.as_ref();
        let mode = labels.and_then(|labels| labels.get(label));
        Some(Self {
            placement: Placement::parse(KUBE_PROXY.to_owned(), spec),
            reversion: match mode {
                Some(mode) if mode == value => RestoreRisk::AddOnManager,
                _ => RestoreRisk::Unknown,
            },
        })
    }
}

// === impl NodeMarks ===

impl NodeMarks {
    /// Reads what a Node with these labels, annotations and this version of its kubelet says.
    #[must_use]
    pub fn of(
        labels: &BTreeMap<String, String>,
        annotations: &BTreeMap<String, String>,
        kubelet_version: &str,
    ) -> Self {
        let server = |key: &str| Server::of(annotations.get(key)?);
        Self {
            distribution: Distribution::of(labels, kubelet_version),
            k3s: server(K3S),
            rke2: server(RKE2),
        }
    }
}

// === impl Server ===

impl Server {
    /// Reads the arguments of a process of k3s or RKE2, which are in an annotation since it started;
    /// `None` if it is no server. Agents follow their servers.
    fn of(arguments: &str) -> Option<Self> {
        let arguments: Vec<String> = serde_json::from_str(arguments).ok()?;
        let mut words = arguments.iter().map(String::as_str);
        if words.find(|word| matches!(*word, "server" | "agent")) != Some("server") {
            return None;
        }
        // Those of its configuration file have their value as the next argument.
        let last = arguments.iter().rposition(|argument| argument == DISABLE);
        let disables =
            last.is_some_and(|at| arguments.get(at + 1).is_none_or(|value| value != "false"));
        Some(if disables {
            Self::Disables
        } else {
            Self::Enables
        })
    }
}

// === impl Embedded ===

impl Embedded {
    fn of(mut servers: impl Iterator<Item = Server>) -> Self {
        match servers.next() {
            None => Self::Unknown,
            Some(Server::Disables) if servers.all(|other| other == Server::Disables) => {
                Self::Disabled
            }
            Some(Server::Disables | Server::Enables) => Self::Enabled,
        }
    }
}

// === impl Distribution ===

impl Distribution {
    fn of(labels: &BTreeMap<String, String>, kubelet_version: &str) -> Self {
        let label = |key: &str| labels.get(key).map(String::as_str);
        if label("eks.amazonaws.com/compute-type") == Some("auto") {
            Self::EksAuto
        } else if label("eks.amazonaws.com/nodegroup").is_some()
            || kubelet_version.contains("-eks-")
        {
            Self::Eks
        } else if label("kubernetes.azure.com/cluster").is_some() {
            Self::Aks
        } else if label("cloud.google.com/gke-nodepool").is_some() {
            Self::Gke
        } else if kubelet_version.contains("+k3s") {
            Self::K3s
        } else if kubelet_version.contains("+rke2") {
            Self::Rke2
        } else {
            Self::Other
        }
    }
}

// === impl Serving ===

impl Serving {
    /// Returns which proxy serves the node according to the conditions of its NodeProxy.
    #[must_use]
    pub fn of(conditions: &[Condition]) -> Self {
        let unread = || {
            let found = find(conditions, FOREIGN_PROXY_DETECTED);
            found.is_some_and(|condition| condition.reason == LEGACY_RULES_UNREAD.name)
        };
        let found = status_of(conditions, FOREIGN_PROXY_DETECTED);
        match (is_handed_back(conditions), found) {
            (true, Status::False) => Self::Neither,
            (true, Status::True | Status::Unknown) => Self::KubeProxy,
            (false, Status::True) => Self::Both,
            (false, Status::False) => Self::Signpost,
            // A table that cannot be read remains after a takeover.
            (false, Status::Unknown) if unread() => Self::Signpost,
            (false, Status::Unknown) => Self::Unknown,
        }
    }
}

/// Whether the agent has removed Signpost's rules on request.
#[must_use]
pub fn is_handed_back(conditions: &[Condition]) -> bool {
    find(conditions, READY).is_some_and(|ready| ready.reason == HANDED_BACK.name)
}

fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}
