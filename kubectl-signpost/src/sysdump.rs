//! `sysdump`: writes one archive with the data for a bug report. Data that cannot be read is
//! listed, and the collection continues.

mod archive;
mod nodes;
mod objects;
mod secrets;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::Context;
use crds::{NodeProxy, ProxyProfile};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Event, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::{Resource, ResourceExt};
use runtime::chain;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::advice::problem;
use crate::agent::Agent;
use crate::arguments::{Access, SysdumpOptions};
use crate::check::{SELECTOR, first};
use crate::cluster::Cluster;
use crate::ending::Ending;
use crate::installation::Installation;
use crate::output::counted;
use crate::print;
use archive::{Archive, Contents};
use nodes::{Choice, choose, inquire};
use objects::Kept;

/// The number of agents and logs read concurrently.
const AT_ONCE: usize = 8;
/// The reporting components of Signpost's Events.
const REPORTERS: [&str; 2] = ["signpost-agent", "signpost-operator"];
/// The content of the first file.
const README: &str = "An archive of `kubectl signpost sysdump`.\n\n\
    versions.txt                   this program and the API server\n\
    proxyprofiles.yaml, nodeproxies.yaml, nodes.yaml, services.yaml, endpointslices.yaml\n\
    daemonsets.yaml, deployments.yaml\n\
    \x20                              what makes Signpost's Pods: on which nodes, and how many there are\n\
    pods.yaml                      Signpost's Pods: where they run, their images and their status\n\
    events/                        Events of Signpost's namespaces, and those that its programs wrote elsewhere\n\
    logs/POD/CONTAINER.log         the newest lines; CONTAINER.previous.log is that of the container before\n\
    nodes/NODE/                    what the agent of a node has: rules in the kernel, desired state (dataplane), last syncs,\n\
    \x20                              status, metrics, and explanations of Services\n\
    missing.txt                    what could not be read, and why\n\n\
    Secrets and ConfigMaps are not read. Environment variables and arguments of Pods, labels and annotations of other\n\
    domains than signpost.dev, kubernetes.io and k8s.io (labels of Nodes are whole), and managed fields are left out.\n\
    Tokens and private keys in texts are replaced by [removed]. Names and addresses of Services, Pods and Nodes are there.\n";

/// The state of a collection. Parts are collected one after another.
struct Collector<'a> {
    cluster: &'a Cluster,
    archive: Archive,
}

/// Collects the data and writes the archive.
pub(crate) async fn run(access: &Access, options: &SysdumpOptions) -> anyhow::Result<Ending> {
    let cluster = Cluster::open(access).await?;
    // Without an answer from the API server, the command fails instead of writing an archive of
    // failures.
    let version = cluster.read_version().await?;
    let now = Timestamp::now();
    let name = format!("signpost-sysdump-{}", now.strftime("%Y%m%dT%H%M%SZ"));
    let file = options.file.clone();
    let file = file.unwrap_or_else(|| PathBuf::from(format!("{name}.tar.gz")));
    let archive = Archive::create(&file, &name, now);
    let archive = archive.with_context(|| {
        let what = format!("failed to create {}", file.display());
        problem(
            what,
            "give a file that does not exist, in a directory of yours, with --file",
        )
    })?;
    let mut collector = Collector {
        cluster: &cluster,
        archive,
    };
    let programs = format!(
        "kubectl-signpost {}\nKubernetes {}\n",
        env!("CARGO_PKG_VERSION"),
        version.git_version
    );
    let written = async {
        collector.archive.add("README.txt", Ok(README.to_owned()))?;
        collector.archive.add("versions.txt", Ok(programs))?;
        let asked = collector.collect(options).await?;
        anyhow::Ok((asked, collector.archive.finish()?))
    };
    let (asked, contents) = written.await.with_context(|| {
        let what = format!("failed to write {}", file.display());
        problem(
            what,
            "remove the file, and give one where there is room with --file",
        )
    })?;
    print(&render(&file.display().to_string(), &asked, &contents))?;
    Ok(match contents.missing.is_empty() {
        true => Ending::Success,
        false => Ending::ProblemFound,
    })
}

/// Renders a summary of the archive.
fn render(file: &str, nodes: &[String], contents: &Contents) -> String {
    let nodes = match nodes {
        [] => "no node".to_owned(),
        nodes => nodes.join(", "),
    };
    let mut text = format!(
        "{file}: {}; agents asked: {nodes}\n\
         Secrets, ConfigMaps, environment variables and tokens are left out. Review it before you share it: it names Services, \
         Pods, Nodes and their addresses.\n",
        counted(contents.parts, "part")
    );
    for missing in &contents.missing {
        text += &format!("missing: {}: {}\n", missing.part, missing.reason);
    }
    text
}

// === impl Collector ===

