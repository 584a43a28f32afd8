//! The namespaces of Signpost: any user who may create Pods and DaemonSets in a namespace can give them the
//! labels of agents.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::Value;

use crate::agent::{Agent, SELECTOR};
use crate::check::absent;
use crate::cluster::{Cluster, ClusterError};

/// The binding of the agents' ClusterRole, in the chart and in the manifests. A tenant cannot change it.
const BINDING: &str = "signpost-agent";

/// The namespaces of the agents' service accounts in their [`BINDING`]; if there is none or the user may
/// not get it, those of the DaemonSets of agents and of the Leases of operators. Empty if there is none of
/// these either, or the user may not list them.
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
        let binding = absent(cluster.read_one::<ClusterRoleBinding>(BINDING).await)?;
        let subjects = binding.and_then(|binding| binding.subjects);
        let subjects = subjects.unwrap_or_default().into_iter();
        let accounts = subjects.filter(|subject| subject.kind == "ServiceAccount");
        let namespaces: BTreeSet<String> =
            accounts.filter_map(|account| account.namespace).collect();
        if !namespaces.is_empty() {
            return Ok(Installation { namespaces });
        }
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

    /// Whether `object` is in one of the namespaces, or none is known.
    pub(crate) fn contains(&self, object: &impl ResourceExt) -> bool {
        let namespace = object.namespace().unwrap_or_default();
        self.has(&namespace)
    }

    /// The same for the name of a namespace.
    pub(crate) fn has(&self, namespace: &str) -> bool {
        self.namespaces.is_empty() || self.namespaces.contains(namespace)
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;
    use tower::service_fn;

    use super::*;
    use crate::status::read_operator_absence;

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

    fn now() -> String {
        format!("{:.6}", jiff::Timestamp::now())
    }

    /// A cluster with DaemonSets of agents and Leases of operators in these namespaces. In the first one no
    /// operator has renewed its Lease for long. `binding` is the answer to the question for the
    /// ClusterRoleBinding of agents.
    fn cluster(namespaces: [&'static str; 2], binding: (u16, Value)) -> Cluster {
        let service = service_fn(move |request: Request<Body>| {
            let object = |(namespace, renewed)| {
                let metadata = json!({"name": "signpost", "namespace": namespace});
                json!({"metadata": metadata, "spec": {"renewTime": renewed}})
            };
            let renewed = ["2026-01-01T00:00:00.000000Z".to_owned(), now()];
            let objects: Vec<Value> = namespaces.into_iter().zip(renewed).map(object).collect();
            let list =
                json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": objects});
            let (code, body) = match request.uri().path().ends_with("/signpost-agent") {
                true => binding.clone(),
                false => (200, list),
            };
            async move {
                let response = Response::builder().status(code);
                response.body(Body::from(body.to_string().into_bytes()))
            }
        });
        Cluster::of(Client::new(service, "default"))
    }

    /// Failure story T434: the labels of a DaemonSet and the name of a Lease are the tenant's to choose.
    #[tokio::test]
    async fn t434_a_daemon_set_of_a_tenant_makes_no_namespace_one_of_signpost() {
        let account = json!({
            "kind": "ServiceAccount", "name": "signpost-agent", "namespace": "signpost-system",
        });
        let user = json!({"kind": "User", "name": "any"});
        let bound = json!({
            "metadata": {"name": "signpost-agent"}, "subjects": [account, user],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "signpost-agent"},
        });
        let failure = |code| json!({"status": "Failure", "message": "no", "code": code});
        for (code, body, expected) in [
            (200, bound, false),
            // Then the labels are all there is.
            (403, failure(403), true),
            (404, failure(404), true),
        ] {
            let cluster = cluster(["signpost-system", "tenant"], (code, body));
            let installation = Installation::read(&cluster).await.expect("it is read");
            assert!(
                installation.contains(&pod("signpost-system", "any")),
                "{code}"
            );
            let is_tenant = installation.contains(&pod("tenant", "any"));
            assert_eq!(is_tenant, expected, "{code}");
            // A tenant who renews a Lease of that name does not hide that no operator runs.
            let absence = read_operator_absence(&cluster).await.expect("it is read");
            assert_eq!(absence.is_none(), expected, "{code}");
        }
    }
}
