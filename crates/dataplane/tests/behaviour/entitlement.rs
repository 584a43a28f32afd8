//! Which Services may have an address.

use std::sync::Arc;

use dataplane::{Dataplane, Endpoints, Service, ServiceKey, ServiceRules, compile};
use testkit::{ServiceBuilder, mk_config, mk_endpoints, mk_node, mk_service};

use crate::packet_line::assert_packets;

fn rules((service, endpoints): &(Service, Endpoints)) -> Arc<ServiceRules> {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    Arc::new(compile(service, endpoints, &node, &config))
}

/// A Service with one endpoint for all of its ports.
fn at(service: ServiceBuilder, endpoint: &str) -> (Service, Endpoints) {
    let service = service.build();
    let builder = mk_endpoints();
    let endpoints = service.ports.iter().fold(builder, |builder, port| {
        let builder = match port.protocol {
            dataplane::Protocol::Udp => builder.udp(&port.name),
            _ => builder.tcp(&port.name),
        };
        builder.ready(endpoint, "node-1")
    });
    (service, endpoints.build())
}

fn without_endpoints(service: ServiceBuilder) -> (Service, Endpoints) {
    (service.build(), mk_endpoints().build())
}

fn dns() -> (Service, Endpoints) {
    let dns = mk_service("kube-system/kube-dns").cluster_ip("10.96.0.10");
    at(dns.udp("dns", 53), "10.0.1.2:53")
}

/// Calls `check` with the dataplane of all Services, added in several orders, and again after each
/// of them was removed and added again.
fn in_any_order(services: &[(Service, Endpoints)], check: impl Fn(&Dataplane)) {
    let empty = || Dataplane::new(mk_node(1).build(), mk_config().build());
    for start in 0..services.len() {
        let mut dataplane = empty();
        for service in services.iter().cycle().skip(start).take(services.len()) {
            dataplane.set(rules(service));
        }
        check(&dataplane);
        for service in services {
            dataplane.remove(&service.0.key);
            dataplane.set(rules(service));
            check(&dataplane);
        }
    }
}

fn reported(dataplane: &Dataplane) -> Vec<String> {
    let mut reported: Vec<String> = dataplane
        .disputes()
        .rejections()
        .iter()
        .map(ToString::to_string)
        .collect();
    reported.sort();
    reported
}

/// With an unknown range of cluster IPs, only the claims show which Service has an address.
fn forget_ranges(dataplane: &Dataplane) -> Dataplane {
    let mut dataplane = dataplane.clone();
    let mut config = dataplane::Config::clone(dataplane.config());
    config.service_cidrs.clear();
    dataplane.set_node(Arc::clone(dataplane.node()), Arc::new(config));
    dataplane
}

#[test]
fn t76_a_cluster_ip_is_not_taken_by_another_service_at_any_port() {
    let thief = || {
        mk_service("aaa/thief")
            .cluster_ip("10.96.0.66")
            .udp("dns", 53)
            .port("dns-tcp", 53)
            .port("web", 80)
    };
    for thief in [
        at(thief().external_ip("10.96.0.10"), "10.0.1.66:53"),
        at(thief().load_balancer_ip("10.96.0.10"), "10.0.1.66:53"),
        without_endpoints(thief().external_ip("10.96.0.10")),
        without_endpoints(thief().load_balancer_ip("10.96.0.10")),
    ] {
        let field = match thief.0.external_ips.is_empty() {
            false => "spec.externalIPs",
            true => "status.loadBalancer.ingress",
        };
        in_any_order(&[dns(), thief], |dataplane| {
            for dataplane in [dataplane.clone(), forget_ranges(dataplane)] {
                assert_packets(
                    &dataplane,
                    "pod 10.0.1.9 -> 10.96.0.10:53/udp = 10.0.1.2:53
                     pod 10.0.1.9 -> 10.96.0.10:53/tcp = reject
                     pod 10.0.1.9 -> 10.96.0.10:80/tcp = reject",
                );
                let expected = [
                    format!(
                        "Service aaa/thief: {field}: 10.96.0.10 is not served, because it is a cluster \
                         IP of Service kube-system/kube-dns: name another address"
                    ),
                    "Service kube-system/kube-dns: spec.clusterIPs: Service aaa/thief claims \
                     10.96.0.10 too; it stays with this Service"
                        .to_owned(),
                ];
                assert_eq!(reported(&dataplane), expected);
            }
        });
    }
}