impl Collector<'_> {
    /// Collects everything; returns the nodes whose agents were queried.
    async fn collect(&mut self, options: &SysdumpOptions) -> anyhow::Result<Vec<String>> {
        let all = ListParams::default;
        self.objects::<ProxyProfile>("proxyprofiles.yaml", Kept::Whole, None, all())
            .await?;
        let proxies = self
            .objects::<NodeProxy>("nodeproxies.yaml", Kept::Whole, None, all())
            .await?;
        self.objects::<Node>("nodes.yaml", Kept::Node, None, all())
            .await?;
        self.objects::<Service>("services.yaml", Kept::Spec, None, all())
            .await?;
        self.objects::<EndpointSlice>("endpointslices.yaml", Kept::Slice, None, all())
            .await?;
        let selected = all().labels(SELECTOR);
        self.objects::<DaemonSet>("daemonsets.yaml", Kept::Workload, None, selected.clone())
            .await?;
        self.objects::<Deployment>("deployments.yaml", Kept::Workload, None, selected.clone())
            .await?;
        let pods = self
            .objects::<Pod>("pods.yaml", Kept::Pod, None, selected)
            .await?;
        let mut pods: Vec<Pod> = typed(pods);
        match Installation::read(self.cluster).await {
            Ok(installation) => pods.retain(|pod| installation.contains(pod)),
            Err(error) => self
                .archive
                .add("pods.yaml", Err(chain(&error).to_string()))?,
        }
        let namespaces: BTreeSet<String> = pods.iter().filter_map(ResourceExt::namespace).collect();
        for namespace in &namespaces {
            let part = format!("events/{namespace}.yaml");
            self.objects::<Event>(&part, Kept::Event, Some(namespace), all())
                .await?;
        }
        for reporter in REPORTERS {
            let part = format!("events/{reporter}.yaml");
            let written = all().fields(&format!("reportingComponent={reporter}"));
            self.objects::<Event>(&part, Kept::Event, None, written)
                .await?;
        }
        self.logs(&pods, options.log_lines).await?;
        self.agents(&pods, &typed(proxies), options).await
    }

    /// Collects all objects of a kind.
    async fn objects<K: Resource<DynamicType = ()>>(
        &mut self,
        part: &str,
        kept: Kept,
        namespace: Option<&str>,
        parameters: ListParams,
    ) -> anyhow::Result<Vec<Value>> {
        let (objects, text) = match self.cluster.read_raw::<K>(namespace, parameters).await {
            Ok(objects) => {
                let text = objects::print(&objects, kept);
                (objects, text)
            }
            Err(error) => (Vec::new(), Err(chain(&error).to_string())),
        };
        self.archive.add(part, text)?;
        Ok(objects)
    }

    /// Collects the logs of all containers.
    async fn logs(&mut self, pods: &[Pod], lines: u32) -> anyhow::Result<()> {
        let cluster = self.cluster;
        let logs = pods.iter().flat_map(logs_of).map(|log| async move {
            let place = (log.namespace.as_str(), log.pod.as_str());
            let read = cluster.read_log(place, &log.container, lines, log.previous);
            let read = read.await.map_err(|error| chain(&error).to_string());
            (log.part(), read)
        });
        let mut logs = futures::stream::iter(logs).buffered(AT_ONCE);
        while let Some((part, read)) = logs.next().await {
            self.archive.add(&part, read)?;
        }
        Ok(())
    }

    /// Collects the data of the agents on the chosen nodes.
    async fn agents(
        &mut self,
        pods: &[Pod],
        proxies: &[NodeProxy],
        options: &SysdumpOptions,
    ) -> anyhow::Result<Vec<String>> {
        let agents = Agent::among(pods);
        let agents: BTreeMap<&str, &Agent> = agents
            .iter()
            .map(|agent| (agent.node.as_str(), agent))
            .collect();
        let Choice {
            asked: chosen,
            without_agent,
        } = choose(agents.keys().copied(), proxies, options);
        if !without_agent.is_empty() {
            let reason = format!("no agent runs on {}", first(without_agent.iter()));
            self.archive.add("nodes", Err(reason))?;
        }
        let cluster = self.cluster;
        let asked = chosen.iter().map(|node| {
            let (agent, node) = (agents.get(node.as_str()).copied(), node.as_str());
            let proxy = proxies.iter().find(|proxy| proxy.name_any() == node);
            async move { inquire(cluster, node, agent, proxy, &options.services).await }
        });
        let mut answers = futures::stream::iter(asked).buffered(AT_ONCE);
        while let Some(answers) = answers.next().await {
            for (part, read) in answers {
                self.archive.add(&part, read)?;
            }
        }
        drop(answers);
        Ok(chosen)
    }
}

/// The log of a container.
struct Log {
    namespace: String,
    pod: String,
    container: String,
    /// Whether the log is from the container's previous instance.
    previous: bool,
}

// === impl Log ===

impl Log {
    fn part(&self) -> String {
        let Log { pod, container, .. } = self;
        let previous = if self.previous { ".previous" } else { "" };
        format!("logs/{pod}/{container}{previous}.log")
    }
}

fn logs_of(pod: &Pod) -> Vec<Log> {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let status = pod.status.as_ref();
    let statuses = status.and_then(|status| status.container_statuses.as_deref());
    let mut logs = Vec::new();
    for container in containers {
        let of_container = |previous| Log {
            namespace: namespace.clone(),
            pod: name.clone(),
            container: container.name.clone(),
            previous,
        };
        logs.push(of_container(false));
        let mut statuses = statuses.unwrap_or_default().iter();
        if statuses.any(|status| status.name == container.name && status.restart_count > 0) {
            logs.push(of_container(true));
        }
    }
    logs
}

/// Returns the objects that this version can parse.
fn typed<K: DeserializeOwned>(objects: Vec<Value>) -> Vec<K> {
    let objects = objects.into_iter();
    objects
        .filter_map(|object| serde_json::from_value(object).ok())
        .collect()
}
