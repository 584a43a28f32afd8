//! Rules of another program that drop what Signpost's rules would forward.

use anyhow::{Context, Result, ensure};
use crds::NodeProxy;
use crds::condition::reason::CONNECTION_FAILED;
use crds::condition::{self, API_SERVICE_REACHABLE, DEGRADED, READY, Status};
use serde_json::Value;
use tests::cluster::resources::says;
use tests::cluster::{Cluster, DEADLINE};
use tests::network::Namespace;

use crate::restarts::status_of;

/// The node with the rules.
const NODE: u8 = 2;

/// Failure story T184: the rules are programmed, and another program drops what they would forward.
pub(crate) fn drop_all(cluster: &mut Cluster) -> Result<()> {
    let name = format!("node-{NODE}");
    let reachable = |proxy: &NodeProxy, status| {
        let conditions = status_of(proxy).conditions;
        condition::status_of(&conditions, API_SERVICE_REACHABLE) == status
    };
    cluster.wait_for_node_proxies(
        "all nodes to reach the API's Service",
        DEADLINE,
        |proxies| {
            let mut all = proxies.values();
            all.all(|proxy| reachable(proxy, Status::True))
        },
    )?;
    let node = cluster.topology().node(NODE)?.clone();
    block_api_service(cluster, &node)?;
    cluster.take_agent(NODE)?.kill()?;
    cluster.start_agent(NODE)?;
    let degraded = cluster.wait_for_node_proxies("the fault", DEADLINE, |proxies| {
        let conditions = status_of(&proxies[&name]).conditions;
        says(&conditions, DEGRADED, Status::True, CONNECTION_FAILED)
            && condition::status_of(&conditions, READY) == Status::True
    });
    node.nft(&["delete table ip blocker"])?;
    let proxies = degraded?;
    for (other, proxy) in proxies.iter().filter(|(other, _)| **other != name) {
        ensure!(reachable(proxy, Status::True), "{other} is affected, too");
    }
    let repaired = cluster.wait_for_node_proxies("the repair", DEADLINE, |proxies| {
        reachable(&proxies[&name], Status::True)
    })?;
    let conditions = status_of(&repaired[&name]).conditions;
    ensure!(condition::status_of(&conditions, DEGRADED) == Status::False);
    Ok(())
}

/// Drops what processes of a node send to the Service of the API, as another program may, until table
/// `blocker` is deleted.
pub(crate) fn block_api_service(cluster: &Cluster, node: &Namespace) -> Result<()> {
    let service: Value = cluster.get(&["service", "kubernetes", "--namespace=default"])?;
    let address = service["spec"]["clusterIP"].as_str();
    let address = address.context("it has a cluster IP")?;
    // Before the DNAT of any mode; the agent's own connections have another destination.
    node.nft(&[&format!(
        "table ip blocker {{
            chain output {{
                type filter hook output priority -300;
                ip daddr {address} drop
            }}
        }}"
    )])
    .map(drop)
}
