//! The cluster that all tests share, with Signpost.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use crds::condition::PROGRESSING;
use crds::condition::reason::SETTLED;
use crds::{NodeProxy, ProxyProfile};
use dataplane::Family;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tests::cluster::resources::{is_node_ready, is_ready};
use tests::control_plane::Component;
use tests::deadline::wait_for;
use tests::real_cluster::enclosure::{self, Place};
use tests::real_cluster::helm::{Helm, chart};
use tests::real_cluster::images;
use tests::real_cluster::{Built, Node, Plan, RealCluster};

use crate::shop::{CLIENTS, SERVER_IMAGE, SERVERS, SHIFTING, STEADY, Shop, client, client_object};

/// The namespace of the installation in the README.
pub(crate) const NAMESPACE: &str = "signpost-system";
/// How long containers may take to start or end on a busy machine, including the programming that
/// follows.
pub(crate) const DEADLINE: Duration = Duration::from_secs(90);
/// How long a change may take that requires only programming.
pub(crate) const PROMPTLY: Duration = Duration::from_secs(20);
/// The number of nodes in the idle state.
pub(crate) const NODES: u8 = 3;
/// The fields of the profile that tests change, with their values in the idle state.
const PROFILE: &str = r#"{"spec": {"masquerade": {"all": false}, "nodePorts": null, "syncPeriod": "30s", "rollout": {"minReady": "0s"}}}"#;

/// A cluster, and what its tests use.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) helm: Helm,
    pub(crate) cluster: RealCluster,
    client_image: String,
}

/// A running Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Running {
    pub(crate) name: String,
    pub(crate) node: String,
    pub(crate) uid: String,
    pub(crate) restarts: i32,
    pub(crate) ready: bool,
}

#[derive(Debug, Deserialize)]
struct List<T> {
    items: Vec<T>,
}

// === impl Stage ===

impl Stage {
    /// Starts a cluster without Signpost. Must run in an enclosure.
    pub(crate) fn start() -> Result<Stage> {
        let Place::Inside(enclosure) = enclosure::enter()? else {
            bail!("a cluster starts in an enclosure");
        };
        let images::OwnImages::Made(mut archives) = images::observe()? else {
            bail!("there are no images: make image");
        };
        let servers = enclosure.folder().join("echo-server.tar");
        images::commit_program(&servers, SERVER_IMAGE, "echo-server")?;
        archives.push(servers);
        let plan = Plan {
            nodes: NODES,
            images: archives,
        };
        let cluster = RealCluster::start(&plan, &enclosure, &|event| println!("    {event}"))?;
        let stage = Stage {
            helm: Helm::new(&cluster)?,
            client_image: Built::cluster()?.image("agnhost")?,
            cluster,
        };
        for shop in [STEADY, SHIFTING] {
            stage.apply(&shop.objects())?;
        }
        stage.create_clients(1..=NODES)?;
        Ok(stage)
    }

    /// Restores the idle state and waits for it. Installs what is not installed.
    pub(crate) fn settle(&mut self) -> Result<()> {
        self.cluster.ensure_runs()?;
        // Nodes left behind by a failed test.
        let nodes: Vec<u8> = self.cluster.nodes().map(Node::number).collect();
        for node in nodes.into_iter().filter(|node| *node > NODES) {
            self.cluster.remove_node(node)?;
        }
        self.ensure_installed()?;
        self.patch_profile(PROFILE)?;
        self.scale(SHIFTING, SERVERS)?;
        self.wait_until_ready()?;
        for shop in [STEADY, SHIFTING] {
            self.wait_until_served(shop, &self.observe_servers(shop)?, DEADLINE)?;
        }
        Ok(())
    }

    /// Installs Signpost if it is not installed.
    pub(crate) fn ensure_installed(&self) -> Result<()> {
        let agents = [
            "get",
            "daemonset",
            "signpost-agent",
            "--namespace",
            NAMESPACE,
        ];
        if self.kubectl(&agents).is_err() {
            self.install()?;
        }
        Ok(())
    }

