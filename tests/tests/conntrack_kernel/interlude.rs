//! Flows created by rules that no longer exist: the programmed state is the same as before, but the
//! flows have other destinations.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use crds::profile::mode::Mode;
use dataplane::Family;
use netlink::conntrack::Protocol;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tests::deadline::wait_for;
use tests::lone_agent::LoneAgent;

use crate::clients::{Flood, UdpClient};
use crate::stage::{SERVERS, Stage, UDP_PORT, cluster_ip, load_balancer_ip, passes};

/// How often to make and revert a change before the test concludes that passes do not react.
const ATTEMPTS: usize = 5;
/// The number of conntrack entries for which a pass takes a tenth of a second, so that the pause
/// after it, a second, is long enough for a change and its reversal. The smallest table has room
/// for twice as many.
const ENTRIES: u64 = 30_000;
/// How long a client waits for an answer before it asks again, to notice every refusal.
const OFTEN: Duration = Duration::from_millis(1);
/// The number of clients: a pass finds one of them late enough to see its packets dropped.
const CLIENTS: usize = 16;
/// The longest pause on a busy machine.
const PAUSE: Duration = Duration::from_secs(60);

/// Story: a variant of kubernetes#125467. An endpoint is added, receives a client and is removed,
/// all in the pause between two passes: the state is unchanged, and the client's server is gone.
pub(crate) fn change_taken_back(stage: &Stage) -> Result<()> {
    let [home, other, before] = SERVERS;
    stage.apply_service()?;
    stage.apply_endpoints(&[before])?;
    let agent = stage.start_agent()?;
    let flood = Flood::open(stage.client()?, ENTRIES)?;
    for _ in 0..ATTEMPTS {
        flood.send()?;
        stage.apply_endpoints(&[before])?;
        find_client(stage, &agent, before)?;
        let earlier = passes(&agent, Family::Ipv4)?;
        stage.apply_endpoints(&[home])?;
        let seen = agent.wait_for("the pass before the pause", |agent| {
            Ok(Some(passes(agent, Family::Ipv4)?).filter(|now| *now > earlier))
        })?;
        stage.apply_endpoints(&[other])?;
        let client = find_client(stage, &agent, other)?;
        stage.apply_endpoints(&[home])?;
        find_client(stage, &agent, home)?;
        if passes(&agent, Family::Ipv4)? == seen {
            wait_for("an answer by the server that is left", PAUSE, || {
                Ok(client.ask()?.filter(|server| *server == home))
            })?;
            return Ok(());
        }
    }
    bail!("{ATTEMPTS} times a pass came between a change and its end")
}

/// Stories: spatiumddi#382, rke2#10469, a flushed ruleset; kubernetes#48370, a client whose
/// datagrams bypassed a Service.
pub(crate) fn deleted_table(stage: &Stage) -> Result<()> {
    let destination = SocketAddr::new(load_balancer_ip(Family::Ipv4), UDP_PORT);
    let (clients, agent) = begin_without_rules(stage, destination, 1, 0)?;
    agent.wait_for("an answer after the repair", |_| clients[0].ask())?;
    Ok(())
}

/// Failure story T355: rules are back, and a connection that began without them is still one to the
/// cluster IP itself, as to a port that the Service does not have.
pub(crate) fn unrefused(stage: &Stage) -> Result<()> {
    let destination = SocketAddr::new(cluster_ip(Family::Ipv4), UDP_PORT);
    // A pass takes a while among so many, and the client's flow outlives the repair for as long.
    let (mut clients, agent) = begin_without_rules(stage, destination, CLIENTS, ENTRIES)?;
    agent.wait_for("answers after the repair", |_| {
        let mut waiting = Vec::new();
        for client in clients.drain(..) {
            if client.ask_unrefused(OFTEN)?.is_none() {
                waiting.push(client);
            }
        }
        clients = waiting;
        Ok(clients.is_empty().then_some(()))
    })?;
    // In mode ipvs such packets are served at once.
    if stage.mode() != Mode::Ipvs {
        let dropped = stage.observe_dropped()?;
        ensure!(dropped > 0, "packets leaked instead of being dropped");
    }
    Ok(())
}

/// Removes the rules, and lets `clients` and `others` send through the node before the agent can
/// repair them.
fn begin_without_rules(
    stage: &Stage,
    destination: SocketAddr,
    clients: usize,
    others: u64,
) -> Result<(Vec<UdpClient>, LoneAgent)> {
    // Like the rules of network plugins. Without a rule that uses connection state, conntrack is
    // inactive.
    let node = stage.node()?;
    node.nft(&["add table ip plugin; \
         add chain ip plugin forward { type filter hook forward priority 0; }; \
         add rule ip plugin forward ct state established accept"])?;
    stage.apply_service()?;
    stage.apply_endpoints(&SERVERS)?;
    let agent = stage.start_agent()?;
    let process = i32::try_from(agent.process_id())
        .ok()
        .and_then(Pid::from_raw);
    let process = process.context("the agent has a process id")?;
    // The agent would otherwise repair the rules before a client can send.
    kill_process(process, Signal::STOP)?;
    // Wait until all of its threads have stopped.
    waitid(
        WaitId::Pid(process),
        WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT,
    )?;
    stage.flush_rules()?;
    Flood::open(stage.client()?, others)?.send()?;
    let inside = stage.client()?;
    let opened = (0..clients).map(|_| UdpClient::open(inside, destination));
    let opened: Vec<UdpClient> = opened.collect::<Result<_>>()?;
    for client in &opened {
        ensure!(client.ask()?.is_none(), "a server answers without rules");
    }
    let past = stage.observe_flows(Protocol::Udp, destination)?;
    ensure!(past.len() == clients, "each client has a flow: {past:?}");
    kill_process(process, Signal::CONT)?;
    Ok((opened, agent))
}

/// Finds a client that `server` answers, once it does.
fn find_client(stage: &Stage, agent: &LoneAgent, server: u8) -> Result<UdpClient> {
    let destination = SocketAddr::new(cluster_ip(Family::Ipv4), UDP_PORT);
    agent.wait_for("a client of the endpoint", |_| {
        let client = UdpClient::open(stage.client()?, destination)?;
        Ok((client.ask()? == Some(server)).then_some(client))
    })
}
