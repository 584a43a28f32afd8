//! Stale flows, which the agent must remove, and other flows, which it must keep.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use crds::profile::mode::Mode;
use dataplane::Family;
use netlink::conntrack::Protocol;
use tests::deadline::wait_for;
use tests::lone_agent::LoneAgent;
use tests::network::Namespace;

use crate::clients::{Connection, UdpClient};
use crate::stage::{
    PROMPTLY, SERVERS, Stage, TCP_PORT, UDP_PORT, cluster_ip, deleted, load_balancer_ip, server,
};

/// The number of clients of a family: a given one of three servers receives none of them once in
/// 10^9.
const CLIENTS: usize = 50;

/// Clients and the servers that answered them.
type Placed = Vec<(UdpClient, u8)>;

/// Story: kubernetes#125467, a resolver that kept its port and its dead DNS server.
pub(crate) fn dead_endpoint(stage: &Stage) -> Result<()> {
    stage.apply_service()?;
    stage.apply_endpoints(&SERVERS)?;
    let agent = stage.start_agent()?;
    let placed = place_clients(stage)?;
    let [dead, left @ ..] = SERVERS;
    stage.apply_endpoints(&left)?;
    assert_moved(&placed, dead)?;
    assert_deleted(stage, &agent, &placed, dead)
}

/// Story: kubernetes#48370. The client's datagrams bypassed a Service without endpoints, and the
/// kernel remembered the flow without a translation.
pub(crate) fn endpoints_come(stage: &Stage) -> Result<()> {
    let agent = stage.start_agent()?;
    let destination = SocketAddr::new(load_balancer_ip(Family::Ipv4), UDP_PORT);
    let client = UdpClient::open(stage.client()?, destination)?;
    ensure!(client.ask()?.is_none(), "no Service has the address yet");
    let past = stage.observe_flows(Protocol::Udp, destination)?;
    ensure!(past.len() == 1, "the client has a flow: {past:?}");

    stage.apply_service()?;
    stage.apply_endpoints(&[])?;
    agent.wait_for("the flow to be removed", |_| {
        let past = stage.observe_flows(Protocol::Udp, destination)?;
        Ok(past.is_empty().then_some(()))
    })?;
    ensure!(client.ask()?.is_none(), "there is no endpoint yet");
    stage.apply_endpoints(&SERVERS)?;
    agent.wait_for("an answer", |_| client.ask())?;
    Ok(())
}

/// Story: kubernetes#122740, QUIC connections broken by a restart.
pub(crate) fn restart(stage: &Stage) -> Result<()> {
    stage.apply_service()?;
    stage.apply_endpoints(&SERVERS)?;
    let agent = stage.start_agent()?;
    let placed = place_clients(stage)?;
    agent.kill()?;
    let agent = stage.start_agent()?;
    for (client, server) in &placed {
        let now = wait_for("an answer", PROMPTLY, || client.ask())?;
        ensure!(now == *server, "{server} answered, and now {now}");
    }
    for family in Family::ALL {
        let deleted = deleted(&agent, family)?;
        ensure!(deleted == 0.0, "{deleted} flows of {family} were removed");
    }
    Ok(())
}

/// Story: kubernetes#125467 with a proxy that was stopped when the DNS server died.
pub(crate) fn dead_agent(stage: &Stage) -> Result<()> {
    stage.apply_service()?;
    stage.apply_endpoints(&SERVERS)?;
    let agent = stage.start_agent()?;
    let placed = place_clients(stage)?;
    agent.kill()?;
    let [dead, left @ ..] = SERVERS;
    stage.apply_endpoints(&left)?;
    let agent = stage.start_agent()?;
    assert_moved(&placed, dead)?;
    assert_deleted(stage, &agent, &placed, dead)
}

