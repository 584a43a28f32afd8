mod namespaces;
mod own_node;
mod passes;

use super::*;

use catalog::{Change, Event, ObjectKey, object};
use dataplane::{Family, FrontendKey, Protocol, Scheduler};
use reconciler::Desired;
use serde_json::json;

/// An engine that receives deliveries.
struct Story {
    engine: Engine,
    now: Instant,
}

impl Story {
    fn new(silence: MissingAssignment) -> Story {
        Story {
            engine: Engine::new("node-1", None, silence),
            now: Instant::now(),
        }
    }

    /// Completes every list, with one node and the objects that were delivered before.
    fn listed(mut self) -> Story {
        let node = json!({
            "metadata": {"name": "node-1", "labels": {"topology.kubernetes.io/zone": "a"}},
            "spec": {"podCIDRs": ["10.0.1.0/24"]},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.168.0.1"}]},
        });
        self.deliver(Event::<object::Service>::Init);
        self.deliver(Event::<object::EndpointSlice>::Init);
        self.deliver(Event::<object::ServiceCidr>::Init);
        self.deliver(Event::<object::Node>::Init);
        self.deliver(Event::InitApply(decode::<object::Node>(node)));
        self.deliver(Event::<object::Service>::InitDone);
        self.deliver(Event::<object::EndpointSlice>::InitDone);
        self.deliver(Event::<object::ServiceCidr>::InitDone);
        self.deliver(Event::<object::Node>::InitDone);
        self.apply(Delivery::Addresses(
            ["192.168.0.1".parse().expect("an address")].into(),
        ));
        self
    }

    /// A listed engine without any assignment, which uses the defaults.
    fn by_defaults() -> Story {
        let mut story = Story::new(MissingAssignment::IsAnAnswer).listed();
        story.apply(Delivery::Configuration(None));
        story
    }

    fn deliver<T>(&mut self, event: Event<T>)
    where
        Change: From<Event<T>>,
    {
        self.apply(Delivery::Objects(event.into()));
    }

    fn apply(&mut self, delivery: Delivery) {
        self.engine.apply(delivery, self.now);
    }

    fn service(&mut self, name: &str, address: &str) {
        self.deliver(Event::Apply(decode::<object::Service>(json!({
            "metadata": {"namespace": "shop", "name": name},
            "spec": {
                "clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"],
                "externalIPs": ["198.51.100.1"], "ports": [{"name": "http", "port": 80}],
            },
        }))));
    }

    fn endpoint(&mut self, service: &str, address: &str) {
        self.deliver(Event::Apply(decode::<object::EndpointSlice>(json!({
            "metadata": {
                "namespace": "shop", "name": format!("{service}-x"),
                "labels": {"kubernetes.io/service-name": service},
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080}],
            "endpoints": [{"addresses": [address], "nodeName": "node-1"}],
        }))));
    }

    /// As many passes as it takes.
    fn compile(&mut self) -> Option<Dataplane> {
        let now = self.now;
        let mut last = self.engine.compile(|| now);
        while self.engine.left() > 0 {
            last = self.engine.compile(|| now).or(last);
        }
        last.map(|desired| desired.dataplane)
    }
}

fn decode<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
    serde_json::from_value(value).expect("an object")
}

fn assignment(yaml: &str) -> Assignment {
    let spec: crds::ProxyProfileSpec = serde_saphyr::from_str(yaml).expect("a spec");
    let config = EffectiveConfig::of(&spec);
    Assignment {
        generation: Some(7),
        spec: crds::NodeProxySpec {
            profile_name: "default".to_owned(),
            config_hash: ConfigHash::of(&config),
            config,
            ..crds::NodeProxySpec::default()
        },
        reason: String::new(),
        unreadable: Vec::new(),
    }
}

fn targets(dataplane: &Dataplane, service: &str) -> Vec<String> {
    let key = ServiceKey::new("shop", service);
    let rules = dataplane.services().get(&key).expect("it is served");
    let frontends = rules.frontends.iter();
    let targets = frontends.flat_map(|(_, frontend)| frontend.cluster.iter());
    let mut targets: Vec<String> = targets.map(ToString::to_string).collect();
    targets.dedup();
    targets
}

