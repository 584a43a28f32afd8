//! Edits of the profile: packets take another path on every node, no agent restarts, and the
//! profile reports completion.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use crds::condition::PROGRESSING;
use crds::condition::reason::SETTLED;
use dataplane::{Family, Protocol};
use jiff::Timestamp;
use serde_json::{Value, json};
use tests::network::Outcome;

use crate::shop::STEADY;
use crate::stage::{NODES, PROMPTLY, Stage};
use crate::upgrade::observe_all;
use crate::ways::{Client, EVERYWHERE, Place};

/// How long a client waits where no answer is expected.
const SHORTLY: Duration = Duration::from_millis(500);

/// Servers see the client's address, or after the change the address of its node.
pub(crate) fn masquerade(stage: &mut Stage) -> Result<()> {
    for (node, family, client, seen) in observe_sources(stage)? {
        ensure!(
            seen == client,
            "node-{node}, {family}: {client} is seen as {seen} beforehand"
        );
    }
    change(stage, &json!({"masquerade": {"all": true}}), &EVERYWHERE)?;
    for (node, family, client, seen) in observe_sources(stage)? {
        ensure!(
            seen != client,
            "node-{node}, {family}: {client} is still seen as itself"
        );
    }
    Ok(())
}

/// Node ports of a family without a matching node address answer nowhere, and those of the other
/// family everywhere.
pub(crate) fn node_ports(stage: &mut Stage) -> Result<()> {
    let answers = |stage: &Stage, node, family| -> Result<bool> {
        let way = stage.way(Place::Outside(node), STEADY, (Protocol::Tcp, family))?;
        Ok(matches!(
            way.observe_once(SHORTLY)?,
            Outcome::Answered { .. }
        ))
    };
    for node in 1..=NODES {
        for family in Family::ALL {
            ensure!(
                answers(stage, node, family)?,
                "node-{node}, {family}, beforehand"
            );
        }
    }
    let mut others = EVERYWHERE.to_vec();
    others.retain(|client| !matches!(client, (Place::Outside(_), (_, Family::Ipv4))));
    let elsewhere = json!({"nodePorts": {"addresses": ["192.0.2.0/24"]}});
    change(stage, &elsewhere, &others)?;
    for node in 1..=NODES {
        ensure!(
            !answers(stage, node, Family::Ipv4)?,
            "node-{node} still answers over IPv4"
        );
        ensure!(
            answers(stage, node, Family::Ipv6)?,
            "node-{node} answers no more over IPv6"
        );
    }
    Ok(())
}

/// The change is not visible in packets, so each agent is queried.
pub(crate) fn sync_period(stage: &mut Stage) -> Result<()> {
    change(stage, &json!({"syncPeriod": "17s"}), &EVERYWHERE)?;
    for node in stage.cluster.nodes() {
        let answer = node
            .namespace()
            .get("http://127.0.0.1:10249/configz", PROMPTLY)?;
        let document: Value = serde_json::from_str(answer.body())?;
        let period = &document["kubeproxy.config.k8s.io"]["nftables"]["syncPeriod"];
        ensure!(period == "17s", "{}: {document:#}", node.name());
    }
    Ok(())
}

/// Changes the profile under continuous connections of `clients`; returns when its status reports
/// completion: for this generation, on all nodes, at a time after the change.
fn change(stage: &Stage, spec: &Value, clients: &[Client]) -> Result<()> {
    let before = observe_all(stage)?;
    let connections = stage.connect_from(clients)?;
    let began = Instant::now();
    // Times in a status are in whole seconds.
    let changed = Timestamp::from_second(Timestamp::now().as_second())?;
    stage.patch_profile(&json!({"spec": spec}).to_string())?;
    let profile = stage.wait_until_settled()?;
    let took = began.elapsed();
    let status = profile.status.context("it is Ready")?;
    let settled = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == PROGRESSING);
    let settled = settled.context("a profile says whether it progresses")?;
    ensure!(settled.reason == SETTLED.name, "{settled:?}");
    ensure!(
        settled.observed_generation == profile.metadata.generation,
        "{settled:?}"
    );
    let since = settled.last_transition_time.0;
    if since < changed {
        bail!("settled since {since}, but changed after {changed}");
    }
    println!(
        "    on {} nodes after {took:.1?}, by its own word since {since}",
        status.updated_nodes
    );
    ensure!(observe_all(stage)? == before, "pods were {before:?}");
    connections.finish_unharmed()
}

/// Returns for Pods on each node and each family: the Pod's address, and the one that a server
/// sees.
fn observe_sources(stage: &Stage) -> Result<Vec<(u8, Family, IpAddr, IpAddr)>> {
    let mut sources = Vec::new();
    for node in 1..=NODES {
        for family in Family::ALL {
            let way = stage.way(Place::Pod(node), STEADY, (Protocol::Tcp, family))?;
            let client = stage.observe_client_address(node, family)?;
            match way.observe_once(PROMPTLY)? {
                Outcome::Answered { saw, .. } => {
                    sources.push((node, family, client, saw.ip().to_canonical()));
                }
                other => bail!("{way}: {other}"),
            }
        }
    }
    Ok(sources)
}
