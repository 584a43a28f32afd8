//! How the fields of a Service are compiled.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

use dataplane::{
    Affinity, Config, EndpointPort, Endpoints, Frontend, FrontendKind, HealthCheck, LocalEndpoints,
    MOST_ELEMENTS, Mode, Protocol, Readiness, Scheduler, Service, ServiceKind, ServiceRules,
    Target, TrafficPolicy, compile,
};
use ipnet::IpNet;
use testkit::{mk_config, mk_endpoints, mk_node, mk_service, port};

fn compiled(service: &Service, endpoints: &Endpoints) -> ServiceRules {
    compile(
        service,
        endpoints,
        &mk_node(1).build(),
        &mk_config().build(),
    )
}

fn rejections(rules: &ServiceRules) -> Vec<String> {
    rules.rejections.iter().map(ToString::to_string).collect()
}

fn of_kind(rules: &ServiceRules, kind: FrontendKind) -> &Frontend {
    let mut frontends = rules.frontends.iter().map(|(_, frontend)| frontend);
    frontends
        .find(|frontend| frontend.kind == kind)
        .expect("there is a frontend of this kind")
}

#[test]
fn an_address_given_twice_is_served_once_and_the_second_use_is_named() {
    let service = mk_service("shop/web")
        .cluster_ip("10.96.0.10")
        .external_ip("198.51.100.1")
        .external_ip("198.51.100.1")
        .port("http", 80)
        .build();
    let rules = compiled(&service, &Endpoints::default());
    assert_eq!(rules.frontends.len(), 2);
    assert_eq!(
        rejections(&rules),
        [
            "Service shop/web: spec.externalIPs: 198.51.100.1:80/tcp is already served for port http (tcp) \
          of this Service, as its external IP; this use of it is left out"
        ]
    );
}

/// As an external IP the address would be open to all clients.
#[test]
fn an_address_that_is_both_external_and_a_load_balancers_keeps_its_source_ranges() {
    let service = mk_service("shop/web")
        .cluster_ip("10.96.0.10")
        .external_ip("192.0.2.1")
        .load_balancer_ip("192.0.2.1")
        .source_range("203.0.113.0/24")
        .port("http", 80)
        .build();
    let rules = compiled(&service, &Endpoints::default());
    let frontend = of_kind(&rules, FrontendKind::LoadBalancerIp);
    assert_eq!(frontend.source_ranges.len(), 1);
    assert_eq!(rules.rejections.len(), 1);
    assert_eq!(rules.rejections[0].field, "spec.externalIPs");
}

#[test]
fn two_ports_with_one_number_leave_the_first_served() {
    let service = mk_service("shop/web")
        .cluster_ip("10.96.0.10")
        .port("first", 80)
        .port("second", 80)
        .build();
    let rules = compiled(&service, &Endpoints::default());
    assert_eq!(rules.frontends.len(), 1);
    assert_eq!(&*rules.frontends[0].1.service_port.port, "first");
    assert_eq!(rules.rejections.len(), 1);
    assert_eq!(rules.rejections[0].field, "spec.ports");
}

/// Without them the address would be open to all clients.
#[test]
fn t91_no_frontend_is_served_without_its_source_ranges_for_want_of_room() {
    let mut service = mk_service("shop/web")
        .cluster_ip("10.96.0.10")
        .external_ip("192.0.2.1")
        .load_balancer_ip("192.0.2.1");
    for number in 1..=20 {
        service = service.port(&format!("p{number}"), number);
    }
    let mut service = service.build();
    // No two of them can be merged.
    let range = |n: u32| IpNet::new_assert(Ipv4Addr::from(0x0a00_0000 + (n << 8)).into(), 25);
    service.source_ranges = (0..20_000).map(range).collect();
    let rules = compiled(&service, &Endpoints::default());
    let (guarded, open): (Vec<_>, Vec<_>) = rules
        .frontends
        .iter()
        .partition(|(_, frontend)| frontend.kind == FrontendKind::LoadBalancerIp);
    assert_eq!(guarded.len(), MOST_ELEMENTS / 20_001);
    assert!(guarded.iter().all(|(_, f)| f.source_ranges.len() == 20_000));
    assert!(open.iter().all(|(_, f)| f.kind == FrontendKind::ClusterIp));
    let said = rejections(&rules);
    let rejection = said.iter().find(|text| text.contains("elements a family"));
    let rejection = rejection.expect("what is not served is named");
    assert!(
        rejection.starts_with("Service shop/web: spec: 192.0.2.1:14/tcp and what follows it"),
        "{rejection}"
    );
}

