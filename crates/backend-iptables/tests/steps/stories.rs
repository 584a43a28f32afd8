//! Changes during which a packet once met a state that neither end has.

use std::sync::Arc;

use backend::{Backend, Rendered};
use backend_iptables::simulate;
use dataplane::{Dataplane, Endpoints, Family, Node, Origin, Packet, Protocol, Service, compile};
use testkit::{
    EndpointsBuilder, ServiceBuilder, laws, mk_config, mk_endpoints, mk_node, mk_service, port,
};
use xtables::{TableChange, TableName};

use super::{backend, expect_good_steps, parts};

pub(super) fn state(services: Vec<(ServiceBuilder, EndpointsBuilder)>) -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    for (service, endpoints) in services {
        let (service, endpoints): (Service, Endpoints) = (service.build(), endpoints.build());
        dataplane.set(compile(&service, &endpoints, &node, &config).into());
    }
    dataplane
}

fn from_outside(destination: &str, number: u16) -> Packet {
    Packet {
        origin: Origin::Outside {
            interface: "eth0".into(),
        },
        source: "203.0.113.2".parse().expect("an address"),
        destination: destination.parse().expect("an address"),
        protocol: Protocol::Tcp,
        port: port(number),
    }
}

/// Checks a packet from 203.0.113.2 at each step from `before` to `after` and back.
fn expect_good_changes(before: &Dataplane, after: &Dataplane, destination: &str, number: u16) {
    let packet = from_outside(destination, number);
    let backend = backend(Family::Ipv4);
    for ends in [[before, after], [after, before]] {
        let [held, desired] = ends.map(|dataplane| backend.render(dataplane, &Rendered::default()));
        expect_good_steps(
            &backend,
            (held, &desired),
            ends,
            std::slice::from_ref(&packet),
        );
    }
}

#[test]
fn t114_a_node_port_that_passes_on_is_served_while_its_first_service_loses_its_endpoints() {
    let first = || {
        let service = mk_service("shop/first").cluster_ip("10.96.0.1");
        service
            .load_balancer_ip("192.0.2.1")
            .external_local()
            .port("", 80)
    };
    let second = || {
        mk_service("shop/second")
            .cluster_ip("10.96.0.2")
            .port("", 80)
    };
    let here = || mk_endpoints().tcp("").ready("10.0.1.5:80", "node-1");
    let elsewhere = || mk_endpoints().tcp("").ready("10.0.2.7:80", "node-2");
    let before = state(vec![
        (first().node_port(30080), here()),
        (second(), elsewhere()),
    ]);
    let after = state(vec![
        (first(), elsewhere()),
        (second().node_port(30080), elsewhere()),
    ]);
    expect_good_changes(&before, &after, "192.168.0.1", 30080);
}

#[test]
fn t115_a_source_that_both_ends_refuse_for_different_reasons_is_refused_at_every_step() {
    let service = |range| {
        let service = mk_service("shop/web")
            .cluster_ip("10.96.0.1")
            .load_balancer_ip("192.0.2.1");
        service.source_range(range).external_local().port("", 80)
    };
    let list = mk_endpoints().tcp("");
    let before = state(vec![(
        service("203.0.113.0/25"),
        list.clone().ready("10.0.2.7:80", "node-2"),
    )]);
    let after = state(vec![(
        service("203.0.113.128/25"),
        list.ready("10.0.1.5:80", "node-1"),
    )]);
    expect_good_changes(&before, &after, "192.0.2.1", 80);
}

#[test]
fn t99_an_external_ip_that_becomes_a_cluster_ip_is_served_or_refused_at_every_step() {
    let web = || mk_service("shop/web").cluster_ip("10.96.0.1");
    let list = mk_endpoints().tcp("").ready("10.0.2.7:80", "node-2");
    let before = web().external_ip("198.51.100.1").port("", 80);
    let other = mk_service("shop/other").cluster_ip("198.51.100.1");
    let other = other.port("", 443);
    let before = state(vec![(before, list.clone())]);
    let after = state(vec![(web().port("", 80), list.clone()), (other, list)]);
    expect_good_changes(&before, &after, "198.51.100.1", 80);
}

/// On a node whose own address is not known, arriving packets to cluster IPs are not refused, but
/// forwarded ones are.
#[test]
fn t99_an_external_ip_that_becomes_a_cluster_ip_is_served_or_refused_where_no_node_address_is_known()
 {
    let node = Node {
        ipv4: None,
        ..Node::clone(&mk_node(1).build())
    };
    let (node, config) = (Arc::new(node), mk_config().build());
    let web = || mk_service("shop/web").cluster_ip("10.96.0.1");
    let other = mk_service("shop/other").cluster_ip("198.51.100.1");
    let other = other.port("", 443).build();
    let list = mk_endpoints()
        .tcp("")
        .ready("10.0.2.7:80", "node-2")
        .build();
    let state = |services: &[Service]| {
        let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
        for service in services {
            dataplane.set(compile(service, &list, &node, &config).into());
        }
        dataplane
    };
    let before = web().external_ip("198.51.100.1").port("", 80).build();
    let before = state(&[before]);
    let after = state(&[web().port("", 80).build(), other]);
    expect_good_changes(&before, &after, "198.51.100.1", 80);
}

