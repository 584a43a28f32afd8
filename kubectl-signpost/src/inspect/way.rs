//! Objects as the source and destination of a packet. Pure.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, bail, ensure};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::ResourceExt;

/// The source of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Departure {
    /// The node that the packet leaves from, if known.
    pub(super) node: Option<String>,
    sender: Sender,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Sender {
    /// A source in the agent's syntax.
    Given(String),
    Pod(Vec<IpAddr>),
    Node(Vec<IpAddr>),
}

/// The destination of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Arrival {
    /// A destination in the agent's syntax.
    Given(String),
    /// One of these addresses with a port.
    At {
        addresses: Vec<IpAddr>,
        port: u16,
        protocol: String,
    },
}

/// Returns the packet in the syntax of the agent, for the agent of `node`.
pub(super) fn packet(from: &Departure, to: &Arrival, node: &str) -> anyhow::Result<String> {
    let (word, sources) = match &from.sender {
        Sender::Given(text) => return Ok(format!("{text} -> {}", to.describe(None)?)),
        Sender::Pod(sources) if from.node.as_deref() == Some(node) => ("pod", sources),
        Sender::Pod(sources) => ("remote-pod", sources),
        Sender::Node(sources) if from.node.as_deref() == Some(node) => ("node", sources),
        Sender::Node(sources) => ("outside", sources),
    };
    let is_possible = |source: &&IpAddr| to.has(source.is_ipv4());
    let source = sources.iter().find(is_possible).context(
        "both ends have no address of the same family: name addresses instead of objects",
    )?;
    Ok(format!(
        "{word} {source} -> {}",
        to.describe(Some(source.is_ipv4()))?
    ))
}

// === impl Departure ===

impl Departure {
    pub(super) fn given(text: String) -> Departure {
        Departure {
            node: None,
            sender: Sender::Given(text),
        }
    }

    pub(super) fn of_pod(pod: &Pod) -> anyhow::Result<Departure> {
        let spec = pod.spec.as_ref();
        let addresses = addresses_of_pod(pod)?;
        let on_host = spec.and_then(|spec| spec.host_network) == Some(true);
        Ok(Departure {
            node: spec.and_then(|spec| spec.node_name.clone()),
            sender: match on_host {
                true => Sender::Node(addresses),
                false => Sender::Pod(addresses),
            },
        })
    }

    pub(super) fn of_node(node: &Node) -> anyhow::Result<Departure> {
        Ok(Departure {
            node: Some(node.name_any()),
            sender: Sender::Node(addresses_of_node(node)?),
        })
    }
}

// === impl Arrival ===

impl Arrival {
    /// The destination of a Pod. `port` must be a number.
    pub(super) fn of_pod(pod: &Pod, port: Option<String>) -> anyhow::Result<Arrival> {
        let name = pod.name_any();
        let port = port.with_context(|| format!("name the port: pod/{name}:PORT"))?;
        let (port, protocol) = number(&port)?;
        Ok(Arrival::At {
            addresses: addresses_of_pod(pod)?,
            port,
            protocol,
        })
    }

    /// The destination of a Service. `port` is a number or a name; it may be omitted if the Service
    /// has one port.
    pub(super) fn of_service(service: &Service, port: Option<String>) -> anyhow::Result<Arrival> {
        let name = service.name_any();
        let spec = service.spec.clone().unwrap_or_default();
        let addresses = spec.cluster_ips.unwrap_or_default();
        let addresses: Vec<IpAddr> = addresses.iter().filter_map(|ip| ip.parse().ok()).collect();
        ensure!(
            !addresses.is_empty(),
            "Service {name} has no cluster IP: name one of its Pods, or an address"
        );
        let ports = spec.ports.unwrap_or_default();
        let named = ports.iter().find(|known| match port.as_deref() {
            None => ports.len() == 1,
            Some(port) => {
                let (number, protocol) = port.split_once('/').unwrap_or((port, ""));
                let is_protocol = known.protocol.as_deref().unwrap_or("TCP");
                (known.name.as_deref() == Some(port) || known.port.to_string() == number)
                    && (protocol.is_empty() || is_protocol.eq_ignore_ascii_case(protocol))
            }
        });
        let Some(known) = named else {
            let has = ports.iter().map(|known| match known.name.as_deref() {
                Some(name) => format!("{name} ({})", known.port),
                None => known.port.to_string(),
            });
            let has: Vec<String> = has.collect();
            bail!(
                "name one of the ports of Service {name}, as svc/{name}:PORT: {}",
                has.join(", ")
            );
        };
        Ok(Arrival::At {
            addresses,
            port: u16::try_from(known.port).context("the Service has an impossible port")?,
            protocol: known.protocol.as_deref().unwrap_or("TCP").to_lowercase(),
        })
    }

    pub(super) fn of_node(node: &Node, port: Option<String>) -> anyhow::Result<Arrival> {
        let name = node.name_any();
        let port = port.with_context(|| format!("name the node port: node/{name}:PORT"))?;
        let (port, protocol) = number(&port)?;
        Ok(Arrival::At {
            addresses: addresses_of_node(node)?,
            port,
            protocol,
        })
    }

