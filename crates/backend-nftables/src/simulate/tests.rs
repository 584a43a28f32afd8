use super::*;

use std::sync::Arc;
use std::time::Duration;

use backend::{Backend, Rendered};
use dataplane::{Dataplane, Family, FrontendKey, Port, Protocol, compile};
use netlink::nf_tables::SetWriter;
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

fn dataplane() -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let service = mk_service("shop/cart").cluster_ip(ADDRESS).port("http", 80);
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

fn sticky(endpoints: &[&str]) -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let service = mk_service("shop/cart")
        .cluster_ip(ADDRESS)
        .port("http", 80)
        .client_ip_affinity(Duration::from_secs(600));
    let endpoints = endpoints
        .iter()
        .fold(mk_endpoints().tcp("http"), |slice, endpoint| {
            slice.ready(endpoint, "node-1")
        });
    let rules = compile(&service.build(), &endpoints.build(), &node, &config);
    let mut dataplane = Dataplane::new(node, config);
    dataplane.set(rules.into());
    dataplane
}

fn render(dataplane: &Dataplane) -> Table {
    Nftables::detached(Family::Ipv4).render(dataplane, &Rendered::default())
}

/// The lookups of a packet are not atomic: nf_tables reads the current generation at each one. A
/// packet may be sent to `lb-2` and find that the second slot has just been removed.
#[test]
fn a_packet_that_finds_its_slot_gone_gets_the_first_endpoint() {
    let dataplane = dataplane();
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

/// A client is remembered by its endpoint's slot, which depends on that endpoint only: not on other
/// endpoints that come and go, nor on restarts of the agent (kubernetes#110302).
#[test]
fn t66_a_client_stays_while_its_endpoint_is_there_and_moves_on_when_it_is_not() {
    let mut rendered = Rendered::default();
    let mut memory = Memory::default();
    let mut go = |endpoints: &[&str], memory: &mut Memory| {
        let dataplane = sticky(endpoints);
        let rules = Nftables::detached(Family::Ipv4).render(&dataplane, &rendered);
        let targets: Vec<String> = (0..5)
            .map(|number| {
                let node = dataplane.node();
                match simulate_next(&rules, node, &packet(ADDRESS), memory, number) {
                    Outcome::Deliver(choices) => choices[0].target.to_string(),
                    other => other.to_string(),
                }
            })
            .collect();
        rendered = Rendered { dataplane, rules };
        targets
    };
    let (a, b, c) = ("10.0.1.5:8080", "10.0.2.7:8080", "10.0.3.1:8080");
    assert_eq!(go(&[a, b, c], &mut memory), [a; 5]);
    assert_eq!(go(&[c, a], &mut memory), [a; 5]);
    assert_eq!(go(&[c, a, b], &mut memory), [a; 5]);
    let moved = go(&[b, c], &mut memory);
    assert!(moved.iter().all(|to| *to == moved[0]), "{moved:?}");
    assert_eq!(go(&[a, b, c], &mut memory), moved);
}

/// A user who tries one timeout after the other must not leave a chain for each on every node,
/// permanently.
#[test]
fn chains_for_timeouts_that_no_service_has_go_once_they_are_many() {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut rendered = Rendered::default();
    for seconds in 1..=300 {
        let service = mk_service("shop/cart")
            .cluster_ip(ADDRESS)
            .port("http", 80)
            .client_ip_affinity(Duration::from_secs(seconds));
        let endpoints = mk_endpoints().tcp("http").ready("10.0.1.5:8080", "node-1");
        let rules = compile(&service.build(), &endpoints.build(), &node, &config);
        let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
        dataplane.set(rules.into());
        let rules = Nftables::detached(Family::Ipv4).render(&dataplane, &rendered);
        rendered = Rendered { dataplane, rules };
    }
    let chains = &rendered.rules.chains;
    assert!(chains.len() <= 100, "{} chains", chains.len());
    // The Service keeps the same affinity map throughout.
    let learn = "learn-300-room-1";
    assert!(chains.contains_key(learn), "{:?}", chains.keys());
}

/// `trace` reports the packet's path even while a table of another form is being replaced.
#[test]
fn a_packet_meets_the_table_beside_while_that_serves() {
    let dataplane = dataplane();
    let table = render(&dataplane);
    let (node, packet) = (dataplane.node(), packet(ADDRESS));
    let served = simulate(&table, node, &packet);
    let held = Table {
        next: Some(Arc::new(table)),
        ..Table::default()
    };
    assert_eq!(simulate(&held, node, &packet), served);
    assert_ne!(served, Outcome::Untouched);
}

/// A public Service receives connections from so many addresses that they fill its affinity map and
/// the shared one. Clients with affinity to another Service keep their endpoints, and new clients
/// of that Service get affinity.
#[test]
fn t77_a_service_that_is_flooded_takes_affinity_from_no_other() {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    for (name, address) in [("shop/cart", "10.96.0.10"), ("game/lobby", "10.96.0.11")] {
        let service = mk_service(name)
            .cluster_ip(address)
            .port("http", 80)
            .client_ip_affinity(Duration::from_secs(10_800));
        let endpoints = mk_endpoints()
            .tcp("http")
            .ready("10.0.1.5:8080", "node-1")
            .ready("10.0.2.7:8080", "node-2");
        dataplane.set(compile(&service.build(), &endpoints.build(), &node, &config).into());
    }
    let mut table = Nftables::detached(Family::Ipv4).render(&dataplane, &Rendered::default());
    // Small enough for a test to fill.
    for set in table.sets.values_mut() {
        let mut small = (*set.set).clone();
        if let SetWriter::Packets { capacity } = &mut small.writer {
            *capacity = 10;
        }
        set.set = Arc::new(small);
    }
    let mut memory = Memory::default();
    let mut go = |source: String, address: &str, number| {
        let packet = Packet {
            origin: Origin::Outside {
                interface: "eth0".into(),
            },
            source: source.parse().expect("an address"),
            destination: address.parse().expect("an address"),
            protocol: Protocol::Tcp,
            port: Port::new(80).expect("is not 0"),
        };
        simulate_next(&table, &node, &packet, &mut memory, number).to_string()
    };
    let cart = "10.96.0.10";
    let before = go("203.0.113.2".into(), cart, 0);
    for client in 0..100 {
        go(format!("198.18.0.{client}"), "10.96.0.11", 0);
    }
    assert_eq!(go("203.0.113.2".into(), cart, 1), before);
    let new = go("203.0.113.3".into(), cart, 1);
    assert_eq!(go("203.0.113.3".into(), cart, 0), new);
    assert_ne!(new, before, "it was placed by another number");
    let reported: Vec<_> = memory.keys(SetName::FullAffinityMaps.as_str()).collect();
    let lobby = layout::frontend(&FrontendKey::Address {
        address: "10.96.0.11".parse().expect("an address"),
        protocol: Protocol::Tcp,
        port: Port::new(80).expect("is not 0"),
    });
    assert_eq!(
        reported,
        [&lobby],
        "the frontend that had no room for all is named"
    );
}
