//! Services of one namespace that together take more than it may.

use super::*;

impl Story {
    fn passes(&mut self) {
        while self.engine.waiting.is_some() || self.engine.left() > 0 {
            self.engine.compile(|| self.now);
        }
    }

    /// A pass that compiles one Service.
    fn one_service(&mut self) -> Option<Desired> {
        let clock = std::cell::Cell::new(self.now);
        self.engine.compile(|| {
            clock.set(clock.get() + Duration::from_secs(1));
            clock.get()
        })
    }

    /// The Services of which something is served, by name.
    fn served(&self) -> Vec<String> {
        let services = self.engine.dataplane.services().sorted().into_iter();
        let served = services.filter(|(_, rules)| !rules.frontends.is_empty());
        served.map(|(key, _)| key.name.to_string()).collect()
    }
}

#[test]
fn t372_services_beyond_the_limit_of_their_namespace_are_named_and_served_as_soon_as_they_fit() {
    let mut story = Story::by_defaults();
    // Each takes a frontend for its cluster IP and one for its external IP, of which one claims it.
    story.engine.namespace_limit = NamespaceLimit::new(5);
    for (name, address) in [("b", "10.96.0.2"), ("c", "10.96.0.3"), ("d", "10.96.0.4")] {
        story.service(name, address);
    }
    story.passes();
    assert_eq!(story.served(), ["b", "c"]);
    let said = story.engine.view().rejections;
    let named: Vec<_> = said.iter().map(ToString::to_string).collect();
    let expected =
        "Service shop/d: spec: not served: this Service and those of namespace shop before";
    assert!(
        named.iter().any(|line| line.starts_with(expected)),
        "{named:?}"
    );
    // Its address stays its own.
    let dataplane = &story.engine.dataplane;
    assert!(
        dataplane
            .cluster_ips()
            .get(&"10.96.0.4".parse().expect("an address"))
            .is_some()
    );

    story.service("a", "10.96.0.1");
    story.passes();
    assert_eq!(story.served(), ["a", "b"]);

    let gone = ObjectKey::namespaced("shop", "a");
    story.deliver(Event::<object::Service>::Delete(gone));
    story.passes();
    assert_eq!(story.served(), ["b", "c"]);

    story.endpoint("b", "10.1.0.1");
    story.passes();
    assert_eq!(story.served(), ["b"]);
}

#[test]
fn t372_dns_is_served_whatever_its_namespace_takes() {
    let mut story = Story::by_defaults();
    story.engine.namespace_limit = NamespaceLimit::new(0);
    story.service("cart", "10.96.0.11");
    story.deliver(Event::Apply(decode::<object::Service>(json!({
        "metadata": {"namespace": "kube-system", "name": "kube-dns"},
        "spec": {
            "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "ipFamilies": ["IPv4"],
            "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}],
        },
    }))));
    story.passes();
    assert_eq!(story.served(), ["kube-dns"]);
}

/// No order of creation makes an agent hold more: what no longer fits goes first.
#[test]
fn t372_services_that_come_in_the_order_of_the_last_name_are_never_served_all() {
    let mut story = Story::by_defaults();
    story.passes();
    story.engine.namespace_limit = NamespaceLimit::new(5);
    for (number, name) in ["f", "e", "d", "c", "b", "a"].into_iter().enumerate() {
        story.service(name, &format!("10.96.0.{}", number + 1));
    }
    while story.engine.waiting.is_some() || story.engine.left() > 0 {
        story.one_service();
        assert!(story.served().len() <= 2, "{:?}", story.served());
    }
    assert_eq!(story.served(), ["a", "b"]);
}

