//! A cluster IP is assigned to a device of the node, where processes listen.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use backend::Backend;
use tests::network::start_server;
use tests::scenario::{RealKernel, Script};

use crate::stage::{connect, packets, play};

const STORY: &str = r#"
apply   dns slice
packet  pod 10.0.1.9 -> 10.96.0.200:53/udp           = 10.0.2.7:5353
packet  pod 10.0.1.9 -> 10.96.0.200:2222/tcp         = reject
packet  pod 10.0.1.9 -> 10.96.0.200:2222/udp         = reject
packet  outside 203.0.113.2 -> 10.96.0.200:2222/tcp  = reject
packet  pod 10.0.1.9 -> node:2222/tcp                = untouched

-- dns --
kind: Service
metadata: {namespace: kube-system, name: kube-dns}
spec:
  clusterIP: 10.96.0.200
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53}]
-- slice --
kind: EndpointSlice
metadata: {namespace: kube-system, name: kube-dns-1, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
ports: [{name: dns, port: 5353, protocol: UDP}, {name: dns-tcp, port: 5353}]
endpoints: [{addresses: [10.0.2.7], nodeName: node-2}]
"#;

/// The node's own addresses belong to processes that listen on all addresses; the cluster IP does
/// not.
pub(crate) fn strangers_are_refused<B: Backend + Send>(
    build: impl FnOnce(&Script) -> Result<RealKernel<B>>,
) -> Result<()> {
    let (mut kernel, script) = play(STORY, build)?;
    let everywhere: SocketAddr = "0.0.0.0:2222".parse()?;
    let server = start_server(kernel.node()?, "everywhere", &[everywhere])?;
    let expected = [
        "10.0.2.7:5353",
        "reject",
        "reject",
        "reject",
        "192.168.0.1:2222",
    ];
    for (packet, expected) in packets(&script).iter().zip(expected) {
        let outcome = connect(&mut kernel, packet)?;
        ensure!(outcome == expected, "{packet} = {outcome}, not {expected}");
    }
    drop(server);
    Ok(())
}

/// NodeLocal DNS: the cache has the cluster IP of DNS on its own device and excludes its packets
/// from conntrack, so they bypass NAT.
pub(crate) fn a_cache_answers<B: Backend + Send>(
    build: impl FnOnce(&Script) -> Result<RealKernel<B>>,
) -> Result<()> {
    let (mut kernel, script) = play(STORY, build)?;
    let node = kernel.node()?.clone();
    let cache: [SocketAddr; 1] = ["10.96.0.200:53".parse()?];
    let server = start_server(&node, "cache", &cache)?;
    let rules = "table ip cache { \
        chain in { type filter hook prerouting priority raw; ip daddr 10.96.0.200 th dport 53 notrack; }; \
        chain out { type filter hook output priority raw; \
            ip saddr 10.96.0.200 th sport 53 notrack; ip daddr 10.96.0.200 th dport 53 notrack; }; }";
    node.nft(&[rules])?;
    for packet in packets(&script).iter().take(1) {
        let outcome = connect(&mut kernel, packet)?;
        ensure!(outcome == "10.96.0.200:53", "{packet} = {outcome}");
    }
    drop(server);
    Ok(())
}