/// Failure story T347: in mode iptables a chain of 100,000 rules is longer than a transaction may be,
/// and the Service was not served at all.
#[test]
fn t347_of_too_many_endpoints_each_node_uses_some_and_all_nodes_together_use_all() {
    let service = mk_service("shop/web").cluster_ip("10.96.0.10").port("", 80);
    let service = service.build();
    let endpoints_of = |numbers: std::ops::Range<u32>| {
        let mut endpoints = mk_endpoints().tcp("");
        for number in numbers {
            let address = Ipv4Addr::from(0x6440_0000 + number);
            endpoints = endpoints.ready(&format!("{address}:8080"), "node-9");
        }
        endpoints.build()
    };
    let all = endpoints_of(0..12_000);
    let used = |node: u8, mode, scheduler, endpoints: &Endpoints| {
        let config = Config {
            mode,
            scheduler,
            ..Config::clone(&mk_config().build())
        };
        let rules = compile(&service, endpoints, &mk_node(node).build(), &config);
        let targets = of_kind(&rules, FrontendKind::ClusterIp).cluster.to_vec();
        (targets, rejections(&rules))
    };
    let distinct = |lists: &[&Vec<Target>]| {
        let targets: BTreeSet<_> = lists.iter().flat_map(|list| list.iter()).collect();
        targets.len()
    };
    let (on_nftables, said) = used(1, Mode::Nftables, Scheduler::Random, &all);
    assert_eq!((on_nftables.len(), said.len()), (12_000, 0));
    for mode in [Mode::Iptables, Mode::Ipvs] {
        let on = |node, endpoints| used(node, mode, Scheduler::Random, endpoints);
        let (first, said) = on(1, &all);
        assert_eq!(first.len(), 5_000);
        assert!(first.is_sorted());
        assert_eq!(
            said,
            [format!(
                "Service shop/web: spec.ports: port \"\" has 12000 usable IPv4 endpoints: in mode \
                 {mode} this node sends packets to 5000 of them; other nodes use other endpoints"
            )]
        );
        // A node leaves each of them out with a chance of 7 in 12.
        let nodes: Vec<_> = (1..=20).map(|node| on(node, &all).0).collect();
        let nodes: Vec<_> = nodes.iter().collect();
        assert!(distinct(&nodes) > 11_990, "{}", distinct(&nodes));
        // Only what goes is replaced.
        let (rest, _) = on(1, &endpoints_of(600..12_000));
        let stays = |target: &&Target| rest.binary_search(target).is_ok();
        let first_left = Ipv4Addr::from(0x6440_0000 + 600);
        let goes = |target: &&Target| target.address < first_left;
        assert_eq!(
            first.iter().filter(stays).count(),
            5_000 - first.iter().filter(goes).count()
        );
    }
    // Its choice does not depend on the node.
    let hashed = |node| used(node, Mode::Ipvs, Scheduler::Maglev, &all).0;
    assert_eq!(hashed(1), hashed(2));
}

