//! The addresses and host ports of Pods, and whether the podCIDRs of Nodes contain them. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Container, Node, Pod};
use kube::ResourceExt;

use crate::advice::page;

/// The network of a running Pod that is not in the network of its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodNetwork {
    /// The namespace and the name: `shop/web-1`.
    pub(crate) name: String,
    pub(crate) node: String,
    /// Its addresses, at most one of each family.
    addresses: Vec<IpAddr>,
    pub(crate) host_ports: Vec<HostPort>,
}

/// A port of a node that a Pod has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HostPort {
    pub(crate) protocol: Protocol,
    pub(crate) port: i32,
    /// The only address of the node that has it; all addresses by default.
    pub(crate) address: Option<IpAddr>,
}

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

/// The Pods of some nodes, compared with the podCIDRs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Comparison<'a> {
    /// The number of Pods.
    pub(crate) compared: usize,
    /// The Pods that no podCIDR of their node contains, each with its first such address.
    pub(crate) outside: Vec<(&'a PodNetwork, IpAddr)>,
}

/// The next step if local detection goes by podCIDRs that do not contain the Pods.
pub(crate) const DETECT_OTHERWISE: &str = concat!(
    "set spec.detectLocal of the profile as the network plugin requires (",
    page!("migrate.md"),
    "); with the default, NodeCIDR, their traffic to cluster IPs is masqueraded"
);

/// Compares the Pods of `nodes` with the podCIDRs of their nodes.
pub(crate) fn compare<'a>(
    nodes: impl Iterator<Item = &'a Node>,
    pods: &'a [PodNetwork],
) -> Comparison<'a> {
    let cidrs: BTreeMap<String, Vec<IpNet>> = nodes
        .map(|node| (node.name_any(), cidrs_of(node)))
        .collect();
    let mut comparison = Comparison {
        compared: 0,
        outside: Vec::new(),
    };
    for pod in pods {
        let Some(cidrs) = cidrs.get(&pod.node) else {
            continue;
        };
        comparison.compared += usize::from(!pod.addresses.is_empty());
        let is_inside = |address: &&IpAddr| cidrs.iter().any(|cidr| cidr.contains(*address));
        let mut outside = pod.addresses.iter().filter(|address| !is_inside(address));
        let outside = outside.next();
        comparison
            .outside
            .extend(outside.map(|address| (pod, *address)));
    }
    comparison
}

/// Whether a Pod is running.
fn runs(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    status.and_then(|status| status.phase.as_deref()) == Some("Running")
        && pod.metadata.deletion_timestamp.is_none()
}

fn cidrs_of(node: &Node) -> Vec<IpNet> {
    let cidrs = node.spec.as_ref().and_then(|spec| spec.pod_cidrs.clone());
    let cidrs = cidrs.unwrap_or_default();
    cidrs.iter().filter_map(|cidr| cidr.parse().ok()).collect()
}

// === impl PodNetwork ===

impl PodNetwork {
    /// Returns the network of `pod`; `None` if it does not run, or is in that of its node.
    pub(crate) fn of(pod: &Pod) -> Option<PodNetwork> {
        let spec = pod.spec.as_ref()?;
        if !runs(pod) || spec.host_network == Some(true) {
            return None;
        }
        let status = pod.status.as_ref()?;
        let all = status.pod_ips.iter().flatten().map(|known| &known.ip);
        let mut addresses: Vec<IpAddr> = all.filter_map(|ip| ip.parse().ok()).collect();
        if addresses.is_empty() {
            let only = status.pod_ip.as_ref();
            addresses.extend(only.and_then(|ip| ip.parse::<IpAddr>().ok()));
        }
        // Of init containers, only those that stay have ports of the node.
        let init_containers = spec.init_containers.iter().flatten();
        let sidecars =
            init_containers.filter(|init| init.restart_policy.as_deref() == Some("Always"));
        let containers = spec.containers.iter().chain(sidecars);
        let namespace = pod.namespace().unwrap_or_default();
        Some(PodNetwork {
            name: format!("{namespace}/{}", pod.name_any()),
            node: spec.node_name.clone()?,
            addresses,
            host_ports: containers.flat_map(host_ports).collect(),
        })
    }
}

fn host_ports(container: &Container) -> impl Iterator<Item = HostPort> {
    let ports = container.ports.iter().flatten();
    ports.filter_map(|port| {
        let address: Option<IpAddr> = port.host_ip.as_ref().and_then(|ip| ip.parse().ok());
        Some(HostPort {
            protocol: Protocol::named(port.protocol.as_deref())?,
            port: port.host_port.filter(|port| *port > 0)?,
            address: address.filter(|address| !address.is_unspecified()),
        })
    })
}