    /// Installs Signpost as in the README of the chart, in a cluster that publishes the address of
    /// its API server.
    pub(crate) fn install(&self) -> Result<String> {
        let notes = self.run_helm("install", &["--create-namespace"])?;
        let timeout = format!("--timeout={}s", DEADLINE.as_secs());
        // The operator with the lease creates it, possibly after all Pods are ready.
        self.kubectl(&["wait", "--for=create", &timeout, "proxyprofile/default"])?;
        Ok(notes)
    }

    /// Runs helm with Signpost's chart and waits until the Pods are ready.
    pub(crate) fn run_helm(&self, verb: &str, more: &[&str]) -> Result<String> {
        let chart = chart();
        let chart = chart.to_str().context("the path of the chart is text")?;
        let namespace = format!("--namespace={NAMESPACE}");
        let timeout = format!("--timeout={}s", DEADLINE.as_secs());
        let arguments = [verb, "signpost", chart, &namespace, "--wait", &timeout];
        self.helm.run(&[&arguments, more].concat())
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.cluster.control_plane().kubectl(arguments)
    }

    pub(crate) fn apply(&self, object: &Value) -> Result<()> {
        self.cluster
            .control_plane()
            .apply(&object.to_string())
            .map(drop)
    }

    /// Parses the output of `kubectl get … --output=json`.
    pub(crate) fn get<T: DeserializeOwned>(&self, arguments: &[&str]) -> Result<T> {
        let text = self.kubectl(&[&["get", "--output=json"], arguments].concat())?;
        serde_json::from_str(&text)
            .with_context(|| format!("kubectl get {} prints {text}", arguments.join(" ")))
    }

    pub(crate) fn patch_profile(&self, patch: &str) -> Result<()> {
        let arguments = [
            "patch",
            "proxyprofile",
            "default",
            "--type=merge",
            "--patch",
            patch,
        ];
        self.kubectl(&arguments).map(drop)
    }

    /// Creates client Pods on nodes and waits until they run.
    pub(crate) fn create_clients(&self, nodes: impl Iterator<Item = u8>) -> Result<()> {
        let pods: Vec<Value> = nodes
            .map(|node| client_object(node, &self.client_image))
            .collect();
        self.apply(&json!({"apiVersion": "v1", "kind": "List", "items": pods}))?;
        let timeout = format!("--timeout={}s", DEADLINE.as_secs());
        let all = ["wait", "--for=condition=Ready", &timeout, "pods", CLIENTS];
        self.kubectl(&all).map(drop)
    }

    /// Returns every NodeProxy by the name of its node.
    pub(crate) fn observe_node_proxies(&self) -> Result<BTreeMap<String, NodeProxy>> {
        let proxies: List<NodeProxy> = self.get(&["nodeproxies"])?;
        let by_name = |proxy: NodeProxy| Some((proxy.metadata.name.clone()?, proxy));
        Ok(proxies.items.into_iter().filter_map(by_name).collect())
    }

    /// Waits until the profile and each NodeProxy report Ready on all nodes of the cluster.
    pub(crate) fn wait_until_ready(&self) -> Result<ProxyProfile> {
        let names: BTreeSet<String> = self.cluster.nodes().map(|node| node.name()).collect();
        let count = u32::try_from(names.len())?;
        let what = format!("the profile to be Ready on {count} nodes");
        wait_for(&what, DEADLINE, || {
            let profile: ProxyProfile = self.get(&["proxyprofile", "default"])?;
            let all = profile.status.as_ref().is_some_and(|status| {
                [
                    status.matched_nodes,
                    status.updated_nodes,
                    status.ready_nodes,
                ] == [count; 3]
            });
            let proxies = self.observe_node_proxies()?;
            let nodes = proxies.keys().eq(&names) && proxies.values().all(is_node_ready);
            Ok((is_ready(&profile) && all && nodes).then_some(profile))
        })
    }

