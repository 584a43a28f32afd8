use dataplane::Precedence;
use serde_json::{Value, json};

use super::*;

/// Parses a plain Service with `changes` merged into its spec.
fn parsed(changes: Value) -> Parsed<Arc<Service>> {
    let mut object = json!({
        "metadata": {"namespace": "shop", "name": "cart"},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "10.96.0.10",
            "clusterIPs": ["10.96.0.10"],
            "ipFamilies": ["IPv4"],
            "ports": [{"name": "http", "protocol": "TCP", "port": 80}],
        },
    });
    lay_over(&mut object, changes);
    let object = serde_json::from_value(object).expect("the shape is right");
    parse_service(&object, &mut SharedNames::default())
}

/// Merges an object; any other value replaces the previous one, and null removes it.
fn lay_over(base: &mut Value, changes: Value) {
    match (base, changes) {
        (Value::Object(base), Value::Object(changes)) => {
            for (name, change) in changes {
                if change.is_null() {
                    base.remove(&name);
                } else {
                    lay_over(base.entry(name).or_insert(Value::Null), change);
                }
            }
        }
        (base, changes) => *base = changes,
    }
}

fn served(changes: Value) -> Arc<Service> {
    let parsed = parsed(changes.clone());
    assert_eq!(parsed.rejections, [], "{changes}");
    parsed
        .value
        .unwrap_or_else(|| panic!("not served: {changes}"))
}

fn not_served(changes: Value) {
    let parsed = parsed(changes.clone());
    assert_eq!(parsed.value, None, "{changes}");
    assert_eq!(parsed.rejections, [], "{changes}");
}

