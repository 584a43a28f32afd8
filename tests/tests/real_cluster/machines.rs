//! Nodes join and leave.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use dataplane::{Family, Protocol};
use tests::deadline::wait_for;
use tests::network::{Connections, Kind};

use crate::shop::SHIFTING;
use crate::stage::{DEADLINE, PROMPTLY, Stage};
use crate::ways::Place;

/// The node that joins and leaves.
const NEWCOMER: u8 = 4;
/// Enough servers for one on each node, given their spread.
const SERVERS: usize = 8;

pub(crate) fn come_and_go(stage: &mut Stage) -> Result<()> {
    let began = Instant::now();
    stage.cluster.add_node(NEWCOMER)?;
    println!("    the node was Ready after {:.1?}", began.elapsed());
    stage.create_clients([NEWCOMER].into_iter())?;
    let profile = stage.wait_until_ready()?;
    println!("    and programmed after {:.1?}", began.elapsed());
    ensure!(
        profile
            .status
            .is_some_and(|status| status.matched_nodes == u32::from(NEWCOMER))
    );
    let servers = stage.scale(SHIFTING, SERVERS)?;
    let on_newcomer = stage.observe_servers_on(SHIFTING, NEWCOMER)?;
    ensure!(
        !on_newcomer.is_empty(),
        "none of {servers:?} is on the new node"
    );
    stage.wait_until_served(SHIFTING, &servers, PROMPTLY)?;
    drain(stage)?;
    stage.cluster.remove_node(NEWCOMER)?;
    let profile = stage.wait_until_ready()?;
    ensure!(
        profile
            .status
            .is_some_and(|status| status.matched_nodes == u32::from(NEWCOMER) - 1)
    );
    ensure!(!stage.observe_node_proxies()?.contains_key("node-4"));
    Ok(())
}

/// Connections from elsewhere reach servers that are not terminating, or still answer. The agent
/// stays on the drained node, and so do its Services.
fn drain(stage: &Stage) -> Result<()> {
    let ways = [
        (Place::Outside(1), (Protocol::Tcp, Family::Ipv4)),
        (Place::Outside(NEWCOMER), (Protocol::Tcp, Family::Ipv4)),
        (Place::Pod(2), (Protocol::Tcp, Family::Ipv6)),
        (Place::Node(3), (Protocol::Udp, Family::Ipv4)),
    ];
    let ways = ways.map(|(place, how)| stage.way(place, SHIFTING, how));
    let ways = ways.into_iter().collect::<Result<Vec<_>>>()?;
    let connections = Connections::start(&ways, &[Kind::New], Duration::from_millis(10))?;
    let steady = stage.connect()?;
    let timeout = format!("--timeout={}s", DEADLINE.as_secs());
    let began = Instant::now();
    let all = [
        "drain",
        "node-4",
        "--ignore-daemonsets",
        "--force",
        &timeout,
    ];
    stage.kubectl(&all)?;
    println!("    drained after {:.1?}", began.elapsed());
    let left = wait_for("as many servers elsewhere", DEADLINE, || {
        let left = stage.observe_servers(SHIFTING)?;
        Ok((left.len() == SERVERS).then_some(left))
    })?;
    ensure!(
        stage.observe_servers_on(SHIFTING, NEWCOMER)?.is_empty(),
        "{left:?}"
    );
    for way in &ways {
        way.wait_for_servers(&left, PROMPTLY)?;
    }
    connections.finish_unharmed()?;
    steady.finish_unharmed()
}
