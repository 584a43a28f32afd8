//! The law about source ranges of load balancers while rules are repaired, failure story T361.

use std::sync::Arc;

use dataplane::{Dataplane, Origin, Packet, Protocol, Verdict, compile};

use crate::{mk_config, mk_endpoints, mk_node, mk_service, parse, port};

/// The addresses of the load balancers.
const BALANCERS: [&str; 2] = ["198.51.100.1", "198.51.100.2"];

/// Two load balancers with so many source ranges each: one of length 24, the others of length 28.
pub fn balancers_with_source_ranges(ranges: u16) -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    for (number, address) in (1..).zip(BALANCERS) {
        let service = mk_service(&format!("shop/web-{number}")).port("", 80);
        let service = service.cluster_ip(&format!("10.96.0.{number}"));
        let service = service.load_balancer_ip(address);
        let service = (1..ranges).fold(service.source_range("192.0.2.0/24"), |service, range| {
            let [high, low] = range.to_be_bytes();
            service.source_range(&format!("203.{high}.{low}.0/28"))
        });
        let endpoint = format!("10.0.1.{number}:8080");
        let endpoints = mk_endpoints().tcp("").ready(&endpoint, "node-1").build();
        dataplane.set(compile(&service.build(), &endpoints, &node, &config).into());
    }
    dataplane
}

/// Checks the steps of a repair from `found` to `desired`, rules of [`balancers_with_source_ranges`]. At
/// none of them is an allowed client dropped that was served, or does one pass the node that did not; at
/// none is an excluded client served that was not. `verdict` simulates a packet, and `damage` is for the
/// message.
///
/// # Panics
///
/// If one is.
pub fn source_ranges_hold_during_repair<R>(
    [found, desired]: [&R; 2],
    steps: &[R],
    verdict: impl Fn(&R, &Packet) -> Verdict,
    damage: &str,
) {
    let serves = |held: &R, packet: &Packet| matches!(verdict(held, packet), Verdict::Deliver(_));
    let [allowed, excluded] = ["192.0.2.7", "198.18.0.7"].map(packets_from);
    for (allowed, excluded) in allowed.iter().zip(&excluded) {
        assert!(serves(desired, allowed) && !serves(desired, excluded));
    }
    for held in steps {
        for packet in &allowed {
            let [had, between] = [found, held].map(|held| verdict(held, packet));
            let waits = between == Verdict::Drop && !serves(found, packet);
            assert!(
                serves(held, packet) || waits || between == had,
                "{packet} is {between:?} and not {had:?} while {damage} come back"
            );
        }
        for packet in &excluded {
            assert!(
                !serves(held, packet) || serves(found, packet),
                "{packet} is served while {damage} come back"
            );
        }
    }
}

/// What a client outside of the node, and one on it, ask of the load balancers.
fn packets_from(source: &str) -> Vec<Packet> {
    let outside = Origin::Outside {
        interface: "eth0".into(),
    };
    let origins = [outside, Origin::Node].into_iter();
    let packets = origins.flat_map(|origin| {
        BALANCERS.map(|address| Packet {
            origin: origin.clone(),
            source: parse(source, "an address"),
            destination: parse(address, "an address"),
            protocol: Protocol::Tcp,
            port: port(80),
        })
    });
    packets.collect()
}