#[test]
fn nothing_is_desired_of_the_kernel_before_everything_has_been_listed() {
    let mut story = Story::new(MissingAssignment::IsAnAnswer);
    story.apply(Delivery::Configuration(None));
    story.service("cart", "10.96.0.10");
    assert!(story.compile().is_none());
    let missing = story.engine.view().missing;
    assert!(
        missing.iter().any(|what| what.contains("EndpointSlice")),
        "{missing:?}"
    );
    let mut story = story.listed();
    assert!(story.compile().is_some());
    assert_eq!(story.engine.view().missing, Vec::<String>::new());
}

#[test]
fn what_this_node_is_to_do_is_waited_for_but_not_for_ever() {
    let mut story = Story::new(MissingAssignment::MayEnd).listed();
    story.apply(Delivery::Configuration(None));
    assert!(
        story.compile().is_none(),
        "the operator may be about to stamp it"
    );
    story.engine.go_without_assignment(story.now);
    assert!(story.compile().is_some());
    assert!(matches!(
        story.engine.view().configuration,
        Configuration::Default
    ));
}

#[test]
fn a_node_whose_operator_is_gone_goes_on_with_what_it_was_reported() {
    let mut story = Story::new(MissingAssignment::MayEnd).listed();
    story.apply(Delivery::Configuration(Some(assignment(
        "masquerade: {all: true}",
    ))));
    assert!(story.compile().is_some());
    story.apply(Delivery::Configuration(None));
    let view = story.engine.view();
    assert!(matches!(view.configuration, Configuration::LastGood(_)));
    assert!(view.effective.masquerade.all);
}

#[test]
fn a_configuration_is_made_once_and_goes_by_the_name_it_was_given() {
    let mut story = Story::new(MissingAssignment::MayEnd).listed();
    let mut reported = assignment("masquerade: {all: true}");
    reported.spec.config_hash = decode(json!("of-another-version"));
    story.apply(Delivery::Configuration(Some(reported.clone())));
    let first = story.engine.view();
    assert_eq!(first.hash, reported.spec.config_hash);
    story.service("cart", "10.96.0.10");
    story.apply(Delivery::Configuration(None));
    assert!(story.compile().is_some());
    let later = story.engine.view();
    assert!(Arc::ptr_eq(&first.effective, &later.effective));
    assert_eq!(later.hash, first.hash, "it is gone by still");
    story.apply(Delivery::Configuration(Some(assignment("{}"))));
    let other = story.engine.view();
    assert_eq!(*other.effective, EffectiveConfig::default());
    assert_eq!(other.hash, ConfigHash::of(&EffectiveConfig::default()));
}

#[test]
fn a_change_compiles_its_own_service_and_shares_the_others() {
    let mut story = Story::by_defaults();
    story.service("cart", "10.96.0.10");
    story.service("till", "10.96.0.11");
    story.endpoint("cart", "10.0.1.5");
    let before = story.compile().expect("all is new");
    story.endpoint("cart", "10.0.1.6");
    let after = story.compile().expect("an endpoint changed");
    assert_eq!(targets(&before, "cart"), ["10.0.1.5:8080"]);
    assert_eq!(targets(&after, "cart"), ["10.0.1.6:8080"]);
    let till = ServiceKey::new("shop", "till");
    let rules = |dataplane: &Dataplane| dataplane.services().get(&till).cloned();
    let (one, other) = (
        rules(&before).expect("it is there"),
        rules(&after).expect("it is there"),
    );
    assert!(Arc::ptr_eq(&one, &other));
    assert!(story.compile().is_none(), "nothing has changed since");
}

