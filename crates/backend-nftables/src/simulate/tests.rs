use super::*;

use backend::{Backend, Rendered};
use dataplane::{Dataplane, FrontendKey, Protocol, compile};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service, port};

use crate::Nftables;
use crate::layout::{self, SetName};

const ADDRESS: &str = "10.96.0.10";

fn packet(address: &str) -> Packet {
    Packet {
        origin: Origin::Pod {
            interface: "veth9".into(),
        },
        source: "10.0.1.9".parse().expect("an address"),
        destination: address.parse().expect("an address"),
        protocol: Protocol::Tcp,
        port: port(80),
    }
}

fn dataplane(source_range: Option<&str>) -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut service = mk_service("shop/cart")
        .cluster_ip(ADDRESS)
        .load_balancer_ip("192.0.2.1")
        .port("http", 80);
    if let Some(range) = source_range {
        service = service.source_range(range);
    }
    let endpoints = mk_endpoints()
        .tcp("http")
        .ready("10.0.1.5:8080", "node-1")
        .ready("10.0.2.7:8080", "node-2")
        .build();
    let rules = compile(&service.build(), &endpoints, &node, &config);
    let mut dataplane = Dataplane::new(node, config);
    dataplane.set(rules.into());
    dataplane
}

fn render(dataplane: &Dataplane) -> Table {
    Nftables::detached(Family::Ipv4).render(dataplane, &Rendered::default())
}

/// A packet's lookups are not one moment: nf_tables asks for the current generation at each. It may
/// be sent to `lb-2` and find that the second slot has just gone.
#[test]
fn a_packet_that_finds_its_slot_gone_gets_the_first_endpoint() {
    let dataplane = dataplane(None);
    let mut table = render(&dataplane);
    let key = layout::frontend(&FrontendKey::Address {
        address: ADDRESS.parse().expect("an address"),
        protocol: Protocol::Tcp,
        port: port(80),
    });
    assert!(table.remove_element(SetName::Endpoints, &layout::slot(key, 1)));
    let Outcome::Deliver(choices) = simulate(&table, dataplane.node(), &packet(ADDRESS)) else {
        panic!("it left for the cluster IP itself");
    };
    let targets: Vec<String> = choices.iter().map(|c| c.target.to_string()).collect();
    assert_eq!(targets, ["10.0.1.5:8080"]);
}

#[test]
fn a_load_balancer_address_with_source_ranges_lets_nobody_in_and_is_named() {
    let dataplane = dataplane(Some("10.0.0.0/8"));
    let table = render(&dataplane);
    let node = dataplane.node();
    assert_eq!(simulate(&table, node, &packet("192.0.2.1")), Outcome::Drop);
    let at_cluster_ip = simulate(&table, node, &packet(ADDRESS));
    assert!(
        matches!(at_cluster_ip, Outcome::Deliver(_)),
        "{at_cluster_ip}"
    );
    let shortcomings = Nftables::detached(Family::Ipv4).shortcomings(&dataplane);
    let named: Vec<&str> = shortcomings.iter().map(|s| s.field).collect();
    assert_eq!(named, ["spec.loadBalancerSourceRanges"]);
    assert_eq!(shortcomings[0].service.to_string(), "shop/cart");
}
