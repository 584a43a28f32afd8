//! Handovers requested by the profile, without a command.

use anyhow::{Context, Result, ensure};
use crds::ProxyProfileSpec;
use crds::condition::{DEGRADED, PROGRESSING, READY};
use crds::profile::detect_local::{DetectLocal, DetectLocalMode};
use crds::profile::handover::Handover;
use dataplane::Family;
use testkit::address_plan as addresses;

use crate::crowd::Crowd;
use crate::handovers::{expect, is_gone, list_everything};
use crate::stage::{DEADLINE, Mode, POD_OUTSIDE, Stage};

/// Failure story T171: from kube-proxy's mode nftables.
pub(crate) fn from_nftables(stage: &mut Stage) -> Result<()> {
    there_and_back(stage, Mode::Nftables, "KubeProxyNftables")
}

/// Failure story T171: from kube-proxy's mode iptables.
pub(crate) fn from_iptables(stage: &mut Stage) -> Result<()> {
    there_and_back(stage, Mode::Iptables, "KubeProxyIptables")
}

/// Failure story T171: from kube-proxy's mode iptables, variant legacy.
pub(crate) fn from_legacy_iptables(stage: &mut Stage) -> Result<()> {
    there_and_back(stage, Mode::LegacyIptables, "KubeProxyIptables")
}

/// There and back. A running kube-proxy keeps the configuration from being
/// applied. The condition Degraded names it, so that a rollout stops at this node; nothing was
/// changed.
fn there_and_back(stage: &mut Stage, mode: Mode, reason: &str) -> Result<()> {
    stage.start_kube_proxy(mode)?;
    let crowd = Crowd::gather(stage.topology())?;
    stage.start_agent()?;
    stage.wait_for_foreign("True", reason)?;
    let before = list_all(stage, mode)?;

    let takeover = stage.configure(Handover::Takeover)?;
    let refused = stage.wait_for_condition(DEGRADED, |degraded| degraded.status == "True")?;
    ensure!(refused.reason == "HandoverRefused", "{refused:?}");
    ensure!(
        refused.message.contains("stop kube-proxy first"),
        "{refused:?}"
    );
    stage.wait_for_condition(PROGRESSING, |progressing| {
        progressing.reason == "HandoverPending"
    })?;
    let after = list_all(stage, mode)?;
    ensure!(
        after == before,
        "a refusal changed something:\n{before}\n{after}"
    );

    stage.stop_kube_proxy();
    stage.wait_for_applied(&takeover)?;
    ensure!(is_gone(stage, mode)? && stage.has_signpost_tables()?);
    stage.wait_for_condition(DEGRADED, |degraded| degraded.status == "False")?;
    // The field takes precedence: a command cannot override it.
    let refused = stage.run(&["handback", "--force"])?;
    expect(
        refused,
        false,
        "spec.handover of ProxyProfile default is Takeover",
    )?;
    ensure!(stage.has_signpost_tables()?);

    // Only Signpost serves the node: it keeps serving and reports why.
    let handback = stage.configure(Handover::Handback)?;
    let refused = stage.wait_for_condition(DEGRADED, |degraded| degraded.status == "True")?;
    ensure!(
        refused.message.contains("no rules of kube-proxy are here"),
        "{refused:?}"
    );
    ensure!(stage.has_signpost_tables()?);
    stage.start_kube_proxy(mode)?;
    stage.wait_for_applied(&handback)?;
    ensure!(!stage.has_signpost_tables()? && !is_gone(stage, mode)?);
    let is_ready = |status: &str, reason: &str| (status, reason) == ("True", "HandedBack");
    stage.wait_for_condition(READY, |ready| is_ready(&ready.status, &ready.reason))?;

    // Manual leaves the node with the proxy that serves it.
    stage.configure(Handover::Manual)?;
    stage.wait_for_condition(READY, |ready| {
        (&*ready.status, &*ready.reason) == ("False", "HandedBack")
    })?;
    ensure!(!stage.has_signpost_tables()?);
    crowd.disperse()
}