/// IPVS makes Maglev's tables itself: they are no elements. A cluster that came from kube-proxy's mode
/// ipvs with scheduler `mh` lost all ports but 16 of such a Service.
#[test]
fn t388_maglev_in_mode_ipvs_takes_as_many_elements_as_any_scheduler() {
    let mut service = mk_service("shop/web").cluster_ip("10.96.0.10");
    let mut endpoints = mk_endpoints();
    for number in 1..=20 {
        let name = format!("p{number}");
        service = service.port(&name, number);
        endpoints = endpoints.tcp(&name);
        for host in 0..200 {
            endpoints = endpoints.ready(&format!("10.0.1.{host}:8080"), "node-2");
        }
    }
    let mut service = service.build();
    service.scheduler = Some(Scheduler::Maglev);
    let endpoints = endpoints.build();
    let frontends = |mode| {
        let config = mk_config().mode(mode).build();
        let rules = compile(&service, &endpoints, &mk_node(1).build(), &config);
        (rules.frontends.len(), rules.rejections.len())
    };
    assert_eq!(frontends(Mode::Ipvs), (20, 0));
    // In mode nftables a table of 16,381 slots is an element for each slot.
    assert_eq!(frontends(Mode::Nftables), (16, 1));
}

#[test]
fn t91_endpoints_that_were_left_out_are_named() {
    let service = mk_service("shop/web")
        .cluster_ip("10.96.0.10")
        .port("first", 80)
        .port("second", 81)
        .port("third", 82)
        .build();
    let mut endpoints = mk_endpoints()
        .tcp("first")
        .ready("10.0.1.5:8080", "node-1")
        .build();
    endpoints.left_out.slices = 7;
    for name in ["second", "third", "of another Service"] {
        endpoints.left_out.ports.insert(EndpointPort {
            name: name.into(),
            protocol: Protocol::Tcp,
        });
    }
    let rules = compiled(&service, &endpoints);
    assert_eq!(rules.frontends.len(), 3);
    assert_eq!(
        rejections(&rules),
        [
            "Service shop/web: metadata.name: 7 EndpointSlices of this Service are too many, the last \
             by name; their endpoints are left out",
            "Service shop/web: spec.ports: port \"second\" and 1 others have more endpoints than all \
             ports of a Service may have; they are served as if they had none",
        ]
    );
}

#[test]
fn a_family_without_a_cluster_ip_is_not_served_and_its_addresses_are_named() {
    let service = mk_service("shop/web")
        .cluster_ip("10.96.0.10")
        .external_ip("2001:db8:51::1")
        .load_balancer_ip("2001:db8:2::1")
        .port("http", 80)
        .node_port(30080)
        .build();
    let endpoints = mk_endpoints()
        .tcp("http")
        .ready("[fd00:10:0:1::5]:80", "node-1")
        .build();
    let rules = compiled(&service, &endpoints);
    let keys: Vec<String> = rules
        .frontends
        .iter()
        .map(|(key, _)| key.to_string())
        .collect();
    assert_eq!(keys, ["10.96.0.10:80/tcp", "node IPv4:30080/tcp"]);
    assert_eq!(
        rejections(&rules),
        [
            "Service shop/web: spec.externalIPs: 2001:db8:51::1 is not served, because the Service \
             has no IPv6 cluster IP",
            "Service shop/web: status.loadBalancer.ingress: 2001:db8:2::1 is not served, because \
             the Service has no IPv6 cluster IP",
        ]
    );
}

#[test]
fn ignored_external_ips_are_reported_to_be_ignored() {
    let service = mk_service("shop/web")
        .cluster_ip("10.96.0.10")
        .external_ip("198.51.100.1")
        .port("http", 80)
        .build();
    let config = mk_config().ignore_external_ips().build();
    let rules = compile(
        &service,
        &Endpoints::default(),
        &mk_node(1).build(),
        &config,
    );
    assert_eq!(rules.frontends.len(), 1);
    assert_eq!(rules.rejections.len(), 1);
    assert_eq!(rules.rejections[0].field, "spec.externalIPs");
}