#[test]
fn an_address_goes_to_its_owner_when_that_comes_and_is_free_when_it_goes() {
    let balancer = mk_service("aaa/thief")
        .cluster_ip("10.96.0.66")
        .udp("dns", 53)
        .port("web", 80)
        .load_balancer_ip("10.96.0.10");
    let thief = at(balancer, "10.0.1.66:53");
    let mut dataplane = Dataplane::new(mk_node(1).build(), mk_config().build());
    dataplane.set(rules(&thief));
    let taken = "outside 203.0.113.2 -> 10.96.0.10:53/udp = 10.0.1.66:53 masqueraded
                 outside 203.0.113.2 -> 10.96.0.10:80/tcp = 10.0.1.66:53 masqueraded";
    assert_packets(&dataplane, taken);
    let before = dataplane.clone();
    dataplane.set(rules(&dns()));
    assert_packets(
        &dataplane,
        "outside 203.0.113.2 -> 10.96.0.10:53/udp = 10.0.1.2:53 masqueraded
         outside 203.0.113.2 -> 10.96.0.10:80/tcp = reject",
    );
    // Port 53 has another owner, port 80 none.
    let differences = before.frontends().differences(dataplane.frontends());
    assert_eq!(differences.len(), 2);
    dataplane.remove(&dns().0.key);
    assert_packets(&dataplane, taken);
    assert_eq!(reported(&dataplane), Vec::<String>::new());
}

#[test]
fn a_load_balancer_ip_comes_before_an_external_ip() {
    let named = mk_service("shop/a").cluster_ip("10.96.0.1").port("", 80);
    let given = mk_service("shop/b").cluster_ip("10.96.0.2").port("", 80);
    let services = [
        at(named.external_ip("192.0.2.1"), "10.0.1.2:80"),
        at(given.load_balancer_ip("192.0.2.1"), "10.0.1.3:80"),
    ];
    in_any_order(&services, |dataplane| {
        assert_packets(
            dataplane,
            "outside 203.0.113.2 -> 192.0.2.1:80/tcp = 10.0.1.3:80 masqueraded",
        );
        let expected = [
            "Service shop/a: spec.externalIPs: 192.0.2.1:80/tcp is served for Service shop/b, which \
             also claims it",
            "Service shop/b: status.loadBalancer.ingress: Service shop/a claims 192.0.2.1:80/tcp \
             too; it stays with this Service",
        ];
        assert_eq!(reported(dataplane), expected);
    });
}

/// On a port that the owner leaves free, another Service would answer in its name: a certificate is
/// issued to the server that answers on port 80.
#[test]
fn a_free_port_of_a_load_balancer_ip_is_for_its_own_namespace_and_for_load_balancers() {
    let service = |name, n: u8, port| {
        mk_service(name)
            .cluster_ip(&format!("10.96.0.{n}"))
            .port("", port)
    };
    let services = [
        at(
            service("shop/web", 1, 443).load_balancer_ip("192.0.2.1"),
            "10.0.1.2:80",
        ),
        at(
            service("shop/mail", 2, 25).external_ip("192.0.2.1"),
            "10.0.1.3:80",
        ),
        at(
            service("other/shared", 3, 22).load_balancer_ip("192.0.2.1"),
            "10.0.1.4:80",
        ),
        at(
            service("aaa/thief", 4, 80).external_ip("192.0.2.1"),
            "10.0.1.66:80",
        ),
    ];
    in_any_order(&services, |dataplane| {
        assert_packets(
            dataplane,
            "outside 203.0.113.2 -> 192.0.2.1:443/tcp = 10.0.1.2:80 masqueraded
             outside 203.0.113.2 -> 192.0.2.1:25/tcp = 10.0.1.3:80 masqueraded
             outside 203.0.113.2 -> 192.0.2.1:22/tcp = 10.0.1.4:80 masqueraded
             outside 203.0.113.2 -> 192.0.2.1:80/tcp = untouched",
        );
        let key = ServiceKey::new("aaa", "thief");
        let (frontend, _) = rules(&services[3]).frontends[1];
        let refused = dataplane.refusal(&key, &frontend).expect("it is refused");
        assert_eq!(
            refused.reserved.to_string(),
            "is a load-balancer IP of Service other/shared in another namespace"
        );
    });
}

