//! Host ports of Pods, written by plugin portmap itself, that are ports of Services, too.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use crds::condition::DEGRADED;
use crds::profile::handover::Handover;
use dataplane::{Family, Protocol};
use serde_json::json;
use testkit::address_plan as addresses;
use tests::network::{Outcome, Probe, Server, probe, start_server};
use xtables::Variant;

use crate::handovers::{expect, is_gone, list_everything};
use crate::stage::{CLIENT, Mode, NODE_PORT, Stage};

/// Where Debian has the plugins of the network.
const PLUGINS: &str = "/usr/lib/cni";
/// The port of the Service with an external IP that is the node's address.
const SERVICE_PORT: u16 = 80;
/// The port of the Pod to which both host ports lead, and its name.
const POD_PORT: u16 = 9090;
const POD: &str = "mapped";
/// What the check says about the host port that changes hands.
const CHANGES: &str = "a host port is also a port of an external IP that is the node's address, where Signpost serves none, of \
                       a Service: 80/tcp (Pod at 10.0.1.9:9090, Service shop/front); in kube-proxy's mode iptables the \
                       Service answers, in Signpost's mode nftables the Pod answers";

/// Why the plugin cannot be used, if it cannot.
pub(crate) fn missing() -> Option<String> {
    let plugin = Path::new(PLUGINS).join("portmap");
    let is_missing = !plugin.exists();
    is_missing.then(|| {
        format!(
            "no {}: install containernetworking-plugins",
            plugin.display()
        )
    })
}

/// Failure stories T317 and T318: the profile's field stops where a port goes from a Service to a Pod,
/// changes nothing, and goes on when the Pod has gone. The host port whose number is a node port
/// stays: Signpost's rules give it to the Service already.
pub(crate) fn by_profile(stage: &mut Stage) -> Result<()> {
    let mode = Mode::Iptables;
    stage.apply_external_ip()?;
    stage.start_kube_proxy(mode)?;
    let _pod = start_pod(stage)?;
    map(stage, Variant::NfTables, "ADD", "ordinary", NODE_PORT)?;
    map(stage, Variant::NfTables, "ADD", "front", SERVICE_PORT)?;
    leave_chain(stage, Variant::NfTables)?;
    stage.start_agent()?;
    stage.wait_for_foreign("True", "KubeProxyIptables")?;
    stage.stop_kube_proxy();
    ensure!(answered_by(stage, SERVICE_PORT)? != POD);

    let before = list_everything(stage)?;
    let takeover = stage.configure(Handover::Takeover)?;
    let refused = stage.wait_for_condition(DEGRADED, |degraded| degraded.status == "True")?;
    ensure!(refused.reason == "HandoverRefused", "{refused:?}");
    ensure!(refused.message.starts_with(CHANGES), "{refused:?}");
    let of_node_port = NODE_PORT.to_string();
    ensure!(!refused.message.contains(&of_node_port), "{refused:?}");
    ensure!(
        list_everything(stage)? == before,
        "a refusal changed something"
    );

    map(stage, Variant::NfTables, "DEL", "front", SERVICE_PORT)?;
    stage.wait_for_applied(&takeover)?;
    ensure!(is_gone(stage, mode)? && stage.has_signpost_tables()?);
    let left = list_everything(stage)?;
    ensure!(left.contains("CNI-DN-"), "no host port is left:\n{left}");
    stage
        .wait_for_condition(DEGRADED, |degraded| degraded.status == "False")
        .map(drop)
}

