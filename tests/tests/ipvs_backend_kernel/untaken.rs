//! Packets that a process of the node would answer if nothing refused them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use backend_ipvs::{MARKS, TABLE};
use dataplane::{Family, Protocol};
use netlink::ipvs::{IpvsSocket, Operation};
use netlink::nf_tables::family_name;
use tests::deadline::patience;
use tests::network::{Namespace, Outcome, Way};

use crate::stage::{Affinity, PATIENCE, SERVING, Stage, cluster_ip, is_by, server};

/// How long a client waits for an error that may not come.
const PROMPTLY: Duration = Duration::from_secs(1);

/// Failure story T297: another program removes the virtual servers, and nothing has repaired it yet.
pub(super) fn reach_no_process() -> Result<()> {
    let mut stage = Stage::build()?;
    stage.serve(&SERVING[..1], Affinity::None)?;
    let ways = ways(&stage)?;
    for (_, way) in &ways {
        let outcome = way.observe_once(PATIENCE)?;
        ensure!(
            is_by(&outcome, &server(SERVING[0])),
            "at first: {way}: {outcome}"
        );
    }
    remove_virtual_servers(stage.node()?)?;
    for (family, way) in ways {
        let before = untaken(stage.node()?, family)?;
        let outcome = way.observe_once(patience(PROMPTLY))?;
        let is_refused = match way.protocol {
            // The error would come from the cluster IP, and IPv4 sends none from an address that no
            // device has.
            Protocol::Udp => [Outcome::Refused, Outcome::TimedOut].contains(&outcome),
            _ => outcome == Outcome::Refused,
        };
        ensure!(is_refused, "{way}: {outcome}");
        let counted = untaken(stage.node()?, family)? - before;
        ensure!(counted > 0, "{way}: {outcome}, and no packet is counted");
    }
    Ok(())
}

/// TCP and UDP in both families, from a pod and from the node itself.
pub(super) fn ways(stage: &Stage) -> Result<Vec<(Family, Way)>> {
    let mut ways = Vec::new();
    for (from, inside) in [("a pod", stage.client()?), ("the node", stage.node()?)] {
        for family in Family::ALL {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let way = Way {
                    from: from.to_owned(),
                    inside: inside.clone(),
                    protocol,
                    destination: cluster_ip(family),
                };
                ways.push((family, way));
            }
        }
    }
    Ok(ways)
}

fn remove_virtual_servers(node: &Namespace) -> Result<()> {
    let mut socket = node.enter(|| IpvsSocket::open(MARKS))??;
    let own = socket.observe_virtual_servers()?.own.into_keys();
    let removals = own.map(|key| Operation::RemoveVirtualServer { key });
    let removals: Vec<_> = removals.collect();
    ensure!(!removals.is_empty(), "there are no virtual servers");
    socket.commit(&removals)?;
    Ok(())
}

/// The number of packets that the chain after IPVS has counted.
fn untaken(node: &Namespace, family: Family) -> Result<u64> {
    let listed = node.nft(&["list", "chain", family_name(family), TABLE, "after-ipvs"])?;
    let mut words = listed.split_whitespace();
    let mut count = 0;
    while let Some(word) = words.next() {
        if word == "packets" {
            count += words.next().context("a number follows")?.parse::<u64>()?;
        }
    }
    Ok(count)
}