#[test]
fn an_external_ip_of_the_node_or_of_a_service_range_is_refused() {
    let services = [at(
        mk_service("aaa/thief")
            .cluster_ip("10.96.0.66")
            .port("", 30080)
            .external_ip("192.168.0.1")
            .external_ip("127.0.0.1")
            .external_ip("10.96.0.77")
            .external_ip("fd00:10:96::77")
            .external_ip("198.51.100.1"),
        "10.0.1.66:80",
    )];
    in_any_order(&services, |dataplane| {
        assert_packets(
            dataplane,
            "outside 203.0.113.2 -> 192.168.0.1:30080/tcp = untouched
             loopback 127.0.0.1 -> 127.0.0.1:30080/tcp = untouched
             pod 10.0.1.9 -> 10.96.0.77:30080/tcp = drop
             outside 203.0.113.2 -> 198.51.100.1:30080/tcp = 10.0.1.66:80 masqueraded",
        );
        let expected = "Service aaa/thief: spec.externalIPs: 10.96.0.77 is not served, because it is \
                        inside 10.96.0.0/16, where cluster IPs come from: name an address outside \
                        of it; 2 more addresses of this Service are not served";
        assert_eq!(reported(dataplane), [expected]);
    });
}

#[test]
fn an_address_that_comes_to_the_node_is_the_nodes_until_it_goes() {
    let web = mk_service("shop/web").cluster_ip("10.96.0.1").port("", 80);
    let web = at(web.external_ip("198.51.100.1"), "10.0.1.2:80");
    let mut dataplane = Dataplane::new(mk_node(1).build(), mk_config().build());
    dataplane.set(rules(&web));
    let served = "outside 203.0.113.2 -> 198.51.100.1:80/tcp = 10.0.1.2:80 masqueraded";
    assert_packets(&dataplane, served);
    let config = Arc::clone(dataplane.config());
    let moved = mk_node(1).local_address("198.51.100.1").build();
    dataplane.set_node(moved, Arc::clone(&config));
    assert_packets(
        &dataplane,
        "outside 203.0.113.2 -> 198.51.100.1:80/tcp = untouched",
    );
    dataplane.set_node(mk_node(1).build(), config);
    assert_packets(&dataplane, served);
    assert_eq!(reported(&dataplane), Vec::<String>::new());
}

/// Failure story T463: kube-proxy in mode ipvs gives each external IP to its device `kube-ipvs0`. Signpost
/// took it for an address of the node, and served no such Service from the takeover on.
#[test]
fn t463_an_external_ip_on_the_device_of_another_proxy_is_served() {
    let web = mk_service("shop/web").cluster_ip("10.96.0.1").port("", 80);
    let web = at(web.external_ip("198.51.100.1"), "10.0.1.2:80");
    let device = mk_node(1).proxy_address("198.51.100.1").build();
    let mut dataplane = Dataplane::new(Arc::clone(&device), mk_config().build());
    dataplane.set(rules(&web));
    let served = "outside 203.0.113.2 -> 198.51.100.1:80/tcp = 10.0.1.2:80 masqueraded";
    assert_packets(&dataplane, served);
    // The node gets the address itself, beside the device or in its place, and loses it again.
    let config = Arc::clone(dataplane.config());
    let moved = mk_node(1).local_address("198.51.100.1").build();
    dataplane.set_node(moved, Arc::clone(&config));
    assert_packets(
        &dataplane,
        "outside 203.0.113.2 -> 198.51.100.1:80/tcp = untouched",
    );
    dataplane.set_node(device, config);
    assert_packets(&dataplane, served);
    assert_eq!(reported(&dataplane), Vec::<String>::new());
}

