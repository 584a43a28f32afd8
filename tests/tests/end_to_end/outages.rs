//! The API server is unreachable from one node, or from all.

use std::env;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dataplane::{Family, Protocol};
use testkit::address_plan as addresses;
use tests::cluster::shop::{Readiness, WEB, by_hand_address};
use tests::cluster::{Cluster, DEADLINE};

/// The duration of the outage in seconds; shorter values are useful during work on this test.
const OUTAGE: &str = "SIGNPOST_API_OUTAGE";
const OUTAGE_BY_DEFAULT: Duration = Duration::from_secs(60);
/// How long a node is cut off: longer than the network can hide by retransmission.
const CUT_OFF: Duration = Duration::from_secs(10);
/// How soon an agent applies a change made while it was cut off.
const ARRIVES_WITHIN: Duration = Duration::from_secs(30);
/// How soon the controllers of Kubernetes process a change after an outage of the API server: they
/// wait up to a minute before they retry.
pub(crate) const CONTROLLERS_ARE_BACK_WITHIN: Duration = Duration::from_secs(120);
/// The node that is cut off.
const NODE: u8 = 2;

/// Waits until exactly these servers answer for the Service `by-hand` on these nodes, within this
/// time.
fn expect_by_hand(
    cluster: &Cluster,
    nodes: &[u8],
    servers: &[&str],
    deadline: Duration,
) -> Result<()> {
    let way = (Protocol::Tcp, by_hand_address());
    nodes.iter().try_for_each(|node| {
        cluster.wait_for_servers(cluster.client_pod(*node)?, way, servers, deadline)
    })
}

/// Whether the API server can reach a node.
#[derive(Debug, Clone, Copy)]
enum Way {
    Open,
    Cut,
}

/// Opens or blocks the path from the API server to a node, in the API server's namespace: the
/// node's other traffic continues.
fn set_way(cluster: &Cluster, way: Way) -> Result<()> {
    let action = match way {
        Way::Open => "del",
        Way::Cut => "add",
    };
    let node = addresses::node_address(NODE, Family::Ipv4);
    let route = format!("route {action} blackhole {node}/32\n");
    cluster.topology().other("control")?.configure(&route)
}

pub(crate) fn cut_off(cluster: &mut Cluster) -> Result<()> {
    let [one, two, three, _] = WEB;
    cluster.apply_slice("a", &[one, two])?;
    expect_by_hand(cluster, &[1, 2, 3], &["web-1", "web-2"], DEADLINE)?;
    set_way(cluster, Way::Cut)?;
    let changed = cluster.patch_slice("a", &[three]);
    let others = expect_by_hand(cluster, &[1, 3], &["web-3"], ARRIVES_WITHIN);
    let serves = expect_by_hand(cluster, &[NODE], &["web-1", "web-2"], Duration::ZERO);
    let waited = cluster.look_on(CUT_OFF);
    set_way(cluster, Way::Open)?;
    changed.context("the change was not made")?;
    others.context("nodes that were not cut off")?;
    serves.context("the node that is cut off does not serve what it knew")?;
    waited?;
    let back = Instant::now();
    expect_by_hand(cluster, &[NODE], &["web-3"], ARRIVES_WITHIN)?;
    println!(
        "    the change arrived {:.1?} after the node was back",
        back.elapsed()
    );
    cluster.delete_slices(&["a"])
}

pub(crate) fn api_server(cluster: &mut Cluster) -> Result<()> {
    let outage = match env::var(OUTAGE) {
        Ok(seconds) => Duration::from_secs(
            seconds
                .parse()
                .with_context(|| format!("{OUTAGE} in seconds"))?,
        ),
        Err(_) => OUTAGE_BY_DEFAULT,
    };
    let ids = cluster.agent_ids();
    let [one, two, three, four] = WEB;
    cluster.apply_slice("a", &[one, two])?;
    expect_by_hand(cluster, &[1, 2, 3], &["web-1", "web-2"], DEADLINE)?;
    let clients = cluster.start_clients(Duration::from_millis(20))?;

    cluster.control_plane_mut().stop_api_server();
    cluster.look_on(outage)?;
    // Nodes must keep serving the last known state, also to new clients, and stay ready.
    let ready = cluster
        .nodes()
        .map(|node| Ok(cluster.ask_agent(node, "/readyz")?.0));
    let ready: Vec<u16> = ready.collect::<Result<_>>()?;
    let served = cluster.wait_until_served_by(&WEB.map(|pod| pod.name), Duration::ZERO);
    let (_, status) = cluster.ask_agent(NODE, "/debug/status")?;
    cluster.control_plane_mut().start_api_server()?;
    let back = Instant::now();
    served.context("while the API server was away")?;
    ensure!(
        ready == [200, 200, 200],
        "agents that serve are not ready: {ready:?}"
    );
    ensure!(
        status.contains("SourceStale"),
        "an agent that hears nothing says:\n{status}"
    );

    cluster.patch_slice("a", &[three])?;
    let made = back.elapsed();
    expect_by_hand(cluster, &[1, 2, 3], &["web-3"], ARRIVES_WITHIN)?;
    println!(
        "    a change made {made:.1?} after the API server was back arrived {:.1?} after it",
        back.elapsed() - made
    );
    // Changes derived from Pods also need the controllers.
    for (readiness, ready) in [
        (Readiness::NotReady, &[one, three, four][..]),
        (Readiness::Ready, &[one, two, three, four]),
    ] {
        cluster.set_readiness(two, readiness)?;
        cluster.wait_for_slices(ready, CONTROLLERS_ARE_BACK_WITHIN)?;
        let written = Instant::now();
        let names: Vec<&str> = ready.iter().map(|pod| pod.name).collect();
        cluster.wait_until_served_by(&names, ARRIVES_WITHIN)?;
        println!(
            "    EndpointSlices were written {:.1?} after, and served {:.1?} later",
            written - back,
            written.elapsed()
        );
    }
    ensure!(cluster.agent_ids() == ids, "agents were started again");
    cluster.look_on(Duration::ZERO)?;
    cluster.wait_until_ready(DEADLINE)?;
    println!(
        "    {} reported {:.1?} after",
        cluster.operator_identity(),
        back.elapsed()
    );
    clients.finish_unharmed()?;
    cluster.delete_slices(&["a"])
}
