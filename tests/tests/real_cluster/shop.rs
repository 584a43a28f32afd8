//! The workload of the cluster: Services, their servers, and clients.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use dataplane::Family;
use serde_json::{Value, json};
use tests::real_cluster::lan::node_addresses;

/// The image of the servers.
pub(crate) const SERVER_IMAGE: &str = "registry.test/echo-server:test";

/// A Service with cluster IPs and node ports of both families, for TCP and UDP, and its Deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shop {
    /// The name of both.
    pub(crate) name: &'static str,
    node_port: u16,
    cluster_ips: [&'static str; 2],
}

/// A Service whose servers stay.
pub(crate) const STEADY: Shop = Shop {
    name: "steady",
    node_port: 30_080,
    cluster_ips: ["10.96.0.80", "fd00:10:96::80"],
};

/// A Service whose servers change.
pub(crate) const SHIFTING: Shop = Shop {
    name: "shifting",
    node_port: 30_081,
    cluster_ips: ["10.96.0.81", "fd00:10:96::81"],
};

/// The number of servers of each in the idle state.
pub(crate) const SERVERS: usize = 3;

/// The port of both Services.
const PORT: u16 = 80;
/// The port of the servers.
const TARGET_PORT: u16 = 8080;

// === impl Shop ===

impl Shop {
    /// Returns its address for nodes and Pods.
    pub(crate) fn cluster_address(self, family: Family) -> Result<SocketAddr> {
        let ip = self.cluster_ips[index(family)];
        Ok(SocketAddr::new(ip.parse().context("a cluster IP")?, PORT))
    }

    /// Returns its address for outside clients.
    pub(crate) fn node_address(self, node: u8, family: Family) -> SocketAddr {
        SocketAddr::new(node_addresses(node)[index(family)], self.node_port)
    }

    /// Returns its objects. A server keeps answering after SIGTERM until its grace period is over,
    /// like servers that drain: the first process of a container ignores signals without a handler.
    pub(crate) fn objects(self) -> Value {
        let labels = json!({"app": self.name});
        let port = |name: &str, protocol: &str| {
            json!({
                "name": name, "protocol": protocol,
                "port": PORT, "targetPort": TARGET_PORT, "nodePort": self.node_port,
            })
        };
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": self.name},
            "spec": {
                "type": "NodePort",
                "selector": labels,
                "ipFamilyPolicy": "RequireDualStack",
                "clusterIP": self.cluster_ips[0],
                "clusterIPs": self.cluster_ips,
                "ports": [port("tcp", "TCP"), port("udp", "UDP")],
            },
        });
        let deployment = json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": self.name},
            "spec": {
                "replicas": SERVERS,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {
                    "terminationGracePeriodSeconds": 10,
                    "topologySpreadConstraints": [{
                        "topologyKey": "kubernetes.io/hostname",
                        "maxSkew": 1,
                        "whenUnsatisfiable": "ScheduleAnyway",
                        "labelSelector": {"matchLabels": labels},
                    }],
                    "containers": [{
                        "name": "server",
                        "image": SERVER_IMAGE,
                        "args": ["$(NAME)", format!("[::]:{TARGET_PORT}")],
                        "env": [{"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                        // The server ends with its input.
                        "stdin": true,
                        "readinessProbe": {"tcpSocket": {"port": TARGET_PORT}, "periodSeconds": 1},
                    }],
                }},
            },
        });
        json!({"apiVersion": "v1", "kind": "List", "items": [service, deployment]})
    }
}

/// The selector of all client Pods.
pub(crate) const CLIENTS: &str = "--selector=app=client";

/// Returns the name of the client Pod on a node.
pub(crate) fn client(node: u8) -> String {
    format!("client-{node}")
}

/// Returns a client Pod with network tools.
pub(crate) fn client_object(node: u8, image: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": client(node), "labels": {"app": "client"}},
        "spec": {
            "nodeName": format!("node-{node}"),
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "client", "image": image, "args": ["pause"]}],
        },
    })
}

fn index(family: Family) -> usize {
    match family {
        Family::Ipv4 => 0,
        Family::Ipv6 => 1,
    }
}