/// Failure story T319: in variant legacy. The command may go on, and then it is as it said.
pub(crate) fn in_legacy_iptables(stage: &mut Stage) -> Result<()> {
    let mode = Mode::LegacyIptables;
    stage.apply_external_ip()?;
    stage.start_kube_proxy(mode)?;
    let _pod = start_pod(stage)?;
    map(stage, Variant::Legacy, "ADD", "ordinary", NODE_PORT)?;
    map(stage, Variant::Legacy, "ADD", "front", SERVICE_PORT)?;
    leave_chain(stage, Variant::Legacy)?;
    stage.start_agent()?;
    stage.wait_for_foreign("True", "KubeProxyIptables")?;
    stage.stop_kube_proxy();
    ensure!(answered_by(stage, SERVICE_PORT)? != POD);
    expect(
        stage.run(&["takeover"])?,
        false,
        &format!("warning: {CHANGES}"),
    )?;
    ensure!(answered_by(stage, SERVICE_PORT)? != POD);
    let forced = stage.run(&["takeover", "--force"])?;
    expect(forced, true, "Signpost alone serves")?;
    ensure!(is_gone(stage, mode)?);
    let answered = answered_by(stage, SERVICE_PORT)?;
    ensure!(answered == POD, "{answered} answered");
    for id in ["ordinary", "front"] {
        map(stage, Variant::Legacy, "DEL", id, SERVICE_PORT)?;
    }
    Ok(())
}

/// Failure stories T317 and T318: kube-proxy's mode ipvs leaves a node port to the Pod. Signpost's rules
/// give it to the Service, from the installation on and not with the takeover, until a handback. At an
/// external IP it is the other way round: the takeover gives the port to the Pod.
pub(crate) fn from_ipvs(stage: &mut Stage) -> Result<()> {
    stage.apply_external_ip()?;
    stage.start_kube_proxy(Mode::Ipvs)?;
    let _pod = start_pod(stage)?;
    map(stage, Variant::NfTables, "ADD", "pod", NODE_PORT)?;
    map(stage, Variant::NfTables, "ADD", "front", SERVICE_PORT)?;
    ensure!(answered_by(stage, NODE_PORT)? == POD);
    ensure!(answered_by(stage, SERVICE_PORT)? != POD);
    stage.start_agent()?;
    stage.wait_for_foreign("True", "KubeProxyIpvs")?;
    ensure!(answered_by(stage, NODE_PORT)? != POD);
    ensure!(answered_by(stage, SERVICE_PORT)? != POD);
    let said = stage.run(&["takeover", "--dry-run"])?.text;
    let of_external_ip = CHANGES.replace("mode iptables", "mode ipvs");
    ensure!(
        said.contains(&format!("warning: {of_external_ip}")),
        "{said}"
    );
    ensure!(!said.contains("a host port is also a node port"), "{said}");

    let handed_back = stage.run(&["handback"])?;
    expect(handed_back, true, "kube-proxy answers at")?;
    ensure!(answered_by(stage, NODE_PORT)? == POD);
    stage.stop_kube_proxy();
    let refused = stage.run(&["takeover"])?;
    let change = "in kube-proxy's mode ipvs the Pod answers, in Signpost's mode nftables the Service answers";
    ensure!(refused.text.contains(change), "{}", refused.text);
    let named = "warning: a host port is also a node port of a Service: 30080/tcp (Pod at 10.0.1.9:9090, Service shop/web)";
    expect(refused, false, named)?;
    ensure!(answered_by(stage, NODE_PORT)? == POD);
    let forced = stage.run(&["takeover", "--force"])?;
    expect(forced, true, "programmed again")?;
    let answered = answered_by(stage, NODE_PORT)?;
    ensure!(answered != POD, "{answered} answered");
    let answered = answered_by(stage, SERVICE_PORT)?;
    ensure!(answered == POD, "{answered} answered");
    Ok(())
}

/// Failure story T320: where the order in which kube-proxy and the plugin attached their rules
/// decides, the host port is named and nothing is refused. The rules are those of the plugin's
/// backend `nftables`, which Debian's version does not have.
pub(crate) fn in_a_table_of_its_own(stage: &mut Stage) -> Result<()> {
    stage.apply_external_ip()?;
    stage.start_kube_proxy(Mode::Nftables)?;
    let of_node = addresses::node_address(1, Family::Ipv4);
    let to_pod = format!("dnat to 10.0.1.9:{POD_PORT} comment \"0123\"");
    stage.node()?.nft(&[&format!(
        "table ip cni_hostport {{ \
            chain hostports {{ ip daddr {of_node} tcp dport {SERVICE_PORT} {to_pod}; \
                udp dport {NODE_PORT} {to_pod}; }}; \
            chain hostports_all {{ jump hostports; }}; \
            chain prerouting {{ type nat hook prerouting priority dstnat; \
                fib daddr type local jump hostports_all; }}; }}"
    )])?;
    stage.start_agent()?;
    stage.wait_for_foreign("True", "KubeProxyNftables")?;
    stage.stop_kube_proxy();
    let dry = stage.run(&["takeover", "--dry-run"])?;
    let mut notes = dry.text.lines();
    let named = notes.any(|line| {
        line.starts_with("note: a host port is also")
            && line.contains(&format!(
                "{of_node}:80/tcp (Pod at 10.0.1.9:9090, Service shop/front)"
            ))
            && line.contains(
                "in kube-proxy's mode nftables the program that attached its rules last decides",
            )
    });
    ensure!(
        named && !dry.text.contains(&format!("{NODE_PORT}/udp")),
        "{}",
        dry.text
    );
    expect(dry, true, "nothing was changed")
}