/// Otherwise the clients of its load balancer would reach another tenant.
#[test]
fn t372_a_load_balancers_address_stays_that_of_a_service_beyond_the_limit() {
    let mut story = Story::by_defaults();
    // Two frontends fit, and not two with an endpoint each.
    story.engine.namespace_limit = NamespaceLimit::new(3);
    let address = "198.51.100.7";
    story.deliver(Event::Apply(decode::<object::Service>(json!({
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {
            "type": "LoadBalancer", "ports": [{"name": "http", "port": 80}],
            "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "ipFamilies": ["IPv4"],
        },
        "status": {"loadBalancer": {"ingress": [{"ip": address}]}},
    }))));
    story.deliver(Event::Apply(decode::<object::Service>(json!({
        "metadata": {"namespace": "other", "name": "web"},
        "spec": {
            "clusterIP": "10.96.0.8", "clusterIPs": ["10.96.0.8"], "ipFamilies": ["IPv4"],
            "externalIPs": [address], "ports": [{"name": "http", "port": 80}],
        },
    }))));
    story.endpoint("web", "10.1.0.1");
    story.passes();
    let rules = &story.engine.dataplane;
    let frontend = rules.frontend_at(
        address.parse().expect("an address"),
        Protocol::Tcp,
        dataplane::Port::new(80).expect("not 0"),
    );
    let frontend = frontend.expect("it refuses connections");
    assert_eq!(&*frontend.service_port.service.namespace, "shop");
    assert!(frontend.cluster.is_empty() && !frontend.has_endpoints);
    let said = story.engine.view().rejections;
    let mut named = said.iter().map(ToString::to_string);
    assert!(named.any(|line| line.starts_with("Service other/web") && line.contains(address)));
}

/// A Service that was admitted, and grew beyond the limit before it was compiled, changes nothing itself.
#[test]
fn t372_services_that_are_evicted_are_handed_over_though_nothing_else_changes() {
    let mut story = Story::by_defaults();
    story.passes();
    story.engine.namespace_limit = NamespaceLimit::new(4);
    story.service("a", "10.96.0.1");
    story.endpoint("a", "10.1.0.1");
    story.service("b", "10.96.0.2");
    story.service("c", "10.96.0.3");
    story.passes();
    assert_eq!(story.served(), ["a"]);

    // "c" waits before "b" is admitted, and each pass compiles one Service.
    let gone = ObjectKey::namespaced("shop", "a");
    story.deliver(Event::<object::Service>::Delete(gone));
    story.service("c", "10.96.0.4");
    story.one_service();
    story.one_service();
    assert_eq!(story.served(), ["c"]);
    let endpoint = |address: &str| json!({"addresses": [address], "conditions": {"ready": true}});
    story.deliver(Event::Apply(decode::<object::EndpointSlice>(json!({
        "metadata": {
            "namespace": "shop", "name": "b-x", "labels": {"kubernetes.io/service-name": "b"},
        },
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}],
        "endpoints": [endpoint("10.1.0.2"), endpoint("10.1.0.3")],
    }))));
    assert!(story.one_service().is_some(), "nothing is handed over");
    assert_eq!(story.served(), [""; 0]);
}

/// Failure story T382: `explain` of an address or endpoint gets the Services that the limit leaves out.
#[test]
fn t382_a_question_about_an_address_finds_who_asks_for_it_beyond_the_limit() {
    let mut story = Story::by_defaults();
    story.engine.namespace_limit = NamespaceLimit::new(5);
    for (name, address) in [("b", "10.96.0.2"), ("c", "10.96.0.3"), ("d", "10.96.0.4")] {
        story.service(name, address);
    }
    story.passes();
    story.endpoint("d", "10.1.0.4");
    story.passes();
    assert_eq!(story.served(), ["b", "c"]);
    let d = ServiceKey::new("shop", "d");
    for (place, is_asked) in [
        ("10.96.0.4", true),
        ("10.96.0.4:80/tcp", true),
        ("198.51.100.1:80", true),
        ("10.1.0.4", true),
        ("10.96.0.4:81", false),
        ("10.96.0.3", false),
        ("node:30080", false),
    ] {
        let reported = story.engine.query(&place.parse().expect("a question"));
        assert_eq!(reported.services.contains_key(&d), is_asked, "{place}");
    }
}
