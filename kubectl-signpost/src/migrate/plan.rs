//! Which proxy serves each node, the next step to Signpost, and its obstacles. Pure.

mod host_ports;
mod obstacle;
mod service_ports;
mod starter;

use std::collections::{BTreeMap, BTreeSet};

use crds::NodeProxy;
use crds::condition::FOREIGN_PROXY_DETECTED;
use crds::placement::Placement;
use crds::profile::detect_local::DetectLocalMode;
pub(super) use crds::starter::Serving;
use crds::starter::Starters;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use serde::Serialize;

use crate::advice::{Problem, problem};
use crate::agent::Agent;
use crate::cluster::{Read, Unreadable};
use crate::config::Note;
use crate::ending::Ending;
use crate::placement::{is_left_out, linux};
use crate::pod_network::{PodNetwork, compare};
use host_ports::Mover;
pub(super) use obstacle::{Obstacle, Warning};
pub(super) use service_ports::ServicePorts;
use starter::kube_proxy_pods;

/// The data read from the cluster.
#[derive(Debug, Clone, Default)]
pub(super) struct Evidence {
    pub(super) proxies: Read<NodeProxy>,
    /// The Nodes; empty if the user may not read them.
    pub(super) nodes: Vec<Node>,
    pub(super) agents: Vec<Agent>,
    /// Where the DaemonSets of agents run their Pods.
    pub(super) placements: Vec<Placement>,
    /// The Pods of namespace kube-system.
    pub(super) system_pods: Vec<Pod>,
    /// The DaemonSet kube-system/kube-proxy.
    pub(super) daemon_set: Option<DaemonSet>,
    /// What a takeover depends on; empty before a handback.
    pub(super) network: NetworkEvidence,
}

/// What Pods and Services have of the network of nodes.
#[derive(Debug, Clone, Default)]
pub(super) struct NetworkEvidence {
    /// The Pods that are not in the network of their node.
    pub(super) pods: Vec<PodNetwork>,
    /// The Services with ports at addresses of nodes; empty if the user may not read Services.
    pub(super) services: Vec<ServicePorts>,
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
    /// What a takeover changes, or what may undo it. Stops nothing.
    pub(super) warnings: Vec<Warning>,
    #[serde(skip)]
    pub(super) agent: Option<Agent>,
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

/// What is known of one node.
struct NodeEvidence<'a> {
    name: &'a str,
    /// Its Node; `None` if the user may not read it.
    node: Option<&'a Node>,
    proxy: Option<&'a NodeProxy>,
    /// Its Pod of kube-proxy.
    pod: Option<&'a Pod>,
    agent: Option<&'a Agent>,
}

// === impl Plan ===

impl Plan {
    /// Plans the migration of these nodes, or of all on which an agent may run if none is named.
    pub(super) fn of(evidence: &Evidence, asked: &[String]) -> Result<Plan, Problem> {
        let proxies = evidence.proxies.objects.iter();
        let proxies: BTreeMap<String, &NodeProxy> =
            proxies.map(|proxy| (proxy.name_any(), proxy)).collect();
        let mut names: BTreeSet<String> = proxies.keys().cloned().collect();
        let has_agent = |name: &String| evidence.agents.iter().any(|agent| agent.node == *name);
        let others = linux(&evidence.nodes).filter(|node| {
            let name = node.name_any();
            asked.contains(&name) || !is_left_out(node, &evidence.placements, has_agent(&name))
        });
        names.extend(others.map(ResourceExt::name_any));
        if let Some(unknown) = asked.iter().find(|name| !names.contains(*name)) {
            let next = "`kubectl get nodes` lists nodes, --node names one";
            return Err(problem(format!("there is no node {unknown}"), next));
        }
        names.retain(|name| asked.is_empty() || asked.contains(name));
        let pods = kube_proxy_pods(&evidence.system_pods);
        let agents = evidence.agents.iter();
        let agents: BTreeMap<&str, &Agent> =
            agents.map(|agent| (agent.node.as_str(), agent)).collect();
        let nodes = evidence.nodes.iter();
        let nodes: BTreeMap<String, &Node> = nodes.map(|node| (node.name_any(), node)).collect();
        let daemon_set = evidence.daemon_set.as_ref().and_then(starter::daemon_set);
        let starters = Starters::of(
            daemon_set.as_ref(),
            evidence.nodes.iter().map(starter::marks),
        );
        let all = names.iter().map(|name| NodeEvidence {
            name,
            node: nodes.get(name).copied(),
            proxy: proxies.get(name).copied(),
            pod: pods.get(name.as_str()).copied(),
            agent: agents.get(name.as_str()).copied(),
        });
        let all: Vec<NodeEvidence<'_>> = all.collect();
        let mut plans: Vec<NodePlan> = all.iter().map(|of| of.plan(&starters)).collect();
        add_network(&mut plans, &all, &evidence.network);
        Ok(Plan {
            nodes: plans,
            configuration: Vec::new(),
            unreadable: evidence.proxies.unreadable.clone(),
        })
    }

