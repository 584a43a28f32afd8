//! A tenant claims the addresses of DNS.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use dataplane::Family;
use tests::deadline::wait_for;
use tests::lone_agent::LoneAgent;

use crate::clients::UdpClient;
use crate::stage::{
    PROMPTLY, SERVERS, Stage, UDP_PORT, cluster_ip, deleted, load_balancer_ip, tenant_ip,
};

/// How many clients there are of an address: a server of two gets none of them once in 10^6.
const CLIENTS: usize = 20;

/// Story: CVE-2020-8554. The tenant comes with endpoints, and then has none.
pub(crate) fn claims_addresses(stage: &Stage) -> Result<()> {
    let [thief, honest @ ..] = SERVERS;
    stage.apply_service()?;
    stage.apply_endpoints(&honest)?;
    let agent = stage.start_agent()?;
    let placed = clients(stage)?;

    stage.apply_tenant(&[thief])?;
    wait_for_tenant(&agent, stage, Some(thief))?;
    assert_served(stage, &placed, thief)?;
    for family in Family::ALL {
        let deleted = deleted(&agent, family)?;
        ensure!(deleted == 0.0, "{deleted} flows of {family} were removed");
    }
    stage.apply_tenant(&[])?;
    wait_for_tenant(&agent, stage, None)?;
    assert_served(stage, &placed, thief)
}

/// Waits until the tenant's own address is answered by `server`.
fn wait_for_tenant(agent: &LoneAgent, stage: &Stage, server: Option<u8>) -> Result<()> {
    let own = SocketAddr::new(tenant_ip(), UDP_PORT);
    agent.wait_for("the tenant's own address", |_| {
        let answer = UdpClient::open(stage.client()?, own)?.ask()?;
        Ok((answer == server).then_some(()))
    })
}

/// Clients that are where they were, and new ones, get no answer from `thief`.
fn assert_served(stage: &Stage, placed: &[(UdpClient, u8)], thief: u8) -> Result<()> {
    for (client, server) in placed {
        let now = wait_for("an answer", PROMPTLY, || client.ask())?;
        ensure!(now == *server, "{server} answered, and now {now}");
    }
    for (_, server) in clients(stage)? {
        ensure!(server != thief, "the tenant answered");
    }
    Ok(())
}

/// Clients of both addresses of both families, each with the server that answers it.
fn clients(stage: &Stage) -> Result<Vec<(UdpClient, u8)>> {
    let addresses = Family::ALL.map(|family| [cluster_ip(family), load_balancer_ip(family)]);
    let mut placed = Vec::new();
    for address in addresses.concat() {
        for _ in 0..CLIENTS {
            let client = UdpClient::open(stage.client()?, SocketAddr::new(address, UDP_PORT))?;
            let server = wait_for("an answer", PROMPTLY, || client.ask())?;
            placed.push((client, server));
        }
    }
    Ok(placed)
}
