//! Interrupted handovers: agents and commands that are killed.

use std::fs;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use crds::condition::READY;
use dataplane::Family;
use serde_json::json;
use testkit::address_plan as addresses;
use xtables::Variant;

use crate::crowd::Crowd;
use crate::handovers::{expect, is_gone, run};
use crate::stage::{Mode, Stage};

/// Killed between the two families, the agent restarts and reports what is left; a repeated
/// takeover removes that. A killed command does not affect the operation that it has started.
pub(crate) fn takeover_cut_short(stage: &mut Stage) -> Result<()> {
    let mode = Mode::Nftables;
    stage.start_kube_proxy(mode)?;
    stage.start_agent()?;
    stage.stop_kube_proxy();
    let crowd = Crowd::gather(stage.topology())?;

    // The state after a takeover that was killed after its first step.
    stage.kill_agent()?;
    stage.node()?.nft(&["delete table ip kube-proxy"])?;
    stage.start_agent()?;
    let reported = stage.wait_for_foreign("True", "KubeProxyNftables")?;
    ensure!(
        reported.message.contains(" for IPv6;"),
        "{}",
        reported.message
    );

    let mut command = stage.command(&["takeover"])?;
    let mut asked = command.stdout(Stdio::null()).spawn()?;
    stage.wait_for("the agent to have begun", |stage| {
        let begun = stage.agent()?.log().contains("received a handover request");
        Ok(begun.then_some(()))
    })?;
    asked.kill()?;
    asked.wait()?;
    stage.wait_for("the takeover to be completed", |stage| {
        Ok(is_gone(stage, mode)?.then_some(()))
    })?;
    ensure!(stage.has_signpost_tables()?);
    crowd.disperse()
}

/// An agent killed directly after it has decided to hand back completes the handback at its next
/// start.
pub(crate) fn handback_cut_short(stage: &mut Stage) -> Result<()> {
    let mode = Mode::Nftables;
    stage.start_agent()?;
    let crowd = Crowd::gather(stage.topology())?;
    stage.start_kube_proxy(mode)?;
    ensure!(stage.has_signpost_tables()?);

    kill_before_the_last_step_of_a_handback(stage)?;
    stage.launch_agent()?;
    stage.wait_for("the handback to be completed", |stage| {
        let tables = stage.node()?.nft(&["list", "tables"])?;
        Ok((!tables.contains("signpost")).then_some(()))
    })?;
    stage.wait_for_condition(READY, |ready| ready.reason == "HandedBack")?;
    stage.stop_kube_proxy();
    expect(stage.run(&["takeover"])?, true, "programmed again")?;
    ensure!(is_gone(stage, mode)? && stage.has_signpost_tables()?);
    crowd.disperse()
}

/// Leaves the state after a handback that was killed before its last step.
pub(crate) fn kill_before_the_last_step_of_a_handback(stage: &mut Stage) -> Result<()> {
    stage.kill_agent()?;
    let mark = json!({"node": addresses::NODE, "since": "2026-01-01T00:00:00Z"});
    let file = stage.state().join("handed-back.json");
    fs::write(file, mark.to_string()).context("failed to write the mark of a handback")
}

/// Failure story T392: kube-proxy of mode iptables leads packets to its chains before its first sync
/// fills them, with 10,000 Services minutes before. A handback in between left no rules for any Service.
pub(crate) fn kube_proxy_with_empty_chains(stage: &mut Stage, variant: Variant) -> Result<()> {
    stage.start_agent()?;
    let crowd = Crowd::gather(stage.topology())?;
    let program = |family: Family| match (variant, family) {
        (Variant::NfTables, Family::Ipv4) => "iptables-nft",
        (Variant::NfTables, Family::Ipv6) => "ip6tables-nft",
        (Variant::Legacy, Family::Ipv4) => "iptables-legacy",
        (Variant::Legacy, Family::Ipv6) => "ip6tables-legacy",
    };
    for family in Family::ALL {
        for arguments in [
            ["-t", "nat", "-N", "KUBE-SERVICES"].as_slice(),
            &["-t", "nat", "-A", "PREROUTING", "-j", "KUBE-SERVICES"],
            &["-t", "nat", "-N", "KUBE-SVC-WEB"],
        ] {
            run(stage, program(family), arguments)?;
        }
    }
    let refused = stage.run(&["handback"])?;
    expect(refused, false, "IPv6: kube-proxy has no rules for")?;
    ensure!(stage.has_signpost_tables()?);
    crowd.disperse()?;

    for family in Family::ALL {
        // Those of `default/kubernetes`, and of `shop/web`.
        for number in [1, 10] {
            let address = addresses::cluster_ip(number, family).to_string();
            let [table, end] = [
                ["-t", "nat", "-A", "KUBE-SERVICES"],
                ["-d", &address, "-j", "KUBE-SVC-WEB"],
            ];
            run(stage, program(family), &[table, end].concat())?;
        }
    }
    let checked = stage.run(&["handback", "--dry-run"])?;
    let says = "IPv6: kube-proxy has rules for each cluster IP with endpoints";
    expect(checked, true, says)?;
    // Legacy tables stay until the namespace ends.
    for family in Family::ALL {
        run(stage, program(family), &["-t", "nat", "-F"])?;
        run(stage, program(family), &["-t", "nat", "-X"])?;
    }
    Ok(())
}
