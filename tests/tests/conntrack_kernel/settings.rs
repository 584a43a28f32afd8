//! The sysctls of the conntrack table.

use anyhow::{Result, ensure};
use dataplane::Family;
use serde_json::json;
use std::net::SocketAddr;
use tests::lone_agent::Sysctls;

use crate::clients::UdpClient;
use crate::stage::{SERVERS, Stage, UDP_PORT, cluster_ip};

pub(crate) fn follow_the_profile(stage: &Stage) -> Result<()> {
    let kernels = stage.observe_sysctl("udp_timeout_stream")?;
    stage.apply_profile(&json!({
        "maxPerCore": 0, "udpTimeout": "17s", "tcpEstablishedTimeout": "2h", "tcpBeLiberal": true,
    }))?;
    let agent = stage.start_agent()?;
    agent.wait_for("the limits to be set", |agent| {
        let said = agent.condition("ConntrackConfigured")?;
        Ok(said.filter(|said| said.status == "True"))
    })?;
    for (name, expected) in [
        ("udp_timeout", "17"),
        ("tcp_timeout_established", "7200"),
        ("tcp_timeout_close_wait", "3600"),
        ("tcp_be_liberal", "1"),
        ("udp_timeout_stream", kernels.as_str()),
    ] {
        let found = stage.observe_sysctl(name)?;
        ensure!(found == expected, "{name} is {found} instead of {expected}");
    }
    stage.apply_profile(&json!({"maxPerCore": 0, "udpTimeout": "18s"}))?;
    agent.wait_for("the profile's change", |_| {
        Ok((stage.observe_sysctl("udp_timeout")? == "18").then_some(()))
    })?;
    let liberal = stage.observe_sysctl("tcp_be_liberal")?;
    ensure!(liberal == "1", "what is left out is left alone");
    Ok(())
}

/// Story: kops#17915, a proxy that failed to start because `/proc/sys` was read-only.
pub(crate) fn read_only(stage: &Stage) -> Result<()> {
    let before = stage.observe_sysctl("udp_timeout")?;
    stage.apply_service()?;
    stage.apply_endpoints(&SERVERS)?;
    stage.apply_profile(&json!({"maxPerCore": 0, "udpTimeout": "17s"}))?;
    let agent = stage.start_agent_with(Sysctls::ReadOnly)?;
    let missed = agent.wait_for("the limits to be missed", |agent| {
        let said = agent.condition("ConntrackConfigured")?;
        Ok(said.filter(|said| said.status == "False"))
    })?;
    let (reason, message) = (missed.reason, missed.message);
    ensure!(reason == "LimitsNotSet", "its reason is {reason}");
    for part in [
        "unable to set /proc/sys/net/netfilter/nf_conntrack_udp_timeout to 17: ",
        "(os error 30)",
    ] {
        ensure!(message.contains(part), "no {part:?} in {message:?}");
    }
    let destination = SocketAddr::new(cluster_ip(Family::Ipv4), UDP_PORT);
    let client = UdpClient::open(stage.client()?, destination)?;
    agent.wait_for("an answer", |_| client.ask())?;
    ensure!(
        stage.observe_sysctl("udp_timeout")? == before,
        "it was written"
    );
    Ok(())
}

/// The agent's Pod: only this directory of the node's `/proc/sys` is writable.
pub(crate) fn netfilter_mounted(stage: &Stage) -> Result<()> {
    stage.apply_profile(&json!({
        "maxPerCore": 0, "udpTimeout": "17s", "udpStreamTimeout": "60s",
        "tcpEstablishedTimeout": "2h", "tcpCloseWaitTimeout": "30m", "tcpBeLiberal": true,
    }))?;
    let agent = stage.start_agent_with(Sysctls::NetfilterMounted)?;
    agent.wait_for("the limits to be set", |agent| {
        let said = agent.condition("ConntrackConfigured")?;
        Ok(said.filter(|said| said.status == "True"))
    })?;
    for (name, expected) in [
        ("udp_timeout", "17"),
        ("udp_timeout_stream", "60"),
        ("tcp_timeout_established", "7200"),
        ("tcp_timeout_close_wait", "1800"),
        ("tcp_be_liberal", "1"),
    ] {
        let found = stage.observe_sysctl(name)?;
        ensure!(found == expected, "{name} is {found} instead of {expected}");
    }
    Ok(())
}
