//! Several Services that claim the same address and port.

use std::sync::Arc;

use dataplane::{Dataplane, Frontend, ServiceKey, ServiceRules, compile};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

use crate::packet_line::assert_packets;

/// A Service with one endpoint that identifies it. All have the same external IP and share a second
/// endpoint.
fn rules(name: &str, cluster_ip: &str, endpoint: &str) -> Arc<ServiceRules> {
    let service = mk_service(name)
        .cluster_ip(cluster_ip)
        .external_ip("198.51.100.1")
        .port("http", 80)
        .build();
    let endpoints = mk_endpoints().tcp("http").ready(endpoint, "node-1").build();
    let rules = compile(
        &service,
        &endpoints,
        &mk_node(1).build(),
        &mk_config().build(),
    );
    Arc::new(rules)
}

fn three() -> [Arc<ServiceRules>; 3] {
    [
        rules("a/first", "10.96.0.1", "10.0.1.2:8080"),
        rules("a/second", "10.96.0.2", "10.0.1.3:8080"),
        rules("b/first", "10.96.0.3", "10.0.1.4:8080"),
    ]
}

fn empty() -> Dataplane {
    Dataplane::new(mk_node(1).build(), mk_config().build())
}

#[test]
fn the_first_by_name_is_served_whatever_order_they_come_in() {
    let orders = [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ];
    for order in orders {
        let mut dataplane = empty();
        for at in order {
            assert!(dataplane.set(Arc::clone(&three()[at])));
        }
        assert_packets(
            &dataplane,
            "outside 203.0.113.2 -> 198.51.100.1:80/tcp = 10.0.1.2:8080 masqueraded
             pod 10.0.1.9 -> 10.96.0.3:80/tcp = 10.0.1.4:8080",
        );
        let (key, _) = three()[0].frontends[1].clone();
        let claims = dataplane.frontends().get(&key).expect("it is served");
        let losers: Vec<String> = claims
            .losers()
            .map(|(service, _)| service.to_string())
            .collect();
        assert_eq!(losers, ["a/second", "b/first"]);
    }
}

#[test]
fn the_next_one_takes_over_when_the_first_goes() {
    let mut dataplane = empty();
    for rules in three() {
        dataplane.set(rules);
    }
    assert!(dataplane.remove(&ServiceKey::new("a", "first")));
    assert_packets(
        &dataplane,
        "outside 203.0.113.2 -> 198.51.100.1:80/tcp = 10.0.1.3:8080 masqueraded
         pod 10.0.1.9 -> 10.96.0.1:80/tcp = drop",
    );
    dataplane.remove(&ServiceKey::new("a", "second"));
    dataplane.remove(&ServiceKey::new("b", "first"));
    assert_packets(
        &dataplane,
        "outside 203.0.113.2 -> 198.51.100.1:80/tcp = untouched",
    );
    assert!(dataplane.frontends().is_empty());
    assert!(dataplane.cluster_ips().is_empty());
    assert!(dataplane.hairpins().is_empty());
    assert!(!dataplane.remove(&ServiceKey::new("b", "first")));
}

#[test]
fn the_next_one_takes_over_when_the_first_gives_the_address_up() {
    let mut dataplane = empty();
    for rules in three() {
        dataplane.set(rules);
    }
    let mut modest = ServiceRules::clone(&three()[0]);
    modest.frontends.remove(1);
    assert!(dataplane.set(Arc::new(modest)));
    assert_packets(
        &dataplane,
        "outside 203.0.113.2 -> 198.51.100.1:80/tcp = 10.0.1.3:8080 masqueraded
         pod 10.0.1.9 -> 10.96.0.1:80/tcp = 10.0.1.2:8080",
    );
}

#[test]
fn an_endpoint_of_two_services_stays_a_hairpin_while_one_of_them_has_it() {
    let shared = "10.0.1.2:8080";
    let mut dataplane = empty();
    dataplane.set(rules("a/first", "10.96.0.1", shared));
    dataplane.set(rules("a/second", "10.96.0.2", shared));
    dataplane.remove(&ServiceKey::new("a", "first"));
    assert_packets(
        &dataplane,
        "pod 10.0.1.2 -> 10.96.0.2:80/tcp = 10.0.1.2:8080 masqueraded",
    );
}

#[test]
fn a_change_of_one_service_leaves_the_others_shared() {
    let mut before = empty();
    for rules in three() {
        before.set(rules);
    }
    let mut after = before.clone();
    assert!(after.set(rules("a/second", "10.96.0.2", "10.0.1.9:8080")));

    let services = before.services().differences(after.services());
    let changed: Vec<String> = services.iter().map(|d| d.key.to_string()).collect();
    assert_eq!(changed, ["a/second"]);
    for (key, rules) in before.services().sorted() {
        let same = after
            .services()
            .get(key)
            .is_some_and(|other| Arc::ptr_eq(rules, other));
        assert_eq!(same, key.to_string() != "a/second", "{key}");
    }
    // The winner's frontend is the same object, although a loser's claim changed.
    let (key, frontend) = &three()[0].frontends[1];
    let winner = |dataplane: &Dataplane| {
        let (_, winner) = dataplane
            .frontends()
            .get(key)
            .expect("it is served")
            .winner();
        Arc::clone(winner)
    };
    assert_eq!(&winner(&after), frontend);
    assert!(Arc::ptr_eq(&winner(&before), &winner(&after)));
}

