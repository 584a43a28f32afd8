//! Explanations of a Service: from its fields to its elements, or why it is not served.

use catalog::Unserved;
use dataplane::{Mode, ObjectKind, ObjectName, Rejection, ServiceKey};
use testkit::{mk_endpoints, mk_service};

use super::{World, cart, compare_with_golden, till};
use crate::ServiceState;
use crate::explain::Unknown;

#[test]
fn a_service_is_explained_from_its_fields_to_its_elements() {
    let world = World::new(&[cart(), till(&["10.0.1.5:53"])]);
    compare_with_golden("whole", &world.answer("shop/cart"));
    let by_name = world.answer("shop/till");
    assert!(!by_name.contains('!'), "nothing is wrong:\n{by_name}");
}

#[test]
fn a_port_is_meant_by_its_name_its_number_and_its_node_port_and_by_nothing_else() {
    let world = World::new(&[cart(), till(&["10.0.1.5:53"])]);
    let whole = world.answer("shop/cart");
    for port in ["http", "80", "30080"] {
        assert_eq!(world.answer(&format!("shop/cart:{port}")), whole, "{port}");
    }
    for port in ["8080", "32000", "htt"] {
        let error = world.ask(&format!("shop/cart:{port}")).expect_err(port);
        assert_eq!(
            error.to_string(),
            format!(
                "Service shop/cart has no port {port:?}: it has http (80/tcp, node port 30080)"
            )
        );
    }
}

#[test]
fn endpoints_that_are_not_chosen_say_why() {
    let (service, _) = till(&[]);
    let hinted = mk_endpoints()
        .udp("")
        .ready("10.0.1.5:53", "node-1")
        .for_zones(&["a"])
        .ready("10.0.2.7:53", "node-2")
        .for_zones(&["b"])
        .build();
    let text = World::new(&[(service.clone(), hinted)]).answer("shop/till");
    for line in [
        "10.0.1.5:53 on node-1 (here), ready, hinted for zone a: used\n",
        "10.0.2.7:53 on node-2, ready, hinted for zone b: not used, because it is not hinted for",
    ] {
        assert!(text.contains(line), "no {line:?} in:\n{text}");
    }
    let draining = mk_endpoints()
        .udp("")
        .draining("10.0.1.5:53", "node-1")
        .build();
    let text = World::new(&[(service, draining)]).answer("shop/till");
    let line = "not ready, serving, terminating: used, because it still serves,\n";
    assert!(text.contains(line), "{text}");
}

/// Failure story T347: `explain` called endpoints used to which this node sends no packet.
#[test]
fn t347_of_too_many_endpoints_those_of_other_nodes_say_why() {
    let (service, _) = till(&[]);
    let mut endpoints = mk_endpoints().udp("");
    for number in 0..6_000_u32 {
        let address = std::net::Ipv4Addr::from(0x6440_0000 + number);
        endpoints = endpoints.ready(&format!("{address}:53"), "node-2");
    }
    let world = World::in_mode(Mode::Iptables, &[(service, endpoints.build())]);
    let text = world.answer("shop/till");
    let reason = "not used, because in this";
    assert_eq!(text.matches(reason).count(), 1_000, "{text:.2000}");
    assert_eq!(text.matches(": used\n").count(), 5_000);
}

/// The same story: frontends of one port with different policies do not have the same endpoints.
#[test]
fn t347_an_endpoint_is_used_if_any_frontend_of_the_port_has_it() {
    let service = mk_service("shop/cart")
        .cluster_ip("10.96.0.10")
        .port("", 80)
        .node_port(30080)
        .internal_local()
        .build();
    let endpoints = mk_endpoints()
        .tcp("")
        .ready("10.0.1.5:8080", "node-1")
        .ready("10.0.2.7:8080", "node-2")
        .build();
    for mode in [Mode::Nftables, Mode::Iptables] {
        let world = World::in_mode(mode, &[(service.clone(), endpoints.clone())]);
        let text = world.answer("shop/cart");
        assert!(!text.contains("too many"), "{text}");
        assert!(
            text.contains("10.0.1.5:8080 on node-1 (here), ready: used\n"),
            "{text}"
        );
    }
}