/// Stories: kubernetes#101607, SYNs forwarded forever to a dead endpoint; kubernetes#102631,
/// connections cut while they drained.
pub(crate) fn unanswered_connection(stage: &Stage) -> Result<()> {
    let [silent, live, next] = SERVERS;
    silence(stage.server(silent)?)?;
    stage.apply_service()?;
    stage.apply_endpoints(&[live])?;
    let agent = stage.start_agent()?;
    let destination = SocketAddr::new(cluster_ip(Family::Ipv4), TCP_PORT);
    let inside = stage.client()?;
    let mut established = Connection::open(inside, destination, PROMPTLY)?;

    stage.apply_endpoints(&[silent])?;
    agent.wait_for("the endpoint that is silent", |_| {
        let probe = UdpClient::open(inside, SocketAddr::new(destination.ip(), UDP_PORT))?;
        Ok((probe.ask()? == Some(silent)).then_some(()))
    })?;
    established.echo()?;
    let opened = thread::scope(|scope| -> Result<Connection> {
        let opening = scope.spawn(|| Connection::open(inside, destination, PROMPTLY));
        agent.wait_for("a connection that is not answered", |_| {
            let flows = stage.observe_flows(Protocol::Tcp, destination)?;
            let target = server(silent, Family::Ipv4);
            let mut flows = flows.iter();
            let stuck = flows.find(|f| f.reply.source == target && !f.status.is_answered());
            Ok(stuck.map(drop))
        })?;
        stage.apply_endpoints(&[next])?;
        let opened = opening.join().map_err(|_| anyhow!("the client panicked"))?;
        opened.context("a connection that was begun before its endpoint went")
    })?;
    ensure!(opened.server == next, "{} answered", opened.server);
    established.echo().context("an established connection")
}

/// The flows left behind by a deleted Service whose endpoints live on.
pub(crate) fn removed_service(stage: &Stage) -> Result<()> {
    stage.apply_service()?;
    stage.apply_endpoints(&SERVERS)?;
    let agent = stage.start_agent()?;
    let placed = place_clients(stage)?;
    let outside = SocketAddr::new(load_balancer_ip(Family::Ipv4), UDP_PORT);
    let client = UdpClient::open(stage.client()?, outside)?;
    agent.wait_for("an answer", |_| client.ask())?;
    stage.remove_service()?;
    match stage.mode() {
        // The kernel ends them with the virtual server.
        Mode::Ipvs => wait_for("no answer", PROMPTLY, || {
            Ok(client.ask()?.is_none().then_some(()))
        })?,
        Mode::Nftables | Mode::Iptables => agent.wait_for("every flow to be removed", |agent| {
            let [ipv4, ipv6] = Family::ALL.map(|family| deleted(agent, family));
            Ok((ipv4? == 51.0 && ipv6? == 50.0).then_some(()))
        })?,
    }
    for (client, server) in &placed {
        let now = client.ask()?;
        ensure!(now.is_none(), "{server} was removed, and {now:?} answers");
    }
    Ok(())
}

/// Opens clients of both families and waits for one answer each.
fn place_clients(stage: &Stage) -> Result<Placed> {
    let mut placed = Placed::new();
    for family in Family::ALL {
        let destination = SocketAddr::new(cluster_ip(family), UDP_PORT);
        for _ in 0..CLIENTS {
            let client = UdpClient::open(stage.client()?, destination)?;
            let server = wait_for("an answer", PROMPTLY, || client.ask())?;
            placed.push((client, server));
        }
    }
    let servers: BTreeMap<u8, ()> = placed.iter().map(|(_, server)| (*server, ())).collect();
    ensure!(servers.len() == SERVERS.len(), "only {servers:?} answered");
    Ok(placed)
}

/// Asserts that other servers now answer the clients of `dead`, and that all other clients keep
/// their servers.
fn assert_moved(placed: &Placed, dead: u8) -> Result<()> {
    for (client, server) in placed.iter().filter(|(_, server)| *server == dead) {
        wait_for("an answer by another server", PROMPTLY, || {
            Ok(client.ask()?.filter(|now| now != server))
        })?;
    }
    for (client, server) in placed.iter().filter(|(_, server)| *server != dead) {
        let now = wait_for("an answer", PROMPTLY, || client.ask())?;
        ensure!(now == *server, "{server} answered, and now {now}");
    }
    Ok(())
}

/// Asserts that the agent has removed exactly the flows to `dead`, in each family. In mode ipvs the
/// kernel moves them.
fn assert_deleted(stage: &Stage, agent: &LoneAgent, placed: &Placed, dead: u8) -> Result<()> {
    if stage.mode() == Mode::Ipvs {
        return Ok(());
    }
    for (family, clients) in Family::ALL.into_iter().zip(placed.chunks(CLIENTS)) {
        let had = clients.iter().filter(|(_, server)| *server == dead).count();
        agent.wait_for("the flows to be counted", |agent| {
            let deleted = deleted(agent, family)?;
            ensure!(deleted <= had as f64, "{deleted} removed of {had}");
            Ok((deleted == had as f64).then_some(()))
        })?;
    }
    Ok(())
}

/// Drops all incoming TCP packets, like a failed machine for which no router sends ICMP errors.
fn silence(pod: &Namespace) -> Result<()> {
    let rules = "add table ip gone; \
                 add chain ip gone in { type filter hook input priority 0; }; \
                 add rule ip gone in meta l4proto tcp drop";
    pod.nft(&[rules]).map(drop)
}