/// A mode that has the scheduler uses it; another mode uses the replacement.
#[test]
fn a_scheduler_of_the_profile_reaches_services_that_do_not_change() {
    let mut story = Story::new(MissingAssignment::MayEnd).listed();
    story.service("cart", "10.96.0.10");
    for (profile, expected) in [
        ("{}", Scheduler::Random),
        ("loadBalancer: {scheduler: maglev}", Scheduler::Maglev),
        (
            "{mode: iptables, loadBalancer: {scheduler: maglev}}",
            Scheduler::Random,
        ),
        (
            "{mode: iptables, loadBalancer: {scheduler: roundRobin}}",
            Scheduler::RoundRobin,
        ),
    ] {
        story.apply(Delivery::Configuration(Some(assignment(profile))));
        let dataplane = story.compile().expect("the configuration is another");
        let mut frontends = dataplane.frontends().iter();
        let (_, claims) = frontends.next().expect("it has an address");
        assert_eq!(claims.winner().1.scheduler, expected, "{profile}");
    }
}

#[test]
fn a_service_that_is_deleted_is_not_wanted_any_more() {
    let mut story = Story::by_defaults();
    story.service("cart", "10.96.0.10");
    assert_eq!(story.compile().expect("all is new").services().len(), 1);
    let key = ObjectKey::namespaced("shop", "cart");
    story.deliver(Event::<object::Service>::Delete(key));
    let after = story.compile().expect("one is gone");
    assert!(after.services().is_empty() && after.frontends().is_empty());
    assert_eq!(story.engine.view().endpoints, 0);
}

#[test]
fn a_service_that_does_not_get_an_address_is_named() {
    let mut story = Story::by_defaults();
    story.service("till", "10.96.0.11");
    story.service("cart", "10.96.0.10");
    let dataplane = story.compile().expect("all is new");
    let shared = FrontendKey::Address {
        address: "198.51.100.1".parse().expect("an address"),
        protocol: Protocol::Tcp,
        port: dataplane::Port::new(80).expect("a port"),
    };
    let claims = dataplane
        .frontends()
        .get(&shared)
        .expect("a Service has it");
    assert_eq!(claims.winner().0, &ServiceKey::new("shop", "cart"));
    let rejections = story.engine.view().rejections;
    let texts: Vec<String> = rejections.iter().map(ToString::to_string).collect();
    let expected = [
        "Service shop/cart: spec.externalIPs: Service shop/till claims 198.51.100.1:80/tcp too; it \
         stays with this Service",
        "Service shop/till: spec.externalIPs: 198.51.100.1:80/tcp is served for Service shop/cart, \
         which also claims it",
    ];
    assert_eq!(texts, expected);
    // It gets the address once the other Service is deleted.
    story.deliver(Event::<object::Service>::Delete(ObjectKey::namespaced(
        "shop", "cart",
    )));
    assert!(story.compile().is_some());
    assert!(story.engine.view().rejections.is_empty());
}

/// With many rejections, building the list again for each change would cost more than the change.
#[test]
fn the_list_of_rejections_is_made_anew_only_when_it_is_another() {
    let mut story = Story::by_defaults();
    story.service("till", "10.96.0.11");
    story.service("cart", "10.96.0.10");
    assert!(story.compile().is_some());
    let before = story.engine.view().rejections;
    assert_eq!(before.len(), 2);
    let other = json!({
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {"clusterIP": "10.96.0.12", "clusterIPs": ["10.96.0.12"], "ports": [{"port": 80}]},
    });
    story.deliver(Event::Apply(decode::<object::Service>(other.clone())));
    assert!(story.compile().is_some());
    let after = story.engine.view().rejections;
    assert!(Arc::ptr_eq(&before, &after), "made anew for nothing");

    // A value that the catalog rejects, and then accepts again.
    let mut bad = other.clone();
    bad["spec"]["externalIPs"] = json!(["not an address"]);
    story.deliver(Event::Apply(decode::<object::Service>(bad)));
    story.compile();
    assert_eq!(story.engine.view().rejections.len(), 3);
    story.deliver(Event::Apply(decode::<object::Service>(other)));
    story.compile();
    assert_eq!(**story.engine.view().rejections, **before);

    // Endpoints of the Services that share a claim, and a newly observed address of the node.
    let before = story.engine.view().rejections;
    story.endpoint("cart", "10.0.1.5");
    assert!(story.compile().is_some());
    assert!(Arc::ptr_eq(&before, &story.engine.view().rejections));
    let own = ["192.168.0.1", "198.51.100.1"].map(|text| text.parse().expect("an address"));
    story.apply(Delivery::Addresses(own.into()));
    story.compile();
    let texts: Vec<String> = story
        .engine
        .view()
        .rejections
        .iter()
        .map(ToString::to_string)
        .collect();
    let refused = |name: &str| {
        format!(
            "Service shop/{name}: spec.externalIPs: 198.51.100.1 is not served, because it is an \
             address of this node: use a node port or a load-balancer IP"
        )
    };
    assert_eq!(texts, ["cart", "till"].map(refused));
}

