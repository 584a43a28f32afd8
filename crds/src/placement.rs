//! The nodes on which a DaemonSet runs a Pod, of an agent or of kube-proxy, decided as the
//! DaemonSet controller does in `NodeShouldRunDaemonPod`
//! (`pkg/controller/daemon/daemon_controller.go`), except that a doubt is in favour of the node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration};
use serde::Deserialize;
use serde_json::Value;

/// The nodes that one DaemonSet selects.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// The name of the DaemonSet.
    name: String,
    /// The labels that a node must have.
    node_selector: BTreeMap<String, String>,
    /// The required node affinity, of which one term must match; absent without one.
    affinity: Option<Vec<NodeSelectorTerm>>,
    /// The taints that its Pods tolerate.
    tolerations: Vec<Toleration>,
}

/// The properties of a node that decide whether it is selected.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
    /// Its taints.
    pub taints: &'a [Taint],
}

/// The Pods of a DaemonSet that a node may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pods {
    /// New ones and those that run.
    All,
    /// Those that run: a taint `NoSchedule` leaves them.
    Running,
}

/// The fields of a DaemonSet that say where its Pods run. Code that parses whole Pods takes a
/// megabyte of the operator's image.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SlimSpec {
    template: SlimTemplate,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SlimTemplate {
    spec: SlimPod,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SlimPod {
    node_selector: BTreeMap<String, String>,
    affinity: SlimAffinity,
    tolerations: Vec<Toleration>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SlimAffinity {
    node_affinity: SlimNodeAffinity,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SlimNodeAffinity {
    required_during_scheduling_ignored_during_execution: Option<SlimNodeSelector>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SlimNodeSelector {
    node_selector_terms: Vec<NodeSelectorTerm>,
}

/// The beginnings of the keys of taints that say how a node is, not what it is for: that it is not
/// ready, lost, cordoned, new or switched off. Its Pod comes back with it.
const CONDITIONS: [&str; 2] = ["node.kubernetes.io/", "node.cloudprovider.kubernetes.io/"];

/// The label in which a kubelet names its operating system. Agents run on Linux only.
const OS: &str = "kubernetes.io/os";
/// The label that virtual kubelets put on their nodes, which run no Pods themselves.
const VIRTUAL: (&str, &str) = ("type", "virtual-kubelet");

/// Returns the label of a node on which no agent can run, whatever a DaemonSet says; `None` if an
/// agent can run.
#[must_use]
pub fn without_agent(labels: &BTreeMap<String, String>) -> Option<String> {
    let os = labels.get(OS).filter(|os| *os != "linux");
    let os = os.map(|os| format!("{OS}={os}"));
    let (key, value) = VIRTUAL;
    os.or_else(|| {
        let is_virtual = labels.get(key).is_some_and(|kind| kind == value);
        is_virtual.then(|| format!("{key}={value}"))
    })
}

// === impl Placement ===

impl Placement {
    /// Parses the `spec` of the DaemonSet called `name`. One that cannot be read selects all nodes.
    #[must_use]
    pub fn parse(name: String, spec: &Value) -> Self {
        let pod = SlimSpec::deserialize(spec)
            .unwrap_or_default()
            .template
            .spec;
        let affinity = pod.affinity.node_affinity;
        let required = affinity.required_during_scheduling_ignored_during_execution;
        Self {
            name,
            node_selector: pod.node_selector,
            affinity: required.map(|required| required.node_selector_terms),
            tolerations: pod.tolerations,
        }
    }

    /// The name of the DaemonSet.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns why `node` has none of these `pods` of the DaemonSet; `None` if it may have one.
    #[must_use]
    pub fn exclusion(&self, node: Candidate<'_>, pods: Pods) -> Option<String> {
        let Self { name, .. } = self;
        let mut selector = self.node_selector.iter();
        let is_missing = |(key, value): &(&String, &String)| node.labels.get(*key) != Some(value);
        if let Some((key, value)) = selector.find(is_missing) {
            return Some(format!("nodeSelector {key}={value} of DaemonSet {name}"));
        }
        if let Some(terms) = &self.affinity
            && !terms.iter().any(|term| matches(term, node))
        {
            return Some(format!("node affinity of DaemonSet {name}"));
        }
        let mut taints = node.taints.iter().filter(|taint| repels(taint, pods));
        let taint = taints.find(|taint| {
            let mut tolerations = self.tolerations.iter();
            !tolerations.any(|toleration| tolerates(toleration, taint))
        })?;
        let Taint { key, effect, .. } = taint;
        let value = taint.value.iter().map(|value| format!("={value}"));
        let value: String = value.collect();
        Some(format!(
            "DaemonSet {name} does not tolerate taint {key}{value}:{effect}"
        ))
    }
}

/// Whether the taint keeps such Pods away for long.
fn repels(taint: &Taint, pods: Pods) -> bool {
    let is_about = match &*taint.effect {
        "NoExecute" => true,
        "NoSchedule" => pods == Pods::All,
        // `PreferNoSchedule`.
        _ => false,
    };
    let mut conditions = CONDITIONS.iter();
    is_about && !conditions.any(|prefix| taint.key.starts_with(prefix))
}

/// See `ToleratesTaint` in `staging/src/k8s.io/api/core/v1/toleration.go`.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let is_any_or = |field: &Option<String>, of_taint: &str| {
        let field = field.as_deref().unwrap_or_default();
        field.is_empty() || field == of_taint
    };
    is_any_or(&toleration.effect, &taint.effect)
        && is_any_or(&toleration.key, &taint.key)
        && match toleration.operator.as_deref().unwrap_or_default() {
            "" | "Equal" => {
                toleration.value.as_deref().unwrap_or_default()
                    == taint.value.as_deref().unwrap_or_default()
            }
            // `Exists`, or an operator that this version does not know.
            _ => true,
        }
}

/// Whether `node` meets all requirements of `term`. A term without any matches no node
/// (`staging/src/k8s.io/component-helpers/scheduling/corev1/nodeaffinity/nodeaffinity.go`).
fn matches(term: &NodeSelectorTerm, node: Candidate<'_>) -> bool {
    let labels = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let label = |key: &str| node.labels.get(key).map(String::as_str);
    let has_any = !(labels.is_empty() && fields.is_empty());
    // The only field that Kubernetes allows is `metadata.name`.
    has_any
        && labels
            .iter()
            .all(|required| meets(label(&required.key), required))
        && fields
            .iter()
            .all(|required| meets(Some(node.name), required))
}

fn meets(value: Option<&str>, required: &NodeSelectorRequirement) -> bool {
    let values = required.values.as_deref().unwrap_or_default();
    let is_listed = value.is_some_and(|value| values.iter().any(|listed| listed == value));
    let number = |text: &str| text.parse::<i64>().ok();
    let numbers = value
        .and_then(number)
        .zip(values.first().and_then(|bound| number(bound)));
    match &*required.operator {
        "In" => is_listed,
        "NotIn" => !is_listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers.is_some_and(|(value, bound)| value > bound),
        "Lt" => numbers.is_some_and(|(value, bound)| value < bound),
        // An operator that this version does not know.
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    struct Node {
        labels: BTreeMap<String, String>,
        taints: Vec<Taint>,
    }

    fn node(labels: Value, taints: Value) -> Node {
        Node {
            labels: from_value(labels).expect("labels"),
            taints: from_value(taints).expect("taints"),
        }
    }

    /// Why a DaemonSet with such Pods has none on node `n1`.
    fn exclusion_of(pod: Value, node: &Node, pods: Pods) -> Option<String> {
        let spec = json!({"selector": {}, "template": {"spec": pod}});
        let candidate = Candidate {
            name: "n1",
            labels: &node.labels,
            taints: &node.taints,
        };
        Placement::parse("agents".to_owned(), &spec).exclusion(candidate, pods)
    }

    /// A Pod with one required term of node affinity.
    fn requires(term: Value) -> Value {
        let required = json!({"nodeSelectorTerms": [term]});
        let affinity = json!({"requiredDuringSchedulingIgnoredDuringExecution": required});
        json!({"containers": [], "affinity": {"nodeAffinity": affinity}})
    }

    #[test]
    fn labels_must_match_the_selector_and_one_term_of_the_affinity() {
        let node = node(json!({"pool": "db", "cores": "8"}), json!([]));
        let exclusion = |pod: Value| exclusion_of(pod, &node, Pods::All);
        let selects = |selector: Value| json!({"containers": [], "nodeSelector": selector});
        assert_eq!(exclusion(selects(json!({"pool": "db"}))), None);
        assert_eq!(
            exclusion(selects(json!({"pool": "web"}))).as_deref(),
            Some("nodeSelector pool=web of DaemonSet agents")
        );
        let label = |key: &str, operator: &str, values: &[&str]| {
            let required = json!({"key": key, "operator": operator, "values": values});
            requires(json!({"matchExpressions": [required]}))
        };
        for (key, operator, values, runs) in [
            ("pool", "In", &["web", "db"][..], true),
            ("pool", "In", &["web"], false),
            ("pool", "NotIn", &["db"], false),
            ("absent", "NotIn", &["db"], true),
            ("pool", "Exists", &[], true),
            ("absent", "Exists", &[], false),
            ("absent", "DoesNotExist", &[], true),
            ("cores", "Gt", &["4"], true),
            ("cores", "Gt", &["8"], false),
            ("cores", "Lt", &["16"], true),
            ("pool", "Lt", &["16"], false),
        ] {
            let exclusion = exclusion(label(key, operator, values));
            let expected = (!runs).then_some("node affinity of DaemonSet agents");
            assert_eq!(
                exclusion.as_deref(),
                expected,
                "{key} {operator} {values:?}"
            );
        }
        let named = |operator: &str| {
            let required = json!({"key": "metadata.name", "operator": operator, "values": ["n1"]});
            exclusion(requires(json!({"matchFields": [required]})))
        };
        assert_eq!(named("In"), None);
        assert!(named("NotIn").is_some());
        assert!(exclusion(requires(json!({}))).is_some(), "matches no node");
    }

    #[test]
    fn a_taint_keeps_agents_away_unless_they_tolerate_it() {
        let taint = |key: &str, effect: &str| {
            node(
                json!({}),
                json!([{"key": key, "value": "db", "effect": effect}]),
            )
        };
        let exclusion = |tolerations: Value, node: &Node, pods| {
            let pod = json!({"containers": [], "tolerations": tolerations});
            exclusion_of(pod, node, pods)
        };
        let dedicated = taint("dedicated", "NoSchedule");
        assert_eq!(
            exclusion(json!([]), &dedicated, Pods::All).as_deref(),
            Some("DaemonSet agents does not tolerate taint dedicated=db:NoSchedule")
        );
        assert_eq!(exclusion(json!([]), &dedicated, Pods::Running), None);
        let evicting = taint("dedicated", "NoExecute");
        assert!(exclusion(json!([]), &evicting, Pods::Running).is_some());
        let preference = taint("dedicated", "PreferNoSchedule");
        assert_eq!(exclusion(json!([]), &preference, Pods::All), None);
        for (toleration, runs) in [
            (json!({"operator": "Exists"}), true),
            (json!({"key": "dedicated", "operator": "Exists"}), true),
            (json!({"key": "dedicated", "value": "db"}), true),
            (json!({"key": "dedicated", "value": "web"}), false),
            (json!({"key": "other", "operator": "Exists"}), false),
            (json!({"operator": "Exists", "effect": "NoExecute"}), false),
        ] {
            let exclusion = exclusion(json!([toleration]), &dedicated, Pods::All);
            assert_eq!(exclusion.is_none(), runs, "{toleration}");
        }
    }

    /// The node controller taints a lost node. A node that left its profile for that would not
    /// count as failed, and would lose its configuration.
    #[test]
    fn a_taint_that_says_how_a_node_is_keeps_no_agent_away() {
        for key in [
            "node.kubernetes.io/unreachable",
            "node.kubernetes.io/not-ready",
            "node.kubernetes.io/unschedulable",
            "node.cloudprovider.kubernetes.io/shutdown",
        ] {
            for effect in ["NoSchedule", "NoExecute"] {
                let lost = node(json!({}), json!([{"key": key, "effect": effect}]));
                let exclusion = exclusion_of(json!({"containers": []}), &lost, Pods::All);
                assert_eq!(exclusion, None, "{key}:{effect}");
            }
        }
    }

    #[test]
    fn a_daemon_set_that_cannot_be_read_selects_all_nodes() {
        let node = node(json!({}), json!([]));
        assert_eq!(exclusion_of(json!(7), &node, Pods::All), None);
    }
}
