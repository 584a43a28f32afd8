//! `version`: what runs in the cluster, and whether it goes together.

use std::collections::BTreeMap;
use std::fmt::Write;

use crds::NodeProxy;
use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;

use crate::advice::page;
use crate::arguments::{Access, VersionOptions};
use crate::check::absent;
use crate::cluster::Cluster;
use crate::ending::Ending;
use crate::installation::read_signpost_pods;
use crate::output::{counted, serialize};
use crate::{PROGRAM, print};

/// The operators' Pods, as the chart and the manifests label them.
const OPERATORS: &str = "app.kubernetes.io/name=signpost,app.kubernetes.io/component=operator";
const CONTAINER: &str = "operator";
/// How many minor versions operators and agents may be apart.
const OPERATOR_FROM_AGENT: u32 = 1;

/// The versions of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Versions {
    /// That of this program.
    client: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<InCluster>,
    /// What does not go together, a sentence each.
    skew: Vec<String>,
}

/// The versions of what runs, each with the number of Pods or nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
struct InCluster {
    /// By the tags of their images.
    operators: BTreeMap<String, usize>,
    /// As they report them.
    agents: BTreeMap<String, usize>,
}

/// A release before its patch version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Minor {
    major: u32,
    minor: u32,
}

/// Prints the versions.
pub(crate) async fn run(access: &Access, options: &VersionOptions) -> anyhow::Result<Ending> {
    let client = env!("CARGO_PKG_VERSION");
    let show = |versions: Versions| {
        let text = serialize(&versions, options.output)?;
        print(&text.unwrap_or_else(|| versions.render()))?;
        Ok(versions.ending())
    };
    if options.client {
        return show(Versions::of(client, None));
    }
    let cluster = Cluster::open(access).await?;
    // Before an installation there is no such kind.
    let proxies = absent(cluster.read_all::<NodeProxy>().await)?.unwrap_or_default();
    let operators = read_signpost_pods(&cluster, OPERATORS).await?;
    show(Versions::of(
        client,
        Some(InCluster::of(&operators, &proxies.objects)),
    ))
}

// === impl InCluster ===

impl InCluster {
    fn of(operators: &[Pod], proxies: &[NodeProxy]) -> InCluster {
        let mut found = InCluster::default();
        let ended = |pod: &Pod| {
            let phase = pod
                .status
                .as_ref()
                .and_then(|status| status.phase.as_deref());
            matches!(phase, Some("Failed" | "Succeeded"))
        };
        // Pods that were evicted stay in the API, with the image that they had.
        for pod in operators.iter().filter(|pod| !ended(pod)) {
            let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
            let mut images = containers
                .filter(|container| container.name == CONTAINER)
                .filter_map(|container| container.image.as_deref());
            let tag = images.next().and_then(tag).unwrap_or("unknown");
            *found.operators.entry(tag.to_owned()).or_default() += 1;
        }
        for proxy in proxies {
            let status = proxy.status.as_ref();
            let version = status.and_then(|status| status.agent_version.as_deref());
            let version = version.unwrap_or("unknown").to_owned();
            *found.agents.entry(version).or_default() += 1;
        }
        found
    }
}

/// Returns the tag of an image, such as `0.1.0` of `registry:5000/signpost-operator:0.1.0@sha256:…`.
fn tag(image: &str) -> Option<&str> {
    let name = image.split('@').next().unwrap_or(image);
    let last = name.rsplit('/').next().unwrap_or(name);
    last.split_once(':').map(|(_, tag)| tag)
}

// === impl Versions ===

impl Versions {
    /// Judges by the table in docs/support.md.
    fn of(client: &str, cluster: Option<InCluster>) -> Versions {
        let mut skew = Vec::new();
        for found in cluster.iter() {
            for (what, versions) in [("operators", &found.operators), ("agents", &found.agents)] {
                for version in versions.keys() {
                    if !is_within(0, client, version) {
                        skew.push(format!(
                            "{PROGRAM} {client} does not go with {what} {version}: use the {PROGRAM} of their minor version"
                        ));
                    }
                }
            }
            for operator in found.operators.keys() {
                for agent in found.agents.keys() {
                    if !is_within(OPERATOR_FROM_AGENT, operator, agent) {
                        skew.push(format!(
                            "operators {operator} and agents {agent} are more than one minor version apart: upgrade one minor version at a time"
                        ));
                    }
                }
            }
        }
        Versions {
            client: client.to_owned(),
            cluster,
            skew,
        }
    }

    fn ending(&self) -> Ending {
        match self.skew.is_empty() {
            true => Ending::Success,
            false => Ending::ProblemFound,
        }
    }