/// The host side of each Pod's link has a different link-local address.
#[test]
fn a_link_local_address_that_takes_no_node_ports_causes_no_sync() {
    let addresses = |texts: &[&str]| {
        let parse = |text: &&str| text.parse().expect("an address");
        Delivery::Addresses(texts.iter().map(parse).collect::<BTreeSet<_>>().into())
    };
    for (ranges, compiles) in [
        ("[primary]", false),
        ("['::/0']", false),
        ("['fe80::/10']", true),
    ] {
        let mut story = Story::new(MissingAssignment::IsAnAnswer).listed();
        let spec = format!("nodePorts: {{addresses: {ranges}}}");
        story.apply(Delivery::Configuration(Some(assignment(&spec))));
        assert!(story.compile().is_some(), "all is new");
        story.apply(addresses(&["192.168.0.1", "fe80::5"]));
        assert_eq!(story.compile().is_some(), compiles, "{ranges}");
    }
    // A link-local address that was left out before is served once a profile selects it.
    let mut story = Story::new(MissingAssignment::IsAnAnswer).listed();
    story.apply(addresses(&["192.168.0.1", "fe80::5"]));
    let spec = "nodePorts: {addresses: ['fe80::/10']}";
    story.apply(Delivery::Configuration(Some(assignment(spec))));
    let dataplane = story.compile().expect("all is new");
    assert!(dataplane.has_node_ports_at("fe80::5".parse().expect("an address")));
}

#[test]
fn a_new_address_of_the_node_takes_node_ports_without_a_restart() {
    let mut story = Story::new(MissingAssignment::IsAnAnswer).listed();
    let ranges = "nodePorts: {addresses: [192.168.0.0/16]}";
    story.apply(Delivery::Configuration(Some(assignment(ranges))));
    let addresses = |dataplane: &Dataplane| {
        let list = dataplane.config().node_ports.of(Family::Ipv4);
        list.map_or(0, BTreeSet::len)
    };
    assert_eq!(addresses(&story.compile().expect("all is new")), 1);
    let two = ["192.168.0.1", "192.168.7.1"].map(|text| text.parse().expect("an address"));
    story.apply(Delivery::Addresses(two.into()));
    assert_eq!(addresses(&story.compile().expect("an address is new")), 2);
}

fn interfaces(names: &[&str]) -> Delivery {
    let names = names.iter().map(|name| Arc::from(*name));
    Delivery::Interfaces(Interfaces::Known(names.collect()))
}

/// The interfaces that join the flowtable; `None` without one.
fn joined(dataplane: &Dataplane) -> Option<String> {
    let names = dataplane.node().flowtable_interfaces.clone();
    Some(Vec::from_iter(names?).join(" "))
}