#[test]
fn what_is_not_served_says_why() {
    let mut world = World::new(&[till(&["10.0.1.5:53"])]);
    let name = |name| ServiceKey::new("shop", name);
    let unserved = ServiceState::Unserved(Unserved::Headless);
    world.reported.services.insert(name("headless"), unserved);
    world
        .reported
        .services
        .insert(name("absent"), ServiceState::Unknown);
    world
        .reported
        .services
        .insert(name("broken"), ServiceState::Unknown);
    world.rejections.push(Rejection {
        object: ObjectName {
            kind: ObjectKind::Service,
            namespace: "shop".into(),
            name: "broken".into(),
        },
        field: "spec.clusterIP".to_owned(),
        message: "there is no address; the Service is not served".to_owned(),
    });
    let text = world.answer("shop/headless");
    assert!(
        text.starts_with("Service shop/headless is not programmed: it is headless"),
        "{text}"
    );
    let text = world.answer("shop/broken");
    assert!(
        text.contains("spec.clusterIP: there is no address"),
        "{text}"
    );
    let error = world.ask("shop/absent").expect_err("it is unknown");
    assert_eq!(error, Unknown::Service(name("absent")));
    let error = world.ask("shop/till:http").expect_err("no such port");
    let text = "Service shop/till has no port \"http\": it has 53/udp";
    assert_eq!(error.to_string(), text);
}

#[test]
fn an_address_that_another_service_has_is_not_served_for_this_one() {
    let service = |name, cluster_ip| {
        let service = mk_service(name)
            .cluster_ip(cluster_ip)
            .external_ip("198.51.100.1")
            .port("", 80);
        let endpoints = mk_endpoints()
            .tcp("")
            .ready("10.0.1.5:80", "node-1")
            .build();
        (service.build(), endpoints)
    };
    let world = World::new(&[
        service("shop/a", "10.96.0.1"),
        service("shop/b", "10.96.0.2"),
    ]);
    let text = world.answer("shop/b");
    let line = "note: not served for this Service: shop/a has it too, and takes precedence";
    assert!(text.contains(line), "{text}");
    assert!(!world.answer("shop/a").contains('!'));
}

#[test]
fn an_address_that_is_not_one_to_claim_is_not_served_and_says_why() {
    let endpoints = || {
        let endpoints = mk_endpoints().tcp("");
        endpoints.ready("10.0.1.5:80", "node-1").build()
    };
    let web = mk_service("shop/web").cluster_ip("10.96.0.1").port("", 80);
    let thief = mk_service("aaa/thief")
        .cluster_ip("10.96.0.2")
        .external_ip("10.96.0.1")
        .port("", 80)
        .port("other", 81);
    let world = World::new(&[(web.build(), endpoints()), (thief.build(), endpoints())]);
    let text = world.answer("aaa/thief");
    let line = "note: not served for this Service: the address is a cluster IP of Service shop/web";
    assert!(text.contains(line), "{text}");
    assert!(!world.answer("shop/web").contains("not served"));
}

/// A family whose ranges cannot be read has the range `::/128`, which nobody wrote.
#[test]
fn a_family_without_a_readable_source_range_has_no_client() {
    let balancer = |range: &str| {
        let service = mk_service("shop/web")
            .cluster_ip("10.96.0.1")
            .cluster_ip("fd00:10:96::1")
            .load_balancer_ip("192.0.2.1")
            .load_balancer_ip("2001:db8::1")
            .source_range("10.0.0.0/8")
            .source_range(range)
            .port("", 80);
        let endpoints = mk_endpoints()
            .tcp("")
            .ready("10.0.1.5:80", "node-1")
            .ready("[fd00:10:0:1::5]:80", "node-1");
        World::new(&[(service.build(), endpoints.build())]).answer("shop/web")
    };
    let text = balancer("::/128");
    for line in [
        "load-balancer IPs only from 10.0.0.0/8, IPv6: no client\n",
        "    only from 10.0.0.0/8; other sources are dropped\n",
        "    no client may connect: every source is dropped\n",
    ] {
        assert!(text.contains(line), "no {line:?} in:\n{text}");
    }
    let text = balancer("2001:db8:1::/48");
    assert!(!text.contains("no client"), "{text}");
}

#[test]
fn a_client_returns_to_its_endpoint_only_where_there_is_one() {
    let answer = |endpoints| {
        let service = mk_service("shop/web")
            .cluster_ip("10.96.0.1")
            .port("", 80)
            .client_ip_affinity(std::time::Duration::from_secs(60));
        World::new(&[(service.build(), endpoints)]).answer("shop/web")
    };
    let none = mk_endpoints().tcp("").build();
    assert!(!answer(none).contains("comes back within"));
    let one = mk_endpoints().tcp("").ready("10.0.1.5:80", "node-1");
    assert!(answer(one.build()).contains("comes back within 60 s"));
}
