//! A firewall of the node drops what none of its rules accepts.

use anyhow::{Context, Result, ensure};
use backend::Backend;
use tests::network::Namespace;

use crate::host_port::STORY;
use crate::stage::{connect, ipvs, packets, play};

/// The rule for replies that the documentation names.
const REPLIES: &str = "-I FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT";

fn iptables(node: &Namespace, arguments: &str) -> Result<()> {
    let mut command = node.command("iptables-nft");
    let output = command.arg("-w").args(arguments.split(' ')).output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "iptables {arguments}: {errors}");
    Ok(())
}

/// Mode ipvs delivers packets to Services to the node, and IPVS forwards the answers: policies of drop for
/// INPUT and FORWARD drop them. With the rule that the agent prints, and the one that the documentation
/// names, they pass, and nothing else does.
pub(crate) fn services_pass_with_the_printed_rule() -> Result<()> {
    let (mut kernel, script) = play(STORY, ipvs)?;
    let node = kernel.node()?.clone();

    // The node could open no connection without this.
    iptables(
        &node,
        "-I INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
    )?;
    iptables(&node, "-P INPUT DROP")?;
    iptables(&node, "-P FORWARD DROP")?;
    let outcome = connect(&mut kernel, &packets(&script)[0])?;
    ensure!(outcome == "drop", "{outcome} behind the firewall");
    let limitations = node.enter(|| -> Result<Vec<String>> {
        let [mut ipv4, _] = backend_ipvs::open(std::path::Path::new("/proc/sys"))?;
        let _rules = ipv4.observe()?;
        Ok(ipv4.limitations(&dataplane::Dataplane::default()))
    })??;
    let printed = limitations
        .iter()
        .find_map(|text| text.split(": iptables ").nth(1));
    iptables(
        &node,
        printed.context(format!("no rule in {limitations:?}"))?,
    )?;
    let outcome = connect(&mut kernel, &packets(&script)[0])?;
    ensure!(outcome == "drop", "{outcome} without the rule for replies");

    iptables(&node, REPLIES)?;
    for packet in packets(&script) {
        let outcome = connect(&mut kernel, &packet)?;
        let is_served = outcome.starts_with("10.0.2.7:8080");
        ensure!(is_served, "{packet} = {outcome}, with the rules");
    }
    Ok(())
}