#[test]
fn an_interface_that_comes_joins_the_flowtable_and_causes_no_sync_without_one() {
    let mut story = Story::new(MissingAssignment::IsAnAnswer).listed();
    story.apply(Delivery::Configuration(Some(assignment("{}"))));
    assert_eq!(story.engine.watch_scope(), WatchScope::Addresses);
    assert_eq!(joined(&story.compile().expect("all is new")), None);
    story.apply(interfaces(&["eth0", "veth1"]));
    assert!(story.compile().is_none());
    let spec = "nftables: {flowtableInterfaces: ['veth*']}";
    story.apply(Delivery::Configuration(Some(assignment(spec))));
    assert_eq!(
        story.engine.watch_scope(),
        WatchScope::AddressesAndInterfaces
    );
    let mut after = |delivery: Option<Delivery>| {
        delivery
            .into_iter()
            .for_each(|delivery| story.apply(delivery));
        joined(&story.compile()?)
    };
    assert_eq!(after(None).as_deref(), Some("veth1"));
    let come = interfaces(&["eth0", "veth1", "veth2"]);
    assert_eq!(after(Some(come)).as_deref(), Some("veth1 veth2"));
    assert_eq!(after(Some(interfaces(&["veth1", "veth2"]))), None);
    let gone = interfaces(&["veth2"]);
    assert_eq!(after(Some(gone)).as_deref(), Some("veth2"));
    let off = Delivery::Configuration(Some(assignment("{}")));
    story.apply(off);
    assert_eq!(joined(&story.compile().expect("it is off")), None);
    assert_eq!(story.engine.watch_scope(), WatchScope::Addresses);
}

/// Nothing lists them before a profile asks for a flowtable. A start that did not wait would empty the one
/// of the agent before it.
#[test]
fn interfaces_are_waited_for_at_a_start_with_a_flowtable_and_never_otherwise() {
    let spec = || {
        let spec = assignment("nftables: {flowtableInterfaces: ['veth*']}");
        Delivery::Configuration(Some(spec))
    };
    let mut start = Story::new(MissingAssignment::IsAnAnswer).listed();
    start.apply(spec());
    assert!(start.compile().is_none());
    assert_eq!(start.engine.view().missing, ["interfaces of this node"]);
    start.apply(interfaces(&["veth1"]));
    let dataplane = start.compile().expect("all is known");
    assert_eq!(joined(&dataplane).as_deref(), Some("veth1"));

    let mut unlisted = Story::new(MissingAssignment::IsAnAnswer).listed();
    unlisted.apply(spec());
    unlisted.apply(Delivery::Interfaces(Interfaces::Unknown));
    assert_eq!(joined(&unlisted.compile().expect("it serves")), None);
    unlisted.apply(interfaces(&["veth1"]));
    let dataplane = unlisted.compile().expect("they are listed");
    assert_eq!(joined(&dataplane).as_deref(), Some("veth1"));

    let mut later = Story::new(MissingAssignment::IsAnAnswer).listed();
    later.apply(Delivery::Configuration(Some(assignment("{}"))));
    assert_eq!(joined(&later.compile().expect("all is new")), None);
    later.apply(spec());
    assert!(later.engine.is_complete());
    let _unchanged = later.compile();
    later.apply(interfaces(&["veth1"]));
    let dataplane = later.compile().expect("they are listed");
    assert_eq!(joined(&dataplane).as_deref(), Some("veth1"));
}

/// Failure story T264. The agent took such a configuration for no answer of the API server, and the node
/// kept its place in the rollout without end.
#[test]
fn t264_what_only_a_newer_agent_knows_stays_as_it_is_and_the_rest_applies() {
    let mut next = serde_json::to_value(assignment("masquerade: {all: true}").spec).expect("JSON");
    next["config"]["mode"] = json!("teleport");
    let (spec, unreadable) = crds::readable::readable(&next).expect("the rest");
    let next = Assignment {
        spec,
        unreadable,
        ..assignment("{}")
    };
    let before = || assignment("mode: iptables");
    let mut restarted = Story {
        engine: Engine::new("node-1", Some(before()), MissingAssignment::MayEnd),
        now: Instant::now(),
    };
    let mut running = Story::new(MissingAssignment::MayEnd);
    running.apply(Delivery::Configuration(Some(before())));
    for story in [&mut running, &mut restarted] {
        story.apply(Delivery::Configuration(Some(next.clone())));
        let effective = story.engine.view().effective;
        assert_eq!(effective.mode, before().spec.config.mode);
        assert!(effective.masquerade.all);
    }
}
