//! Session affinity: which endpoint a returning client gets. The kernel's tables are simulated.

use std::sync::Arc;
use std::time::Duration;

use backend::{Backend, Rendered};
use backend_ipvs::{Ipvs, Memory, Rules, simulate_next};
use dataplane::{Dataplane, Family, Origin, Packet, Protocol, Scheduler, Target, Verdict, compile};
use testkit::{ServiceBuilder, mk_config, mk_endpoints, mk_node, mk_service, port};

/// The number of successive connections, each with another random number: without affinity, the
/// simulation's default scheduler sends five to five different endpoints, or to all if there are
/// fewer.
const CONNECTIONS: u32 = 5;
const A: &str = "10.0.1.5:8080";
const B: &str = "10.0.2.7:8080";
const C: &str = "10.0.3.1:8080";
/// An address of the node.
const NODE: &str = "192.168.0.1:8080";

fn sticky(name: &str, last: u8, timeout: u64) -> ServiceBuilder {
    mk_service(name)
        .cluster_ip(&format!("10.96.0.{last}"))
        .external_ip(&format!("198.51.100.{last}"))
        .port("http", 80)
        .client_ip_affinity(Duration::from_secs(timeout))
}

fn dataplane(services: &[(ServiceBuilder, &[&str])]) -> Dataplane {
    let (node, config) = (
        mk_node(1).build(),
        mk_config().node_ports_anywhere().build(),
    );
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    for (service, endpoints) in services {
        let slice = endpoints
            .iter()
            .fold(mk_endpoints().tcp("http"), |slice, endpoint| {
                let node = if [A, NODE].contains(endpoint) {
                    "node-1"
                } else {
                    "node-2"
                };
                slice.ready(endpoint, node)
            });
        let rules = compile(&service.clone().build(), &slice.build(), &node, &config);
        dataplane.set(rules.into());
    }
    dataplane
}

fn advance(desired: &Dataplane, from: &Rendered<Rules>) -> Rendered<Rules> {
    Rendered {
        rules: Ipvs::detached(Family::Ipv4).render(desired, from),
        dataplane: desired.clone(),
    }
}

fn packet(origin: Origin, source: &str, destination: &str) -> Packet {
    Packet {
        origin,
        source: source.parse().expect("an address"),
        destination: destination.parse().expect("an address"),
        protocol: Protocol::Tcp,
        port: port(80),
    }
}

/// A pod of the node, the node itself, and an outside client that uses an external IP.
fn clients() -> [Packet; 3] {
    let pod = Origin::Pod {
        interface: "veth9".into(),
    };
    let outside = Origin::Outside {
        interface: "eth0".into(),
    };
    [
        packet(pod, "10.0.1.9", "10.96.0.10"),
        packet(Origin::Node, "192.168.0.1", "10.96.0.10"),
        packet(outside, "203.0.113.2", "198.51.100.10"),
    ]
}

/// The endpoints of the client's connections.
fn go(on: &Rendered<Rules>, packet: &Packet, memory: &mut Memory) -> Vec<Target> {
    let connect = |number| {
        let node = on.dataplane.node();
        match simulate_next(&on.rules, node, packet, memory, number) {
            Verdict::Deliver(choices) => choices[0].target,
            other => panic!("{packet}: {other}"),
        }
    };
    (0..CONNECTIONS).map(connect).collect()
}

fn same(targets: &[Target]) -> Target {
    assert!(
        targets.iter().all(|to| *to == targets[0]),
        "it did not stay: {targets:?}"
    );
    targets[0]
}

/// Failure story T125. Holds however other endpoints change, and through restarts of the agent.
#[test]
fn t125_a_client_stays_while_its_endpoint_is_there_and_moves_on_when_it_is_not() {
    for packet in clients() {
        let mut memory = Memory::default();
        let mut held = Rendered::default();
        let mut go = |endpoints: &[&str]| {
            let desired = dataplane(&[(sticky("shop/web", 10, 600), endpoints)]);
            held = advance(&desired, &held);
            same(&go(&held, &packet, &mut memory))
        };
        let first = go(&[A, B, C]);
        assert_eq!(go(&[C, A, B]), first);
        let first_text = first.to_string();
        let others: Vec<&str> = [A, B, C]
            .into_iter()
            .filter(|to| **to != first_text)
            .collect();
        assert_eq!(go(&[&first_text, others[0]]), first);
        let second = go(&others);
        assert_ne!(second, first);
        assert_eq!(
            go(&[A, B, C]),
            second,
            "it came back to one that it had left"
        );
    }
}

