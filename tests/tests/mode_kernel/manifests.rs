//! The agent's manifests.

use dataplane::Family;
use serde_json::{Value, json};
use testkit::address_plan as addresses;

use crate::stage::{ELSEWHERE, SERVED, SERVING, SERVING_ELSEWHERE};

/// The node port of `shop/web`.
pub(crate) const NODE_PORT: u16 = 30080;
/// The number of additional Services: enough for a switch to take a while.
pub(crate) const OTHERS: u8 = 200;
/// The number of Services of a crowd.
const CROWD: u16 = 2_000;
const CROWD_IN_FILE: u16 = 200;

/// Returns the initial manifests without the profile: `shop/web` and this many other Services.
pub(crate) fn initial(others: u8) -> Vec<(String, Value)> {
    let mut all = vec![
        ("node".to_owned(), node()),
        ("web".to_owned(), service("web", 10)),
        ("web-endpoints".to_owned(), endpoints("web", &SERVING)),
    ];
    for number in 0..others {
        let name = format!("other-{number}");
        all.push((name.clone(), service(&name, 20 + number)));
    }
    all.extend(other_endpoints(others, &SERVING));
    all
}

/// Returns the slices of this many other Services with these pods of the node.
pub(crate) fn other_endpoints(others: u8, pods: &[u8]) -> impl Iterator<Item = (String, Value)> {
    (0..others).map(|number| {
        let name = format!("other-{number}");
        (format!("{name}-endpoints"), endpoints(&name, pods))
    })
}

/// Returns so many Services that one sync does not program them all, each with both pods, in files of
/// a size that the agent reads.
pub(crate) fn crowd() -> impl Iterator<Item = (String, Value)> {
    let files = (0..CROWD).step_by(usize::from(CROWD_IN_FILE));
    files.map(|first| {
        let documents = (first..first + CROWD_IN_FILE).flat_map(|number| {
            let name = format!("crowd-{number}");
            let [high, low] = number.to_be_bytes();
            let ips = [
                format!("10.97.{high}.{low}"),
                format!("fd00:10:97::{number:x}"),
            ];
            let mut documents = vec![service_at(&name, ips)];
            if let Value::Array(slices) = endpoints(&name, &SERVING) {
                documents.extend(slices);
            }
            documents
        });
        (format!("crowd-{first}"), documents.collect())
    })
}

/// Returns a profile with this mode. The agent checks the kernel every second, and IPVS forgets a
/// UDP flow before the tests time out.
pub(crate) fn profile(mode: &str) -> Value {
    json!({
        "apiVersion": "signpost.dev/v1alpha1", "kind": "ProxyProfile",
        "metadata": {"name": "default"},
        "spec": {
            "mode": mode, "syncPeriod": "1s", "minSyncPeriod": "10ms",
            "iptables": {"localhostNodePorts": false}, "ipvs": {"udpTimeout": "30s"},
        },
    })
}

fn node() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": addresses::NODE},
        "spec": {"podCIDRs": Family::ALL.map(|family| addresses::pod_cidr(1, family))},
        "status": {"addresses": Family::ALL.map(|family| {
            json!({"type": "InternalIP", "address": addresses::node_address(1, family)})
        })},
    })
}

/// Returns a Service whose cluster IPs end with `number`; `web` has node ports, and both TCP and
/// UDP.
pub(crate) fn service(name: &str, number: u8) -> Value {
    let ips = Family::ALL.map(|family| addresses::cluster_ip(number, family).to_string());
    let mut service = service_at(name, ips);
    if name == "web" {
        service["spec"]["type"] = json!("NodePort");
        service["spec"]["ports"] = json!([
            {"name": "http", "protocol": "TCP", "port": 80, "nodePort": NODE_PORT},
            {"name": "quic", "protocol": "UDP", "port": 80, "nodePort": NODE_PORT},
        ]);
    }
    service
}

fn service_at(name: &str, ips: [String; 2]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "shop", "name": name},
        "spec": {
            "type": "ClusterIP", "ipFamilies": ["IPv4", "IPv6"],
            "clusterIP": ips[0], "clusterIPs": ips,
            "ports": [{"name": "http", "protocol": "TCP", "port": 80}],
        },
    })
}

/// Returns the slices of a Service with these pods of the node.
pub(crate) fn endpoints(service: &str, pods: &[u8]) -> Value {
    endpoints_at(service, pods, SERVED)
}

/// The same at another port of the pods.
pub(crate) fn endpoints_at(service: &str, pods: &[u8], port: u16) -> Value {
    endpoints_on(service, (1, addresses::NODE), pods, port)
}

/// Returns the slices of a Service with the pod of another node.
pub(crate) fn endpoints_elsewhere(service: &str) -> Value {
    endpoints_on(service, (ELSEWHERE, "node-2"), &[SERVING_ELSEWHERE], SERVED)
}

fn endpoints_on(service: &str, (number, node): (u8, &str), pods: &[u8], port: u16) -> Value {
    let slices = Family::ALL.map(|family| {
        let endpoints = pods.iter().map(|pod| {
            let address = addresses::pod_address(number, *pod, family);
            json!({
                "addresses": [address], "nodeName": node, "conditions": {"ready": true},
            })
        });
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "namespace": "shop", "name": format!("{service}-{family}").to_lowercase(),
                "labels": {"kubernetes.io/service-name": service},
            },
            "addressType": family.to_string(),
            "ports": [
                {"name": "http", "protocol": "TCP", "port": port},
                {"name": "quic", "protocol": "UDP", "port": port},
            ],
            "endpoints": endpoints.collect::<Vec<_>>(),
        })
    });
    slices.to_vec().into()
}
