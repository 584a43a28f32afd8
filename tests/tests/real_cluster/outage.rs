//! An outage of the API server.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tests::deadline::wait_for;

use crate::shop::{SERVERS, SHIFTING};
use crate::stage::{DEADLINE, PROMPTLY, Stage};

/// The duration: longer than the operators keep their lease.
const OUTAGE: Duration = Duration::from_secs(15);
/// How soon Pods change after an outage of the API server: kubelets wait up to a minute before they
/// retry.
const PODS_CHANGE_WITHIN: Duration = Duration::from_secs(240);

/// The API server is away in the middle of a rollout (failure story T323).
pub(crate) fn api_server(stage: &mut Stage) -> Result<()> {
    let before = stage.observe_component("agent")?;
    let had = stage.observe_node_proxies()?;
    let servers = stage.observe_servers(SHIFTING)?;
    let connections = stage.connect()?;
    stage.edit_sync_period("31s")?;
    stage.cluster.control_plane_mut().stop_api_server();
    let away = sit_out(stage);
    let served = stage.wait_until_served(SHIFTING, &servers, Duration::ZERO);
    stage.cluster.control_plane_mut().start_api_server()?;
    let back = Instant::now();
    away?;
    served.context("while the API server was away")?;
    let servers = stage.scale_within(SHIFTING, SERVERS + 1, PODS_CHANGE_WITHIN)?;
    wait_for("EndpointSlices", DEADLINE, || {
        Ok((stage.observe_endpoints(SHIFTING)? == servers).then_some(()))
    })?;
    println!(
        "    another server was in EndpointSlices {:.1?} after the API server was back",
        back.elapsed()
    );
    stage.wait_until_served(SHIFTING, &servers, PROMPTLY)?;
    stage.wait_until_settled()?;
    stage.expect_one_configuration_since(&had)?;
    let after = stage.wait_for_component("agent", "agents to be ready", |_| true)?;
    ensure!(after == before, "agents were {before:?} and are {after:?}");
    connections.finish_unharmed()
}

/// Checks that everything else keeps running during the outage. By its end the agents report that
/// they have lost the API server, and that they are ready all the same.
fn sit_out(stage: &mut Stage) -> Result<()> {
    let stopped = Instant::now();
    wait_for("the end of the outage", DEADLINE, || {
        stage.cluster.ensure_runs()?;
        Ok((stopped.elapsed() >= OUTAGE).then_some(()))
    })?;
    for node in stage.cluster.nodes() {
        let ask = |path| {
            let url = format!("http://127.0.0.1:10249/{path}");
            node.namespace().get(&url, PROMPTLY)
        };
        let metrics = ask("metrics")?;
        let name = "signpost_source_stale_seconds ";
        let mut lines = metrics.body().lines();
        let stale = lines.find_map(|line| line.strip_prefix(name));
        let stale: f64 = stale.with_context(|| format!("no {name}"))?.parse()?;
        ensure!(stale > 0.0, "{} does not miss the API server", node.name());
        let ready = ask("readyz")?;
        ensure!(ready.status() == 200, "{}: {ready:?}", node.name());
    }
    Ok(())
}
