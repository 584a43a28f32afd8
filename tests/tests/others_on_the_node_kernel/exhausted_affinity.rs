//! The real agent on a node where one Service's clients use up the whole capacity of session
//! affinity. Failure story T93.

use std::fs;
use std::net::SocketAddr;

use anyhow::{Result, ensure};
use crds::condition::FEATURES_HONOURED;
use dataplane::Family;
use tempfile::TempDir;
use testkit::address_plan as addresses;
use tests::lone_agent::{LoneAgent, Source, Sysctls, Workplace};
use tests::network::{Plan, PlannedNode, Topology, start_server};

use crate::affinity::{CLIENTS, LONG, flood, let_flood_through};

/// The pod with the flooded Service's endpoint, the client pod, and the port of the endpoint.
const SERVING: u8 = 5;
const ASKING: u8 = 9;
const SERVED: u16 = 9999;
const METRIC: &str = "signpost_affinity_exhausted_services";

/// The profile detects no local traffic, so the flood is not masqueraded.
const MANIFESTS: &str = r#"
apiVersion: signpost.dev/v1alpha1
kind: ProxyProfile
metadata: {name: default}
spec: {syncPeriod: 1s}
---
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: cart}
spec: {clusterIP: 10.96.0.10, sessionAffinity: ClientIP, ports: [{port: 9999, protocol: UDP}]}
---
apiVersion: v1
kind: Service
metadata: {namespace: game, name: lobby}
spec: {clusterIP: 10.96.0.11, sessionAffinity: ClientIP, ports: [{port: 9999, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: game, name: lobby-1, labels: {kubernetes.io/service-name: lobby}}
addressType: IPv4
ports: [{name: "", port: 9999, protocol: UDP}]
endpoints: [{addresses: [10.0.1.5], nodeName: node-1}]
"#;

/// The node reports that the affinity of the flooded Service is exhausted, and counts one such
/// Service; it stops both after the kernel has expired the clients, ten minutes later.
pub(crate) fn it_is_reported_as_long_as_it_lasts() -> Result<()> {
    let topology = Topology::build(&Plan {
        nodes: vec![PlannedNode {
            number: 1,
            pods: [SERVING, ASKING].into(),
        }],
        ..Plan::default()
    })?;
    let endpoint = addresses::pod_address(1, SERVING, Family::Ipv4);
    let listening = [SocketAddr::new(endpoint, SERVED)];
    let _server = start_server(topology.pod(1, SERVING)?, "lobby", &listening)?;
    let folder = TempDir::new()?;
    let manifests = folder.path().join("manifests");
    fs::create_dir(&manifests)?;
    fs::write(manifests.join("all.yaml"), MANIFESTS)?;
    let node = topology.node(1)?;
    let agent = LoneAgent::start(&Workplace {
        node: node.clone(),
        source: Source::Manifests(manifests),
        folder: folder.path().to_owned(),
        sysctls: Sysctls::Writable,
        deadline: LONG,
    })?;
    agent.wait_until_ready()?;
    wait_until_reported(&agent, "True", "AllHonoured", 0.0)?;

    let pod = topology.pod(1, ASKING)?;
    let_flood_through(node, pod)?;
    agent.wait_for("the flooded Service to be written down", |_| {
        pod.enter(|| flood(CLIENTS))??;
        let listed = node.nft(&["list", "map", "ip", "signpost", "crowded"])?;
        Ok(listed.contains("10.96.0.11 . udp . 9999").then_some(()))
    })?;
    let message = wait_until_reported(&agent, "False", "AffinityExhausted", 1.0)?;
    ensure!(message.contains("game/lobby:"), "{message}");
    ensure!(!message.contains("shop/cart"), "{message}");

    let _ = node.nft(&["flush map ip signpost crowded"])?;
    wait_until_reported(&agent, "True", "AllHonoured", 0.0).map(drop)
}

/// Waits until the condition and the metric have these values; returns the message.
fn wait_until_reported(
    agent: &LoneAgent,
    status: &str,
    reason: &str,
    services: f64,
) -> Result<String> {
    agent.wait_for(reason, |agent| {
        let reported = agent.condition(FEATURES_HONOURED)?;
        let reported =
            reported.filter(|reported| reported.status == status && reported.reason == reason);
        let is_counted = agent.metric(METRIC)? == services;
        Ok(reported
            .filter(|_| is_counted)
            .map(|reported| reported.message))
    })
}
