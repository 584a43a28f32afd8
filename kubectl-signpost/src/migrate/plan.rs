//! Which proxy serves each node, the next step to Signpost, and its obstacles. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crds::condition::reason::{HANDED_BACK, LEGACY_RULES_UNREAD, advice};
use crds::condition::{FOREIGN_PROXY_DETECTED, READY, Status, status_of};
use crds::{NodeProxy, NodeProxyStatus};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use serde::Serialize;

use super::KUBE_PROXY;
use crate::advice::{Problem, problem};
use crate::agent::Agent;
use crate::check::linux;
use crate::cluster::{Read, Unreadable};
use crate::config::Note;
use crate::ending::Ending;
use crate::trouble::{ConditionProblem, Weight, troubles};

/// The data read from the cluster.
#[derive(Debug, Clone, Default)]
pub(super) struct Evidence {
    pub(super) proxies: Read<NodeProxy>,
    /// The Nodes; empty if the user may not read them.
    pub(super) nodes: Vec<Node>,
    pub(super) agents: Vec<Agent>,
    /// The Pods of namespace kube-system.
    pub(super) system_pods: Vec<Pod>,
    /// Whether the DaemonSet kube-system/kube-proxy exists.
    pub(super) has_daemon_set: bool,
}

/// The state of the migration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Plan {
    /// The nodes by name.
    pub(super) nodes: Vec<NodePlan>,
    /// The settings of kube-proxy that no profile reproduces.
    pub(super) configuration: Vec<Note>,
    /// NodeProxies that this version cannot read.
    pub(super) unreadable: Vec<Unreadable>,
}

/// One node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodePlan {
    pub(super) name: String,
    pub(super) serving: Serving,
    /// The name of the node's kube-proxy Pod.
    pub(super) kube_proxy_pod: Option<String>,
    /// The agent's report about kube-proxy's rules.
    pub(super) found: String,
    pub(super) step: Step,
    /// The obstacles to that step.
    pub(super) obstacles: Vec<Obstacle>,
    #[serde(skip)]
    pub(super) agent: Option<Agent>,
}

/// Which proxy serves a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Serving {
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

/// The next step to Signpost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Step {
    /// None: only Signpost serves the node.
    None,
    /// Stop kube-proxy, which would write its rules again.
    StopKubeProxy,
    Takeover,
}

/// An obstacle to a takeover.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Obstacle {
    pub(super) what: String,
    pub(super) next: String,
    /// Whether `--force` overrides it.
    pub(super) yields_to_force: bool,
}

/// The command that stops kube-proxy on all nodes without removing it.
const STOP_KUBE_PROXY: &str = "kubectl -n kube-system patch daemonset kube-proxy -p \
    '{\"spec\":{\"template\":{\"spec\":{\"nodeSelector\":{\"signpost.dev/kube-proxy\":\"wanted\"}}}}}'";
const STOP_STATIC_POD: &str =
    "docs/migrate.md says for each distribution how to stop kube-proxy so that it stays stopped";

// === impl Plan ===

impl Plan {
    /// Plans the migration of these nodes, or of all Linux nodes if none is named.
    pub(super) fn of(evidence: &Evidence, asked: &[String]) -> Result<Plan, Problem> {
        let proxies = evidence.proxies.objects.iter();
        let proxies: BTreeMap<String, &NodeProxy> =
            proxies.map(|proxy| (proxy.name_any(), proxy)).collect();
        let mut names: BTreeSet<String> = proxies.keys().cloned().collect();
        names.extend(linux(&evidence.nodes).map(ResourceExt::name_any));
        if let Some(unknown) = asked.iter().find(|name| !names.contains(*name)) {
            let next = "`kubectl get nodes` lists nodes, --node names one";
            return Err(problem(format!("there is no node {unknown}"), next));
        }
        names.retain(|name| asked.is_empty() || asked.contains(name));
        let pods = kube_proxy_pods(&evidence.system_pods);
        let agents = evidence.agents.iter();
        let agents: BTreeMap<&str, &Agent> =
            agents.map(|agent| (agent.node.as_str(), agent)).collect();
        let nodes = names.into_iter().map(|name| {
            let name = name.as_str();
            NodePlan::of(
                name,
                proxies.get(name).copied(),
                pods.get(name).copied(),
                agents.get(name).copied(),
                evidence.has_daemon_set,
            )
        });
        Ok(Plan {
            nodes: nodes.collect(),
            configuration: Vec::new(),
            unreadable: evidence.proxies.unreadable.clone(),
        })
    }

    /// Success if no node has an obstacle.
    pub(super) fn ending(&self) -> Ending {
        match self.nodes.iter().all(|node| node.obstacles.is_empty()) {
            true => Ending::Success,
            false => Ending::ProblemFound,
        }
    }
}

