//! The state of the nodes as a value.

use std::collections::BTreeSet;

use crds::condition::{DEGRADED, READY};
use crds::node_proxy::drift::Drift;
use crds::profile::mode::Mode;
use crds::{NodeProxy, NodeProxyStatus};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use serde::Serialize;

use crate::cluster::{Read, Unreadable};
use crate::status::Health;
use crate::trouble::{ConditionProblem, Weight, troubles};

/// All nodes, by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Listing {
    pub(crate) nodes: Vec<NodeReport>,
    /// NodeProxies that this version cannot read.
    pub(crate) unreadable: Vec<Unreadable>,
}

/// One node. Unknown texts are empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeReport {
    pub(crate) name: String,
    pub(crate) health: Health,
    pub(crate) profile: String,
    pub(crate) mode: Option<Mode>,
    pub(crate) ready: String,
    pub(crate) reason: String,
    pub(crate) degraded: String,
    pub(crate) services: u32,
    pub(crate) sync_p99: Option<String>,
    pub(crate) last_sync_time: Option<Timestamp>,
    pub(crate) applied_hash: String,
    pub(crate) rejected: u32,
    /// The programs that changed its rules.
    pub(crate) drift: Vec<Drift>,
    pub(crate) agent_version: String,
    pub(crate) kernel_version: String,
    pub(crate) troubles: Vec<ConditionProblem>,
}

// === impl Listing ===

impl Listing {
    /// Lists the nodes with a NodeProxy, and those of `nodes` that have none.
    pub(crate) fn of(proxies: &Read<NodeProxy>, nodes: &[Node]) -> Listing {
        let mut reports: Vec<NodeReport> = proxies.objects.iter().map(NodeReport::of).collect();
        let configured: BTreeSet<String> =
            reports.iter().map(|report| report.name.clone()).collect();
        let others = nodes.iter().map(ResourceExt::name_any);
        let others = others.filter(|name| !configured.contains(name));
        reports.extend(others.map(NodeReport::without_configuration));
        reports.sort_by(|a, b| a.name.cmp(&b.name));
        Listing {
            nodes: reports,
            unreadable: proxies.unreadable.clone(),
        }
    }

    /// Returns the health of the worst node.
    pub(crate) fn health(&self) -> Health {
        let unreadable = self.unreadable.iter().map(|_| Health::Unhealthy);
        let nodes = self.nodes.iter().map(|node| node.health);
        nodes.chain(unreadable).max().unwrap_or(Health::Healthy)
    }
}

// === impl NodeReport ===

impl NodeReport {
    pub(crate) fn of(proxy: &NodeProxy) -> NodeReport {
        let nothing = NodeProxyStatus::default();
        let status = proxy.status.as_ref().unwrap_or(&nothing);
        let find = |kind: &str| status.conditions.iter().find(|known| known.type_ == kind);
        let text = |found: Option<&Condition>, part: fn(&Condition) -> &String| {
            found.map(part).cloned().unwrap_or_default()
        };
        let mut troubles = troubles(&status.conditions);
        if status.applied_hash.as_ref() != Some(&proxy.spec.config_hash) {
            troubles.insert(0, unapplied(find(READY)));
        }
        NodeReport {
            name: proxy.name_any(),
            health: Health::of(&troubles),
            profile: proxy.spec.profile_name.clone(),
            mode: status.mode,
            ready: text(find(READY), |condition| &condition.status),
            reason: text(find(READY), |condition| &condition.reason),
            degraded: text(find(DEGRADED), |condition| &condition.status),
            services: status.counts.services,
            sync_p99: status
                .sync_latency
                .as_ref()
                .map(|latency| latency.p99.clone()),
            last_sync_time: status.last_sync_time.as_ref().map(|time| time.0),
            applied_hash: status
                .applied_hash
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
            rejected: status.rejections.total,
            drift: status.drift.clone(),
            agent_version: status.agent_version.clone().unwrap_or_default(),
            kernel_version: status.kernel_version.clone().unwrap_or_default(),
            troubles,
        }
    }

    /// The report of a node that no profile selects. That may be intended, so it is only a note.
    pub(crate) fn without_configuration(name: String) -> NodeReport {
        let trouble = ConditionProblem {
            weight: Weight::Note,
            condition: READY.to_owned(),
            status: "Unknown".to_owned(),
            reason: "NoConfiguration".to_owned(),
            message: "the node has no NodeProxy".to_owned(),
            advice: crds::condition::reason::advice("NoConfiguration"),
        };
        NodeReport {
            name,
            health: Health::Healthy,
            profile: String::new(),
            mode: None,
            ready: String::new(),
            reason: trouble.reason.clone(),
            degraded: String::new(),
            services: 0,
            sync_p99: None,
            last_sync_time: None,
            applied_hash: String::new(),
            rejected: 0,
            drift: Vec::new(),
            agent_version: String::new(),
            kernel_version: String::new(),
            troubles: vec![trouble],
        }
    }
}

/// The problem of a node whose agent has not applied the assigned configuration.
fn unapplied(ready: Option<&Condition>) -> ConditionProblem {
    let (reason, message) = match ready {
        None => ("NotReported", "the node's agent has not reported yet"),
        Some(_) => ("Applying", "the node has not applied its configuration yet"),
    };
    ConditionProblem {
        weight: Weight::Pending,
        condition: "appliedHash".to_owned(),
        status: "Unknown".to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        advice: crds::condition::reason::advice(reason),
    }
}
