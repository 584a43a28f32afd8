use std::sync::Arc;

use dataplane::{Config, Node, NodePortAddresses, Protocol};

use super::*;
use crate::preflight::Severity;

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
        let signpost = signpost(localhost);
        let closing = signpost.closing(&signpost.taken(family, node_port_scope));
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

fn counted(
    address: Option<IpAddr>,
    node_port: NodePort,
    all: u64,
    recent: Option<u64>,
) -> (CountedPort, Count) {
    (CountedPort { address, node_port }, Count { all, recent })
}

#[test]
fn t69_clients_at_an_address_that_closes_speak_against_a_takeover() {
    let address = IpAddr::from([172, 17, 0, 1]);
    let mut closing = Closing {
        family: Family::Ipv4,
        addresses: [address].into(),
        flows: BTreeMap::new(),
        counts: [
            counted(None, (Protocol::Tcp, 30080), 3, None),
            counted(None, (Protocol::Udp, 30053), 40, Some(2)),
        ]
        .into(),
        counted_at: CountedAt::Any,
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
    let expected =
        "30053/udp (40 connections, 2 of them since the last check), 30080/tcp (3 connections)";
    assert!(points[1].text.ends_with(expected), "{points:?}");
    closing.flows = [((address, (Protocol::Tcp, 30080)), 2)].into();
    let points = closing.points();
    assert_eq!(points[1].weight, Severity::Warning);
    let expected = "172.17.0.1:30080/tcp (2 connections)";
    assert!(points[1].text.ends_with(expected), "{points:?}");
}

#[test]
fn t69_counted_connections_speak_against_a_takeover_where_they_went_to_what_closes() {
    let address = IpAddr::from([172, 17, 0, 1]);
    let mut closing = Closing {
        family: Family::Ipv4,
        addresses: [address].into(),
        flows: BTreeMap::new(),
        counts: [counted(Some(address), (Protocol::Tcp, 30080), 7, Some(0))].into(),
        counted_at: CountedAt::Closing,
    };
    let points = closing.points();
    assert_eq!(points[1].weight, Severity::Warning);
    let expected = "172.17.0.1:30080/tcp (7 connections, 0 of them since the last check)";
    assert!(points[1].text.ends_with(expected), "{points:?}");
    closing.counts.clear();
    assert_eq!(closing.points().len(), 1);
}

#[test]
fn t69_counters_say_what_has_come_since_the_last_check() {
    let mut counters = Counters::default();
    let port = |number| CountedPort {
        address: None,
        node_port: (Protocol::Tcp, number),
    };
    let mut look = |family, counts: &[(u16, u64)]| -> Vec<(u64, Option<u64>)> {
        let counts = counts.iter().map(|(number, all)| (port(*number), *all));
        let counted = counters.replace((NodePortRules::Ipvs, family), counts.collect());
        let counted = counted.into_values();
        counted.map(|count| (count.all, count.recent)).collect()
    };
    assert_eq!(look(Family::Ipv4, &[(30080, 3)]), [(3, None)]);
    let later = [(30080, 5), (30081, 2)];
    assert_eq!(look(Family::Ipv4, &later), [(5, Some(2)), (2, Some(2))]);
    assert_eq!(look(Family::Ipv6, &[(30080, 9)]), [(9, None)]);
    // kube-proxy has written its rules again.
    assert_eq!(look(Family::Ipv4, &[(30080, 1)]), [(1, Some(1))]);
}