    /// Success if no node has an obstacle, and all could be read.
    pub(super) fn ending(&self) -> Ending {
        let is_free = self.nodes.iter().all(|node| node.obstacles.is_empty());
        match is_free && self.unreadable.is_empty() {
            true => Ending::Success,
            false => Ending::ProblemFound,
        }
    }
}

/// Adds to the nodes that are still to move what their Pods and Services have against it.
fn add_network(plans: &mut [NodePlan], of_nodes: &[NodeEvidence<'_>], network: &NetworkEvidence) {
    let both = plans.iter_mut().zip(of_nodes);
    let mut moving: Vec<(&mut NodePlan, Mover<'_>)> = both
        .filter(|(plan, _)| plan.step != Step::None)
        .filter_map(|(plan, of)| Some((plan, of.mover()?)))
        .collect();
    let by_node_cidr = moving.iter().map(|(_, mover)| mover);
    let by_node_cidr =
        by_node_cidr.filter(|mover| mover.config.detect_local.mode == DetectLocalMode::NodeCidr);
    let comparison = compare(by_node_cidr.map(|mover| mover.node), &network.pods);
    let with_outside = comparison.outside.iter().map(|(pod, _)| pod.node.as_str());
    let with_outside: BTreeSet<&str> = with_outside.collect();
    let movers: Vec<Mover<'_>> = moving.iter().map(|(_, mover)| *mover).collect();
    let mut clashes = host_ports::find_clashes(&movers, &network.pods, &network.services);
    for (plan, _) in &mut moving {
        if with_outside.contains(plan.name.as_str()) {
            plan.obstacles.push(Obstacle::of_pod_addresses(&comparison));
        }
        let of_node = clashes.remove(&plan.name).unwrap_or_default();
        plan.obstacles.extend(of_node.obstacles);
        plan.warnings.extend(of_node.warnings);
    }
}

// === impl NodeEvidence ===

impl<'a> NodeEvidence<'a> {
    fn plan(&self, starters: &Starters<'_>) -> NodePlan {
        let conditions = self.conditions();
        let serving = Serving::of(conditions);
        let idle = self.node.filter(|_| self.pod.is_none());
        let next_start = idle.and_then(|node| starter::next_start(starters, node, serving));
        let step = match (self.pod, &next_start, serving) {
            (Some(_), _, _) | (None, Some(_), _) => Step::StopKubeProxy,
            (None, None, Serving::Signpost) => Step::None,
            (None, None, _) => Step::Takeover,
        };
        let mut obstacles = Vec::new();
        let stop = || starters.stop(self.node.map(starter::marks));
        obstacles.extend(self.pod.map(|pod| Obstacle::of_pod(pod, stop().to_owned())));
        obstacles.extend(next_start);
        obstacles.extend(self.agent.is_none().then(Obstacle::no_agent));
        if step != Step::None {
            match self.proxy {
                None => obstacles.push(Obstacle::no_proxy()),
                Some(_) => obstacles.extend(Obstacle::of_conditions(conditions, serving)),
            }
        }
        let doubtful = idle.filter(|_| step == Step::Takeover);
        let doubt = doubtful.and_then(|node| starter::doubt(starters, node, serving));
        let found = find(conditions, FOREIGN_PROXY_DETECTED);
        NodePlan {
            name: self.name.to_owned(),
            serving,
            kube_proxy_pod: self.pod.map(ResourceExt::name_any),
            found: found.map_or_else(String::new, |found| found.message.clone()),
            step,
            obstacles,
            warnings: doubt.into_iter().collect(),
            agent: self.agent.cloned(),
        }
    }

    fn conditions(&self) -> &'a [Condition] {
        let status = self.proxy.and_then(|proxy| proxy.status.as_ref());
        status.map_or(&[], |status| &status.conditions)
    }

    /// Returns the node as one that moves; `None` if its Node or NodeProxy is not known.
    fn mover(&self) -> Option<Mover<'a>> {
        Some(Mover {
            node: self.node?,
            conditions: self.conditions(),
            config: &self.proxy?.spec.config,
        })
    }
}

fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

#[cfg(test)]
pub(in crate::migrate) mod tests;