/// Packets to such an endpoint do not leave the node, so another hook stores the client's endpoint.
#[test]
fn t125_a_client_stays_with_an_endpoint_in_the_network_of_the_node() {
    let endpoints = [NODE, B];
    let desired = dataplane(&[(sticky("shop/web", 10, 600), &endpoints)]);
    let held = advance(&desired, &Rendered::default());
    for packet in clients() {
        let stays: Vec<String> = (0..2)
            .map(|number| {
                let mut memory = Memory::default();
                let node = held.dataplane.node();
                let _ = simulate_next(&held.rules, node, &packet, &mut memory, number);
                same(&go(&held, &packet, &mut memory)).to_string()
            })
            .collect();
        assert_eq!(stays, [B, NODE], "{packet}");
    }
}

#[test]
fn without_affinity_every_connection_is_placed_anew() {
    let service = mk_service("shop/web")
        .cluster_ip("10.96.0.10")
        .port("http", 80);
    let desired = dataplane(&[(service, &[A, B, C])]);
    let held = advance(&desired, &Rendered::default());
    let targets = go(&held, &clients()[0], &mut Memory::default());
    assert!(targets.iter().any(|to| *to != targets[0]), "{targets:?}");
}

/// Failure story T126: two Services with the same endpoints have separate affinity entries.
#[test]
fn t126_each_service_has_places_of_its_own() {
    let services = [
        (sticky("shop/web", 10, 600), &[A, B, C][..]),
        (sticky("shop/cart", 11, 600), &[A, B, C]),
    ];
    let held = advance(&dataplane(&services), &Rendered::default());
    let node = held.dataplane.node();
    let mut memory = Memory::default();
    let [web, ..] = clients();
    let cart = Packet {
        destination: "10.96.0.11".parse().expect("an address"),
        ..web.clone()
    };
    let mut connect = |packet: &Packet, number| match simulate_next(
        &held.rules,
        node,
        packet,
        &mut memory,
        number,
    ) {
        Verdict::Deliver(choices) => choices[0].target,
        other => panic!("{packet}: {other}"),
    };
    let (first, second) = (connect(&web, 0), connect(&cart, 1));
    assert_ne!(first, second);
    assert_eq!((connect(&web, 1), connect(&cart, 0)), (first, second));
}

/// The chains of a timeout are removed with the last Service that has it, and stay until then.
#[test]
fn a_timeout_has_its_chains_as_long_as_a_service_has_it() {
    let web = |timeout| (sticky("shop/web", 10, timeout), &[A, B][..]);
    let cart = |timeout| (sticky("shop/cart", 11, timeout), &[A, B][..]);
    let mut held = Rendered::default();
    let mut chains = |services: &[(ServiceBuilder, &[&str])]| {
        held = advance(&dataplane(services), &held);
        let anew = advance(&dataplane(services), &Rendered::default());
        assert_eq!(
            held.rules.canonical(Family::Ipv4),
            anew.rules.canonical(Family::Ipv4)
        );
        let text = held.rules.to_string();
        ["return-600", "learn-600", "return-300"]
            .map(|name| text.contains(&format!("chain {name}-clients-")))
    };
    assert_eq!(chains(&[web(600), cart(600)]), [true, true, false]);
    assert_eq!(chains(&[web(300), cart(600)]), [true, true, true]);
    assert_eq!(chains(&[web(300), cart(300)]), [false, false, true]);
    assert_eq!(chains(&[web(300)]), [false, false, true]);
    assert_eq!(chains(&[]), [false, false, false]);
}

/// Affinity does not choose the endpoint of a new client: the Service's scheduler does.
#[test]
fn a_new_client_gets_an_endpoint_by_the_scheduler_of_its_service() {
    let service = sticky("shop/web", 10, 600).scheduler(Scheduler::SourceHash);
    let held = advance(&dataplane(&[(service, &[A, B])]), &Rendered::default());
    let text = held.rules.to_string();
    assert!(text.contains("-s sh"), "{text}");
    assert!(text.contains("update @clients-"), "{text}");
    assert!(text.contains("timeout 600s"), "{text}");
}