    fn has(&self, ipv4: bool) -> bool {
        match self {
            // The agent itself checks the address family.
            Arrival::Given(_) => true,
            Arrival::At { addresses, .. } => addresses.iter().any(|to| to.is_ipv4() == ipv4),
        }
    }

    fn describe(&self, ipv4: Option<bool>) -> anyhow::Result<String> {
        match self {
            Arrival::Given(text) => Ok(text.clone()),
            Arrival::At {
                addresses,
                port,
                protocol,
            } => {
                let fits = |to: &&IpAddr| ipv4.is_none_or(|ipv4| to.is_ipv4() == ipv4);
                let to = addresses.iter().find(fits).context("no address")?;
                Ok(format!("{}/{protocol}", SocketAddr::new(*to, *port)))
            }
        }
    }
}

/// Parses `80` or `80/udp`; the default protocol is TCP.
fn number(text: &str) -> anyhow::Result<(u16, String)> {
    let (number, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let number = number
        .parse()
        .with_context(|| format!("{text:?} is not a port: write PORT or PORT/PROTOCOL"))?;
    Ok((number, protocol.to_lowercase()))
}

fn addresses_of_pod(pod: &Pod) -> anyhow::Result<Vec<IpAddr>> {
    let ips = pod
        .status
        .as_ref()
        .and_then(|status| status.pod_ips.clone());
    let ips = ips.unwrap_or_default();
    let addresses: Vec<IpAddr> = ips.iter().filter_map(|ip| ip.ip.parse().ok()).collect();
    let name = pod.name_any();
    ensure!(
        !addresses.is_empty(),
        "Pod {name} has no address yet: wait until it runs"
    );
    Ok(addresses)
}

fn addresses_of_node(node: &Node) -> anyhow::Result<Vec<IpAddr>> {
    let known = node
        .status
        .as_ref()
        .and_then(|status| status.addresses.clone());
    let known = known.unwrap_or_default();
    let internal = known.iter().filter(|address| address.type_ == "InternalIP");
    let addresses: Vec<IpAddr> = internal.filter_map(|ip| ip.address.parse().ok()).collect();
    let name = node.name_any();
    ensure!(
        !addresses.is_empty(),
        "Node {name} has no address of type InternalIP"
    );
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn pod(spec: Value) -> Pod {
        let status = json!({"podIPs": [{"ip": "10.0.1.9"}, {"ip": "fd00::9"}]});
        from_value(json!({"metadata": {"name": "a"}, "spec": spec, "status": status}))
            .expect("a Pod")
    }

    fn service(ports: Value, ips: Value) -> Service {
        from_value(
            json!({"metadata": {"name": "web"}, "spec": {"clusterIPs": ips, "ports": ports}}),
        )
        .expect("a Service")
    }

    #[test]
    fn t149_names_become_the_packet_that_the_node_is_asked_about() {
        let from = Departure::of_pod(&pod(json!({"nodeName": "n1", "containers": []})))
            .expect("a departure");
        let ports =
            json!([{"name": "http", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}]);
        let web = service(ports.clone(), json!(["10.96.0.10", "fd00:1::a"]));
        let to = |port: &str| Arrival::of_service(&web, Some(port.to_owned())).expect("an arrival");
        let on = |port, node| packet(&from, &to(port), node).expect("a packet");
        assert_eq!(on("80", "n1"), "pod 10.0.1.9 -> 10.96.0.10:80/tcp");
        assert_eq!(on("dns", "n2"), "remote-pod 10.0.1.9 -> 10.96.0.10:53/udp");
        let web = service(ports, json!(["fd00:1::a"]));
        let to = Arrival::of_service(&web, Some("http".to_owned())).expect("an arrival");
        let text = packet(&from, &to, "n1").expect("a packet");
        assert_eq!(text, "pod fd00::9 -> [fd00:1::a]:80/tcp");
    }

    #[test]
    fn a_pod_on_the_nodes_network_sends_as_the_node() {
        let spec = json!({"nodeName": "n1", "hostNetwork": true, "containers": []});
        let from = Departure::of_pod(&pod(spec)).expect("a departure");
        let to = Arrival::Given("node:30080".to_owned());
        assert_eq!(
            packet(&from, &to, "n1").expect("a packet"),
            "node 10.0.1.9 -> node:30080"
        );
    }

    #[test]
    fn a_port_that_is_not_there_is_answered_with_those_that_are() {
        let web = service(
            json!([{"name": "http", "port": 80}, {"port": 81}]),
            json!(["10.96.0.10"]),
        );
        let error = Arrival::of_service(&web, None).expect_err("two ports");
        assert!(
            error.to_string().ends_with("svc/web:PORT: http (80), 81"),
            "{error}"
        );
        let headless = service(json!([]), json!(["None"]));
        let error = Arrival::of_service(&headless, None).expect_err("no address");
        assert!(error.to_string().contains("no cluster IP"), "{error}");
    }
}