#[test]
fn a_service_that_changes_one_frontend_keeps_its_others() {
    let mut before = empty();
    before.set(Arc::clone(&three()[0]));
    let mut changed = ServiceRules::clone(&three()[0]);
    Arc::make_mut(&mut changed.frontends[1].1).has_endpoints = false;
    // A newly compiled frontend is equal to the existing one, but a different object.
    let untouched = &mut changed.frontends[0].1;
    *untouched = Arc::new(Frontend::clone(untouched));

    let mut after = before.clone();
    assert!(after.set(Arc::new(changed)));
    let keys: Vec<_> = three()[0].frontends.iter().map(|(key, _)| *key).collect();
    let same_object = keys.iter().map(|key| {
        let before = before.frontends().get(key).expect("it is served");
        let after = after.frontends().get(key).expect("it is served");
        Arc::ptr_eq(before.winner().1, after.winner().1)
    });
    assert_eq!(same_object.collect::<Vec<_>>(), [true, false]);
}

/// Thousands of Services may share one endpoint, such as a gateway's: it stays a hairpin as long as
/// one of them has it.
#[test]
fn an_endpoint_that_many_share_is_a_hairpin_until_the_last_is_gone() {
    let mut dataplane = empty();
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let names = ["shop/a", "shop/b", "shop/c"];
    for (name, number) in names.iter().zip(1..) {
        let service = mk_service(name)
            .cluster_ip(&format!("10.96.0.{number}"))
            .port("http", 80);
        let endpoints = mk_endpoints().tcp("http").ready("10.0.1.5:8080", "node-1");
        let rules = compile(&service.build(), &endpoints.build(), &node, &config);
        dataplane.set(rules.into());
    }
    for name in names {
        let counts: Vec<usize> = dataplane.hairpins().iter().map(|(_, n)| n.get()).collect();
        assert_eq!(counts, [dataplane.services().len()]);
        let (namespace, name) = name.split_once('/').expect("a full name");
        assert!(dataplane.remove(&ServiceKey::new(namespace, name)));
    }
    assert!(dataplane.hairpins().is_empty());
}

/// T412: claims are in parts that copies share, and a thousand fill many. Half of the claimants may
/// share an address with a load balancer, the others lose it to that.
#[test]
fn t412_a_thousand_claims_are_the_same_however_they_came() {
    const CLAIMANTS: usize = 1_000;
    let namespaces = ["shop", "bank"];
    let claimants: Vec<_> = (0..CLAIMANTS)
        .map(|n| {
            let name = format!("{}/web-{n:04}", namespaces[n % 2]);
            rules(
                &name,
                &format!("10.96.{}.{}", 1 + n / 250, n % 250),
                "10.0.1.2:8080",
            )
        })
        .collect();
    let balancer = mk_service("bank/balancer").cluster_ip("10.96.0.99");
    let balancer = balancer.load_balancer_ip("198.51.100.1").port("http", 80);
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let endpoints = mk_endpoints().tcp("http").ready("10.0.1.9:8080", "node-1");
    let balancer = Arc::new(compile(
        &balancer.build(),
        &endpoints.build(),
        &node,
        &config,
    ));
    let (key, _) = claimants[0].frontends[1].clone();
    let losers = |dataplane: &Dataplane| {
        let claims = dataplane.frontends().get(&key).expect("it is served");
        claims.losers().count()
    };

    let mut ordered = empty();
    for rules in &claimants {
        ordered.set(Arc::clone(rules));
    }
    let without = ordered.clone();
    assert_eq!(losers(&without), CLAIMANTS - 1);
    ordered.set(Arc::clone(&balancer));
    assert_eq!(losers(&ordered), CLAIMANTS / 2);
    assert_eq!(losers(&without), CLAIMANTS - 1, "a copy stays as it is");

    let mut disordered = empty();
    disordered.set(Arc::clone(&balancer));
    for n in (0..CLAIMANTS).map(|n| n * 7 % CLAIMANTS) {
        disordered.set(Arc::clone(&claimants[n]));
        // Some go and come again, and each step is kept for a while.
        let again = n * 3 % CLAIMANTS;
        if let step = disordered.clone()
            && disordered.remove(&claimants[again].service)
        {
            disordered.set(Arc::clone(&claimants[again]));
            assert!(disordered.frontends() == step.frontends());
            assert!(disordered.disputes() == step.disputes());
        }
    }
    assert!(disordered.frontends() == ordered.frontends());
    assert!(disordered.disputes() == ordered.disputes());
    let [one, other] = [&ordered, &disordered].map(|all| all.disputes().rejections());
    assert!(one.len() == CLAIMANTS + 1 && one == other);

    disordered.remove(&balancer.service);
    assert!(disordered.frontends() == without.frontends());
    assert!(disordered.disputes() == without.disputes());
    for rules in &claimants {
        disordered.remove(&rules.service);
    }
    assert!(disordered.frontends().is_empty());
    assert!(disordered.disputes() == empty().disputes());
}
