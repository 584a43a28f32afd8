//! A conntrack table with many entries.

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dataplane::Family;

use crate::clients::{Flood, UdpClient};
use crate::stage::{PROMPTLY, SERVERS, Stage, UDP_PORT, cluster_ip, deleted};
use tests::deadline::wait_for;

/// The number of entries for a table that is too large to be filled in a test.
const ENOUGH: u64 = 200_000;
/// The percentage to which a smaller table is filled.
const PERCENT: u64 = 92;
/// How soon a full table is reported. This one fills faster than a real one: the agent checked it
/// just before.
const SAID: Duration = Duration::from_secs(70);
/// How long flows without an answer are left alone: the kernel removes them after 30 s.
const LASTING: Duration = Duration::from_secs(10);
/// The additional memory that one pass may use. A million entries may take 64 MiB.
const MEMORY: u64 = 8 << 20;

/// Stories: kubernetes#129982, 12 GB of memory when a UDP endpoint changed; kubernetes#71261, a
/// table whose fill was not reported before it dropped packets.
pub(crate) fn nearly_full(stage: &Stage) -> Result<()> {
    stage.apply_service()?;
    stage.apply_endpoints(&SERVERS)?;
    let agent = stage.start_agent()?;
    let family = Family::Ipv4;
    let destination = SocketAddr::new(cluster_ip(family), UDP_PORT);
    let client = UdpClient::open(stage.client()?, destination)?;
    let server = wait_for("an answer", PROMPTLY, || client.ask())?;

    let limit: u64 = stage.observe_sysctl("max")?.parse()?;
    let filled = limit * PERCENT / 100;
    let nearly_full = filled <= 2 * ENOUGH;
    let expected = if nearly_full { filled } else { ENOUGH };
    let flood = Flood::open(stage.client()?, expected)?;
    let start = Instant::now();
    flood.send()?;
    let filling = start.elapsed();
    let entries = agent.metric("signpost_conntrack_entries")?;
    ensure!(
        entries >= expected as f64,
        "{entries} entries of {expected}"
    );
    let said = agent.metric("signpost_conntrack_limit")?;
    ensure!(
        said == limit as f64,
        "{said} is the limit instead of {limit}"
    );
    if nearly_full {
        let mut sent = Instant::now();
        wait_for("the table to be said to be nearly full", SAID, || {
            // Refresh the flows, which would otherwise expire before the check: the client's, and
            // those that fill the table, which last half a minute.
            client.ask()?;
            if sent.elapsed() > LASTING {
                flood.send()?;
                sent = Instant::now();
            }
            let said = agent.condition("ConntrackPressure")?;
            Ok(said.filter(|said| said.status == "True" && said.reason == "TableFilling"))
        })?;
    } else {
        println!("a table of {limit} entries is too large to be filled: pressure was not asked");
    }

    let before = memory(agent.process_id(), "VmRSS")?;
    // Reset VmHWM to measure the peak from here on (proc(5), clear_refs).
    fs::write(format!("/proc/{}/clear_refs", agent.process_id()), "5")?;
    let left: Vec<u8> = SERVERS.into_iter().filter(|pod| *pod != server).collect();
    let sum = "kubeproxy_conntrack_reconciler_sync_duration_seconds_sum{ip_family=\"IPv4\"}";
    let spent = agent.metric(sum)?;
    let start = Instant::now();
    stage.apply_endpoints(&left)?;
    wait_for("an answer by another server", PROMPTLY, || {
        Ok(client.ask()?.filter(|now| *now != server))
    })?;
    let answered = start.elapsed();
    let pass = agent.wait_for("the end of the pass", |agent| {
        let now = agent.metric(sum)?;
        Ok((now > spent).then_some(now - spent))
    })?;
    let grown = memory(agent.process_id(), "VmHWM")?.saturating_sub(before);
    println!(
        "{entries} entries of {limit}, made in {filling:.1?}: a pass of {pass:.3} s; the client was \
         answered {answered:.1?} after the change; memory grew from {} KiB by {} KiB",
        before / 1024,
        grown / 1024
    );
    ensure!(grown < MEMORY, "memory grew by {grown} bytes");
    let deleted = deleted(&agent, family)?;
    ensure!(deleted == 1.0, "{deleted} flows were removed instead of 1");
    Ok(())
}

/// Returns a figure of a process in bytes.
fn memory(process: u32, name: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let figure = line.and_then(|line| line.trim_start_matches(':').trim().strip_suffix(" kB"));
    let kibibytes: u64 = figure.with_context(|| format!("no {name}"))?.parse()?;
    Ok(kibibytes * 1024)
}
