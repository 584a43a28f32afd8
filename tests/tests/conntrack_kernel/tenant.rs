//! A tenant that claims the addresses of the DNS Service.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use dataplane::Family;
use tests::deadline::wait_for;
use tests::lone_agent::LoneAgent;

use crate::clients::UdpClient;
use crate::stage::{
    PROMPTLY, SERVERS, Stage, UDP_PORT, cluster_ip, deleted, load_balancer_ip, tenant_ip,
};

/// The number of clients of an address: a given one of two servers receives none of them once in
/// 10^6.
const CLIENTS: usize = 20;

/// Story: CVE-2020-8554. The tenant's Service first has endpoints, and then none.
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

/// Waits until `server` answers at the tenant's own address.
fn wait_for_tenant(agent: &LoneAgent, stage: &Stage, server: Option<u8>) -> Result<()> {
    let own = SocketAddr::new(tenant_ip(), UDP_PORT);
    agent.wait_for("the tenant's own address", |_| {
        let answer = UdpClient::open(stage.client()?, own)?.ask()?;
        Ok((answer == server).then_some(()))
    })
}

/// Asserts that existing clients keep their servers, and that `thief` answers neither them nor new
/// ones.
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

/// Opens clients of both addresses of both families; returns each with its server.
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