    /// The same, and the rollout has ended: nodes are ready a moment before their agents have tried a
    /// connection.
    pub(crate) fn wait_until_settled(&self) -> Result<ProxyProfile> {
        wait_for("the rollout of the profile to end", DEADLINE, || {
            let profile = self.wait_until_ready()?;
            let status = profile.status.iter();
            let is_settled = status.flat_map(|status| &status.conditions).any(|it| {
                let is_current = it.observed_generation == profile.metadata.generation;
                it.type_ == PROGRESSING && it.reason == SETTLED.name && is_current
            });
            Ok(is_settled.then_some(profile))
        })
    }

    /// Edits the profile, so that every node is to be given another configuration.
    pub(crate) fn edit_sync_period(&self, period: &str) -> Result<()> {
        let patch = json!({"spec": {"syncPeriod": period}});
        self.patch_profile(&patch.to_string())
    }

    /// Asserts that each node has been given one configuration since it had these NodeProxies.
    pub(crate) fn expect_one_configuration_since(
        &self,
        before: &BTreeMap<String, NodeProxy>,
    ) -> Result<()> {
        for (node, proxy) in self.observe_node_proxies()? {
            let then = before
                .get(&node)
                .and_then(|proxy| proxy.metadata.generation);
            let generations = proxy
                .metadata
                .generation
                .zip(then)
                .map(|(now, then)| now - then);
            ensure!(
                generations == Some(1),
                "{node} has had {generations:?} configurations"
            );
        }
        Ok(())
    }

    /// Returns Signpost's Pods of a component, `agent` or `operator`, except for those that are
    /// terminating or whose node is gone.
    pub(crate) fn observe_component(&self, component: &str) -> Result<Vec<Running>> {
        let selector = format!(
            "--selector=app.kubernetes.io/name=signpost,app.kubernetes.io/component={component}"
        );
        let namespace = format!("--namespace={NAMESPACE}");
        let nodes: BTreeSet<String> = self.cluster.nodes().map(|node| node.name()).collect();
        let mut pods = self.observe_pods(&["pods", &selector, &namespace])?;
        // The Pod of a removed node exists for another minute.
        pods.retain(|pod| nodes.contains(&pod.node));
        Ok(pods)
    }

    /// Returns the Pods that are not terminating.
    fn observe_pods(&self, arguments: &[&str]) -> Result<Vec<Running>> {
        let pods: List<Pod> = self.get(arguments)?;
        let pods = pods.items.into_iter();
        let staying = pods.filter(|pod| pod.metadata.deletion_timestamp.is_none());
        Ok(staying.map(Running::of).collect())
    }

    /// Waits until the Pods of a component are all ready and `expected` accepts them; returns them.
    pub(crate) fn wait_for_component(
        &self,
        component: &str,
        what: &str,
        expected: impl Fn(&[Running]) -> bool,
    ) -> Result<Vec<Running>> {
        wait_for(what, DEADLINE, || {
            let pods = self.observe_component(component)?;
            let seen = pods.iter().all(|pod| pod.ready) && expected(&pods);
            Ok(seen.then_some(pods))
        })
    }

    /// Returns the servers of a Service that are ready and not terminating.
    pub(crate) fn observe_servers(&self, shop: Shop) -> Result<BTreeSet<String>> {
        let servers = self.observe_running_servers(shop)?.into_iter();
        Ok(servers.map(|pod| pod.name).collect())
    }

    /// Returns those servers on one node.
    pub(crate) fn observe_servers_on(&self, shop: Shop, node: u8) -> Result<BTreeSet<String>> {
        let servers = self.observe_running_servers(shop)?.into_iter();
        let there = servers.filter(|pod| pod.node == format!("node-{node}"));
        Ok(there.map(|pod| pod.name).collect())
    }

    fn observe_running_servers(&self, shop: Shop) -> Result<Vec<Running>> {
        let selector = format!("--selector=app={}", shop.name);
        let servers = self.observe_pods(&["pods", &selector])?.into_iter();
        Ok(servers.filter(|pod| pod.ready).collect())
    }

