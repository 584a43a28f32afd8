//! A firewall of the node drops what none of its rules accepts.

use anyhow::{Context, Result, ensure};
use backend::Backend;
use tests::network::Namespace;

use crate::stage::{connect, ipvs, packets, play};

const STORY: &str = r#"
apply   web slice
packet  pod 10.0.1.9 -> 10.96.0.10:80/tcp            = 10.0.2.7:8080
packet  outside 203.0.113.2 -> node:30080/tcp        = 10.0.2.7:8080 masqueraded
packet  node 192.168.0.1 -> 10.96.0.10:80/tcp        = 10.0.2.7:8080

-- web --
kind: Service
metadata: {namespace: shop, name: web}
spec: {type: NodePort, clusterIP: 10.96.0.10, ports: [{port: 80, nodePort: 30080}]}
-- slice --
kind: EndpointSlice
metadata: {namespace: shop, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints: [{addresses: [10.0.2.7], nodeName: node-2}]
"#;

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

    // The node could ask nobody without this.
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