    fn render(&self) -> String {
        let mut text = format!("{PROGRAM}   {}\n", self.client);
        // Writing to a String cannot fail.
        for found in self.cluster.iter() {
            for (what, versions, noun) in [
                ("operator", &found.operators, "Pod"),
                ("agent", &found.agents, "node"),
            ] {
                if versions.is_empty() {
                    let _ = writeln!(text, "{what:<18} none found");
                }
                for (version, count) in versions {
                    let _ = writeln!(text, "{what:<18} {version} on {}", counted(*count, noun));
                }
            }
        }
        for skew in &self.skew {
            let _ = writeln!(text, "fault  {skew}");
        }
        if !self.skew.is_empty() {
            let _ = writeln!(
                text,
                "       next: {} says what goes together",
                page!("support.md")
            );
        }
        text
    }
}

/// Whether two versions are at most so many minor versions apart. One that is no release, such as a
/// branch, may be any.
fn is_within(distance: u32, one: &str, other: &str) -> bool {
    match (Minor::parse(one), Minor::parse(other)) {
        (Some(one), Some(other)) => {
            one.major == other.major && one.minor.abs_diff(other.minor) <= distance
        }
        _ => true,
    }
}

// === impl Minor ===

impl Minor {
    fn parse(version: &str) -> Option<Minor> {
        let version = version.strip_prefix('v').unwrap_or(version);
        let mut parts = version.split(['.', '-', '+']);
        let mut number = || -> Option<u32> { parts.next()?.parse().ok() };
        let (major, minor, _patch) = (number()?, number()?, number()?);
        Some(Minor { major, minor })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn operators(images: &[&str]) -> Vec<Pod> {
        let pods = images.iter().map(|image| {
            let container = json!({"name": "operator", "image": image});
            let sidecar = json!({"name": "mesh", "image": "mesh:9.9.9"});
            let pod = json!({"metadata": {"name": "operator"}, "spec": {"containers": [sidecar, container]}});
            serde_json::from_value(pod).expect("a Pod")
        });
        pods.collect()
    }

    fn agents(versions: &[&str]) -> Vec<NodeProxy> {
        let proxies = versions.iter().map(|version| {
            let mut proxy = NodeProxy::new("node", crds::NodeProxySpec::default());
            proxy.status = Some(crds::NodeProxyStatus {
                agent_version: Some((*version).to_owned()),
                ..Default::default()
            });
            proxy
        });
        proxies.collect()
    }

    #[test]
    fn pods_that_have_ended_have_no_version() {
        let mut pods = operators(&["operator:0.1.0", "operator:0.3.0"]);
        pods[0].status = serde_json::from_value(json!({"phase": "Failed"})).expect("a status");
        let found = InCluster::of(&pods, &agents(&["0.3.0"]));
        assert_eq!(Versions::of("0.3.0", Some(found)).ending(), Ending::Success);
    }

    fn versions(client: &str, images: &[&str], of_agents: &[&str]) -> Versions {
        let found = InCluster::of(&operators(images), &agents(of_agents));
        Versions::of(client, Some(found))
    }

    #[test]
    fn t248_versions_are_counted_and_what_does_not_go_together_is_named() {
        let upgraded = versions(
            "0.2.0",
            &[
                "registry:5000/signpost-operator:0.2.1@sha256:00",
                "registry:5000/signpost-operator:0.2.1",
            ],
            &["0.2.0", "0.2.0", "0.1.4"],
        );
        assert_eq!(upgraded.ending(), Ending::ProblemFound);
        assert_eq!(
            upgraded.render(),
            "kubectl-signpost   0.2.0\n\
             operator           0.2.1 on 2 Pods\n\
             agent              0.1.4 on 1 node\n\
             agent              0.2.0 on 2 nodes\n\
             fault  kubectl-signpost 0.2.0 does not go with agents 0.1.4: use the kubectl-signpost of their minor version\n       \
             next: https://github.com/signpost/signpost/blob/main/docs/support.md says what goes together\n"
        );
        let apart = versions("0.3.0", &["operator:0.3.0"], &["0.1.0"]).skew;
        assert!(
            apart[1].contains("more than one minor version apart"),
            "{apart:?}"
        );
        let other_major = versions("1.0.0", &["operator:0.9.0"], &[]);
        assert_eq!(other_major.ending(), Ending::ProblemFound);
    }

    #[test]
    fn what_is_no_release_and_what_is_not_there_is_no_skew() {
        let built = versions(
            "0.1.0",
            &["operator", "r:5000/operator@sha256:00", "operator:main"],
            &["0.1.9"],
        );
        assert_eq!(built.ending(), Ending::Success, "{built:?}");
        assert!(
            built
                .render()
                .contains("operator           unknown on 2 Pods\n"),
            "{}",
            built.render()
        );
        let none = versions("0.1.0", &[], &[]);
        assert!(
            none.render().ends_with("agent              none found\n"),
            "{}",
            none.render()
        );
        assert_eq!(none.ending(), Ending::Success);
        assert_eq!(
            Versions::of("0.1.0", None).render(),
            "kubectl-signpost   0.1.0\n"
        );
    }
}
