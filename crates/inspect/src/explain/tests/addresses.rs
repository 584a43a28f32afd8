//! Questions that begin with an address.

use dataplane::ServiceRules;
use testkit::{mk_endpoints, mk_service};

use super::{World, cart, compare_with_golden, till};

#[test]
fn an_address_leads_back_to_whom_it_belongs() {
    let world = World::new(&[cart(), till(&["10.0.1.5:53", "10.0.1.5:54"])]);
    compare_with_golden("endpoint", &world.answer("10.0.1.5"));
    let text = world.answer("10.0.2.8:8080");
    let line = "10.0.2.8:8080 on node-2, not ready: not used\n";
    assert!(text.contains(line), "{text}");

    let frontend = world.answer("10.96.0.10:80/tcp");
    assert!(frontend.starts_with("Service shop/cart\n"), "{frontend}");
    assert!(!frontend.contains("192.0.2.1:80/tcp ("), "{frontend}");
    for node_port in ["node:30080/tcp", "192.168.0.1:30080"] {
        let text = world.answer(node_port);
        assert!(text.contains("  node IPv4:30080/tcp (node port"), "{text}");
    }
}

#[test]
fn an_address_of_one_family_is_reported_without_the_other() {
    let service = mk_service("shop/web")
        .cluster_ip("10.96.0.12")
        .cluster_ip("fd00:10:96::12")
        .port("", 80)
        .build();
    let endpoints = mk_endpoints()
        .tcp("")
        .ready("10.0.1.5:80", "node-1")
        .ready("[fd00:10:0:1::5]:80", "node-1")
        .build();
    let world = World::new(&[(service, endpoints)]);
    let text = world.answer("10.96.0.12");
    assert!(text.contains("hairpins { 10.0.1.5"), "{text}");
    assert!(!text.contains("fd00:"), "{text}");
    assert!(!text.contains("IPv6"), "{text}");
    let both = world.answer("shop/web");
    assert!(both.contains("hairpins { fd00:10:0:1::5"), "{both}");
    assert!(
        both.contains("[fd00:10:0:1::5]:80 on node-1 (here), ready: used"),
        "{both}"
    );
}

/// Failure story T382.
#[test]
fn t382_a_service_that_is_left_out_is_named_wherever_it_is_asked_for() {
    let service = mk_service("shop/web")
        .cluster_ip("10.96.0.12")
        .external_ip("198.51.100.12")
        .load_balancer_ip("192.0.2.12")
        .port("http", 80)
        .node_port(30012)
        .port("https", 443)
        .build();
    let endpoints = mk_endpoints()
        .tcp("http")
        .ready("10.0.1.9:8080", "node-1")
        .build();
    let mut world = World::new(&[cart(), (service.clone(), endpoints)]);
    let rules = world.dataplane.services().get(&service.key).cloned();
    let rules = ServiceRules::clone(&rules.expect("it was compiled"));
    let rules = rules.refused(
        "spec",
        "not served: its namespace takes too much".to_owned(),
    );
    world.rejections = rules.rejections.clone();
    world.dataplane.set(rules.into());
    for place in [
        "10.96.0.12",
        "10.96.0.12:80",
        "10.96.0.12:443/tcp",
        "198.51.100.12:80",
        "192.0.2.12:443",
        "node:30012",
        "node:30012/tcp",
        "192.168.0.1:30012",
    ] {
        let text = world.answer(place);
        let who = format!("Service shop/web asks for {place}, and is not programmed");
        let why = "spec: not served: its namespace takes too much";
        assert!(text.contains(&who) && text.contains(why), "{text}");
        assert!(!text.to_lowercase().contains("no service has"), "{text}");
    }
    for endpoint in ["10.0.1.9", "10.0.1.9:8080"] {
        let text = world.answer(endpoint);
        let who = format!("{endpoint} is an endpoint of Service shop/web, which is not programmed");
        assert!(
            text.contains(&who) && text.contains("spec: not served"),
            "{text}"
        );
    }
    for other in [
        "10.96.0.12:81",
        "node:30013",
        "198.51.100.12:80/udp",
        "10.96.0.10:80",
    ] {
        let text = world.answer(other);
        assert!(!text.contains("asks for"), "{text}");
    }
}

#[test]
fn an_address_of_the_node_says_what_it_takes() {
    let world = World::new(&[cart()]);
    for (question, words) in [
        (
            "192.168.0.1",
            "192.168.0.1 is an address of this node, which has node ports there: ask for one with node:PORT",
        ),
        (
            "192.168.0.1:30081",
            "takes node ports there, and no Service has node port 30081",
        ),
        (
            "172.20.0.1:30080",
            "nodePorts.addresses leaves it out; Service shop/cart has node port 30080",
        ),
        (
            "127.0.0.1:30080",
            "a node port of Service shop/cart on localhost, where no rule of the kernel applies",
        ),
        (
            "node:30081/tcp",
            "no Service has node:30081/tcp as a node port",
        ),
    ] {
        let text = world.answer(question).replace("\n    ", " ");
        assert!(text.contains(words), "no {words:?} in:\n{text}");
    }
}

#[test]
fn an_address_that_no_service_has_says_what_becomes_of_it() {
    let world = World::new(&[cart()]);
    for (question, words) in [
        (
            "10.96.0.10:81/tcp",
            "is a cluster IP of Service shop/cart, which has nothing at",
        ),
        (
            "10.96.0.99:80",
            "is inside the Service range 10.96.0.0/16, and no Service has it",
        ),
        (
            "203.0.113.9:80",
            "no Service has 203.0.113.9:80, as an address or as an endpoint",
        ),
    ] {
        let text = world.answer(question);
        assert!(text.contains(words), "no {words:?} in:\n{text}");
    }
}
