//! Large changes at an address that several Services claim, divided into parts.

use dataplane::{FrontendKey, Protocol};
use testkit::{mk_endpoints, mk_service, port};

use crate::next_part::{dataplane, way};

/// Failure story T176: an address is shared by load balancers of several namespaces. While they come
/// or go in parts, the Services that have it as an external IP keep their ports, and no other gets
/// them.
#[test]
fn t176_an_external_ip_is_served_while_load_balancers_at_its_address_come_and_go() {
    let endpoints = mk_endpoints().tcp("").ready("10.0.1.5:8080", "node-1");
    let endpoints = endpoints.build();
    let external = |name, number: u8, port| {
        let service = mk_service(name).cluster_ip(&format!("10.96.0.{number}"));
        let service = service.external_ip("192.0.2.1").port("", port);
        (service.build(), endpoints.clone())
    };
    let balanced = |name, number: u8, port| {
        let service = mk_service(name).cluster_ip(&format!("10.96.0.{number}"));
        let service = service.load_balancer_ip("192.0.2.1").port("", port);
        (service.build(), endpoints.clone())
    };
    let web = external("shop/web", 1, 80);
    let others = [
        balanced("blog/balancer", 2, 443),
        balanced("shop/balancer", 3, 53),
    ];
    let alone = dataplane(std::slice::from_ref(&web));
    let shared = dataplane(&[others.as_slice(), std::slice::from_ref(&web)].concat());
    // A tenant claims the port. Its claim is refused before, and is gone after.
    let claimed = dataplane(&[
        balanced("shop/balancer", 3, 53),
        external("blog/web", 4, 80),
        web,
    ]);
    let key = FrontendKey::Address {
        address: "192.0.2.1".parse().expect("an address"),
        protocol: Protocol::Tcp,
        port: port(80),
    };
    for (before, after) in [(&alone, &shared), (&shared, &alone), (&claimed, &alone)] {
        for at in way(before, after, 1) {
            let claims = at.frontends().get(&key).expect("it is served");
            assert_eq!(claims.winner().0.to_string(), "shop/web");
        }
    }
}

/// A load balancer gets an address that Services of other namespaces have as an external IP, or loses
/// it.
#[test]
fn t182_an_address_that_changes_hands_is_taken_from_many_in_parts() {
    let endpoints = |ports: u16| {
        let mut endpoints = mk_endpoints();
        for number in 0..ports {
            endpoints = endpoints
                .tcp(&format!("p{number}"))
                .ready(&format!("10.0.1.5:{}", 9000 + number), "node-1");
        }
        endpoints.build()
    };
    let of_tenant = (0..10_u8).map(|tenant| {
        let mut service = mk_service(&format!("tenant/web-{tenant}"))
            .cluster_ip(&format!("10.96.1.{tenant}"))
            .external_ip("192.0.2.1");
        for number in 0..200_u16 {
            let port = 1000 + u16::from(tenant) * 200 + number;
            service = service.port(&format!("p{number}"), port);
        }
        (service.build(), endpoints(200))
    });
    let of_tenant: Vec<_> = of_tenant.collect();
    let balancer = |name, number: u8| {
        let service = mk_service(name).cluster_ip(&format!("10.96.0.{number}"));
        let mut service = service.load_balancer_ip("192.0.2.1");
        // Not all fit into one part.
        for port in 0..60 {
            service = service.port(&format!("p{port}"), u16::from(number) * 60 + port);
        }
        (service.build(), endpoints(60))
    };
    let external = mk_service("shop/api").cluster_ip("10.96.0.9");
    let external = external.external_ip("192.0.2.1").port("p0", 80).build();
    let others = [of_tenant, vec![(external, endpoints(1))]].concat();
    let alone = dataplane(&others);
    let balanced = dataplane(&[others.clone(), vec![balancer("shop/web", 10)]].concat());
    let both = vec![balancer("shop/web", 10), balancer("zoo/web", 11)];
    let shared = dataplane(&[others.clone(), both].concat());
    // It claims a port that a Service of the tenant has, too.
    let disputed = mk_service("shop/web").cluster_ip("10.96.0.10");
    let disputed = disputed.load_balancer_ip("192.0.2.1").port("p0", 2_999);
    let disputed = (disputed.build(), endpoints(1));
    let disputed = dataplane(&[others.clone(), vec![disputed]].concat());
    // It changes more than each of the tenant's Services.
    let mut large = mk_endpoints().tcp("p0");
    for number in 0..250_u8 {
        large = large.ready(&format!("10.0.2.{number}:8080"), "node-2");
    }
    let service = mk_service("shop/web").cluster_ip("10.96.0.10");
    let service = service.load_balancer_ip("192.0.2.1").port("p0", 443);
    let large = (service.build(), large.build());
    let single = (0..1_000_u16).map(|number| {
        let [high, low] = number.to_be_bytes();
        let service = mk_service(&format!("tenant/single-{number}"));
        let service = service.cluster_ip(&format!("10.96.{}.{low}", 8 + high));
        let service = service.external_ip("192.0.2.1").port("p0", 5_000 + number);
        (service.build(), endpoints(1))
    });
    let single: Vec<_> = single.collect();
    let singles = dataplane(&single);
    let beside = dataplane(&[single, vec![large]].concat());
    for (before, after) in [
        (&alone, &disputed),
        (&disputed, &alone),
        (&singles, &beside),
        (&beside, &singles),
        (&alone, &balanced),
        (&balanced, &alone),
        (&alone, &shared),
        (&shared, &alone),
    ] {
        let mut at = before.clone();
        for next in way(before, after, 100) {
            // Frontends that go or come with a few others of the same Service.
            let changed = at.frontends().differences(next.frontends()).len();
            assert!(
                changed <= 2 * 200 + 2 * 60,
                "{changed} frontends in a part of 100"
            );
            at = next;
        }
        assert_eq!(at.frontends().differences(after.frontends()).len(), 0);
    }
}
