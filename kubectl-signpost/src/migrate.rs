//! `migrate`: moves nodes from kube-proxy to Signpost and back.
//!
//! ```text
//! objects --plan (pure)--> which proxy serves, next step, obstacles --text--> standard output
//!                           `--handover: signpost-agent takeover|handback in the Pod of each node's agent
//! ```
//!
//! The agent does the work and decides whether it is allowed, as if its command were run by hand.

mod handover;
mod plan;
mod text;

use crds::starter::{KUBE_PROXY, NAMESPACE};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::ConfigMap;

use crate::advice;
use crate::arguments::{Access, MigrateStep, PlanOptions};
use crate::check::absent;
use crate::cluster::{Cluster, ClusterError};
use crate::config::{Note, not_carried_over};
use crate::ending::Ending;
use crate::installation::read_agents;
use crate::output::{Paint, serialize};
use crate::placement::read_placements;
use crate::pod_network::PodNetwork;
use crate::{print, program_name};
use handover::Direction;
use plan::{Evidence, NetworkEvidence, Plan, ServicePorts};

/// The ConfigMaps that may have kube-proxy's configuration. On EKS the first has a kubeconfig alone.
const CONFIG_MAPS: [&str; 2] = [KUBE_PROXY, "kube-proxy-config"];

/// Runs one of the subcommands.
pub(crate) async fn run(
    access: &Access,
    step: &MigrateStep,
    paint: Paint,
) -> anyhow::Result<Ending> {
    let cluster = Cluster::open(access).await?;
    let mut evidence = observe(&cluster).await?;
    if !matches!(step, MigrateStep::Handback(_)) {
        evidence.network = observe_network(&cluster).await?;
    }
    match step {
        MigrateStep::Plan(options) => show(&cluster, &evidence, options, paint).await,
        MigrateStep::Takeover(options) => {
            let plan = Plan::of(&evidence, &options.nodes)?;
            Ok(handover::run(&cluster, &plan, Direction::Takeover, options).await)
        }
        MigrateStep::Handback(options) => {
            let plan = Plan::of(&evidence, &options.nodes)?;
            Ok(handover::run(&cluster, &plan, Direction::Handback, options).await)
        }
    }
}

async fn observe(cluster: &Cluster) -> anyhow::Result<Evidence> {
    let daemon_set = cluster.read_in::<DaemonSet>(NAMESPACE, KUBE_PROXY).await;
    Ok(Evidence {
        proxies: cluster.read_all().await?,
        // A user who may read Signpost's objects may lack permission to read Nodes.
        nodes: absent(cluster.read_nodes().await)?.unwrap_or_default(),
        agents: read_agents(cluster).await?,
        placements: read_placements(cluster).await?,
        system_pods: cluster.read_pods_in(NAMESPACE).await?,
        daemon_set: absent(daemon_set)?,
        network: NetworkEvidence::default(),
    })
}

async fn observe_network(cluster: &Cluster) -> Result<NetworkEvidence, ClusterError> {
    let services = cluster.read_of_each(ServicePorts::of).await;
    Ok(NetworkEvidence {
        pods: cluster.read_of_each(PodNetwork::of).await?,
        services: absent(services)?.unwrap_or_default(),
    })
}

async fn show(
    cluster: &Cluster,
    evidence: &Evidence,
    options: &PlanOptions,
    paint: Paint,
) -> anyhow::Result<Ending> {
    let mut plan = Plan::of(evidence, &options.nodes)?;
    match read_not_carried_over(cluster).await? {
        Ok(notes) => plan.configuration = notes,
        Err(error) => {
            eprintln!("{}: {}", program_name(), runtime::chain(error.as_ref()));
            eprintln!("  next: {}", advice::next(&error));
        }
    }
    match serialize(&plan, options.output)? {
        Some(text) => print(&text)?,
        None => print(&text::render(&plan, options.output, paint))?,
    }
    Ok(plan.ending())
}

/// Returns the settings of kube-proxy that no profile reproduces, from the first ConfigMap with a
/// configuration; none if there is no ConfigMap. The inner error is about their contents.
async fn read_not_carried_over(
    cluster: &Cluster,
) -> Result<anyhow::Result<Vec<Note>>, ClusterError> {
    let mut failed = None;
    for name in CONFIG_MAPS {
        let map = cluster.read_in::<ConfigMap>(NAMESPACE, name).await;
        match absent(map)?.as_ref().map(not_carried_over) {
            None => {}
            Some(Ok(notes)) => return Ok(Ok(notes)),
            Some(Err(error)) => failed = failed.or(Some(error)),
        }
    }
    Ok(failed.map_or_else(|| Ok(Vec::new()), Err))
}

#[cfg(test)]
mod tests;
