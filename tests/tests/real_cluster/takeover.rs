//! A migration from kube-proxy to Signpost and back, as described in docs/migrate.md.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::deadline::wait_for;
use tests::real_cluster::kube_proxy::{self, Mode};

use crate::shop::{STEADY, client};
use crate::stage::{DEADLINE, NODES, Stage};

/// A node label that no node has.
const WANTED: &str = "signpost.dev/kube-proxy";
/// The condition that reports rules of another proxy.
pub(crate) const DETECTED: &str = "ForeignProxyDetected";

/// The tables of both proxies, which show which one forwards.
const SIGNPOST: [&str; 2] = ["table ip signpost", "table ip6 signpost"];
const KUBE_PROXY: [&str; 2] = ["table ip kube-proxy", "table ip6 kube-proxy"];

/// A cluster with kube-proxy moves to Signpost, back, and to Signpost again, with the same clients
/// all the time.
pub(crate) fn from_kube_proxy_and_back(stage: &mut Stage) -> Result<()> {
    kube_proxy::install(&stage.cluster, Mode::Nftables)?;
    let servers = stage.observe_servers(STEADY)?;
    stage.wait_until_served(STEADY, &servers, DEADLINE)?;
    let connections = stage.connect()?;

    let notes = stage.install()?;
    ensure!(
        notes.contains(r#"{"spec":{"handover":"Takeover"}}"#),
        "{notes}"
    );
    stage.wait_until_ready()?;
    wait_for_condition(stage, DETECTED, "True", "KubeProxyNftables")?;
    expect_tables(stage, &[SIGNPOST, KUBE_PROXY].concat(), &[])?;
    expect_answers(stage, true)?;

    let refused = migrate(stage, &["takeover"]);
    let refused = refused.err().context("kube-proxy runs")?.to_string();
    ensure!(refused.contains("a Pod of kube-proxy runs"), "{refused}");
    ensure!(refused.contains("patch daemonset kube-proxy"), "{refused}");
    stop_kube_proxy(stage)?;
    println!("{}", migrate(stage, &["plan"])?);
    let reported = migrate(stage, &["takeover", "--dry-run"])?;
    expect_tables(stage, &[SIGNPOST, KUBE_PROXY].concat(), &[])?;
    println!("{reported}");
    println!("{}", migrate(stage, &["takeover"])?);
    expect_tables(stage, &SIGNPOST, &KUBE_PROXY)?;
    wait_for_condition(stage, DETECTED, "False", "NoneFound")?;

    start_kube_proxy(stage)?;
    println!("{}", hand_back(stage)?);
    expect_tables(stage, &KUBE_PROXY, &SIGNPOST)?;
    wait_for_condition(stage, "Ready", "False", "HandedBack")?;
    expect_answers(stage, false)?;

    // The profile alone moves the nodes, without a command on any node. No node is asked while the
    // DaemonSet of kube-proxy selects it.
    set_handover(stage, "Takeover")?;
    wait_for("the rollout to wait for kube-proxy", DEADLINE, || {
        let output = "--output=jsonpath={.items[*].status.rollout.waitingFor}";
        let text = stage.kubectl(&["get", "proxyprofiles", output])?;
        let waits = text.contains("DaemonSet kube-system/kube-proxy selects the node");
        Ok(waits.then_some(()))
    })?;
    let refused = nodes_with(stage, "Degraded", "True", "HandoverRefused")?;
    ensure!(refused.is_empty(), "{refused:?} were asked");
    expect_tables(stage, &KUBE_PROXY, &SIGNPOST)?;
    stop_kube_proxy(stage)?;
    wait_for_condition(stage, DETECTED, "False", "NoneFound")?;
    expect_tables(stage, &SIGNPOST, &KUBE_PROXY)?;
    // In a rollout, refusals are failures.
    stage.wait_until_settled()?;

    // It moves them back, too: agents leave the rules of a kube-proxy that was started again.
    start_kube_proxy(stage)?;
    wait_for_condition(stage, "Degraded", "True", "HandoverRefused")?;
    expect_tables(stage, &[SIGNPOST, KUBE_PROXY].concat(), &[])?;
    set_handover(stage, "Handback")?;
    wait_for_condition(stage, "Ready", "True", "HandedBack")?;
    expect_tables(stage, &KUBE_PROXY, &SIGNPOST)?;
    wait_for("the rollout to settle", DEADLINE, || {
        let output = "--output=jsonpath={.items[*].status.rollout.phase}";
        let phase = stage.kubectl(&["get", "proxyprofiles", output])?;
        Ok((phase == "Settled").then_some(()))
    })?;
    kube_proxy::remove(&stage.cluster)?;
    stage.wait_until_served(STEADY, &servers, DEADLINE)?;
    connections.finish_unharmed()
}

/// Sets in the profile which proxy serves its nodes, without a waiting time between nodes.
pub(crate) fn set_handover(stage: &Stage, handover: &str) -> Result<()> {
    let spec = json!({"handover": handover, "rollout": {"minReady": "0s"}});
    stage.patch_profile(&json!({"spec": spec}).to_string())
}

/// Deletes kube-proxy's Pods; its rules stay.
pub(crate) fn stop_kube_proxy(stage: &Stage) -> Result<()> {
    select_nodes(stage, &json!({WANTED: "wanted"}))?;
    kube_proxy::wait_until_gone(&stage.cluster)
}

pub(crate) fn start_kube_proxy(stage: &Stage) -> Result<()> {
    select_nodes(stage, &json!({WANTED: null}))?;
    kube_proxy::wait_until_ready(&stage.cluster)
}

fn select_nodes(stage: &Stage, selector: &Value) -> Result<()> {
    let patch = json!({"spec": {"template": {"spec": {"nodeSelector": selector}}}}).to_string();
    let arguments = [
        "patch",
        "daemonset",
        "kube-proxy",
        "--namespace",
        kube_proxy::NAMESPACE,
        "--patch",
        &patch,
    ];
    stage.kubectl(&arguments).map(drop)
}

/// Hands all nodes back by command; returns its output. It is rejected until kube-proxy's rules are
/// complete. Its Pods count as ready before that, because Signpost's agent answers at the port of
/// their probe.
pub(crate) fn hand_back(stage: &Stage) -> Result<String> {
    wait_for("kube-proxy to be able to go on", DEADLINE, || {
        Ok(migrate(stage, &["handback"]).ok())
    })
}

/// Runs `kubectl signpost migrate`; returns its output.
pub(crate) fn migrate(stage: &Stage, arguments: &[&str]) -> Result<String> {
    let ran = stage.signpost(0, &[&["migrate"], arguments].concat())?;
    Ok(ran.text)
}

/// Agents answer over their own sockets, whoever has port 10249. Once they have handed the nodes
/// back, their rules are gone, and they say so.
fn expect_answers(stage: &Stage, are_there: bool) -> Result<()> {
    let code = if are_there { 0 } else { 3 };
    let service = format!("svc/{}", STEADY.name);
    let explained = stage.signpost(code, &["explain", &service, "--all-nodes"])?;
    let summary = match are_there {
        true => format!("no differences on {NODES} nodes"),
        false => format!("0 nodes without differences, {NODES} with, 0 without an answer"),
    };
    ensure!(explained.text.contains(&summary), "{explained:?}");
    let (from, to) = (format!("pod/{}", client(1)), format!("{service}:tcp"));
    let traced = stage.signpost(code, &["trace", &from, &to])?;
    let untouched = traced.text.contains("the rules in the kernel: untouched");
    ensure!(untouched != are_there, "{traced:?}");
    Ok(())
}

fn expect_tables(stage: &Stage, there: &[&str], gone: &[&str]) -> Result<()> {
    for node in stage.cluster.nodes() {
        let tables = node.namespace().nft(&["list", "tables"])?;
        let has = |table: &&&str| tables.lines().any(|line| line == **table);
        ensure!(
            there.iter().all(|table| has(&table)) && !gone.iter().any(|table| has(&table)),
            "{} has the tables\n{tables}",
            node.name()
        );
    }
    Ok(())
}

/// Waits until every NodeProxy has the condition with this reason.
pub(crate) fn wait_for_condition(
    stage: &Stage,
    kind: &str,
    status: &str,
    reason: &str,
) -> Result<()> {
    let what = format!("{kind} {status} {reason} on all nodes");
    wait_for(&what, DEADLINE, || {
        let all = stage.observe_node_proxies()?.len();
        let with = nodes_with(stage, kind, status, reason)?;
        Ok((with.len() == all).then_some(()))
    })
}

/// Returns the nodes whose NodeProxy has the condition with this reason.
fn nodes_with(stage: &Stage, kind: &str, status: &str, reason: &str) -> Result<Vec<String>> {
    let proxies = stage.observe_node_proxies()?;
    let with = proxies.into_iter().filter(|(_, proxy)| {
        let conditions = proxy.status.iter().flat_map(|status| &status.conditions);
        conditions.into_iter().any(|condition| {
            (&*condition.type_, &*condition.status, &*condition.reason) == (kind, status, reason)
        })
    });
    Ok(with.map(|(name, _)| name.to_string()).collect())
}