/// Failure story T330: kube-proxy is started again while the profile says Takeover, as an
/// administrator does who is about to go back. The agent removed its rules, although it ran: in
/// mode nftables, kube-proxy writes rules that did not change once an hour, and until then the
/// handback was refused. The rules stay, kube-proxy has its ports, and the agent names it.
pub(crate) fn kube_proxy_started_again(stage: &mut Stage) -> Result<()> {
    let mode = Mode::Nftables;
    stage.start_kube_proxy(mode)?;
    let crowd = Crowd::gather(stage.topology())?;
    stage.start_agent()?;
    stage.wait_for_foreign("True", "KubeProxyNftables")?;
    stage.stop_kube_proxy();
    let takeover = stage.configure(Handover::Takeover)?;
    stage.wait_for_applied(&takeover)?;
    ensure!(is_gone(stage, mode)? && stage.has_signpost_tables()?);
    stage.wait_for("the agent to answer at both ports of kube-proxy", |stage| {
        let answers = |port: u16| {
            let url = format!("http://127.0.0.1:{port}/readyz");
            let answer = stage.node().and_then(|node| node.get(&url, DEADLINE));
            answer.is_ok_and(|answer| answer.status().is_success())
        };
        Ok((answers(10249) && answers(10256)).then_some(()))
    })?;

    stage.start_kube_proxy(mode)?;
    let before = table_handles(stage)?;
    stage.wait_for_condition(DEGRADED, |degraded| {
        degraded.reason == "HandoverRefused"
            && degraded.message.contains("kube-proxy answers at")
            && degraded.message.contains("stop kube-proxy first")
    })?;
    ensure!(stage.has_signpost_tables()?);
    ensure!(
        table_handles(stage)? == before,
        "rules of a running kube-proxy were removed"
    );
    let handback = stage.configure(Handover::Handback)?;
    stage.wait_for_applied(&handback)?;
    ensure!(!stage.has_signpost_tables()? && !is_gone(stage, mode)?);
    crowd.disperse()
}

/// Returns the handles of kube-proxy's tables, which a table that is made anew does not have.
fn table_handles(stage: &Stage) -> Result<String> {
    let mut handles = String::new();
    for family in ["ip", "ip6"] {
        let listed = stage
            .node()?
            .nft(&["--handle", "list", "table", family, "kube-proxy"])?;
        let first = listed.lines().find(|line| line.starts_with("table "));
        let first = first.filter(|line| line.contains("# handle "));
        handles.push_str(first.with_context(|| format!("no handle of a table:\n{listed}"))?);
    }
    Ok(handles)
}

/// Returns all rules without counters, those of legacy iptables included if kube-proxy uses it.
fn list_all(stage: &Stage, mode: Mode) -> Result<String> {
    let mut all = list_everything(stage)?;
    if mode == Mode::LegacyIptables {
        for family in Family::ALL {
            let legacy = stage.list_kube_proxy(mode, family)?;
            // Comments have the time, and chains end with their counters.
            let rules = legacy.lines().filter(|line| !line.starts_with('#'));
            all.extend(rules.flat_map(|rule| [rule.split(" [").next().unwrap_or(rule), "\n"]));
        }
    }
    Ok(all)
}

/// Failure story T197: a network plugin has its own address management, and detection by podCIDRs
/// would take Pods for clients elsewhere. The profile that says how to detect them goes on.
pub(crate) fn pods_outside_of_pod_cidrs(stage: &mut Stage) -> Result<()> {
    let mode = Mode::Nftables;
    stage.apply_pod_outside()?;
    stage.start_kube_proxy(mode)?;
    stage.start_agent()?;
    stage.wait_for_foreign("True", "KubeProxyNftables")?;
    stage.stop_kube_proxy();
    let before = list_everything(stage)?;
    stage.configure(Handover::Takeover)?;
    let refused = stage.wait_for_condition(DEGRADED, |degraded| degraded.status == "True")?;
    ensure!(refused.reason == "HandoverRefused", "{refused:?}");
    let named = format!("detectLocal.mode is NodeCIDR, and endpoint {POD_OUTSIDE} of this node");
    ensure!(refused.message.contains(&named), "{refused:?}");
    ensure!(
        list_everything(stage)? == before,
        "a refusal changed something"
    );

    let ranges = Family::ALL.map(|family| addresses::cluster_cidr(family).into());
    let profile = ProxyProfileSpec {
        handover: Handover::Takeover,
        detect_local: DetectLocal {
            mode: DetectLocalMode::ClusterCidr,
            cluster_cidrs: ranges.into(),
            ..DetectLocal::default()
        },
        ..ProxyProfileSpec::default()
    };
    let takeover = stage.configure_by(&profile)?;
    stage.wait_for_applied(&takeover)?;
    ensure!(is_gone(stage, mode)? && stage.has_signpost_tables()?);
    stage
        .wait_for_condition(DEGRADED, |degraded| degraded.status == "False")
        .map(drop)
}
