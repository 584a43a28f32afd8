//! The agent's manifests.

use dataplane::Family;
use serde_json::{Value, json};
use testkit::address_plan as addresses;

use crate::stage::{SERVED, SERVING};

/// The health-check node port of `demo/web`.
pub(crate) const HEALTH_CHECK: u16 = 32000;
/// The node port of `demo/web`.
pub(crate) const NODE_PORT: u16 = 30080;
/// A node port of a Service whose endpoint has no server.
pub(crate) const DEAD_NODE_PORT: u16 = 30081;

/// Returns the initial manifests.
pub(crate) fn initial() -> Vec<(&'static str, Value)> {
    vec![
        ("node", node(&json!({}))),
        ("profile", profile(&json!({}))),
        ("web", web()),
        (
            "web-endpoints",
            endpoints("web", &[Some(addresses::NODE)], SERVED, "TCP"),
        ),
    ]
}

/// Returns the Node with additional fields.
pub(crate) fn node(more: &Value) -> Value {
    let mut node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": addresses::NODE},
        "spec": {"podCIDRs": Family::ALL.map(|family| addresses::pod_cidr(1, family))},
        "status": {"addresses": Family::ALL.map(|family| {
            json!({"type": "InternalIP", "address": addresses::node_address(1, family)})
        })},
    });
    merge(&mut node, more);
    node
}

/// Returns the profile with additional fields in its spec. It checks the kernel every second.
pub(crate) fn profile(more: &Value) -> Value {
    let mut spec = json!({"mode": "nftables", "syncPeriod": "1s", "minSyncPeriod": "10ms"});
    merge(&mut spec, more);
    json!({
        "apiVersion": "signpost.dev/v1alpha1", "kind": "ProxyProfile",
        "metadata": {"name": "default"}, "spec": spec,
    })
}

/// Returns a Service of type LoadBalancer with policy Local.
pub(crate) fn web() -> Value {
    service(
        "web",
        10,
        &json!({
            "type": "LoadBalancer",
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": HEALTH_CHECK,
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "nodePort": NODE_PORT}],
        }),
    )
}

/// Returns a Service whose cluster IPs end with `number`.
pub(crate) fn service(name: &str, number: u8, more: &Value) -> Value {
    let ips = Family::ALL.map(|family| addresses::cluster_ip(number, family));
    let balancers = Family::ALL.map(|family| addresses::load_balancer_ip(number, family));
    let mut spec = json!({
        "type": "ClusterIP", "ipFamilies": ["IPv4", "IPv6"], "clusterIP": ips[0], "clusterIPs": ips,
        "ports": [{"name": "http", "protocol": "TCP", "port": 80}],
    });
    merge(&mut spec, more);
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "demo", "name": name}, "spec": spec,
    });
    if service["spec"]["type"] == "LoadBalancer" {
        let ingress = balancers.map(|address| json!({"ip": address}));
        service["status"] = json!({"loadBalancer": {"ingress": ingress}});
    }
    service
}

/// Returns the slices of a Service: one endpoint for each of `nodes`; the one on this node is the
/// serving pod.
pub(crate) fn endpoints(service: &str, nodes: &[Option<&str>], port: u16, protocol: &str) -> Value {
    let slices = Family::ALL.map(|family| {
        let endpoints = (0_u8..).zip(nodes).map(|(place, node)| {
            let address = match *node {
                Some(addresses::NODE) => addresses::pod_address(1, SERVING, family),
                _ => addresses::pod_address(2, 5 + place, family),
            };
            json!({"addresses": [address], "nodeName": node, "conditions": {"ready": true}})
        });
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "namespace": "demo", "name": format!("{service}-{family}").to_lowercase(),
                "labels": {"kubernetes.io/service-name": service},
            },
            "addressType": family.to_string(),
            "ports": [{"name": "http", "protocol": protocol, "port": port}],
            "endpoints": endpoints.collect::<Vec<_>>(),
        })
    });
    slices.to_vec().into()
}

/// Returns the same slices with the present time as their trigger time.
pub(crate) fn triggered(mut slices: Value) -> Value {
    for slice in slices.as_array_mut().into_iter().flatten() {
        let now = jiff::Timestamp::now().to_string();
        slice["metadata"]["annotations"] =
            json!({"endpoints.kubernetes.io/last-change-trigger-time": now});
    }
    slices
}

/// Returns a kubeconfig for an API server that does not exist.
pub(crate) fn kubeconfig() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "missing",
        "contexts": [{"name": "missing", "context": {"cluster": "missing", "user": "missing"}}],
        "clusters": [{"name": "missing", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "missing", "user": {}}],
    })
}

fn merge(into: &mut Value, more: &Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more.clone(),
    }
}