/// Writes a chain as the plugin has one for each Pod, to which no rule leads. It redirects nothing, and
/// is not named.
fn leave_chain(stage: &Stage, variant: Variant) -> Result<()> {
    let program = match variant {
        Variant::NfTables => "iptables-nft",
        Variant::Legacy => "iptables-legacy",
    };
    let to = format!("10.0.1.8:{POD_PORT}");
    for rule in [
        "-N CNI-DN-left".to_owned(),
        format!("-A CNI-DN-left -p tcp --dport {SERVICE_PORT} -j DNAT --to-destination {to}"),
    ] {
        let mut command = stage.node()?.command(program);
        let output = command
            .args(["-w", "-t", "nat"])
            .args(rule.split(' '))
            .output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{program} {rule}: {errors}");
    }
    Ok(())
}

/// Starts the Pod with the host ports.
fn start_pod(stage: &Stage) -> Result<Server> {
    let listening = SocketAddr::new(addresses::pod_address(1, CLIENT, Family::Ipv4), POD_PORT);
    start_server(stage.topology().pod(1, CLIENT)?, POD, &[listening])
}

/// Returns the name of the server that a client outside reaches at this port of the node's address.
fn answered_by(stage: &Stage, port: u16) -> Result<String> {
    let question = Probe {
        protocol: Protocol::Tcp,
        source: None,
        destination: SocketAddr::new(addresses::node_address(1, Family::Ipv4), port),
        deadline: Duration::from_secs(5),
    };
    match &probe(stage.topology().outside()?, &question, 1)?[..] {
        [Outcome::Answered { server, .. }] => Ok(server.clone()),
        other => bail!("no answer: {other:?}"),
    }
}

/// Has the plugin write or remove the rules of a container with this host port.
fn map(stage: &Stage, variant: Variant, what: &str, id: &str, port: u16) -> Result<()> {
    let ips = Family::ALL.map(|family| {
        let address = addresses::pod_address(1, CLIENT, family);
        let length = if address.is_ipv4() { 24 } else { 64 };
        let version = if address.is_ipv4() { "4" } else { "6" };
        json!({"version": version, "address": format!("{address}/{length}"), "interface": 0})
    });
    let mappings = json!([{"hostPort": port, "containerPort": POD_PORT, "protocol": "tcp"}]);
    let configuration = json!({
        "cniVersion": "0.4.0",
        "name": "pods",
        "type": "portmap",
        "runtimeConfig": {"portMappings": mappings},
        "prevResult": {
            "cniVersion": "0.4.0",
            "interfaces": [{"name": "eth0", "sandbox": "/proc/self/ns/net"}],
            "ips": ips,
        },
    });
    let mut command = stage.node()?.command(Path::new(PLUGINS).join("portmap"));
    stage.programs(variant)?.show_to(&mut command)?;
    command.env("CNI_COMMAND", what).env("CNI_CONTAINERID", id);
    command
        .env("CNI_NETNS", "/proc/self/ns/net")
        .env("CNI_IFNAME", "eth0");
    command.env("CNI_PATH", PLUGINS);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut plugin = command.spawn().context("failed to start portmap")?;
    let mut stdin = plugin.stdin.take().context("it is piped")?;
    stdin.write_all(configuration.to_string().as_bytes())?;
    drop(stdin);
    let output = plugin.wait_with_output()?;
    let errors = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "portmap {what} {id}: {errors}");
    Ok(())
}