    /// Returns the servers that are ready in the EndpointSlices of a Service.
    pub(crate) fn observe_endpoints(&self, shop: Shop) -> Result<BTreeSet<String>> {
        let selector = format!("--selector=kubernetes.io/service-name={}", shop.name);
        let slices: List<EndpointSlice> = self.get(&["endpointslices", &selector])?;
        let endpoints = slices.items.into_iter().flat_map(|slice| slice.endpoints);
        let ready = endpoints.filter(|endpoint| {
            let conditions = endpoint.conditions.as_ref();
            conditions.and_then(|conditions| conditions.ready) == Some(true)
        });
        Ok(ready
            .filter_map(|endpoint| endpoint.target_ref?.name)
            .collect())
    }

    /// Returns the address of the client Pod on a node.
    pub(crate) fn observe_client_address(&self, node: u8, family: Family) -> Result<IpAddr> {
        let pod: Pod = self.get(&["pod", &client(node)])?;
        let addresses = pod
            .status
            .and_then(|status| status.pod_ips)
            .unwrap_or_default();
        let addresses = addresses
            .iter()
            .filter_map(|address| address.ip.parse::<IpAddr>().ok());
        let mut fitting = addresses.filter(|address| address.is_ipv4() == (family == Family::Ipv4));
        fitting
            .next()
            .with_context(|| format!("{} has no {family} address", client(node)))
    }

    /// Scales a Service to this many servers; returns their names once they are ready.
    pub(crate) fn scale(&self, shop: Shop, servers: usize) -> Result<BTreeSet<String>> {
        self.scale_within(shop, servers, DEADLINE)
    }

    /// The same with another deadline.
    pub(crate) fn scale_within(
        &self,
        shop: Shop,
        servers: usize,
        deadline: Duration,
    ) -> Result<BTreeSet<String>> {
        let deployment = format!("deployment/{}", shop.name);
        self.kubectl(&["scale", &deployment, &format!("--replicas={servers}")])?;
        let what = format!("{servers} servers of {}", shop.name);
        wait_for(&what, deadline, || {
            let names = self.observe_servers(shop)?;
            Ok((names.len() == servers).then_some(names))
        })
    }

    /// Returns diagnostics for an error message, the most telling last.
    pub(crate) fn describe(&self) -> String {
        let mut text = String::new();
        let namespace = format!("--namespace={NAMESPACE}");
        let logs = |of| vec!["logs", of, &namespace, "--all-pods", "--tail=15"];
        let looks = [
            logs("daemonset/signpost-agent"),
            logs("deployment/signpost-operator"),
            vec!["get", "proxyprofiles,nodeproxies"],
            vec!["get", "pods", "--all-namespaces", "--output=wide"],
            vec!["events", "--all-namespaces"],
        ];
        for look in looks {
            let seen = self
                .kubectl(&look)
                .unwrap_or_else(|error| format!("{error:#}"));
            write_end(&mut text, &format!("$ kubectl {}", look.join(" ")), &seen);
        }
        for component in [Component::ControllerManager, Component::Scheduler] {
            let log = self.cluster.control_plane().logs(component);
            let log = log.unwrap_or_else(|error| format!("{error:#}"));
            write_end(&mut text, &format!("{component:?}:"), &log);
        }
        text
    }
}

/// Writes the last lines, shortened.
fn write_end(text: &mut String, heading: &str, seen: &str) {
    let lines: Vec<&str> = seen.lines().collect();
    let _ = writeln!(text, "{heading}");
    for line in lines.split_at(lines.len().saturating_sub(40)).1 {
        let shown: String = line.chars().take(240).collect();
        let _ = writeln!(text, "  {shown}");
    }
}

// === impl Running ===

impl Running {
    fn of(pod: Pod) -> Running {
        let status = pod.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let containers = status.container_statuses.unwrap_or_default();
        Running {
            name: pod.metadata.name.unwrap_or_default(),
            node: pod.spec.and_then(|spec| spec.node_name).unwrap_or_default(),
            uid: pod.metadata.uid.unwrap_or_default(),
            restarts: containers
                .iter()
                .map(|container| container.restart_count)
                .sum(),
            ready: conditions
                .iter()
                .any(|said| said.type_ == "Ready" && said.status == "True"),
        }
    }
}
