//! Objects as the source and destination of a packet. Pure.

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::{Node, Pod, Service, ServicePort};
use kube::ResourceExt;

use crate::advice::{Problem, problem};

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
pub(super) fn packet(from: &Departure, to: &Arrival, node: &str) -> Result<String, Problem> {
    let (word, sources) = match &from.sender {
        Sender::Given(text) => return Ok(format!("{text} -> {}", to.describe(None)?)),
        Sender::Pod(sources) if from.node.as_deref() == Some(node) => ("pod", sources),
        Sender::Pod(sources) => ("remote-pod", sources),
        Sender::Node(sources) if from.node.as_deref() == Some(node) => ("node", sources),
        Sender::Node(sources) => ("outside", sources),
    };
    let is_possible = |source: &&IpAddr| to.has(source.is_ipv4());
    let source = sources.iter().find(is_possible).ok_or_else(|| {
        let what = "both ends have no address of the same family";
        problem(what, "name addresses instead of objects")
    })?;
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

    pub(super) fn of_pod(pod: &Pod) -> Result<Departure, Problem> {
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

    pub(super) fn of_node(node: &Node) -> Result<Departure, Problem> {
        Ok(Departure {
            node: Some(node.name_any()),
            sender: Sender::Node(addresses_of_node(node)?),
        })
    }
}

// === impl Arrival ===

impl Arrival {
    /// The destination of a Pod. `port` must be a number.
    pub(super) fn of_pod(pod: &Pod, port: Option<String>) -> Result<Arrival, Problem> {
        let name = pod.name_any();
        let port = port.ok_or_else(|| no_port(&format!("pod/{name}")))?;
        let (port, protocol) = number(&port)?;
        Ok(Arrival::At {
            addresses: addresses_of_pod(pod)?,
            port,
            protocol,
        })
    }

    /// The destination of a Service. `port` is a number or a name; it may be omitted if the Service
    /// has one port.
    pub(super) fn of_service(service: &Service, port: Option<String>) -> Result<Arrival, Problem> {
        let name = service.name_any();
        let spec = service.spec.clone().unwrap_or_default();
        let addresses = spec.cluster_ips.unwrap_or_default();
        let addresses: Vec<IpAddr> = addresses.iter().filter_map(|ip| ip.parse().ok()).collect();
        if addresses.is_empty() {
            let what = format!("Service {name} has no cluster IP");
            return Err(problem(what, "name one of its Pods, or an address"));
        }
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
        let port_of = |known: &ServicePort| u16::try_from(known.port).ok();
        let Some((known, number)) = named.and_then(|known| Some((known, port_of(known)?))) else {
            let has = ports.iter().map(|known| match known.name.as_deref() {
                Some(name) => format!("{name} ({})", known.port),
                None => known.port.to_string(),
            });
            let has: Vec<String> = has.collect();
            let what = format!("it is not clear which port of Service {name} is meant");
            let next = format!("name one, as svc/{name}:PORT: {}", has.join(", "));
            return Err(problem(what, next));
        };

        Ok(Arrival::At {
            addresses,
            port: number,
            protocol: known.protocol.as_deref().unwrap_or("TCP").to_lowercase(),
        })
    }

    pub(super) fn of_node(node: &Node, port: Option<String>) -> Result<Arrival, Problem> {
        let name = node.name_any();
        let port = port.ok_or_else(|| no_port(&format!("node/{name}")))?;
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

    fn describe(&self, ipv4: Option<bool>) -> Result<String, Problem> {
        match self {
            Arrival::Given(text) => Ok(text.clone()),
            Arrival::At {
                addresses,
                port,
                protocol,
            } => {
                let fits = |to: &&IpAddr| ipv4.is_none_or(|ipv4| to.is_ipv4() == ipv4);
                let to = addresses.iter().find(fits).ok_or_else(|| {
                    let what = "the destination has no address of the sender's family";
                    problem(what, "name an address instead of an object")
                })?;
                Ok(format!("{}/{protocol}", SocketAddr::new(*to, *port)))
            }
        }
    }
}

/// Parses `80` or `80/udp`; the default protocol is TCP.
fn number(text: &str) -> Result<(u16, String), Problem> {
    let (number, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    match number.parse() {
        Ok(number) => Ok((number, protocol.to_lowercase())),
        Err(_) => {
            let what = format!("{text:?} is not a port");
            Err(problem(what, "write PORT or PORT/PROTOCOL"))
        }
    }
}

/// The error for a destination without a port.
fn no_port(destination: &str) -> Problem {
    let next = format!("write {destination}:PORT");
    problem(format!("{destination} is named without a port"), next)
}

fn addresses_of_pod(pod: &Pod) -> Result<Vec<IpAddr>, Problem> {
    let ips = pod
        .status
        .as_ref()
        .and_then(|status| status.pod_ips.clone());
    let ips = ips.unwrap_or_default();
    let addresses: Vec<IpAddr> = ips.iter().filter_map(|ip| ip.ip.parse().ok()).collect();
    let name = pod.name_any();
    match addresses.is_empty() {
        true => Err(problem(
            format!("Pod {name} has no address yet"),
            format!(
                "wait until it runs: `kubectl get pods -A --field-selector metadata.name={name}`"
            ),
        )),
        false => Ok(addresses),
    }
}

fn addresses_of_node(node: &Node) -> Result<Vec<IpAddr>, Problem> {
    let known = node
        .status
        .as_ref()
        .and_then(|status| status.addresses.clone());
    let known = known.unwrap_or_default();
    let internal = known.iter().filter(|address| address.type_ == "InternalIP");
    let addresses: Vec<IpAddr> = internal.filter_map(|ip| ip.address.parse().ok()).collect();
    let name = node.name_any();
    match addresses.is_empty() {
        true => Err(problem(
            format!("Node {name} has no address of type InternalIP"),
            "name an address, as in 'node 192.0.2.1'",
        )),
        false => Ok(addresses),
    }
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
        let next = "name one, as svc/web:PORT: http (80), 81";
        assert_eq!(error.next, next);
        let headless = service(json!([]), json!(["None"]));
        let error = Arrival::of_service(&headless, None).expect_err("no address");
        assert!(error.to_string().contains("no cluster IP"), "{error}");
    }
}
