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

use crate::arguments::{Access, MigrateStep, PlanOptions};
use crate::check::absent;
use crate::cluster::{Cluster, ClusterError};
use crate::config::not_carried_over;
use crate::ending::Ending;
use crate::installation::read_agents;
use crate::output::{Paint, serialize};
use crate::placement::read_placements;
use crate::pod_network::PodNetwork;
use crate::{print, program_name};
use handover::Direction;
use plan::{Evidence, NetworkEvidence, Plan, ServicePorts};

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
    let map = cluster.read_in::<ConfigMap>(NAMESPACE, KUBE_PROXY).await;
    if let Some(map) = absent(map)? {
        match not_carried_over(&map) {
            Ok(notes) => plan.configuration = notes,
            Err(error) => eprintln!("{}: {}", program_name(), runtime::chain(error.as_ref())),
        }
    }
    match serialize(&plan, options.output)? {
        Some(text) => print(&text)?,
        None => print(&text::render(&plan, options.output, paint))?,
    }
    Ok(plan.ending())
}