// === impl Protocol ===

impl Protocol {
    /// Returns the protocol of this name, TCP by default.
    pub(crate) fn named(name: Option<&str>) -> Option<Protocol> {
        match name.unwrap_or("TCP") {
            "TCP" => Some(Protocol::Tcp),
            "UDP" => Some(Protocol::Udp),
            "SCTP" => Some(Protocol::Sctp),
            _ => None,
        }
    }

    /// The name in the API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{from_value, json};

    use super::*;

    /// A running Pod of namespace `shop`.
    pub(crate) fn pod(name: &str, node: &str, ips: &[&str], ports: &serde_json::Value) -> Pod {
        let ips = ips.iter().map(|ip| json!({"ip": ip}));
        let ips: Vec<_> = ips.collect();
        from_value(json!({
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"nodeName": node, "containers": [{"name": "c", "ports": ports}]},
            "status": {"phase": "Running", "podIPs": ips},
        }))
        .expect("a Pod")
    }

    fn node(name: &str, cidrs: &[&str]) -> Node {
        from_value(json!({"metadata": {"name": name}, "spec": {"podCIDRs": cidrs}}))
            .expect("a Node")
    }

    #[test]
    fn pods_are_compared_with_the_cidrs_of_their_own_node_in_both_families() {
        let nodes = [
            node("n1", &["10.0.1.0/24", "fd00:1::/64"]),
            node("n2", &["10.0.2.0/24"]),
        ];
        let pods = [
            pod("a", "n1", &["10.0.1.9", "fd00:1::9"], &json!([])),
            pod("b", "n1", &["10.0.2.9"], &json!([])),
            pod("c", "n2", &["10.0.2.9", "fd00:2::9"], &json!([])),
            pod("d", "n3", &["10.0.2.9"], &json!([])),
            pod("e", "n1", &[], &json!([])),
        ];
        let pods: Vec<PodNetwork> = pods.iter().filter_map(PodNetwork::of).collect();
        let Comparison { compared, outside } = compare(nodes.iter(), &pods);
        assert_eq!(compared, 3);
        let outside = outside.iter();
        let outside: Vec<String> = outside
            .map(|(pod, ip)| format!("{} {ip}", pod.name))
            .collect();
        assert_eq!(outside, ["shop/b 10.0.2.9", "shop/c fd00:2::9"]);
    }

    #[test]
    fn a_pod_in_the_network_of_its_node_or_one_that_has_ended_has_no_network() {
        let mut ended = pod("a", "n1", &["10.0.1.9"], &json!([]));
        ended.status.as_mut().expect("a status").phase = Some("Succeeded".to_owned());
        assert_eq!(PodNetwork::of(&ended), None);
        let mut host = pod(
            "b",
            "n1",
            &["192.168.0.1"],
            &json!([{"containerPort": 80, "hostPort": 80}]),
        );
        host.spec.as_mut().expect("a spec").host_network = Some(true);
        assert_eq!(PodNetwork::of(&host), None);
    }

    #[test]
    fn host_ports_are_those_of_containers_that_stay() {
        let mut pod = pod(
            "a",
            "n1",
            &["10.0.1.9"],
            &json!([
                {"containerPort": 80, "hostPort": 8080, "hostIP": "0.0.0.0"},
                {"containerPort": 53, "hostPort": 53, "protocol": "UDP", "hostIP": "192.168.0.1"},
                {"containerPort": 9000},
            ]),
        );
        let init = |name: &str, policy: Option<&str>, port: i32| -> Container {
            let ports = json!([{"containerPort": 1, "hostPort": port}]);
            let init = json!({"name": name, "restartPolicy": policy, "ports": ports});
            from_value(init).expect("a container")
        };
        let spec = pod.spec.as_mut().expect("a spec");
        spec.init_containers = Some(vec![
            init("setup", None, 7000),
            init("sidecar", Some("Always"), 7001),
        ]);
        let network = PodNetwork::of(&pod).expect("it runs");
        let port = |protocol, port, address: Option<&str>| HostPort {
            protocol,
            port,
            address: address.map(|address| address.parse().expect("an address")),
        };
        assert_eq!(
            network.host_ports,
            [
                port(Protocol::Tcp, 8080, None),
                port(Protocol::Udp, 53, Some("192.168.0.1")),
                port(Protocol::Tcp, 7001, None),
            ]
        );
    }
}
