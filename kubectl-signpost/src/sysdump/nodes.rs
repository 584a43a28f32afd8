//! Chooses the agents to query, and the queries.

use std::collections::BTreeSet;
use std::time::Duration;

use crds::NodeProxy;
use kube::ResourceExt;
use runtime::chain;
use tokio::time::timeout;

use crate::agent::Agent;
use crate::arguments::SysdumpOptions;
use crate::cluster::Cluster;
use crate::trouble::{Weight, troubles};

/// The number of agents queried if no node is named.
const NODES: usize = 5;
/// The number of rejected Services explained for a node.
const REJECTED: usize = 10;
/// The timeout for one part: the agent reads the kernel.
const PATIENCE: Duration = Duration::from_secs(90);
/// The subjects of `signpost-agent show`, each with its file name extension.
const SHOWN: [(&str, &str); 5] = [
    ("rules", "txt"),
    ("dataplane", "txt"),
    ("syncs", "txt"),
    ("status", "yaml"),
    ("metrics", "txt"),
];

/// The nodes of an archive, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Choice {
    /// Those whose agents to query.
    pub(super) asked: Vec<String>,
    /// Those not among them that are unhealthy and have no agent to query.
    pub(super) without_agent: Vec<String>,
}

/// Chooses the nodes: those that are named, or all, or the first few with a running agent, unhealthy
/// ones first.
pub(super) fn choose<'a>(
    running: impl Iterator<Item = &'a str>,
    proxies: &[NodeProxy],
    options: &SysdumpOptions,
) -> Choice {
    if !options.nodes.is_empty() {
        let named: BTreeSet<&String> = options.nodes.iter().collect();
        return Choice {
            asked: named.into_iter().cloned().collect(),
            ..Choice::default()
        };
    }
    let running: BTreeSet<String> = running.map(str::to_owned).collect();
    let known = proxies.iter().map(ResourceExt::name_any);
    let silent: BTreeSet<String> = known.filter(|node| !running.contains(node)).collect();
    if options.all_nodes {
        let all: BTreeSet<String> = running.into_iter().chain(silent).collect();
        return Choice {
            asked: all.into_iter().collect(),
            ..Choice::default()
        };
    }
    let unhealthy = |node: &String| {
        let proxy = proxies.iter().find(|proxy| proxy.name_any() == *node);
        let status = proxy.and_then(|proxy| proxy.status.as_ref());
        status.is_none_or(|status| {
            let mut troubles = troubles(&status.conditions).into_iter();
            troubles.any(|trouble| trouble.weight == Weight::Fault)
        })
    };
    let mut asked: Vec<String> = running.into_iter().collect();
    // The sort is stable: nodes of the same health stay sorted by name.
    asked.sort_by_key(|node| !unhealthy(node));
    asked.truncate(NODES);
    asked.sort();
    Choice {
        asked,
        without_agent: silent.into_iter().filter(unhealthy).collect(),
    }
}

/// Queries the agent of a node part by part.
pub(super) async fn inquire(
    cluster: &Cluster,
    node: &str,
    agent: Option<&Agent>,
    proxy: Option<&NodeProxy>,
    services: &[String],
) -> Vec<(String, Result<String, String>)> {
    let Some(agent) = agent else {
        let reason = "no agent runs on this node".to_owned();
        return vec![(format!("nodes/{node}"), Err(reason))];
    };
    let mut parts = Vec::new();
    for (part, ending) in SHOWN {
        let read = ask(cluster, agent, &["show", part]).await;
        parts.push((format!("nodes/{node}/{part}.{ending}"), read));
    }
    let mut explained: BTreeSet<String> = services.iter().cloned().collect();
    explained.extend(rejected(proxy));
    for service in explained {
        let read = ask(cluster, agent, &["explain", &service]).await;
        let name = service.replace('/', "_");
        parts.push((format!("nodes/{node}/explain/{name}.txt"), read));
    }
    parts
}

/// Returns the Services that the node's status names as rejected.
fn rejected(proxy: Option<&NodeProxy>) -> Vec<String> {
    let status = proxy.and_then(|proxy| proxy.status.as_ref());
    let rejections = status
        .into_iter()
        .flat_map(|status| &status.rejections.first);
    let services = rejections.filter_map(|rejection| rejection.object.strip_prefix("Service "));
    services.take(REJECTED).map(str::to_owned).collect()
}

async fn ask(cluster: &Cluster, agent: &Agent, arguments: &[&str]) -> Result<String, String> {
    match timeout(PATIENCE, agent.ask(cluster, arguments)).await {
        Ok(Ok(answer)) => Ok(answer.text),
        Ok(Err(error)) => Err(chain(&error).to_string()),
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn proxy(name: &str, ready: &str) -> NodeProxy {
        let proxy = json!({
            "metadata": {"name": name},
            "spec": {},
            "status": {
                "conditions": [{
                    "type": "Ready", "status": ready, "reason": "Programmed", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
                "rejections": {"total": 2, "first": [
                    {"object": "Service shop/cart", "field": "spec", "message": "no"},
                    {"object": "EndpointSlice shop/cart-1", "field": "ports", "message": "no"},
                ]},
            },
        });
        serde_json::from_value(proxy).expect("a NodeProxy")
    }

    fn options(nodes: &[&str], all_nodes: bool) -> SysdumpOptions {
        SysdumpOptions {
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
            all_nodes,
            services: Vec::new(),
            log_lines: 1,
            file: None,
        }
    }

    #[test]
    fn nodes_that_are_not_as_they_should_be_come_first() {
        let mut proxies: Vec<NodeProxy> =
            (1..=7).map(|n| proxy(&format!("n{n}"), "True")).collect();
        proxies[6] = proxy("n7", "False");
        let running = || ["n1", "n2", "n8"].into_iter();
        let chosen = |options| choose(running(), &proxies, &options).asked;
        // The agent of n8 has reported nothing.
        assert_eq!(chosen(options(&[], false)), ["n1", "n2", "n8"]);
        assert_eq!(chosen(options(&[], true)).len(), 8);
        assert_eq!(chosen(options(&["n9", "n2"], false)), ["n2", "n9"]);
    }

    /// Failure story T441.
    #[test]
    fn t441_nodes_without_an_agent_take_no_place_of_one_that_answers() {
        let ready = |n: u32| if n > 12 { "True" } else { "False" };
        let proxies: Vec<NodeProxy> = (10..20)
            .map(|n| proxy(&format!("n{n}"), ready(n)))
            .collect();
        let lost = ["n10", "n11"];
        let running = (12..20).map(|n| format!("n{n}"));
        let running: Vec<String> = running.rev().collect();
        let running = running.iter().map(String::as_str);
        let Choice {
            asked,
            without_agent,
        } = choose(running, &proxies, &options(&[], false));
        assert_eq!(asked, ["n12", "n13", "n14", "n15", "n16"]);
        assert_eq!(without_agent, lost);
    }

    #[test]
    fn rejected_services_are_explained() {
        let proxy = proxy("n1", "True");
        assert_eq!(rejected(Some(&proxy)), ["shop/cart"]);
    }
}