/// What is served although `field` is not honoured, and the message.
fn rejected(changes: Value, field: &str) -> (Option<Arc<Service>>, String) {
    let parsed = parsed(changes.clone());
    let [rejection] = &parsed.rejections[..] else {
        panic!("one rejection of {changes}, not {:?}", parsed.rejections);
    };
    assert_eq!(rejection.field, field, "{changes}");
    assert_eq!(rejection.object.to_string(), "Service shop/cart");
    (parsed.value, rejection.message.clone())
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn net(text: &str) -> IpNet {
    text.parse().expect("a range")
}

#[test]
fn a_plain_service_gets_every_default() {
    let service = served(json!({"spec": {"type": null, "ports": [{"port": 80}]}}));
    let expected = Service {
        key: ServiceKey::new("shop", "cart"),
        kind: ServiceKind::ClusterIp,
        cluster_ipv4: Some(Ipv4Addr::new(10, 96, 0, 10)),
        cluster_ipv6: None,
        external_ips: vec![],
        load_balancer_ips: vec![],
        source_ranges: vec![],
        affinity: Affinity::None,
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Cluster,
        health_check_node_port: None,
        ports: vec![ServicePort {
            name: "".into(),
            protocol: Protocol::Tcp,
            port: dataplane::Port::new(80).expect("not 0"),
            node_port: None,
        }],
        precedence: Precedence::Ordinary,
        scheduler: None,
    };
    assert_eq!(*service, expected);
}

#[test]
fn t107_a_scheduler_is_read_by_either_name_and_an_unknown_one_is_named() {
    let asks = |text: &str| json!({"metadata": {"annotations": {"signpost.dev/scheduler": text}}});
    for (text, expected) in [
        ("sourceHash", Scheduler::SourceHash),
        ("sh", Scheduler::SourceHash),
        ("maglev", Scheduler::Maglev),
        ("wlc", Scheduler::WeightedLeastConnection),
    ] {
        assert_eq!(served(asks(text)).scheduler, Some(expected), "{text}");
    }
    let (service, message) = rejected(
        asks("fastest"),
        "metadata.annotations[signpost.dev/scheduler]",
    );
    assert_eq!(service.expect("it is served").scheduler, None);
    assert!(
        message.starts_with("\"fastest\" is not one of random, "),
        "{message}"
    );
    assert!(
        message.ends_with("; the scheduler of the profile is used"),
        "{message}"
    );
}

#[test]
fn services_of_another_proxy_headless_ones_and_external_names_are_not_served() {
    let label = "service.kubernetes.io/service-proxy-name";
    not_served(json!({"metadata": {"labels": {label: "another"}}}));
    not_served(json!({"metadata": {"labels": {label: ""}}}));
    not_served(json!({"metadata": {"labels": {label: true}}}));
    not_served(json!({"spec": {"clusterIP": "None", "clusterIPs": ["None"]}}));
    not_served(json!({"spec": {"clusterIP": null, "clusterIPs": ["None"]}}));
    not_served(json!({"spec": {"type": "ExternalName"}}));
    not_served(json!({"spec": {"type": "ExternalName", "clusterIP": null, "clusterIPs": null}}));
}

#[test]
fn a_service_without_an_address_is_named() {
    let nothing = json!({"spec": {"clusterIP": null, "clusterIPs": null}});
    let empty = json!({"spec": {"clusterIP": "", "clusterIPs": null}});
    for changes in [nothing, empty] {
        let (service, message) = rejected(changes, "spec.clusterIP");
        assert_eq!(service, None);
        assert_eq!(message, "there is no address; the Service is not served");
    }
}

#[test]
fn each_family_has_the_cluster_ip_that_is_declared_for_it() {
    let both = ["10.96.0.10", "fd00::a"];
    let table = [
        (
            json!({"clusterIPs": both, "ipFamilies": ["IPv4", "IPv6"]}),
            true,
            true,
        ),
        (
            json!({"clusterIPs": ["fd00::a", "10.96.0.10"], "ipFamilies": ["IPv6", "IPv4"]}),
            true,
            true,
        ),
        (
            json!({"clusterIP": "fd00::a", "clusterIPs": ["fd00::a"], "ipFamilies": ["IPv6"]}),
            false,
            true,
        ),
        (json!({"ipFamilies": null}), true, false),
        (json!({"clusterIPs": null}), true, false),
        (json!({"clusterIPs": null, "ipFamilies": null}), true, false),
        (
            json!({"clusterIP": "fd00::a", "clusterIPs": null, "ipFamilies": null}),
            false,
            true,
        ),
        (json!({"clusterIP": null}), true, false),
        (
            json!({"clusterIP": "010.096.000.010", "clusterIPs": null}),
            true,
            false,
        ),
    ];
    for (spec, ipv4, ipv6) in table {
        let service = served(json!({"spec": spec}));
        let ipv4 = ipv4.then_some(Ipv4Addr::new(10, 96, 0, 10));
        let ipv6 = ipv6.then(|| "fd00::a".parse().expect("an address"));
        assert_eq!(
            (service.cluster_ipv4, service.cluster_ipv6),
            (ipv4, ipv6),
            "{spec}"
        );
    }
}

#[test]
fn a_cluster_ip_that_is_wrong_leaves_the_other_family_served() {
    let both = json!(["10.96.0.10", "fd00::xyz"]);
    let spec = json!({"spec": {"clusterIPs": both, "ipFamilies": ["IPv4", "IPv6"]}});
    let (service, message) = rejected(spec, "spec.clusterIPs[1]");
    assert!(service.expect("served by IPv4").cluster_ipv4.is_some());
    assert_eq!(
        message,
        "\"fd00::xyz\" is not an IP address; the Service is not served at it"
    );

    for families in [json!(["IPv4"]), json!(["IPv4", "IPv4"]), json!(null)] {
        let spec =
            json!({"spec": {"clusterIPs": ["10.96.0.10", "fd00::a"], "ipFamilies": families}});
        let (service, _) = rejected(spec, "spec.clusterIPs[1]");
        assert_eq!(service.expect("served by IPv4").cluster_ipv6, None);
    }

    let only = json!({"spec": {"clusterIP": "10.96.0.300", "clusterIPs": null}});
    assert_eq!(rejected(only, "spec.clusterIP").0, None);
}

#[test]
fn types_are_read_and_an_unknown_one_is_served_as_a_cluster_ip() {
    let table = [
        ("ClusterIP", ServiceKind::ClusterIp),
        ("NodePort", ServiceKind::NodePort),
        ("LoadBalancer", ServiceKind::LoadBalancer),
    ];
    for (name, kind) in table {
        assert_eq!(served(json!({"spec": {"type": name}})).kind, kind);
    }
    let (service, message) = rejected(json!({"spec": {"type": "Nodeport"}}), "spec.type");
    assert_eq!(service.expect("served").kind, ServiceKind::ClusterIp);
    assert_eq!(
        message,
        "\"Nodeport\" is not a type; the Service is served as a ClusterIP"
    );
}

#[test]
fn external_ips_that_parse_are_kept() {
    let service =
        served(json!({"spec": {"externalIPs": ["198.51.100.1", "2001:db8::1", "198.51.100.01"]}}));
    assert_eq!(
        service.external_ips,
        [ip("198.51.100.1"), ip("2001:db8::1")]
    );

    let spec = json!({"spec": {"externalIPs": ["198.51.100.1", "example.org"]}});
    let (service, message) = rejected(spec, "spec.externalIPs[1]");
    assert_eq!(service.expect("served").external_ips, [ip("198.51.100.1")]);
    assert_eq!(
        message,
        "\"example.org\" is not an IP address; it is not served"
    );
}

#[test]
fn load_balancer_ips_are_those_with_the_mode_vip() {
    let ingress = json!([
        {"ip": "192.0.2.1"},
        {"ip": "192.0.2.2", "ipMode": "VIP", "ports": [{"port": 80, "protocol": "TCP"}]},
        {"ip": "192.0.2.3", "ipMode": "Proxy"},
        {"hostname": "lb.example.org"},
        {"ip": "", "hostname": "lb.example.org"},
    ]);
    let service = served(json!({"status": {"loadBalancer": {"ingress": ingress}}}));
    assert_eq!(
        service.load_balancer_ips,
        [ip("192.0.2.1"), ip("192.0.2.2")]
    );

    let table = [
        (
            json!({"ip": "192.0.2"}),
            "status.loadBalancer.ingress[0].ip",
        ),
        (
            json!({"ip": "192.0.2.1", "ipMode": "Vip"}),
            "status.loadBalancer.ingress[0].ipMode",
        ),
    ];
    for (ingress, field) in table {
        let status =
            json!({"status": {"loadBalancer": {"ingress": [ingress, {"ip": "192.0.2.9"}]}}});
        let (service, _) = rejected(status, field);
        assert_eq!(
            service.expect("served").load_balancer_ips,
            [ip("192.0.2.9")]
        );
    }
}

#[test]
fn source_ranges_are_trimmed() {
    let ranges = [" 203.0.113.7/24 ", "2001:db8:113::/64"];
    let service = served(json!({"spec": {"loadBalancerSourceRanges": ranges}}));
    assert_eq!(
        service.source_ranges,
        [net("203.0.113.0/24"), net("2001:db8:113::/64")]
    );
}

#[test]
fn a_source_range_that_cannot_be_read_opens_nothing() {
    let broken = json!({"spec": {"loadBalancerSourceRanges": ["203.0.113.0/240"]}});
    let (service, message) = rejected(broken, "spec.loadBalancerSourceRanges[0]");
    let service = service.expect("served");
    assert_eq!(
        service.source_ranges,
        [net("255.255.255.255/32"), net("::/128")]
    );
    assert_eq!(
        message,
        "\"203.0.113.0/240\" is not a CIDR; no client may connect from it"
    );

    let half = json!({"spec": {"loadBalancerSourceRanges": ["203.0.113.0/24", "all"]}});
    let (service, _) = rejected(half, "spec.loadBalancerSourceRanges[1]");
    let service = service.expect("served");
    assert_eq!(
        service.source_ranges,
        [net("203.0.113.0/24"), net("::/128")]
    );
}

#[test]
fn affinity_has_a_timeout_of_three_hours_unless_it_says_another() {
    let timeout = |seconds| Affinity::ClientIp {
        timeout: Duration::from_secs(seconds),
    };
    let with = |seconds: Value| {
        let config = json!({"clientIP": {"timeoutSeconds": seconds}});
        json!({"spec": {"sessionAffinity": "ClientIP", "sessionAffinityConfig": config}})
    };
    let bare = json!({"spec": {"sessionAffinity": "ClientIP"}});
    assert_eq!(served(bare).affinity, timeout(10_800));
    assert_eq!(served(with(json!(60))).affinity, timeout(60));
    assert_eq!(served(with(json!(86_400))).affinity, timeout(86_400));
    assert_eq!(
        served(json!({"spec": {"sessionAffinity": "None"}})).affinity,
        Affinity::None
    );

    let field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
    for wrong in [json!(0), json!(-1), json!(86_401), json!("60"), json!(1.5)] {
        let (service, _) = rejected(with(wrong), field);
        assert_eq!(service.expect("served").affinity, timeout(10_800));
    }
    let unknown = json!({"spec": {"sessionAffinity": "Cookie"}});
    let (service, _) = rejected(unknown, "spec.sessionAffinity");
    assert_eq!(service.expect("served").affinity, Affinity::None);
}

#[test]
fn policies_are_cluster_unless_they_say_local() {
    let local =
        json!({"spec": {"internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local"}});
    let service = served(local);
    assert_eq!(service.internal_policy, TrafficPolicy::Local);
    assert_eq!(service.external_policy, TrafficPolicy::Local);

    for name in ["internalTrafficPolicy", "externalTrafficPolicy"] {
        let (service, message) =
            rejected(json!({"spec": {name: "local"}}), &format!("spec.{name}"));
        let service = service.expect("served");
        assert_eq!(service.internal_policy, TrafficPolicy::Cluster);
        assert_eq!(service.external_policy, TrafficPolicy::Cluster);
        assert_eq!(
            message,
            "\"local\" is not Cluster or Local; Cluster is used"
        );
    }
}

#[test]
fn one_bad_port_leaves_the_others_served() {
    let table = [
        (
            json!({"name": "bad", "port": 70_000}),
            "spec.ports[1].port",
            "70000 is not a port (1 to 65535); this port is not served",
        ),
        (
            json!({"name": "bad", "port": -1}),
            "spec.ports[1].port",
            "-1 is not a port (1 to 65535); this port is not served",
        ),
        (
            json!({"name": "bad", "port": u64::MAX}),
            "spec.ports[1].port",
            "18446744073709551615 is not a whole number; this port is not served",
        ),
        (
            json!({"name": "bad", "port": "eighty"}),
            "spec.ports[1].port",
            "\"eighty\" is not a whole number; this port is not served",
        ),
        (
            json!({"name": "bad", "port": [80]}),
            "spec.ports[1].port",
            "a list is not a whole number; this port is not served",
        ),
        (
            json!({"name": "bad", "port": {"number": 80}}),
            "spec.ports[1].port",
            "an object is not a whole number; this port is not served",
        ),
        (
            json!({"name": "bad"}),
            "spec.ports[1].port",
            "there is no number; this port is not served",
        ),
        (
            json!({"name": "bad", "port": 81, "protocol": "tcp"}),
            "spec.ports[1].protocol",
            "\"tcp\" is not TCP, UDP or SCTP; this port is not served",
        ),
        (
            json!({"name": 81, "port": 81}),
            "spec.ports[1].name",
            "81 is not text; this port is not served",
        ),
        (
            json!({"name": "first", "port": 81}),
            "spec.ports[1].name",
            "\"first\" is already the name of another TCP port; this one is not served",
        ),
    ];
    for (bad, field, expected) in table {
        let ports = json!([{"name": "first", "port": 80}, bad, {"name": "last", "port": 443}]);
        let (service, message) = rejected(json!({"spec": {"ports": ports}}), field);
        let service = service.expect("served");
        let names: Vec<&str> = service.ports.iter().map(|port| &*port.name).collect();
        assert_eq!(names, ["first", "last"]);
        assert_eq!(message, expected);
    }
}

#[test]
fn the_same_name_may_stand_for_two_protocols() {
    let ports = json!([
        {"name": "dns", "protocol": "UDP", "port": 53},
        {"name": "dns", "protocol": "TCP", "port": 53},
    ]);
    assert_eq!(served(json!({"spec": {"ports": ports}})).ports.len(), 2);
}

#[test]
fn a_node_port_is_kept_unless_it_is_zero_or_no_port() {
    let node_port = |number: Value| json!({"spec": {"ports": [{"port": 80, "nodePort": number}]}});
    let first = |service: Arc<Service>| service.ports[0].node_port.map(dataplane::Port::get);
    assert_eq!(first(served(node_port(json!(30_080)))), Some(30_080));
    assert_eq!(first(served(node_port(json!(0)))), None);

    let (service, message) = rejected(node_port(json!(130_080)), "spec.ports[0].nodePort");
    assert_eq!(first(service.expect("served at its other addresses")), None);
    assert_eq!(
        message,
        "130080 is not a port (1 to 65535); this port is not served on node addresses"
    );
}

#[test]
fn the_health_check_port_is_read() {
    let with = |number: Value| json!({"spec": {"healthCheckNodePort": number}});
    let number = |service: Arc<Service>| service.health_check_node_port.map(dataplane::Port::get);
    assert_eq!(number(served(with(json!(32_000)))), Some(32_000));
    assert_eq!(number(served(with(json!(0)))), None);
    let (service, _) = rejected(with(json!(-5)), "spec.healthCheckNodePort");
    assert_eq!(number(service.expect("served")), None);
}

#[test]
fn a_service_without_a_namespace_is_in_the_default_one() {
    let service = served(json!({"metadata": {"namespace": null}}));
    assert_eq!(service.key, ServiceKey::new("default", "cart"));
}

#[test]
fn a_message_is_not_flooded() {
    let flood = "9".repeat(100_000);
    let (_, message) = rejected(
        json!({"spec": {"externalIPs": [flood]}}),
        "spec.externalIPs[0]",
    );
    assert!(message.len() < 200, "{} bytes", message.len());
}

/// Failure story T55: kubernetes#133773, where a new node of a large cluster could not reach the API
/// server until everything else was programmed.
#[test]
fn t55_the_api_server_and_dns_come_first() {
    let label = |namespace, value| json!({"metadata": {"namespace": namespace, "labels": {"k8s-app": value}}});
    let named = |namespace, name| json!({"metadata": {"namespace": namespace, "name": name}});
    let dns_port = json!({"spec": {"ports": [{"name": "dns", "port": 53}]}});
    let at_dns_port = |namespace| {
        let mut changes = dns_port.clone();
        lay_over(&mut changes, named(namespace, "resolver"));
        changes
    };
    for (changes, expected) in [
        (named("default", "kubernetes"), Precedence::First),
        (label("kube-system", "kube-dns"), Precedence::First),
        (at_dns_port("kube-system"), Precedence::First),
        (at_dns_port("shop"), Precedence::Ordinary),
        (named("shop", "kubernetes"), Precedence::Ordinary),
        (named("kube-system", "metrics"), Precedence::Ordinary),
        (label("kube-system", "web"), Precedence::Ordinary),
    ] {
        assert_eq!(served(changes.clone()).precedence, expected, "{changes}");
    }
}

/// Failure story T55. Thousands of such Services would come before DNS.
#[test]
fn t55_the_label_of_dns_does_not_bring_a_service_of_another_namespace_first() {
    let labelled = json!({
        "metadata": {"namespace": "shop", "labels": {"k8s-app": "kube-dns"}},
        "spec": {"ports": [{"name": "dns", "port": 53}]},
    });
    assert_eq!(served(labelled).precedence, Precedence::Ordinary);
}
