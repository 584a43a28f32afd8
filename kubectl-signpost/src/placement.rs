//! The nodes on which an agent may run, as the operator tells them.

use crds::placement::{Candidate, Placement, Pods, without_agent};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::ListParams;

use crate::agent::SELECTOR;
use crate::check::absent;
use crate::cluster::{Cluster, ClusterError};
use crate::installation::Installation;

/// Reads the DaemonSets whose Pods are agents, in Signpost's namespaces; none without the right to list them.
pub(crate) async fn read_placements(cluster: &Cluster) -> Result<Vec<Placement>, ClusterError> {
    let installation = Installation::read(cluster).await?;
    let selector = ListParams::default().labels(SELECTOR);
    let sets = cluster.read_raw::<DaemonSet>(None, selector).await;
    let sets = absent(sets)?.unwrap_or_default();
    let own = sets.iter().filter(|set| {
        let namespace = set["metadata"]["namespace"].as_str();
        installation.has(namespace.unwrap_or_default())
    });
    let placements = own.map(|set| {
        let name = set["metadata"]["name"].as_str().unwrap_or_default();
        Placement::parse(name.to_owned(), &set["spec"])
    });
    Ok(placements.collect())
}

/// Returns the nodes on which an agent can run at all.
pub(crate) fn linux(nodes: &[Node]) -> impl Iterator<Item = &Node> {
    let can_run = |node: &&Node| without_agent(node.labels()).is_none();
    nodes.iter().filter(can_run)
}

/// Whether all DaemonSets of agents leave `node` out. A node that has an agent's Pod, whatever its
/// state, keeps it in spite of a taint `NoSchedule`. Pure.
pub(crate) fn is_left_out(node: &Node, placements: &[Placement], has_pod: bool) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    let candidate = Candidate {
        name: &node.name_any(),
        labels: node.labels(),
        taints: taints.unwrap_or_default(),
    };
    let pods = match has_pod {
        true => Pods::Running,
        false => Pods::All,
    };
    let mut exclusions = placements
        .iter()
        .map(|placement| placement.exclusion(candidate, pods));
    !placements.is_empty() && exclusions.all(|exclusion| exclusion.is_some())
}
