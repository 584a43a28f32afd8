//! kube-proxy serves beside Signpost, as it does before a takeover and before a handback. Failure
//! story T276.

use anyhow::{Result, ensure};
use backend::Backend;
use tests::scenario::{RealKernel, Script};

use crate::stage::{connect, packets, play};

const STORY: &str = r#"
apply   web slice
packet  outside 203.0.113.2 -> 192.0.2.1:80/tcp = 10.0.2.7:8080 masqueraded
packet  pod 10.0.1.9 -> 192.0.2.1:80/tcp        = 10.0.2.7:8080 masqueraded

-- web --
kind: Service
metadata: {namespace: shop, name: web}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.10
  loadBalancerSourceRanges: [203.0.113.0/29, 10.0.1.0/24]
  ports: [{port: 80, nodePort: 30080}]
status: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}}
-- slice --
kind: EndpointSlice
metadata: {namespace: shop, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints: [{addresses: [10.0.2.7], nodeName: node-2}]
"#;

/// What kube-proxy in mode iptables has for a load-balancer IP with source ranges: DNAT for clients
/// that may connect, and a refusal of all packets that it has not redirected.
const OF_KUBE_PROXY: [&str; 3] = [
    "-t nat -A PREROUTING -d 192.0.2.1 -p tcp --dport 80 -j DNAT --to-destination 10.0.2.7:8080",
    "-t nat -A POSTROUTING -d 10.0.2.7 -j MASQUERADE",
    "-t filter -A INPUT -m conntrack --ctstate NEW -d 192.0.2.1 -p tcp --dport 80 -j DROP",
];

pub(crate) fn clients_may_connect_beside_kube_proxy<B: Backend + Send>(
    build: impl FnOnce(&Script) -> Result<RealKernel<B>>,
) -> Result<()> {
    let (mut kernel, script) = play(STORY, build)?;
    for rule in OF_KUBE_PROXY {
        let node = kernel.node()?;
        let output = node
            .command("iptables-nft")
            .args(rule.split(' '))
            .output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{rule}: {errors}");
    }
    for packet in packets(&script) {
        let outcome = connect(&mut kernel, &packet)?;
        ensure!(outcome.starts_with("10.0.2.7:8080"), "{packet} = {outcome}");
    }
    Ok(())
}
