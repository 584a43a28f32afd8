//! The namespaces of Signpost: any user who may create a Pod can give it the labels of an agent.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::Value;

use crate::agent::{Agent, SELECTOR};
use crate::check::absent;
use crate::cluster::{Cluster, ClusterError};

/// The namespaces of the DaemonSets of agents and of the Leases of operators. Empty if there is none, or
/// the user may list neither.
#[derive(Debug, Clone, Default)]
pub(crate) struct Installation {
    namespaces: BTreeSet<String>,
}

/// Reads the agents.
pub(crate) async fn read_agents(cluster: &Cluster) -> Result<Vec<Agent>, ClusterError> {
    Ok(Agent::among(&read_signpost_pods(cluster, SELECTOR).await?))
}

/// Reads the Pods with these labels in Signpost's namespaces.
pub(crate) async fn read_signpost_pods(
    cluster: &Cluster,
    labels: &str,
) -> Result<Vec<Pod>, ClusterError> {
    let installation = Installation::read(cluster).await?;
    let mut pods = cluster.read_pods(labels).await?;
    pods.retain(|pod| installation.contains(pod));
    Ok(pods)
}

// === impl Installation ===

impl Installation {
    pub(crate) async fn read(cluster: &Cluster) -> Result<Installation, ClusterError> {
        let selector = ListParams::default().labels(SELECTOR);
        let sets = absent(cluster.read_raw::<DaemonSet>(None, selector).await)?;
        let sets = sets.unwrap_or_default();
        let of_sets = sets.iter().map(|set| &set["metadata"]["namespace"]);
        let of_sets = of_sets.filter_map(Value::as_str);
        let leases = absent(cluster.read_operator_leases().await)?.unwrap_or_default();
        let of_leases = leases.iter().filter_map(ResourceExt::namespace);
        Ok(Installation {
            namespaces: of_sets.map(str::to_owned).chain(of_leases).collect(),
        })
    }

    /// Whether `pod` is in one of the namespaces, or none is known.
    pub(crate) fn contains(&self, pod: &Pod) -> bool {
        let namespace = pod.namespace().unwrap_or_default();
        self.namespaces.is_empty() || self.namespaces.contains(&namespace)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// An agent's Pod on node n1, by its labels.
    fn pod(namespace: &str, name: &str) -> Pod {
        let pod = json!({
            "metadata": {"name": name, "namespace": namespace, "labels": {
                "app.kubernetes.io/name": "signpost", "app.kubernetes.io/component": "agent",
            }},
            "spec": {"nodeName": "n1", "containers": []},
            "status": {"phase": "Running"},
        });
        serde_json::from_value(pod).expect("a Pod")
    }

    /// Failure story T434.
    #[test]
    fn t434_a_pod_of_another_namespace_does_not_answer_in_the_agents_place() {
        let pods = [pod("signpost-system", "agent-x"), pod("tenant", "any")];
        let disputed = Agent::among(&pods);
        assert!(disputed.iter().all(Agent::is_disputed) && disputed.len() == 2);
        // Other nodes are asked all the same: a tenant must not disable the commands.
        let mut elsewhere = pod("signpost-system", "agent-z");
        elsewhere.spec.get_or_insert_default().node_name = Some("n2".to_owned());
        let [one, other] = pods.clone();
        let agents = Agent::among(&[one, other, elsewhere]);
        let asked = agents.iter().filter(|agent| !agent.is_disputed());
        assert_eq!(asked.map(|agent| &*agent.node).collect::<Vec<_>>(), ["n2"]);
        let installation = Installation {
            namespaces: ["signpost-system".to_owned()].into(),
        };
        let own: Vec<Pod> = pods
            .into_iter()
            .filter(|pod| installation.contains(pod))
            .collect();
        let own = Agent::among(&own);
        assert!(own.len() == 1 && !own[0].is_disputed());
        // While a DaemonSet replaces its Pod, both may run.
        let surge = [
            pod("signpost-system", "agent-x"),
            pod("signpost-system", "agent-y"),
        ];
        let surge = Agent::among(&surge);
        assert!(surge.len() == 2 && !surge.iter().any(Agent::is_disputed));
        // Without the right to list either, labels are all there is.
        assert!(Installation::default().contains(&pod("tenant", "any")));
    }
}
