//! The objects that say what starts kube-proxy on a node, as `crds::starter` reads them. Pure.

use std::collections::BTreeMap;

use crds::placement::Candidate;
use crds::starter::{KUBE_PROXY, KubeProxyDaemonSet, NodeMarks, Serving, Starters};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use serde_json::to_value;

use super::obstacle::{Obstacle, Warning};

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

/// Reads the DaemonSet of kube-proxy; `None` if it is being deleted.
pub(super) fn daemon_set(set: &DaemonSet) -> Option<KubeProxyDaemonSet> {
    KubeProxyDaemonSet::parse(&set.metadata, &to_value(&set.spec).unwrap_or_default())
}

/// Reads what `node` says about how kube-proxy is started on it.
pub(super) fn marks(node: &Node) -> NodeMarks {
    let status = node.status.as_ref();
    let info = status.and_then(|status| status.node_info.as_ref());
    let version = info.map_or("", |info| info.kubelet_version.as_str());
    NodeMarks::of(node.labels(), node.annotations(), version)
}

/// Returns what certainly starts kube-proxy on `node`, where no Pod of it runs now.
pub(super) fn next_start(
    starters: &Starters<'_>,
    node: &Node,
    serving: Serving,
) -> Option<Obstacle> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    let candidate = Candidate {
        name: &node.name_any(),
        labels: node.labels(),
        taints: taints.unwrap_or_default(),
    };
    let what = starters.next_start(candidate, marks(node), serving)?;
    Some(Obstacle {
        what: what.to_owned(),
        next: starters.stop(Some(marks(node))).to_owned(),
        // It follows from labels and versions. Where kube-proxy answers on a node, the agent
        // refuses by itself.
        yields_to_force: true,
    })
}

/// Returns what may start kube-proxy on `node` again. That it does is not certain.
pub(super) fn doubt(starters: &Starters<'_>, node: &Node, serving: Serving) -> Option<Warning> {
    let what = starters.doubt(marks(node), serving)?;
    Some(Warning {
        what: what.to_owned(),
        next: starters.stop(Some(marks(node))).to_owned(),
    })
}

#[cfg(test)]
mod tests;
