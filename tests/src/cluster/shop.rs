//! The Services of the cluster, their Pods and nodes.

use std::net::{IpAddr, SocketAddr};

use dataplane::Family;
use jiff::Timestamp;
use serde_json::{Value, json};
use testkit::address_plan as addresses;

/// The namespace of the Services and Pods.
pub const NAMESPACE: &str = "shop";
/// The port of both Services, TCP and UDP.
pub const PORT: u16 = 80;
/// The node port of the Service `web`, TCP and UDP.
pub const NODE_PORT: u16 = 30_080;
/// The port on which servers listen.
pub const TARGET_PORT: u16 = 8080;

/// A Pod of the Service `web`. A server of the same name answers at its addresses, independently of
/// the Pod's state in the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Web {
    /// Its name.
    pub name: &'static str,
    /// The number of its node.
    pub node: u8,
    /// Its host number on that node.
    pub host: u8,
}

/// The Pods that are ready in the idle state.
pub const WEB: [Web; 4] = [
    Web {
        name: "web-1",
        node: 1,
        host: 5,
    },
    Web {
        name: "web-2",
        node: 1,
        host: 6,
    },
    Web {
        name: "web-3",
        node: 2,
        host: 5,
    },
    Web {
        name: "web-4",
        node: 3,
        host: 5,
    },
];

/// A Pod that does not exist in the idle state.
pub const SPARE: Web = Web {
    name: "web-5",
    node: 2,
    host: 6,
};

/// Services of both families and both protocols. `web` has a selector, so the controller writes its
/// EndpointSlices; the tests write those of `by-hand`.
pub const SERVICES: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: NodePort
  selector: {app: web}
  ipFamilyPolicy: RequireDualStack
  ipFamilies: [IPv4, IPv6]
  clusterIP: 10.96.0.80
  clusterIPs: [10.96.0.80, 'fd00:10:96::80']
  ports:
    - {name: tcp, protocol: TCP, port: 80, targetPort: 8080, nodePort: 30080}
    - {name: udp, protocol: UDP, port: 80, targetPort: 8080, nodePort: 30080}
---
apiVersion: v1
kind: Service
metadata: {name: by-hand, namespace: shop}
spec:
  clusterIP: 10.96.0.81
  ports: [{name: tcp, protocol: TCP, port: 80, targetPort: 8080}]
";

/// Returns the cluster IP and port of the Service `web`.
pub fn cluster_address(family: Family) -> SocketAddr {
    SocketAddr::new(addresses::cluster_ip(80, family), PORT)
}

/// Returns the address of the Service `web` from outside.
pub fn node_port_address(node: u8, family: Family) -> SocketAddr {
    SocketAddr::new(addresses::node_address(node, family), NODE_PORT)
}

/// Returns the address of the Service `by-hand`.
pub fn by_hand_address() -> SocketAddr {
    SocketAddr::new(addresses::cluster_ip(81, Family::Ipv4), PORT)
}

/// Returns an EndpointSlice of the Service `by-hand` with these Pods as ready endpoints.
pub(super) fn slice_by_hand(name: &str, pods: &[Web]) -> String {
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {"kubernetes.io/service-name": "by-hand"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "tcp", "protocol": "TCP", "port": TARGET_PORT}],
        "endpoints": endpoints(pods),
    });
    slice.to_string()
}

/// Returns Pods as the ready endpoints of an IPv4 EndpointSlice.
pub(super) fn endpoints(pods: &[Web]) -> Vec<Value> {
    let endpoints = pods.iter().map(|pod| {
        json!({
            "addresses": [pod.address(Family::Ipv4)],
            "conditions": {"ready": true},
            "nodeName": *addresses::node_name(pod.node),
        })
    });
    endpoints.collect()
}

/// Returns the Node with this number.
pub(super) fn node(number: u8) -> String {
    let node = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": *addresses::node_name(number)},
        "spec": {"podCIDRs": Family::ALL.map(|family| addresses::pod_cidr(number, family))},
    });
    node.to_string()
}

/// Returns the status that the node's kubelet would write.
pub(super) fn node_status(number: u8) -> String {
    let own = Family::ALL.map(
        |family| json!({"type": "InternalIP", "address": addresses::node_address(number, family)}),
    );
    let status = json!({"status": {"addresses": own, "conditions": ready(Readiness::Ready)}});
    status.to_string()
}

/// The readiness that a kubelet reports for a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// The Pod passes its readiness probe.
    Ready,
    /// The Pod does not pass its readiness probe.
    NotReady,
}

// === impl Web ===

impl Web {
    /// Returns its address.
    pub fn address(self, family: Family) -> IpAddr {
        addresses::pod_address(self.node, self.host, family)
    }

    /// Returns the object without a status.
    pub(super) fn object(self) -> String {
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name, "namespace": NAMESPACE, "labels": {"app": "web"}},
            "spec": {
                "nodeName": *addresses::node_name(self.node),
                "containers": [{"name": "web", "image": "none.invalid/web"}],
            },
        });
        pod.to_string()
    }

    /// Returns the status that the kubelet would write.
    pub(super) fn status(self, readiness: Readiness) -> String {
        let addresses = Family::ALL.map(|family| json!({"ip": self.address(family)}));
        let status = json!({"status": {
            "phase": "Running",
            "podIP": self.address(Family::Ipv4),
            "podIPs": addresses,
            "conditions": ready(readiness),
        }});
        status.to_string()
    }
}

fn ready(readiness: Readiness) -> Value {
    let status = match readiness {
        Readiness::Ready => "True",
        Readiness::NotReady => "False",
    };
    // The API has a resolution of seconds here; the trigger time of an EndpointSlice comes from
    // this field.
    let now = format!("{:.0}", Timestamp::now());
    json!([{"type": "Ready", "status": status, "lastTransitionTime": now}])
}
