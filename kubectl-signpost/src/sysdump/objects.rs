//! Filters objects: keeps what Signpost reads or writes, and nothing else that users may have
//! added. Pure.

use serde_json::{Map, Value, json};

/// Which parts of an object to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// Spec and status: ProxyProfiles and NodeProxies.
    Whole,
    /// The spec: Services.
    Spec,
    /// Addresses, endpoints and ports: EndpointSlices.
    Slice,
    /// Labels, addresses of Pods, versions and conditions: Nodes.
    Node,
    /// The node, the images and the status, without environment and arguments: Pods.
    Pod,
    /// Where its Pods run, and the status: DaemonSets and Deployments.
    Workload,
    /// The whole content: Events.
    Event,
}

/// The fields of metadata to keep.
const METADATA: [&str; 6] = [
    "name",
    "namespace",
    "uid",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
];
/// The domains of the labels and annotations to keep: those that Signpost or Kubernetes reads.
const DOMAINS: [&str; 3] = ["signpost.dev", "kubernetes.io", "k8s.io"];
/// An annotation to remove: it holds the whole applied object, including everything removed here.
const AS_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Renders the kept parts of `objects`, one YAML document for each.
pub(super) fn print(objects: &[Value], kept: Kept) -> Result<String, String> {
    let objects = objects.iter().map(|object| extract(object, kept));
    let documents = objects.map(|object| serde_saphyr::to_string(&object));
    let documents: Result<Vec<String>, _> = documents.collect();
    let documents = documents.map_err(|error| error.to_string())?;
    Ok(documents.join("---\n"))
}

fn extract(object: &Value, kept: Kept) -> Value {
    let mut extract = Map::new();
    extract.insert("metadata".to_owned(), metadata(&object["metadata"], kept));
    let fields: &[&str] = match kept {
        Kept::Whole => &["spec", "status"],
        Kept::Spec => &["spec"],
        Kept::Slice => &["addressType", "endpoints", "ports"],
        Kept::Node | Kept::Pod | Kept::Workload => &[],
        Kept::Event => &[
            "involvedObject",
            "type",
            "reason",
            "message",
            "action",
            "count",
            "series",
            "firstTimestamp",
            "lastTimestamp",
            "eventTime",
            "reportingComponent",
            "reportingInstance",
            "source",
        ],
    };
    for field in fields {
        if let Some(value) = object.get(field).filter(|value| !value.is_null()) {
            extract.insert((*field).to_owned(), value.clone());
        }
    }
    let (spec, status) = (&object["spec"], &object["status"]);
    if kept == Kept::Node {
        extract.insert(
            "spec".to_owned(),
            json!({"podCIDRs": spec["podCIDRs"], "taints": spec["taints"], "unschedulable": spec["unschedulable"]}),
        );
        extract.insert(
            "status".to_owned(),
            json!({
                "addresses": status["addresses"],
                "nodeInfo": status["nodeInfo"],
                "conditions": status["conditions"],
            }),
        );
    }
    if kept == Kept::Pod {
        extract.insert(
            "spec".to_owned(),
            json!({
                "nodeName": spec["nodeName"],
                "hostNetwork": spec["hostNetwork"],
                "containers": containers(spec),
            }),
        );
        extract.insert("status".to_owned(), status.clone());
    }
    if kept == Kept::Workload {
        let pod = &spec["template"]["spec"];
        let placement = [
            "nodeSelector",
            "affinity",
            "tolerations",
            "hostNetwork",
            "priorityClassName",
        ];
        let placement = placement.map(|field| (field.to_owned(), pod[field].clone()));
        let mut template = Map::from_iter(placement);
        template.insert("containers".to_owned(), containers(pod));
        extract.insert(
            "spec".to_owned(),
            json!({
                "replicas": spec["replicas"],
                "updateStrategy": spec["updateStrategy"],
                "template": {"spec": template},
            }),
        );
        extract.insert("status".to_owned(), status.clone());
    }
    Value::Object(extract)
}

fn containers(pod: &Value) -> Value {
    let containers = pod["containers"].as_array().into_iter().flatten();
    let containers = containers.map(|container| {
        json!({"name": container["name"], "image": container["image"], "resources": container["resources"]})
    });
    containers.collect()
}

fn metadata(metadata: &Value, kept: Kept) -> Value {
    let mut extract = Map::new();
    for field in METADATA {
        if let Some(value) = metadata.get(field) {
            extract.insert(field.to_owned(), value.clone());
        }
    }
    for field in ["labels", "annotations"] {
        // Profiles select nodes by any label.
        let all = kept == Kept::Node && field == "labels";
        let entries = metadata[field].as_object().into_iter().flatten();
        let entries = entries.filter(|(key, _)| all || is_read(key));
        let entries: Map<String, Value> = entries
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        if !entries.is_empty() {
            extract.insert(field.to_owned(), Value::Object(entries));
        }
    }
    Value::Object(extract)
}

fn is_read(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let is_in = |known: &str| {
        let before = domain.strip_suffix(known);
        before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
    };
    key != AS_APPLIED && DOMAINS.iter().any(|known| is_in(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_users_put_beside_a_service_is_left_out() {
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": "cart",
                "namespace": "shop",
                "labels": {"team": "private", "service.kubernetes.io/headless": ""},
                "annotations": {
                    AS_APPLIED: "private",
                    "example.com/password": "private",
                    "notkubernetes.io/password": "private",
                    "signpost.dev/scheduler": "maglev",
                },
                "managedFields": [{"manager": "private"}],
            },
            "spec": {"clusterIP": "10.96.0.10"},
            "status": {"loadBalancer": {}},
        });
        let text = print(&[service], Kept::Spec).expect("YAML");
        assert!(!text.contains("private"), "{text}");
        for words in ["name: cart", "10.96.0.10", "maglev", "headless"] {
            assert!(text.contains(words), "no {words} in {text}");
        }
        assert!(!text.contains("status"), "{text}");
    }

    #[test]
    fn environment_and_arguments_of_pods_are_left_out() {
        let pod = json!({
            "metadata": {"name": "agent-x", "namespace": "signpost"},
            "spec": {
                "nodeName": "n1",
                "containers": [{
                    "name": "agent", "image": "signpost-agent:1", "args": ["--private"],
                    "env": [{"name": "PASSWORD", "value": "private"}],
                }],
                "volumes": [{"secret": {"secretName": "private"}}],
            },
            "status": {"phase": "Running"},
        });
        let text = print(std::slice::from_ref(&pod), Kept::Pod).expect("YAML");
        assert!(!text.contains("private"), "{text}");
        for words in ["nodeName: n1", "signpost-agent:1", "phase: Running"] {
            assert!(text.contains(words), "no {words} in {text}");
        }
        let mut template = pod["spec"].clone();
        template["nodeSelector"] = json!({"proxy": "signpost"});
        let set = json!({
            "metadata": {"name": "signpost-agent"},
            "spec": {"template": {"spec": template}},
            "status": {"numberUnavailable": 2},
        });
        let text = print(&[set], Kept::Workload).expect("YAML");
        assert!(!text.contains("private"), "{text}");
        for words in [
            "proxy: signpost",
            "signpost-agent:1",
            "numberUnavailable: 2",
        ] {
            assert!(text.contains(words), "no {words} in {text}");
        }
    }
}