/// Returns the kube-proxy Pods that have not ended, by node: those of the DaemonSet and static
/// Pods.
fn kube_proxy_pods(pods: &[Pod]) -> BTreeMap<&str, &Pod> {
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

// === impl NodePlan ===

impl NodePlan {
    fn of(
        name: &str,
        proxy: Option<&NodeProxy>,
        pod: Option<&Pod>,
        agent: Option<&Agent>,
        has_daemon_set: bool,
    ) -> NodePlan {
        let nothing = NodeProxyStatus::default();
        let status = proxy.and_then(|proxy| proxy.status.as_ref());
        let conditions = &status.unwrap_or(&nothing).conditions;
        let serving = Serving::of(conditions);
        let step = match (pod, serving) {
            (Some(_), _) => Step::StopKubeProxy,
            (None, Serving::Signpost) => Step::None,
            (None, _) => Step::Takeover,
        };
        let mut obstacles = Vec::new();
        obstacles.extend(pod.map(|pod| Obstacle::of_pod(pod, has_daemon_set)));
        obstacles.extend(agent.is_none().then(Obstacle::no_agent));
        if step != Step::None {
            match proxy {
                None => obstacles.push(Obstacle::no_proxy()),
                Some(_) => obstacles.extend(Obstacle::of_conditions(conditions, serving)),
            }
        }
        NodePlan {
            name: name.to_owned(),
            serving,
            kube_proxy_pod: pod.map(ResourceExt::name_any),
            found: find(conditions, FOREIGN_PROXY_DETECTED)
                .map(|condition| condition.message.clone())
                .unwrap_or_default(),
            step,
            obstacles,
            agent: agent.cloned(),
        }
    }
}

// === impl Serving ===

impl Serving {
    /// Returns which proxy serves the node according to the conditions of its NodeProxy.
    pub(super) fn of(conditions: &[Condition]) -> Serving {
        let unread = || {
            let found = find(conditions, FOREIGN_PROXY_DETECTED);
            found.is_some_and(|condition| condition.reason == LEGACY_RULES_UNREAD.name)
        };
        let found = status_of(conditions, FOREIGN_PROXY_DETECTED);
        match (is_handed_back(conditions), found) {
            (true, Status::False) => Serving::Neither,
            (true, Status::True | Status::Unknown) => Serving::KubeProxy,
            (false, Status::True) => Serving::Both,
            (false, Status::False) => Serving::Signpost,
            // A table that cannot be read remains after a takeover.
            (false, Status::Unknown) if unread() => Serving::Signpost,
            (false, Status::Unknown) => Serving::Unknown,
        }
    }
}

/// Whether the agent has removed Signpost's rules on request.
pub(super) fn is_handed_back(conditions: &[Condition]) -> bool {
    find(conditions, READY).is_some_and(|ready| ready.reason == HANDED_BACK.name)
}

fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

// === impl Obstacle ===

impl Obstacle {
    fn of_pod(pod: &Pod, has_daemon_set: bool) -> Obstacle {
        let (what, next) = match (pod.metadata.deletion_timestamp.is_some(), has_daemon_set) {
            (true, _) => (
                "a Pod of kube-proxy is about to end",
                "run this again once `kubectl -n kube-system get pods` no longer lists it",
            ),
            (false, true) => ("a Pod of kube-proxy runs", STOP_KUBE_PROXY),
            (false, false) => ("a Pod of kube-proxy runs", STOP_STATIC_POD),
        };
        Obstacle {
            what: what.to_owned(),
            next: next.to_owned(),
            yields_to_force: false,
        }
    }

    pub(super) fn no_agent() -> Obstacle {
        Obstacle {
            what: "no agent runs".to_owned(),
            next: "`kubectl get pods -A -o wide -l app.kubernetes.io/component=agent` shows where agents run; `kubectl signpost check` says what is missing"
                .to_owned(),
            yields_to_force: false,
        }
    }

    fn no_proxy() -> Obstacle {
        Obstacle {
            what: "the node has no NodeProxy".to_owned(),
            next: advice("NoConfiguration").unwrap_or_default().to_owned(),
            yields_to_force: false,
        }
    }

    /// Returns the obstacles that the conditions of a NodeProxy report.
    fn of_conditions(conditions: &[Condition], serving: Serving) -> Vec<Obstacle> {
        let faults = troubles(conditions).into_iter();
        let faults = faults.filter(|trouble| {
            trouble.weight == Weight::Fault && trouble.reason != HANDED_BACK.name
        });
        let mut obstacles: Vec<Obstacle> = faults.map(Obstacle::of_trouble).collect();
        let found = find(conditions, FOREIGN_PROXY_DETECTED);
        if serving == Serving::Unknown {
            let next = found.and_then(|condition| advice(&condition.reason));
            obstacles.push(Obstacle {
                what: "the agent does not know whether the node has rules of kube-proxy".to_owned(),
                next: next
                    .unwrap_or(
                        "wait until it has reported; `kubectl signpost nodes` says why it does not",
                    )
                    .to_owned(),
                yields_to_force: true,
            });
        }
        obstacles
    }

    fn of_trouble(trouble: ConditionProblem) -> Obstacle {
        let ConditionProblem {
            condition,
            status,
            reason,
            message,
            advice,
            ..
        } = trouble;
        Obstacle {
            what: format!("{condition} is {status}, {reason}: {message}"),
            next: advice
                .unwrap_or("`kubectl signpost nodes` shows what is wrong with the node")
                .to_owned(),
            yields_to_force: true,
        }
    }
}

#[cfg(test)]
pub(in crate::migrate) mod tests;