#[test]
fn no_service_takes_the_address_of_the_api_server() {
    let api = mk_service("default/kubernetes")
        .cluster_ip("10.96.0.1")
        .port("https", 443);
    let thief = mk_service("aaa/thief")
        .cluster_ip("10.96.0.66")
        .port("", 6443)
        .external_ip("192.168.0.200");
    let services = [at(api, "192.168.0.200:6443"), at(thief, "10.0.1.66:80")];
    in_any_order(&services, |dataplane| {
        assert_packets(
            dataplane,
            "pod 10.0.1.9 -> 192.168.0.200:6443/tcp = untouched
             pod 10.0.1.9 -> 10.96.0.1:443/tcp = 192.168.0.200:6443",
        );
        let expected = "Service aaa/thief: spec.externalIPs: 192.168.0.200 is not served, because it is \
                        an address of the API server: name another address";
        assert_eq!(reported(dataplane), [expected]);
    });
    let mut dataplane = Dataplane::new(mk_node(1).build(), mk_config().build());
    dataplane.set(rules(&services[0]));
    dataplane.set(rules(&services[1]));
    dataplane.remove(&services[0].0.key);
    assert_packets(
        &dataplane,
        "pod 10.0.1.9 -> 192.168.0.200:6443/tcp = 10.0.1.66:80 masqueraded",
    );
}

/// Packets from other nodes to a Service arrive here with the endpoint's address as their
/// destination.
#[test]
fn an_external_ip_of_the_nodes_own_pods_is_refused() {
    let thief = mk_service("aaa/thief")
        .cluster_ip("10.96.0.66")
        .udp("dns", 53)
        .external_ip("10.0.1.2");
    let services = [dns(), at(thief, "10.0.1.66:53")];
    in_any_order(&services, |dataplane| {
        assert_packets(
            dataplane,
            "remote-pod 10.0.2.9 -> 10.0.1.2:53/udp = untouched
             outside 203.0.113.2 -> 10.0.1.2:53/udp = untouched",
        );
        let expected = "Service aaa/thief: spec.externalIPs: 10.0.1.2 is not served, because it is \
                        inside 10.0.1.0/24, where pods have their addresses: name an address \
                        outside of it";
        assert_eq!(reported(dataplane), [expected]);
    });
    let mut dataplane = Dataplane::new(mk_node(1).build(), mk_config().build());
    dataplane.set(rules(&services[1]));
    let elsewhere = mk_config().detect_nothing().build();
    dataplane.set_node(mk_node(1).build(), elsewhere);
    assert_packets(
        &dataplane,
        "remote-pod 10.0.2.9 -> 10.0.1.2:53/udp = 10.0.1.66:53 masqueraded",
    );
}

/// As with kube-proxy: k3s gives Services of type LoadBalancer the addresses of nodes.
#[test]
fn a_load_balancer_ip_of_the_node_is_served_and_comes_before_a_node_port() {
    let ported = mk_service("aaa/ported")
        .cluster_ip("10.96.0.1")
        .port("", 80)
        .node_port(30080);
    let balanced = mk_service("shop/balanced")
        .cluster_ip("10.96.0.2")
        .port("", 30080);
    let services = [
        at(ported, "10.0.1.2:80"),
        at(balanced.load_balancer_ip("192.168.0.1"), "10.0.1.3:80"),
    ];
    in_any_order(&services, |dataplane| {
        assert_packets(
            dataplane,
            "outside 203.0.113.2 -> 192.168.0.1:30080/tcp = 10.0.1.3:80 masqueraded",
        );
    });
}

#[test]
fn ten_thousand_claims_are_reported_of_in_one_line_for_each_service() {
    let mut dataplane = Dataplane::new(mk_node(1).build(), mk_config().build());
    dataplane.set(rules(&dns()));
    let thief = |n: u16| {
        let thief = mk_service(&format!("aaa/thief-{n:03}"));
        let thief = thief.cluster_ip(&format!("10.96.1.{n}"));
        let ports = (1..=50).fold(thief, |thief, port| thief.udp(&format!("p{port}"), port));
        without_endpoints(ports.external_ip("10.96.0.10").external_ip("10.96.0.11"))
    };
    for n in 1..=200 {
        dataplane.set(rules(&thief(n)));
    }
    let reported = reported(&dataplane);
    assert_eq!(reported.len(), 201);
    let last = reported.last().expect("there are 201");
    let of_victim = "Service kube-system/kube-dns: spec.clusterIPs: Service aaa/thief-001 claims \
                     10.96.0.10 too; it stays with this Service; 199 more such claims have no \
                     effect";
    assert_eq!(last, of_victim);
}