/// Failure story T326: all addresses of the node accept node ports, then listed ones only, and another
/// one gets a load balancer's frontend with the port of one instead.
#[test]
fn t326_an_address_that_is_not_listed_is_served_by_its_own_frontend_at_once() {
    let node = mk_node(1).build();
    let list = mk_endpoints()
        .tcp("")
        .ready("10.0.1.5:80", "node-1")
        .build();
    let web = || mk_service("shop/web").cluster_ip("10.96.0.10");
    let balanced = web().load_balancer_ip("172.20.0.1");
    let [before, after] = [
        (mk_config().node_ports_anywhere(), web()),
        (mk_config().node_ports_at(&["192.168.0.1"]), balanced),
    ]
    .map(|(config, web)| {
        let (config, web) = (config.build(), web.port("", 30080).node_port(30080));
        let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
        dataplane.set(compile(&web.build(), &list, &node, &config).into());
        dataplane
    });
    let packet = from_outside("172.20.0.1", 30080);
    let backend = backend(Family::Ipv4);
    for ends in [[&before, &after], [&after, &before]] {
        let [observed, desired] =
            ends.map(|dataplane| backend.render(dataplane, &Rendered::default()));
        let mut held = super::held(&backend, &observed);
        for part in parts(&backend, &held.clone(), &desired) {
            held.replay(&part)
                .expect("every part of a step can be taken");
            laws::never_misleads(ends, &packet, &simulate(&held, &node, &packet));
        }
    }
}

/// Failure story T313: another program has emptied the chain of one hook, and meanwhile a Service has
/// lost its endpoints.
#[test]
fn t313_a_change_that_coincides_with_damage_to_one_hook_lets_no_packet_pass() {
    let service = || {
        let service = mk_service("shop/web").cluster_ip("10.96.0.1");
        service.external_ip("198.51.100.7").port("", 80)
    };
    let endpoints = mk_endpoints().tcp("").ready("10.0.2.7:80", "node-2");
    let before = state(vec![(service(), endpoints)]);
    let after = state(vec![(service(), mk_endpoints().tcp(""))]);
    let backend = backend(Family::Ipv4);
    let packet = from_outside("198.51.100.7", 80);
    for chain in ["SIGNPOST-OUTPUT", "SIGNPOST-FORWARD"] {
        let [held, desired] =
            [&before, &after].map(|state| backend.render(state, &Rendered::default()));
        let mut held = super::held(&backend, &held);
        let emptied = TableChange {
            chains: vec![(chain.into(), [].into())],
            ..TableChange::new(TableName::Filter)
        };
        held.replay(&emptied).expect("any program can do that");
        let ends = [&before, &after];
        expect_good_steps(
            &backend,
            (held, &desired),
            ends,
            std::slice::from_ref(&packet),
        );
    }
}

/// Failure story T360: chains of refusals are named for the addresses they have in common. Until table
/// nat has changed, these have fewer in common than before and after: the address of a third Service,
/// which becomes a cluster IP, is refused too. Meanwhile the chain of both ends is left as it is.
#[test]
fn t360_a_refused_address_is_refused_until_it_is_served_while_another_one_becomes_a_cluster_ip() {
    let none = || mk_endpoints().tcp("");
    let some = || none().ready("10.0.2.7:80", "node-2");
    let web = || {
        let service = mk_service("shop/web").cluster_ip("198.51.100.1");
        service.external_ip("198.51.100.7").port("", 80)
    };
    let idle = || {
        let service = mk_service("shop/idle").cluster_ip("198.51.100.2");
        service.external_ip("198.51.100.8").port("", 80)
    };
    let moving = || mk_service("shop/moving").cluster_ip("198.51.100.3");
    let before = state(vec![
        (web(), none()),
        (idle(), none()),
        (moving().external_ip("172.30.0.9").port("", 80), some()),
    ]);
    let taking = mk_service("shop/taking").cluster_ip("172.30.0.9");
    let after = state(vec![
        (web(), some()),
        (idle(), none()),
        (moving().port("", 80), some()),
        (taking.port("", 443), some()),
    ]);
    expect_good_changes(&before, &after, "198.51.100.7", 80);
}

/// Failure story T360, where the refusals of cluster IPs have lost theirs to another program.
#[test]
fn t360_a_port_that_goes_is_refused_at_every_step_after_another_program_emptied_a_chain() {
    let none = || mk_endpoints().tcp("");
    let some = |endpoint| none().ready(endpoint, "node-2");
    let web = |number| {
        let service = mk_service("shop/web").cluster_ip("198.51.100.1");
        service.port("", number)
    };
    let balanced = |name, number| {
        let service = mk_service(name).cluster_ip("10.96.0.2");
        service.load_balancer_ip("192.0.2.1").port("", number)
    };
    let before = state(vec![
        (web(80), none()),
        (
            balanced("shop/balanced", 80).external_local(),
            some("10.0.2.7:80"),
        ),
    ]);
    let after = state(vec![
        (web(30080), none()),
        (
            balanced("shop/other", 30080).source_range("10.0.1.0/24"),
            some("10.0.2.8:80"),
        ),
    ]);
    let backend = backend(Family::Ipv4);
    let [observed, desired] =
        [&before, &after].map(|state| backend.render(state, &Rendered::default()));
    let mut damaged = super::held(&backend, &observed);
    let emptied = TableChange {
        chains: vec![("SIGNPOST-C".into(), [].into())],
        ..TableChange::new(TableName::Filter)
    };
    damaged.replay(&emptied).expect("any program can do that");
    expect_good_steps(
        &backend,
        (damaged, &desired),
        [&before, &after],
        &[from_outside("198.51.100.1", 80)],
    );
}