#[test]
fn an_external_policy_counts_only_where_the_type_gives_it_a_meaning() {
    let policy_of = |kind, external_ip: Option<&str>| {
        let mut service = mk_service("shop/web")
            .cluster_ip("10.96.0.10")
            .port("http", 80)
            .node_port(30080)
            .kind(kind)
            .external_local();
        if let Some(address) = external_ip {
            service = service.external_ip(address);
        }
        let rules = compiled(&service.build(), &Endpoints::default());
        of_kind(&rules, FrontendKind::NodePort).policy
    };
    assert_eq!(policy_of(ServiceKind::NodePort, None), TrafficPolicy::Local);
    assert_eq!(
        policy_of(ServiceKind::LoadBalancer, None),
        TrafficPolicy::Local
    );
    assert_eq!(
        policy_of(ServiceKind::ClusterIp, None),
        TrafficPolicy::Cluster
    );
    assert_eq!(
        policy_of(ServiceKind::ClusterIp, Some("198.51.100.1")),
        TrafficPolicy::Local
    );
}

#[test]
fn source_ranges_are_those_of_the_family_joined_where_they_touch() {
    let ranges = |more: &[&str]| {
        let mut service = mk_service("shop/web")
            .cluster_ip("10.96.0.10")
            .cluster_ip("fd00:10:96::10")
            .load_balancer_ip("192.0.2.1")
            .port("http", 80)
            .source_range("203.0.113.128/25")
            .source_range("203.0.113.0/25")
            .source_range("203.0.113.7/32")
            .source_range("2001:db8:113::/64");
        for range in more {
            service = service.source_range(range);
        }
        let rules = compiled(&service.build(), &Endpoints::default());
        let frontend = of_kind(&rules, FrontendKind::LoadBalancerIp);
        frontend
            .source_ranges
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(ranges(&[]), ["203.0.113.0/24"]);
    // The node is 192.168.0.1.
    assert_eq!(
        ranges(&["192.168.0.1/32"]),
        ["192.0.2.1/32", "192.168.0.1/32", "203.0.113.0/24"]
    );
    assert_eq!(ranges(&["0.0.0.0/0"]), [""; 0]);
    assert_eq!(ranges(&["0.0.0.0/1", "128.0.0.0/1"]), [""; 0]);
    // All sources in the other family are none in this one.
    assert_eq!(ranges(&["::/0"]), ["203.0.113.0/24"]);
}

#[test]
fn a_health_check_counts_addresses_that_are_ready_here_over_all_ports() {
    let service = || {
        mk_service("shop/web")
            .cluster_ip("10.96.0.10")
            .load_balancer_ip("192.0.2.1")
            .port("http", 80)
            .port("https", 443)
            .health_check_node_port(32000)
    };
    let endpoints = mk_endpoints()
        .tcp("http")
        .ready("10.0.1.5:8080", "node-1")
        .draining("10.0.1.6:8080", "node-1")
        .ready("10.0.2.7:8080", "node-2")
        .tcp("https")
        .ready("10.0.1.5:8443", "node-1")
        .ready("10.0.1.8:8443", "node-1")
        .ready("[fd00:10:0:1::8]:8443", "node-1")
        .build();
    let check = |service: Service| compiled(&service, &endpoints).health_check;
    let desired = HealthCheck {
        port: port(32000),
        local_endpoints: LocalEndpoints { ipv4: 2, ipv6: 1 },
    };
    assert_eq!(check(service().external_local().build()), Some(desired));
    assert_eq!(check(service().build()), None, "policy Cluster");
    let node_port = service().external_local().kind(ServiceKind::NodePort);
    assert_eq!(check(node_port.build()), None, "type NodePort");
}

#[test]
fn affinity_is_on_every_frontend() {
    let timeout = std::time::Duration::from_secs(10_800);
    let service = mk_service("shop/web")
        .cluster_ip("10.96.0.10")
        .load_balancer_ip("192.0.2.1")
        .external_ip("198.51.100.1")
        .port("http", 80)
        .node_port(30080)
        .client_ip_affinity(timeout)
        .build();
    let rules = compiled(&service, &Endpoints::default());
    assert_eq!(rules.frontends.len(), 4);
    for (key, frontend) in &rules.frontends {
        assert_eq!(frontend.affinity, Affinity::ClientIp { timeout }, "{key}");
    }
}

/// An endpoint that has received connections may still answer them, even if it gets no new ones.
#[test]
fn an_endpoint_that_may_still_answer_is_serving_whatever_policy_and_hints_say() {
    let published = Readiness {
        ready: true,
        serving: false,
        terminating: false,
    };
    let endpoints = mk_endpoints()
        .tcp("http")
        .ready("10.0.1.2:80", "node-1")
        .for_zones(&["a"])
        .ready("10.0.2.3:80", "node-2")
        .for_zones(&["b"])
        .draining("10.0.2.4:80", "node-2")
        .unready("10.0.2.5:80", "node-2")
        .with("10.0.2.6:80", "node-2", published)
        .for_zones(&["b"])
        .build();
    let service = mk_service("shop/web")
        .cluster_ip("10.96.0.10")
        .port("http", 80)
        .internal_local()
        .build();
    let rules = compiled(&service, &endpoints);
    let frontend = of_kind(&rules, FrontendKind::ClusterIp);
    let texts =
        |targets: &[Target]| -> Vec<String> { targets.iter().map(Target::to_string).collect() };
    assert_eq!(texts(&frontend.local), ["10.0.1.2:80"]);
    assert_eq!(
        texts(&frontend.serving),
        ["10.0.1.2:80", "10.0.2.3:80", "10.0.2.4:80", "10.0.2.6:80"]
    );
}

#[test]
fn where_all_that_serve_are_used_there_is_one_list_in_memory() {
    let endpoints = mk_endpoints()
        .tcp("http")
        .ready("10.0.1.2:80", "node-1")
        .ready("10.0.2.3:80", "node-2")
        .build();
    let service = mk_service("shop/web")
        .cluster_ip("10.96.0.10")
        .port("http", 80)
        .build();
    let rules = compiled(&service, &endpoints);
    let frontend = of_kind(&rules, FrontendKind::ClusterIp);
    assert!(Arc::ptr_eq(&frontend.serving, &frontend.cluster));
}

/// Failure story T68.
#[test]
fn t68_a_scheduler_that_the_mode_does_not_have_is_replaced_and_both_are_named() {
    let service = mk_service("shop/cart").cluster_ip("10.96.0.10");
    let service = service.port("", 80).scheduler(Scheduler::LeastConnection);
    let endpoints = mk_endpoints().tcp("").ready("10.0.1.5:8080", "node-1");
    let rules = compiled(&service.build(), &endpoints.build());
    let used = Scheduler::LeastConnection.nearest_in(Mode::Nftables);
    let frontend = of_kind(&rules, FrontendKind::ClusterIp);
    assert_eq!(frontend.scheduler, used);
    assert_eq!(frontend.cluster.len(), 1, "it is served");
    assert_eq!(
        rejections(&rules),
        [format!(
            "Service shop/cart: metadata.annotations[signpost.dev/scheduler]: mode nftables does \
             not have scheduler lc: {used} is used instead"
        )]
    );
}

#[test]
fn a_service_that_asks_for_no_scheduler_has_that_of_the_node_without_a_word() {
    let config = mk_config().scheduler(Scheduler::LeastConnection).build();
    let service = mk_service("shop/cart")
        .cluster_ip("10.96.0.10")
        .port("", 80);
    let rules = compile(
        &service.build(),
        &Endpoints::default(),
        &mk_node(1).build(),
        &config,
    );
    let used = Scheduler::LeastConnection.nearest_in(Mode::Nftables);
    let frontend = of_kind(&rules, FrontendKind::ClusterIp);
    assert_eq!(frontend.scheduler, used);
    assert_eq!(
        rejections(&rules),
        [""; 0],
        "the node's status says it once"
    );
}
