use std::sync::Arc;

use dataplane::{Config, Node, NodePortAddresses, Protocol};

use super::*;
use crate::handover::preflight::Severity;

/// A node with two IPv4 addresses, the first of which accepts node ports.
fn signpost(localhost: LocalhostNodePorts) -> SignpostNodePorts {
    let addresses = ["127.0.0.1", "10.0.0.1", "172.17.0.1", "::1", "fd00::1"];
    let addresses = addresses.map(|address| address.parse().expect("an address"));
    let node = Node {
        local_addresses: addresses.into(),
        ..Node::default()
    };
    let config = Config {
        node_ports: NodePortAddresses {
            ipv4: Some([addresses[1]].into()),
            ipv6: None,
        },
        ..Config::default()
    };
    SignpostNodePorts {
        desired: Dataplane::new(Arc::new(node), Arc::new(config)),
        localhost,
    }
}

#[test]
fn t69_what_closes_is_what_kube_proxys_node_ports_take_and_signposts_do_not() {
    let closing = |localhost, family, node_port_scope: &NodePortScope| {
        let closing = signpost(localhost).closing(family, node_port_scope);
        closing.iter().map(IpAddr::to_string).collect::<Vec<_>>()
    };
    let (none, relayed) = (LocalhostNodePorts::None, LocalhostNodePorts::Userspace);
    let all = NodePortScope::Everywhere(Loopback::In);
    assert_eq!(
        closing(none, Family::Ipv4, &all),
        ["127.0.0.1", "172.17.0.1"]
    );
    assert_eq!(closing(relayed, Family::Ipv4, &all), ["172.17.0.1"]);
    assert_eq!(closing(none, Family::Ipv6, &all), [""; 0]);
    let but_loopback = NodePortScope::Everywhere(Loopback::Out);
    assert_eq!(closing(none, Family::Ipv4, &but_loopback), ["172.17.0.1"]);
    let at = |address: &str| NodePortScope::At([address.parse().expect("an address")].into());
    assert_eq!(closing(none, Family::Ipv4, &at("10.0.0.1")), [""; 0]);
    assert_eq!(
        closing(none, Family::Ipv4, &at("172.17.0.1")),
        ["172.17.0.1"]
    );
    // An address that the node no longer has cannot close.
    assert_eq!(closing(none, Family::Ipv4, &at("10.0.0.9")), [""; 0]);
}

#[test]
fn t69_clients_at_an_address_that_closes_speak_against_a_takeover() {
    let address = IpAddr::from([172, 17, 0, 1]);
    let mut closing = Closing {
        family: Family::Ipv4,
        addresses: [address].into(),
        flows: BTreeMap::new(),
        counts: [((Protocol::Tcp, 30080), 3), ((Protocol::Udp, 30053), 40)].into(),
    };
    let points = closing.points();
    assert!(
        points.iter().all(|point| point.weight == Severity::Note),
        "{points:?}"
    );
    assert!(
        points[0].text.contains("node ports close at 172.17.0.1:"),
        "{points:?}"
    );
    let expected = "30053/udp (40 connections), 30080/tcp (3 connections)";
    assert!(points[1].text.ends_with(expected), "{points:?}");
    closing.flows = [((address, (Protocol::Tcp, 30080)), 2)].into();
    let points = closing.points();
    assert_eq!(points[1].weight, Severity::Warning);
    let expected = "172.17.0.1:30080/tcp (2 connections)";
    assert!(points[1].text.ends_with(expected), "{points:?}");
}
