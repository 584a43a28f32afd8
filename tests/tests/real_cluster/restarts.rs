//! Signpost's Pods and a kubelet restart while endpoints change.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tests::real_cluster::Part;

use crate::shop::{SERVERS, SHIFTING, Shop};
use crate::stage::{NAMESPACE, PROMPTLY, Running, Stage};
use crate::ways::Place;

/// The node whose agent restarts.
const NODE: u8 = 2;
/// A deadline for a single check.
const AT_ONCE: Duration = Duration::ZERO;

/// The agent of one node restarts in the middle of a rollout (failure story T323).
pub(crate) fn agent_pod(stage: &mut Stage) -> Result<()> {
    let old = agent_on(stage, "node-2")?;
    let before = stage.observe_node_proxies()?;
    let connections = stage.connect()?;
    stage.kubectl(&[
        "delete",
        "pod",
        &old.name,
        "--namespace",
        NAMESPACE,
        "--wait=false",
    ])?;
    stage.edit_sync_period("29s")?;
    let servers = stage.scale(SHIFTING, SERVERS - 1)?;
    let began = Instant::now();
    stage.wait_for_component("agent", "another agent on node-2", |pods| {
        pods.iter()
            .any(|pod| pod.node == old.node && pod.uid != old.uid)
    })?;
    println!(
        "    it was back {:.1?} after endpoints had changed",
        began.elapsed()
    );
    expect_served(stage, SHIFTING, &servers, AT_ONCE)?;
    // The new agent receives later changes.
    let servers = stage.scale(SHIFTING, SERVERS + 1)?;
    expect_served(stage, SHIFTING, &servers, PROMPTLY)?;
    stage.wait_until_settled()?;
    stage.expect_one_configuration_since(&before)?;
    connections.finish_unharmed()
}

/// Nodes work without operators, and the new ones continue where the old ones stopped.
pub(crate) fn operator_pods(stage: &mut Stage) -> Result<()> {
    let old = stage.observe_component("operator")?;
    let names: Vec<&str> = old.iter().map(|pod| pod.name.as_str()).collect();
    ensure!(names.len() == 2, "{old:?}");
    let connections = stage.connect()?;
    let delete = ["delete", "pod", "--namespace", NAMESPACE, "--wait=false"];
    stage.kubectl(&[&delete, &names[..]].concat())?;
    let servers = stage.scale(SHIFTING, SERVERS + 2)?;
    stage.wait_until_served(SHIFTING, &servers, PROMPTLY)?;
    stage.wait_for_component("operator", "two other operators", |pods| {
        let new = pods
            .iter()
            .filter(|pod| !names.contains(&pod.name.as_str()));
        new.count() == 2
    })?;
    let before = stage.observe_node_proxies()?;
    stage.edit_sync_period("23s")?;
    stage.wait_until_ready()?;
    stage.expect_one_configuration_since(&before)?;
    connections.finish_unharmed()
}

/// k/k#125467: endpoints removed while kube-proxy was stopped were used after its restart. Here the
/// kubelet is stopped, so the agent is not restarted and stays away during the change.
pub(crate) fn kubelet(stage: &mut Stage) -> Result<()> {
    let old = agent_on(stage, "node-2")?;
    let connections = stage.connect()?;
    stage.cluster.node_mut(NODE)?.stop_kubelet();
    let process = stage
        .cluster
        .node(NODE)?
        .observe_pod_process(&old.name, Part::Container)?;
    let process = Pid::from_raw(i32::try_from(process)?).context("no process has the id 0")?;
    kill_process(process, Signal::KILL).context("failed to kill the agent")?;
    let changed = stage.scale(SHIFTING, SERVERS - 2);
    stage.cluster.start_kubelet(NODE)?;
    let servers = changed?;
    let began = Instant::now();
    stage.wait_for_component("agent", "the agent on node-2 to be started again", |pods| {
        pods.iter()
            .any(|pod| pod.uid == old.uid && pod.restarts == old.restarts + 1)
    })?;
    println!("    it was back {:.1?} after the kubelet", began.elapsed());
    expect_served(stage, SHIFTING, &servers, AT_ONCE)?;
    stage.cluster.wait_until_ready(NODE)?;
    connections.finish_unharmed()
}

fn agent_on(stage: &Stage, node: &str) -> Result<Running> {
    let agents = stage.observe_component("agent")?;
    let agent = agents.into_iter().find(|pod| pod.node == node);
    agent.with_context(|| format!("{node} has no agent"))
}

/// Waits until the node whose agent ended forwards connections to exactly these servers.
fn expect_served(
    stage: &Stage,
    shop: Shop,
    servers: &BTreeSet<String>,
    deadline: Duration,
) -> Result<()> {
    for place in [Place::Outside(NODE), Place::Node(NODE), Place::Pod(NODE)] {
        for way in stage.tcp_ways(place, shop)? {
            way.wait_for_servers(servers, deadline)?;
        }
    }
    Ok(())
}
