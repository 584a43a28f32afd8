//! The status of a real agent, compared with what the simulated agents of `make fleet` write.

use std::time::Duration;

use anyhow::{Context, Result};
use crds::condition::{self, API_SERVICE_REACHABLE, Status};
use serde_json::{Value, json};
use tests::cluster::resources::is_node_ready;
use tests::cluster::shop::{Readiness, WEB};
use tests::cluster::{Cluster, DEADLINE};
use tests::deadline::wait_for;
use tests::fleet::{paths_of, simulated_status};

use crate::restarts::status_of;

/// The node whose agent is compared.
const NODE: u8 = 3;

/// A status with every field that an agent fills where everything is in order: a change of
/// endpoints gives it all latencies, and a change by another program an entry of drift.
pub(crate) fn status(cluster: &mut Cluster) -> Result<()> {
    let name = format!("node-{NODE}");
    cluster.set_readiness(WEB[1], Readiness::NotReady)?;
    cluster.wait_until_served_by(&["web-1", "web-3", "web-4"], DEADLINE)?;
    cluster.set_readiness(WEB[1], Readiness::Ready)?;
    let node = cluster.topology().node(NODE)?.clone();
    node.nft(&["delete table ip6 signpost"])?;
    wait_for("the latencies and the repair", DEADLINE, || {
        let (_, status) = cluster.ask_agent(NODE, "/debug/status")?;
        let is_complete = ["networkProgramming:", "drift:"]
            .iter()
            .all(|field| status.contains(field));
        Ok(is_complete.then_some(()))
    })?;
    // Agents write changed figures minutes later, but answer a new configuration at once.
    cluster.patch_profile("default", &json!({"syncPeriod": "31s"}))?;
    let proxies = cluster.wait_for_node_proxies("the complete status", DEADLINE, |proxies| {
        let proxy = &proxies[&name];
        let status = status_of(proxy);
        is_node_ready(proxy)
            && proxy.spec.config.sync_period.duration() == Duration::from_secs(31)
            && status.heartbeat.is_some()
            && !status.drift.is_empty()
            && condition::status_of(&status.conditions, API_SERVICE_REACHABLE) == Status::True
    })?;
    let simulated = serde_json::to_value(simulated_status(&proxies[&name]))?;
    let mut difference = String::new();
    // Conditions that a later check of the agent adds are written at once.
    let compared = wait_for("the same fields in both statuses", DEADLINE, || {
        let object: Value = cluster.get(&["nodeproxy", &name])?;
        let mut real = paths_of(&object["status"]);
        let mut simulated = paths_of(&simulated);
        if object["status"]["conntrack"].is_null() {
            println!("not compared: the kernel does not say how full its conntrack table is");
            for paths in [&mut real, &mut simulated] {
                paths.retain(|path| !path.to_lowercase().contains("conntrack"));
            }
        }
        difference = format!(
            "only a real agent fills {:?}, only a simulated one {:?}",
            real.difference(&simulated),
            simulated.difference(&real)
        );
        Ok((real == simulated).then_some(()))
    });
    compared.context(difference)
}
